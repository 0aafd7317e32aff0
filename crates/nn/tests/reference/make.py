#!/usr/bin/env python3
"""Trains every model for three steps with PyTorch and writes down what came out: pip install torch numpy

    make.py [--seeds N] [model ...]

Weights, images and labels come from a hash of a tensor's name and an element's index, so that no file has to hold them;
pytorch.rs makes the same. Computed in float64, as the truth; PyTorch's own error in float32 is written beside it. Of
each tensor the file holds its norm and sixteen sums of all its elements with signs by hash: the mean square of the
sixteen differences between two tensors' sums estimates the square of the norm of the tensors' difference, whichever
elements differ.

Where an activation is next to a ReLU's edge, or two next to each other in a window of max pool, rounding decides which
way a gradient goes, and two right programs differ. So batch norm keeps most numbers away from the edge, but not all: if
a ReLU let everything pass, the next batch norm would take the bias before it away again, and a gradient that is nearly
zero has no relative error to speak of. Of several seeds the one with the widest margins is taken.
"""

import argparse
import json
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
STEPS = 3
SGD = dict(lr=0.05, momentum=0.9, weight_decay=5e-4)
# Twelve images are enough for Winograd's algorithm on every map.
BATCHES = {"lenet5": 8, "vgg11": 12, "resnet18": 12, "resnet20": 12, "cnn": 8, "cnn-without-bias": 8, "mlp": 8}


def lenet5():
    model = nn.Module()
    model.conv1, model.conv2, model.conv3 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5), nn.Conv2d(16, 120, 5)
    model.fc1, model.fc2 = nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(x):
        x = F.avg_pool2d(torch.tanh(model.conv1(x)), 2)
        x = F.avg_pool2d(torch.tanh(model.conv2(x)), 2)
        x = torch.tanh(model.conv3(x)).flatten(1)
        return model.fc2(torch.tanh(model.fc1(x)))

    model.forward = forward
    return model


def vgg11():
    model, layers, channels = nn.Module(), [], 3
    for filters in [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]:
        if filters == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
            channels = filters
    model.features, model.classifier = nn.Sequential(*layers), nn.Linear(512, 10)
    model.forward = lambda x: model.classifier(model.features(x).flatten(1))
    return model


class BasicBlock(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters)
        self.conv2, self.bn2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.downsample = nn.Sequential()
        if stride > 1 or channels != filters:
            conv = nn.Conv2d(channels, filters, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(filters))

    def forward(self, x):
        body = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(body + self.downsample(x))


def resnet(stages, blocks):
    model, channels = nn.Module(), stages[0]
    model.conv1, model.bn1, model.relu = nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
    for stage, filters in enumerate(stages):
        layer = nn.Sequential()
        for block in range(blocks):
            layer.append(BasicBlock(channels, filters, 2 if stage and not block else 1))
            channels = filters
        model.add_module(f"layer{stage + 1}", layer)
    model.fc = nn.Linear(channels, 10)

    def forward(x):
        x = model.relu(model.bn1(model.conv1(x)))
        for stage in range(len(stages)):
            x = model.get_submodule(f"layer{stage + 1}")(x)
        return model.fc(x.mean((2, 3)))

    model.forward = forward
    return model


def cnn(bias):
    model = nn.Module()
    model.conv1, model.conv2 = nn.Conv2d(3, 6, 5, bias=bias), nn.Conv2d(6, 16, 5, bias=bias)
    model.fc1, model.fc2 = nn.Linear(400, 120, bias=bias), nn.Linear(120, 84, bias=bias)
    model.fc3 = nn.Linear(84, 10, bias=bias)
    model.relus, model.pools = nn.ModuleList(nn.ReLU() for _ in range(4)), nn.ModuleList(nn.MaxPool2d(2) for _ in range(2))

    def forward(x):
        x = model.pools[0](model.relus[0](model.conv1(x)))
        x = model.pools[1](model.relus[1](model.conv2(x))).flatten(1)
        return model.fc3(model.relus[3](model.fc2(model.relus[2](model.fc1(x)))))

    model.forward = forward
    return model


def mlp():
    model = nn.Module()
    model.fc1, model.fc2, model.fc3 = nn.Linear(1024, 256), nn.Linear(256, 128), nn.Linear(128, 10)
    model.relu1, model.relu2 = nn.ReLU(), nn.ReLU()
    model.forward = lambda x: model.fc3(model.relu2(model.fc2(model.relu1(model.fc1(x.flatten(1))))))
    return model


MODELS = {
    "lenet5": lenet5,
    "vgg11": vgg11,
    "resnet18": lambda: resnet([64, 128, 256, 512], 2),
    "resnet20": lambda: resnet([16, 32, 64], 3),
    "cnn": lambda: cnn(True),
    "cnn-without-bias": lambda: cnn(False),
    "mlp": mlp,
}


def mix(x):
    """The finaliser of MurmurHash3, on 32-bit numbers."""
    x = x.astype(numpy.uint32)
    x = (x ^ (x >> numpy.uint32(16))) * numpy.uint32(0x85EBCA6B)
    x = (x ^ (x >> numpy.uint32(13))) * numpy.uint32(0xC2B2AE35)
    return x ^ (x >> numpy.uint32(16))


def hashes(name, count):
    key = 0x811C9DC5  # FNV-1a of the name
    for byte in name.encode():
        key = (key ^ byte) * 0x01000193 & 0xFFFFFFFF
    return mix(mix(numpy.arange(count)) ^ numpy.uint32(key))


def uniform(name, count):
    """In [-1, 1), exact in float32: so are the products and sums below but for one rounding each."""
    bits = (hashes(name, count) >> numpy.uint32(8)).astype(numpy.float32)
    return bits / numpy.float32(1 << 23) - numpy.float32(1)


def start(seed, model):
    """Uniform as PyTorch's default; batch norm opens three channels of four to all but outliers and shuts the fourth."""
    modules, single = dict(model.named_modules()), numpy.float32
    state = {}
    for name, tensor in model.state_dict().items():
        layer, kind = name.rsplit(".", 1)
        random = uniform(f"{seed}/{name}", tensor.numel())
        if kind == "num_batches_tracked":
            continue
        if isinstance(modules[layer], nn.BatchNorm2d):
            if kind == "bias":
                shut = numpy.arange(tensor.numel()) % 4 == 3
                values = numpy.where(shut, single(-1), single(1)) + random * single(0.125)
            else:
                level, spread = {"weight": (0.4, 0.05), "running_mean": (0, 0.125), "running_var": (1, 0.125)}[kind]
                values = single(level) + random * single(spread)
        else:
            fan_in = modules[layer].weight[0].numel()
            values = random * single(1 / numpy.sqrt(numpy.float64(fan_in)))
        state[name] = torch.from_numpy(values.reshape(tensor.shape))
    return state


def batch(seed, name):
    count = BATCHES[name]
    channels = 1 if name in ("lenet5", "mlp") else 3
    images = uniform(f"{seed}/images", count * channels * 1024).reshape(count, channels, 32, 32) * numpy.float32(1.75)
    labels = hashes(f"{seed}/labels", count) % 10
    return torch.from_numpy(images), torch.from_numpy(labels.astype(numpy.int64))


def train(name, seed, precision):
    """Losses, gradients of the first step, all tensors at the end; and what ReLU and max pool saw in the first."""
    model = MODELS[name]()
    model.load_state_dict(start(seed, model), strict=False)
    model.to(precision)
    images, labels = batch(seed, name)
    images = images.to(precision)
    seen = []
    for module in model.modules():
        if isinstance(module, (nn.ReLU, nn.MaxPool2d)):
            module.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs[0].detach())))
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    losses, gradients, witnessed = [], {}, []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        witnessed = witnessed or list(seen)
        loss.backward()
        gradients = gradients or {key: tensor.grad.clone() for key, tensor in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        evaluation = F.cross_entropy(model(images), labels).item()
    after = {key: tensor for key, tensor in model.state_dict().items() if not key.endswith("num_batches_tracked")}
    return losses, evaluation, gradients, after, witnessed


def margin(truth, rounded):
    """How far the nearest activation is from a decision, in float32's root mean square errors of its layer."""
    least = float("inf")
    for (module, exact), (_, other) in zip(truth, rounded):
        error = (other.double() - exact).square().mean().sqrt().item()
        distance = exact.abs()
        if isinstance(module, nn.MaxPool2d):
            windows = exact.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
            top = windows.topk(2).values
            distance = (top[..., 0] - top[..., 1])[top[..., 0] > 0]
        least = min(least, distance.min().item() / error)
    return least


def sketch(key, tensor):
    values = tensor.double().flatten().numpy()
    signs = hashes(f"signs/{key}", len(values))
    total = values.sum()
    sums = [2 * values[(signs >> numpy.uint32(bit)) & 1 == 1].sum() - total for bit in range(16)]
    shorten = lambda number: float(f"{number:.10g}")
    return {"norm": shorten(numpy.linalg.norm(values)), "sums": [shorten(number) for number in sums]}


def norm_error(ours, theirs):
    return ((ours.double() - theirs).norm() / theirs.norm()).item()


def reference(name, seeds):
    best = None
    for seed in range(seeds):
        truth, rounded = train(name, seed, torch.float64), train(name, seed, torch.float32)
        width = margin(truth[-1], rounded[-1])
        print(f"{name}, seed {seed}: nearest decision {width:.1f} errors away", flush=True)
        if best is None or width > best[0]:
            best = width, seed, truth, rounded
    width, seed, (losses, evaluation, gradients, after, _), rounded = best
    zero = lambda key: gradients[key].norm() < 1e-9 * after[key].norm()  # a bias that batch norm takes away again
    return {
        "torch": torch.__version__,
        "seed": seed,
        "batch": BATCHES[name],
        "nearest_decision": round(width, 1) if width < float("inf") else None,
        "float32_error": {
            "loss": max(abs(ours - theirs) / theirs for ours, theirs in zip(rounded[0], losses)),
            "gradient": max(norm_error(rounded[2][key], gradients[key]) for key in gradients if not zero(key)),
            "after": max(norm_error(rounded[3][key], after[key]) for key in after),
        },
        "losses": losses,
        "evaluation_loss": evaluation,
        "gradients": {key: sketch(key, tensor) for key, tensor in gradients.items()},
        "after": {key: sketch(key, tensor) for key, tensor in after.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    args = parser.parse_args()
    for name in args.models:
        text = json.dumps(reference(name, args.seeds))
        # A line a tensor.
        (HERE / f"{name}.json").write_text(text.replace('], "', '],\n"').replace(']}, "', ']},\n"') + "\n")


if __name__ == "__main__":
    main()
