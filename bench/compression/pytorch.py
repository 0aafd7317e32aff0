"""One rank of PyTorch's DistributedDataParallel with gloo, one thread, and one of PyTorch's own communication hooks. Rank 0
prints JSON with the median time in seconds of a training step, mean over the ranks. compare.py starts all ranks.
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
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

sys.path.append(str(Path(__file__).resolve().parents[1]))
from engine.models import MODELS


def register(trained, hook):
    if hook == "fp16":
        trained.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "bf16":
        trained.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif hook == "power-sgd":
        # It begins as early as it can: with error feedback the first steps must be dense.
        state = PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        trained.register_comm_hook(state, powerSGD_hook)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="vgg11")
    parser.add_argument("--hook", choices=["none", "fp16", "bf16", "power-sgd"], default="none")
    parser.add_argument("--batch", type=int, default=64, help="images a worker")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--port", required=True)
    parser.add_argument("--interface", required=True)
    args = parser.parse_args()

    os.environ.update(MASTER_ADDR=args.master, MASTER_PORT=args.port, GLOO_SOCKET_IFNAME=args.interface)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=args.rank, world_size=args.world)
    model = MODELS[args.model]()
    # Each bucket's PowerSGD starts further all-reduces when its first is done, on every rank in another order: with gloo two
    # buckets get mixed up ("Received data size doesn't match expected size"), so there it can have but one.
    trained = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1000 if args.hook == "power-sgd" else None)
    register(trained, args.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss = nn.CrossEntropyLoss()
    images = torch.randn(args.batch, 1 if args.model == "lenet5" else 3, 32, 32)
    labels = torch.randint(0, 10, (args.batch,))
    times = []
    for _ in range(args.warm_up + args.steps):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss(trained(images), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    medians = [None] * args.world
    dist.all_gather_object(medians, statistics.median(times[args.warm_up :]))
    if args.rank == 0:
        print(json.dumps({"seconds": statistics.mean(medians)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
