"""A quantized model here, in ONNX Runtime and in OpenVINO; bench/quantization.sh installs what this needs."""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "target/release/ringstep"
WARM_UP, SECONDS = 5, 1.0
LOGITS, SAME, AS_FAST = 1e-4, 0.99, 1.0  # what must hold


def ringstep(*words):
    done = subprocess.run([PROGRAM, *map(str, words)], text=True, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"ringstep {words[0]} failed")
    return done.stdout


def test_images(config, count):
    """The first test images as bytes, N,C,H,W."""
    name, folder = config["dataset"], Path(config["data"])
    if name == "cifar10":
        records = np.fromfile(next(folder.rglob("test_batch.bin")), np.uint8).reshape(-1, 3073)
        return records[:count, 1:].reshape(-1, 3, 32, 32)
    path = folder / "t10k-images-idx3-ubyte.gz"
    images = np.frombuffer(gzip.decompress(path.read_bytes())[16:], np.uint8).reshape(-1, 1, 28, 28)[:count]
    return np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))  # in the middle of 32x32, black around it


def normalised(path, images):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    entries = {entry.key: np.array(entry.value.split(","), np.float32) for entry in model.metadata_props}
    mean, std = (entries[key].reshape(1, -1, 1, 1) for key in ("mean", "std"))
    return ((images.astype(np.float32) / 255 - mean) / std).astype(np.float32)


def onnx_runtime(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["logits"], {"images": images})[0]


def open_vino(path, threads, batch):
    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({"images": [batch, *[size.get_length() for size in list(model.input(0).partial_shape)[1:]]]})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return lambda images: request.infer({"images": images})


def rate(run, images, batch):
    """Images a second, by the median pass."""
    part = np.ascontiguousarray(images[:batch])
    for _ in range(WARM_UP):
        run(part)
    times, began = [], time.perf_counter()
    while time.perf_counter() - began < SECONDS or len(times) < 5:
        start = time.perf_counter()
        run(part)
        times.append(time.perf_counter() - start)
    return batch / np.median(times)


def make(run, folder):
    """Quantizes and exports a run."""
    summary = json.loads(ringstep("quantize", run, "--onnx", folder / "model.onnx", "--out", folder / "out", "--json"))
    print(f"accuracy {summary['float_accuracy']:.4f} in floats, {summary['quantized_accuracy']:.4f} in integers")
    ringstep("export", run, "--onnx", folder / "float.onnx")


def answers(run, folder, images, threads):
    """Whether ONNX Runtime says the same: faults."""
    logits, faults = {}, []
    for name, weights in {"float": run, "integers": folder / "out"}.items():
        ringstep("eval", weights, "--json", "--logits", folder / f"{name}.safetensors", "--html", folder / "page.html")
        logits[name] = load_file(folder / f"{name}.safetensors")["logits"][: len(images)]
    off = np.abs(onnx_runtime(folder / "float.onnx", threads)(images) - logits["float"]).max()
    print(f"ONNX Runtime, floats: logits differ by {off:.1e} at most")
    if off > LOGITS:
        faults.append(f"float logits differ by {off:.1e}")
    theirs = onnx_runtime(folder / "model.onnx", threads)(images)
    same = (theirs.argmax(1) == logits["integers"].argmax(1)).mean()
    print(f"ONNX Runtime, integers: {same:.2%} of {len(images)} predictions are the same")
    if same < SAME:
        faults.append(f"{same:.2%} of predictions are the same")
    return faults


def times(run, folder, images, args):
    """Images a second of all, round by round: faults."""
    rates, height, width = {}, *images.shape[2:]
    data = ("--dataset", f"synthetic:{height}x{width}x{images.shape[1]}")  # a thousand images: times do not depend on them
    for _ in range(args.rounds):
        for batch in (1, 64):
            for name, weights in {"ringstep float": run, "ringstep int8": folder / "out"}.items():
                options = ("--threads", args.threads, "--batch", batch, "--instructions", args.instructions)
                said = json.loads(ringstep("eval", weights, *data, *options, "--json", "--html", folder / "page.html"))
                rates.setdefault((name, batch), []).append(said["images_per_second"])
            level = said["instructions"]
            if args.instructions != "auto":
                continue  # others choose theirs themselves
            peers = {
                "ONNX Runtime int8": onnx_runtime(folder / "model.onnx", args.threads),
                "OpenVINO int8": open_vino(folder / "model.onnx", args.threads, batch),
            }
            for name, infer in peers.items():
                rates.setdefault((name, batch), []).append(rate(infer, images, batch))
    print(f"images a second, {args.threads} threads, int8 with {level}, median of {args.rounds} rounds")
    must = {1: 2.0, 64: 1.4} if "vnni" in level else {1: 1.5, 64: 1.0}
    faults = []
    for (name, batch), values in sorted(rates.items(), key=lambda item: item[0][1]):
        ratio = np.median(rates["ringstep int8", batch]) / np.median(values)
        print(f"  batch {batch:2}  {name:18} {np.median(values):9.1f}   ringstep int8 is {ratio:.2f} times as fast")
        least = {"ringstep float": must[batch], "ringstep int8": 0.0}.get(name, AS_FAST)
        if ratio < least:
            faults.append(f"batch {batch}: {ratio:.2f} times as fast as {name}, not {least}")
    return faults


def main():
    parser = argparse.ArgumentParser(prog="bench/quantization.sh", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--instructions", default="auto", help="of ringstep; others are timed with auto alone")
    parser.add_argument("--models", type=Path, help="where the exported models are kept; if they are there, only times are taken")
    args = parser.parse_args()
    config = tomllib.loads((args.run / "config.toml").read_text())
    raw = test_images(config, args.images)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        made = (folder / "float.onnx").exists()
        if not made:
            make(args.run, folder)
        images = normalised(folder / "float.onnx", raw)
        assert np.array_equal(images, normalised(folder / "model.onnx", raw))
        faults = [] if made else answers(args.run, folder, images, args.threads)
        faults += times(args.run, folder, images, args)
    for fault in faults:
        print(f"fault: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
