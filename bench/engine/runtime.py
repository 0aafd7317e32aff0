"""One job of ONNX Runtime's or OpenVINO's: prints JSON with the median time in seconds of a forward pass of what export.py
wrote. compare.py runs it beside ringstep.

Each as its users would set it up for the least latency on so many threads. A warm-up first, whose results must be
PyTorch's, then passes for as long as asked.
"""

import argparse
import json
import statistics
import time

import numpy


def onnx_runtime(path, images, threads):
    """A forward pass, and the precision that it computes in."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: images}
    return lambda: session.run(None, feed)[0], "f32"


def openvino(path, images, threads, any_precision):
    import openvino

    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    if not any_precision:
        options["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = openvino.Core().compile_model(path, "CPU", options)
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(images, shared_memory=True))

    def forward():
        request.infer()
        return request.get_output_tensor().data

    return forward, compiled.get_property("INFERENCE_PRECISION_HINT").to_string()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runtime", choices=["onnxruntime", "openvino"])
    parser.add_argument("name", help="without the endings .onnx and .npz")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--any-precision", action="store_true", help="the one that OpenVINO chooses")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring; at least 5 passes")
    args = parser.parse_args()

    example = numpy.load(f"{args.name}.npz")
    images, path = example["images"], f"{args.name}.onnx"
    if args.runtime == "openvino":
        forward, precision = openvino(path, images, args.threads, args.any_precision)
    else:
        forward, precision = onnx_runtime(path, images, args.threads)

    for _ in range(3):
        scores = forward()
    tolerance = 1e-3 if precision == "f32" else 1e-1
    if not numpy.allclose(scores, example["scores"], rtol=0, atol=tolerance * abs(example["scores"]).max()):
        raise SystemExit("not the scores that PyTorch computes")
    times = []
    while len(times) < 5 or sum(times) < args.seconds:
        started = time.perf_counter()
        forward()
        times.append(time.perf_counter() - started)
    print(json.dumps({"seconds": statistics.median(times), "steps": len(times), "precision": precision}))


if __name__ == "__main__":
    main()
