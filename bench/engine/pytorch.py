"""One job of PyTorch's: prints JSON with the median time in seconds of a training step, or of a forward pass in
evaluation mode. compare.py runs it beside ringstep.

A training step is forward, loss, backward and optimizer (SGD with momentum and weight decay). Warm-up first, then steps
for as long as asked. Memory is what the kernel counts as the process's most (VmHWM), at the end and before the model.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn


def lenet5():
    return nn.Sequential(
        *[nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2)],
        *[nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)],
        *[nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten()],
        *[nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)],
    )


def cnn():
    return nn.Sequential(
        *[nn.Conv2d(3, 6, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)],
        *[nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()],
        *[nn.Linear(400, 120), nn.ReLU(inplace=True), nn.Linear(120, 84), nn.ReLU(inplace=True), nn.Linear(84, 10)],
    )


def vgg11():
    layers, channels = [], 3
    for filters in [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]:
        if filters == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU(inplace=True)]
            channels = filters
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


class BasicBlock(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        self.body = nn.Sequential(
            *[nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(inplace=True)],
            *[nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters)],
        )
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != filters:
            conv = nn.Conv2d(channels, filters, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(filters))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def resnet18():
    layers, channels = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    for filters, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [BasicBlock(channels, filters, stride), BasicBlock(filters, filters, 1)]
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


MODELS = {"lenet5": lenet5, "cnn": cnn, "vgg11": vgg11, "resnet18": resnet18}


def peak_bytes():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="vgg11")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--inference", action="store_true", help="a forward pass in evaluation mode, not a step")
    parser.add_argument("--channels-last", action="store_true", help="the other memory format")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring; at least 5 steps")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    peak_before = peak_bytes()
    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    model = MODELS[args.model]().to(memory_format=memory_format)
    channels = 1 if args.model == "lenet5" else 3
    images = torch.randn(args.batch, channels, 32, 32).to(memory_format=memory_format)
    labels = torch.randint(0, 10, (args.batch,))

    if args.inference:
        model.eval()

        def step():
            with torch.inference_mode():
                model(images)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        loss = nn.CrossEntropyLoss()

        def step():
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()

    for _ in range(3):
        step()
    times = []
    while len(times) < 5 or sum(times) < args.seconds:
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    result = {"seconds": statistics.median(times), "steps": len(times)}
    print(json.dumps(result | {"peak_bytes": peak_bytes(), "peak_bytes_before": peak_before}))


if __name__ == "__main__":
    main()
