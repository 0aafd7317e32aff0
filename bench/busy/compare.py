"""What one busy process costs: jobs of ringstep, of PyTorch with gloo and of Open MPI, each on a quiet machine and beside
a process that never sleeps, in turns. bench/busy.sh prepares what this needs and passes its arguments on.

A training job's time is the mean step, not the median, so that steps that lost a time slice count; a collective's is the
median call; the engine's is the median step. A job's time is the median over rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import PYTHON, circumstances, first_line, pytorch_version, run, table

AT_MOST, AIM = 3, 2  # times as long beside the busy process
RINGSTEP = "target/release/ringstep"


class Job(NamedTuple):
    program: str
    name: str
    seconds: Callable[[], float]


def training(sync, transport, workers):
    def seconds():
        with tempfile.TemporaryDirectory() as out:
            size = ["--workers", str(workers), "--batch", "5", "--steps", "300", "--sync", sync, "--transport", transport]
            result = json.loads(run([RINGSTEP, "train", "--json", "--trace", "0", "--out", out, *size]))
        return result["runs"][0]["mean_seconds_per_step"]

    return Job("ringstep", f"lenet5, {sync}, {workers} x 5, {transport}", seconds)


def all_reduce(algorithm, transport, workers, size):
    def seconds():
        way = ["--workers", str(workers), "--transport", transport, "--algorithm", algorithm]
        out = run([RINGSTEP, "bench", "collectives", "--json", *way, "--min", size, "--max", size])
        return json.loads(out)["rows"][0]["us_p50"] * 1e-6

    return Job("ringstep", f"all-reduce of {size}, {algorithm}, {workers} ranks, {transport}", seconds)


def engine(threads):
    def seconds():
        size = ["--model", "lenet5", "--batch", "25", "--threads", str(threads)]
        return json.loads(run([RINGSTEP, "bench", "kernels", "--json", *size]))["step_seconds"]

    return Job("ringstep", f"lenet5, one worker of 25, {threads} threads", seconds)


def gloo_training(sync, workers):
    def seconds():
        size = ["--model", "lenet5", "--workers", str(workers), "--batch", "5", "--steps", "150", "--sync", sync]
        return json.loads(run([PYTHON, "bench/ddp/pytorch.py", *size]))["mean_seconds"]

    return Job("PyTorch, gloo", f"lenet5, {sync}, {workers} x 5", seconds)


def peer_all_reduce(program, command, workers):
    def seconds():
        lines = run([*command, "--min", str(1 << 20), "--max", str(1 << 20)]).splitlines()
        return json.loads(next(line for line in lines if line.startswith("{")))["us_p50"] * 1e-6

    return Job(program, f"all-reduce of 1MiB, {workers} ranks", seconds)


def ringstep_jobs():
    for workers in (2, 4):
        for sync in ("all-reduce", "ddp", "gather-scatter"):
            for transport in ("shm", "tcp"):
                yield training(sync, transport, workers)
        for transport in ("shm", "tcp"):
            yield all_reduce("ring", transport, workers, "64KiB")
            yield all_reduce("auto", transport, workers, "1MiB")
    for threads in (2, 4):
        yield engine(threads)


def peer_jobs():
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    for workers in (2, 4):
        yield gloo_training("ddp", workers)
        yield peer_all_reduce(
            "PyTorch, gloo", [PYTHON, "bench/collectives/gloo_allreduce.py", "--workers", str(workers)], workers
        )
        mpirun = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", *root, "-n", str(workers)]
        yield peer_all_reduce("Open MPI", [*mpirun, "target/peers/allreduce-openmpi"], workers)


@contextmanager
def busy_process():
    # In a session of its own, as another window's program is; it ends with this one, however that ends.
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10000))"
    child = subprocess.Popen([sys.executable, "-c", loop], start_new_session=True)
    try:
        time.sleep(0.5)  # until it has begun, and the system has taken note
        yield
    finally:
        child.kill()
        child.wait()


def measure(jobs, rounds):
    """{(job, busy): seconds of each round}, what failed. Rounds alternate quiet and busy, so that a change of the machine
    meets both."""
    times, failures = {}, []
    for round_ in range(rounds):
        for job in jobs:
            print(f"round {round_ + 1} of {rounds}: {job.program}: {job.name}", file=sys.stderr, flush=True)
            try:
                times.setdefault((job, False), []).append(job.seconds())
                with busy_process():
                    times.setdefault((job, True), []).append(job.seconds())
            except (RuntimeError, ValueError, KeyError, StopIteration) as error:
                failures.append(f"{job.program}: {job.name}, left out of round {round_ + 1}: {error!r}")
    return times, failures


def shown(seconds):
    return f"{seconds * 1e3:.3f}" if seconds < 1e-3 else f"{seconds * 1e3:.2f}"


def report(jobs, times):
    body, ours, reached, aims = [], 0, 0, 0
    for job in jobs:
        quiet, busy = times.get((job, False)), times.get((job, True))
        if not quiet or not busy:
            body.append([job.program, job.name, "", "", "", "not measured"])
            continue
        quiet, busy = statistics.median(quiet), statistics.median(busy)
        ratio, verdict = busy / quiet, ""
        if job.program == "ringstep":
            verdict = "aim ✓" if ratio <= AIM else "at most ✓" if ratio <= AT_MOST else "✗"
            ours, reached, aims = ours + 1, reached + (ratio <= AT_MOST), aims + (ratio <= AIM)
        body.append([job.program, job.name, shown(quiet), shown(busy), f"{ratio:.2f}", verdict])
    lines = ["Milliseconds a step or call; ratio = beside one busy process / on a quiet machine:", ""]
    lines += table(["program", "job", "quiet", "busy", "ratio", f"at most {AT_MOST}, aim {AIM}"], body)
    if ours:
        lines += ["", f"{reached} of {ours} of ringstep's stay within {AT_MOST}, {aims} within {AIM}."]
    return lines


def main():
    parser = argparse.ArgumentParser(prog="bench/busy.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["ringstep", "peers"], help="the jobs of one side")
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the table there too")
    args = parser.parse_args()
    jobs = [] if args.only == "peers" else list(ringstep_jobs())
    jobs += [] if args.only == "ringstep" else list(peer_jobs())

    load = os.getloadavg()[0]
    times, failures = measure(jobs, args.rounds)
    versions = [pytorch_version(), first_line(["mpirun.openmpi", "--version"])]
    lines = circumstances("bench/busy.sh", load, versions) + [""] + report(jobs, times)
    for failure in failures:
        lines += ["", failure]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(["# Beside one busy process", "", *lines]) + "\n")


if __name__ == "__main__":
    main()
