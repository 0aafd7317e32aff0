"""Writes litert.json: what LiteRT (TFLite) makes of small int8 operators. The integers of crates/quant must be the same.

    python3 -m venv venv && venv/bin/pip install ai-edge-litert==2.3.0 flatbuffers numpy
    venv/bin/python make.py > litert.json

Operators run in the reference kernels (BUILTIN_REF), which are the specification in code; optimised ones may round
otherwise. Scales are chosen so that products fall on ties, where single and double rounding differ.
"""

import json

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

random = np.random.default_rng(15)


def tensor(model, graph, name, shape, kind, scale, zero_point, data=None, axis=0):
    """Adds a tensor, and returns its number."""
    buffer = schema.BufferT()
    if data is not None:
        buffer.data = np.frombuffer(data.tobytes(), dtype=np.uint8)
    model.buffers.append(buffer)
    grid = schema.QuantizationParametersT()
    grid.scale = np.atleast_1d(np.array(scale, np.float32))
    grid.zeroPoint = np.atleast_1d(np.array(zero_point, np.int64))
    grid.quantizedDimension = axis
    made = schema.TensorT()
    made.name, made.shape, made.type, made.quantization = name, list(shape), kind, grid
    made.buffer = len(model.buffers) - 1
    graph.tensors.append(made)
    return len(graph.tensors) - 1


def run(code, version, options_type, options, inputs, constants, output):
    """The output of a model of one operator. `inputs` are (array, scale, zero point); so is `output`, with a shape."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, model.subgraphs = 3, [schema.BufferT()], [graph]
    graph.tensors, graph.name = [], "main"
    int8, int32 = schema.TensorType.INT8, schema.TensorType.INT32
    numbers = []
    for index, (array, scale, zero_point) in enumerate(inputs):
        numbers.append(tensor(model, graph, f"input{index}", array.shape, int8, scale, zero_point))
    graph.inputs = list(numbers)
    for index, (array, scale) in enumerate(constants):
        kind = int8 if array.dtype == np.int8 else int32
        zeros = np.zeros(np.size(scale), np.int64)
        numbers.append(tensor(model, graph, f"constant{index}", array.shape, kind, scale, zeros, array))
    shape, scale, zero_point = output
    result = tensor(model, graph, "output", shape, int8, scale, zero_point)
    graph.outputs = [result]
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, numbers, [result]
    operator.builtinOptionsType, operator.builtinOptions = options_type, options
    graph.operators = [operator]
    name = schema.OperatorCodeT()
    name.builtinCode, name.deprecatedBuiltinCode, name.version = code, code, version
    model.operatorCodes = [name]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    interpreter = Interpreter(
        model_content=bytes(builder.Output()), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for detail, (array, _, _) in zip(interpreter.get_input_details(), inputs):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def bytes_of(*shape, least=-128):
    return random.integers(least, 128, shape).astype(np.int8)


def grid(scale, zero_point):
    return {"scale": float(np.float32(scale)), "zero_point": zero_point}


def flat(array):
    return [int(number) for number in np.ravel(array)]


def conv(height, width, channels, filters, kernel, stride, same, weight_scales, relu, output_scale, output_zero):
    input_scale, input_zero = 0.0472, int(random.integers(-20, 20))
    images, weights = bytes_of(2, height, width, channels), bytes_of(filters, *kernel, channels, least=-127)
    bias = random.integers(-4000, 4000, filters).astype(np.int32)
    scales = np.array(weight_scales, np.float32)
    options = schema.Conv2DOptionsT()
    options.padding = schema.Padding.SAME if same else schema.Padding.VALID
    options.strideH, options.strideW = stride
    relu_code = schema.ActivationFunctionType.RELU
    options.fusedActivationFunction = relu_code if relu else schema.ActivationFunctionType.NONE
    if same:
        size = [-(-height // stride[0]), -(-width // stride[1])]
        padding = [kernel[0] // 2, kernel[1] // 2]
    else:
        size = [(height - kernel[0]) // stride[0] + 1, (width - kernel[1]) // stride[1] + 1]
        padding = [0, 0]
    output = run(
        schema.BuiltinOperator.CONV_2D, 3, schema.BuiltinOptions.Conv2DOptions, options,
        [(images, input_scale, input_zero)],
        [(weights, scales), (bias, scales * np.float32(input_scale))],
        ((2, *size, filters), output_scale, output_zero),
    )
    return {
        "shape": [height, width, channels], "filters": filters, "kernel": list(kernel), "stride": list(stride),
        "padding": padding, "relu": relu, "input_grid": grid(input_scale, input_zero),
        "weight_scales": [float(scale) for scale in scales], "output_grid": grid(output_scale, output_zero),
        "input": flat(images), "weights": flat(weights), "bias": flat(bias), "output": flat(output),
    }


def linear(inputs, outputs, input_scale, weight_scale, output_scale, output_zero, images=4):
    rows, weights = bytes_of(images, inputs), bytes_of(outputs, inputs, least=-127)
    bias = random.integers(-9000, 9000, outputs).astype(np.int32)
    options = schema.FullyConnectedOptionsT()
    result = run(
        schema.BuiltinOperator.FULLY_CONNECTED, 4, schema.BuiltinOptions.FullyConnectedOptions, options,
        [(rows, input_scale, 5)], [(weights, weight_scale), (bias, np.float32(input_scale) * np.float32(weight_scale))],
        ((images, outputs), output_scale, output_zero),
    )
    return {
        "shape": [1, 1, inputs], "filters": outputs, "kernel": [1, 1], "stride": [1, 1], "padding": [0, 0],
        "relu": False, "input_grid": grid(input_scale, 5), "weight_scales": [float(np.float32(weight_scale))] * outputs,
        "output_grid": grid(output_scale, output_zero), "input": flat(rows), "weights": flat(weights),
        "bias": flat(bias), "output": flat(result),
    }


def add(scales, zeros, relu):
    left, right = bytes_of(1, 300), bytes_of(1, 300)
    options = schema.AddOptionsT()
    relu_code = schema.ActivationFunctionType.RELU
    options.fusedActivationFunction = relu_code if relu else schema.ActivationFunctionType.NONE
    options.potScaleInt16 = False
    output = run(
        schema.BuiltinOperator.ADD, 2, schema.BuiltinOptions.AddOptions, options,
        [(left, scales[0], zeros[0]), (right, scales[1], zeros[1])], [], ((1, 300), scales[2], zeros[2]),
    )
    return {
        "grids": [grid(*pair) for pair in zip(scales, zeros)], "relu": relu,
        "left": flat(left), "right": flat(right), "output": flat(output),
    }


def pool(code, height, width, channels, size, stride):
    images = bytes_of(2, height, width, channels)
    options = schema.Pool2DOptionsT()
    options.padding = schema.Padding.VALID
    options.filterHeight, options.filterWidth = size
    options.strideH, options.strideW = stride
    out = [(height - size[0]) // stride[0] + 1, (width - size[1]) // stride[1] + 1]
    output = run(
        code, 2, schema.BuiltinOptions.Pool2DOptions, options, [(images, 0.05, 3)], [],
        ((2, *out, channels), 0.05, 3),
    )
    return {
        "shape": [height, width, channels], "size": list(size), "stride": list(stride),
        "input": flat(images), "output": flat(output),
    }


def tanh(scale, zero_point):
    every = np.arange(-128, 128).astype(np.int8).reshape(1, 256)
    output = run(
        schema.BuiltinOperator.TANH, 2, schema.BuiltinOptions.NONE, None, [(every, scale, zero_point)], [],
        ((1, 256), 1 / 128, 0),
    )
    return {"grid": grid(scale, zero_point), "output": flat(output)}


# A power of two as a scale makes many ties.
TIES = 0.0472 * 0.01 * 2**7
print(json.dumps({
    "conv": [
        conv(6, 5, 3, 4, (3, 3), (1, 1), True, [0.011, 0.0031, 0.02, 0.0007], True, 0.31, -128),
        conv(7, 7, 5, 3, (5, 5), (1, 1), False, [0.01, 0.003, 0.02], False, 0.9, 11),
        conv(7, 7, 4, 3, (3, 3), (2, 2), True, [0.01, 0.01, 0.01], False, 0.4, -7),
        conv(4, 4, 3, 5, (1, 1), (1, 1), True, [0.01] * 5, False, TIES, 0),
    ],
    "linear": [linear(20, 6, 0.05, 0.01, 0.2, -3), linear(3, 40, 0.5, 0.25, 16.0, 0, 8), linear(96, 10, 0.031, 0.0123, 0.41, 17)],
    "add": [
        add([0.05, 0.031, 0.06], [3, -17, -128], True),
        add([0.5, 0.25, 1.0], [0, 0, 0], False),
        add([0.004, 0.9, 0.7], [-100, 90, 5], False),
    ],
    "average_pool": [
        pool(schema.BuiltinOperator.AVERAGE_POOL_2D, 6, 5, 3, (2, 2), (2, 2)),
        pool(schema.BuiltinOperator.AVERAGE_POOL_2D, 8, 8, 2, (8, 8), (8, 8)),
        pool(schema.BuiltinOperator.AVERAGE_POOL_2D, 3, 6, 2, (3, 3), (3, 3)),
    ],
    "max_pool": [pool(schema.BuiltinOperator.MAX_POOL_2D, 6, 5, 3, (3, 3), (2, 2))],
    "tanh": [tanh(0.03, 4), tanh(0.2, -60)],
}))
