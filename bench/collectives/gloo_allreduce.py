"""torch.distributed.all_reduce of fp32 sums with gloo over loopback, timed by the rule in compare.py; a line of JSON
for each size, from rank 0.
    gloo_allreduce.py --workers N --min BYTES --max BYTES
"""

import argparse
import json
import math
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARMUP, LEAST, MOST = 5, 7, 2000
BUDGET = 0.25  # seconds for the timed iterations of a size


def timed(tensor):
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


def quantile(ordered, q):
    """Nearest rank: the smallest time that a share q of all does not exceed."""
    return ordered[math.ceil(q * len(ordered)) - 1]


def measure(tensor, values, rank, p):
    # The result replaces the input. Zeros stay zeros however often they are summed; the sum is checked apart, below.
    tensor.zero_()
    for _ in range(WARMUP):
        timed(tensor)
    start = time.perf_counter()
    for _ in range(WARMUP):
        timed(tensor)
    fit = BUDGET / ((time.perf_counter() - start) / WARMUP)
    n = torch.tensor([int(min(max(fit, LEAST), MOST))])
    dist.broadcast(n, 0)

    # Each rank keeps its times; they meet after the last iteration, so nothing comes between two of them.
    worst = torch.tensor([timed(tensor) for _ in range(int(n))], dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)

    # Small integers: every sum is exact, in whatever order it is taken.
    torch.mul(values, rank + 1, out=tensor)
    dist.all_reduce(tensor)
    wrong = (tensor != values * (p * (p + 1) // 2)).sum()
    dist.all_reduce(wrong)

    times = sorted(worst.tolist())
    size, p50 = tensor.nbytes, quantile(times, 0.5)
    return {
        "bytes": size,
        "us_min": times[0] * 1e6,
        "us_p50": p50 * 1e6,
        "us_p99": quantile(times, 0.99) * 1e6,
        "busbw": 2 * (p - 1) / p * size / p50 / 1e9,
        "wrong": int(wrong),
    }


def worker(rank, args, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.workers)
    tensor = torch.zeros(args.max // 4)
    values = (torch.arange(args.max // 4) % 1024 + 1).float()
    size = args.min
    while size <= args.max:
        row = measure(tensor[: size // 4], values[: size // 4], rank, args.workers)
        if rank == 0:
            print(json.dumps(row), flush=True)
        size *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--min", type=int, default=1 << 10)
    parser.add_argument("--max", type=int, default=64 << 20)
    args = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (args, f"{folder}/store"), nprocs=args.workers)
