"""Training steps of four workers on one host, one thread each: ringstep beside PyTorch with gloo, in turns. bench/ddp.sh
prepares what this needs and passes its arguments on.

A step is forward, loss, backward, synchronising and optimizer (SGD with momentum and weight decay). A run's time is the
median step, mean over the ranks; a job's is the median over rounds, which alternate the programs. PyTorch runs in both of
its memory formats, and the faster one counts. ringstep talks over TCP, as gloo does, and takes the algorithm that it
measures to be the best; beside it stands the same with shared memory.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import PYTHON, circumstances, pytorch_version, run, table


class Job(NamedTuple):
    model: str
    batch: int
    steps: int
    sync: str
    at_least: float  # PyTorch's time / ringstep's
    aim: float

    def __str__(self):
        return f"{self.model}, {self.sync}, 4 x {self.batch}"


WAYS = ["ddp", "all-reduce", "gather-scatter"]
JOBS = [Job("vgg11", 64, 5, way, 1.5, 2.5) for way in WAYS] + [Job("lenet5", 25, 150, way, 5, 15) for way in WAYS]
PROGRAMS = ["PyTorch", "PyTorch channels last", "ringstep", "ringstep, shm"]


def command(program, job, out):
    size = ["--model", job.model, "--workers", "4", "--batch", str(job.batch), "--sync", job.sync]
    if program.startswith("ringstep"):
        transport = "shm" if program.endswith("shm") else "tcp"
        rest = ["--steps", str(job.steps + 2), "--threads", "1", "--momentum", "0.9", "--weight-decay", "1e-4"]
        rest += [] if job.sync == "gather-scatter" else ["--algorithm", "auto"]
        data = ["--dataset", "synthetic", "--samples", str(4 * job.batch), "--transport", transport, "--out", out]
        return ["target/release/ringstep", "train", "--json", "--trace", "0", *size, *rest, *data]
    rest = ["--channels-last"] if program.endswith("last") else []
    return [PYTHON, "bench/ddp/pytorch.py", *size, "--steps", str(job.steps), *rest]


def seconds(program, job):
    with tempfile.TemporaryDirectory() as out:
        result = json.loads(run(command(program, job, out)))
    return result["runs"][0]["seconds_per_step"] if program.startswith("ringstep") else result["seconds"]


def measure(args):
    """{(job, program): seconds of each round}, what failed. Rounds alternate programs, so that a busy minute of the
    machine meets all of them."""
    times, failures = {}, []
    for round_ in range(args.rounds):
        for job in args.only:
            for program in PROGRAMS:
                print(f"round {round_ + 1} of {args.rounds}: {program}, {job}", file=sys.stderr, flush=True)
                try:
                    times.setdefault((job, program), []).append(seconds(program, job))
                except (RuntimeError, ValueError, KeyError) as error:
                    failures.append(f"{program}, {job}, left out of round {round_ + 1}: {error}")
    return times, failures


def report(args, times):
    body, reached, aims = [], 0, 0
    for job in args.only:
        medians = {p: statistics.median(times[job, p]) for p in PROGRAMS if times.get((job, p))}
        row = [str(job)] + [f"{medians[p] * 1e3:.2f}" if p in medians else "" for p in PROGRAMS]
        peers = [medians[p] for p in PROGRAMS[:2] if p in medians]
        if not peers or "ringstep" not in medians:
            body.append(row + ["", "", f"{job.at_least:g}", f"{job.aim:g}", "not measured"])
            continue
        ratio = min(peers) / medians["ringstep"]
        reached, aims = reached + (ratio >= job.at_least), aims + (ratio >= job.aim)
        verdict = "aim ✓" if ratio >= job.aim else "at least ✓" if ratio >= job.at_least else "✗"
        shm = f"{min(peers) / medians['ringstep, shm']:.2f}" if "ringstep, shm" in medians else ""
        body.append(row + [f"{ratio:.2f}", shm, f"{job.at_least:g}", f"{job.aim:g}", verdict])
    lines = ["Milliseconds a step, median over rounds; ratio = the faster PyTorch's time / ringstep's:", ""]
    lines += table(["job", *PROGRAMS, "ratio", "with shm", "at least", "aim", "reached"], body)
    return lines + ["", f"{reached} of {len(body)} reach at least what they must, {aims} the aim."]


def main():
    parser = argparse.ArgumentParser(prog="bench/ddp.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", help="the jobs of one model")
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the table there too")
    args = parser.parse_args()
    args.only = [job for job in JOBS if args.only in (None, job.model)]

    load = os.getloadavg()[0]
    times, failures = measure(args)
    lines = circumstances("bench/ddp.sh", load, [pytorch_version()]) + [""] + report(args, times)
    for failure in failures:
        lines += ["", failure]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(["# Four workers beside PyTorch with gloo", "", *lines]) + "\n")


if __name__ == "__main__":
    main()
