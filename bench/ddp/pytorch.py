"""Four workers of PyTorch with gloo, one thread each: prints JSON with the median and the mean time in seconds of a
training step. compare.py runs it beside ringstep. The ways are those of the published experiment:
DistributedDataParallel as it comes, an all-reduce a parameter after backward, and a gather to rank 0 and a scatter from
it a parameter.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))
from engine.models import MODELS


def all_reduce(model, rank, world):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world


def gather_scatter(model, rank, world):
    for parameter in model.parameters():
        parts = [torch.empty_like(parameter.grad) for _ in range(world)] if rank == 0 else None
        dist.gather(parameter.grad, parts)
        if rank == 0:
            mean = torch.stack(parts).mean(0)
            parts = [mean] * world
        dist.scatter(parameter.grad, parts)


def worker(rank, args, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=args.workers)
    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    model = MODELS[args.model]().to(memory_format=memory_format)
    trained = nn.parallel.DistributedDataParallel(model) if args.sync == "ddp" else model
    synchronise = {"all-reduce": all_reduce, "gather-scatter": gather_scatter}.get(args.sync)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    loss = nn.CrossEntropyLoss()
    channels = 1 if args.model == "lenet5" else 3
    images = torch.randn(args.batch, channels, 32, 32).to(memory_format=memory_format)
    labels = torch.randint(0, 10, (args.batch,))
    times = []
    for _ in range(args.warm_up + args.steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss(trained(images), labels).backward()
        if synchronise:
            synchronise(model, rank, args.workers)
        optimizer.step()
        times.append(time.perf_counter() - started)
    results[rank] = [average(times[args.warm_up :]) for average in (statistics.median, statistics.mean)]
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="vgg11")
    parser.add_argument("--sync", choices=["ddp", "all-reduce", "gather-scatter"], default="ddp")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="images a worker")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--channels-last", action="store_true", help="the other memory format")
    args = parser.parse_args()
    results = mp.Manager().dict()
    port = 20000 + os.getpid() % 20000
    mp.spawn(worker, (args, port, results), nprocs=args.workers)
    median, mean = map(statistics.mean, zip(*results.values()))
    print(json.dumps({"seconds": median, "mean_seconds": mean}))


if __name__ == "__main__":
    main()
