"""One job of PyTorch's: prints JSON with the median time in seconds of a training step, or of a forward pass in
evaluation mode. compare.py runs it beside ringstep.

A training step is forward, loss, backward and optimizer (SGD with momentum and weight decay). Warm-up first, in which
torch.compile compiles, then steps for as long as asked. Memory is what the kernel counts as the process's most (VmHWM),
at the end and before the model.
"""

import argparse
import json
import statistics
import time

import torch
from models import MODELS, make, make_images
from torch import nn


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
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring; at least 5 steps")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    peak_before = peak_bytes()
    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    model = make(args.model).to(memory_format=memory_format)
    images = make_images(args.model, args.batch).to(memory_format=memory_format)
    labels = torch.randint(0, 10, (args.batch,))

    forward = torch.compile(model) if args.compile else model
    if args.inference:
        model.eval()

        def step():
            with torch.inference_mode():
                forward(images)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        loss = nn.CrossEntropyLoss()

        def step():
            optimizer.zero_grad()
            loss(forward(images), labels).backward()
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
