"""Training steps and inference on one host: ringstep beside PyTorch, in turns. bench/engine.sh prepares what this needs
and passes its arguments on.

Both programs warm up, then report the median step of a run; a job's time is the median over rounds, which alternate the
programs. PyTorch runs in both of its memory formats, and the faster one counts. A training step is forward, loss,
backward and optimizer (SGD with momentum and weight decay); inference is a forward pass in evaluation mode. All float32.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import PYTHON, circumstances, first_line, pytorch_version, run, table

MIB = 1 << 20


class Job(NamedTuple):
    model: str
    batch: int
    threads: int
    inference: bool
    at_least: float  # PyTorch's time / ringstep's
    aim: float

    def __str__(self):
        name = self.model + (" inference" if self.inference else "")
        return f"{name}, batch {self.batch}, {self.threads} thread{'s' if self.threads > 1 else ''}"


JOBS = [
    Job("vgg11", 64, 2, False, 1.5, 2.5),
    Job("vgg11", 64, 1, False, 1.5, 2.5),
    Job("resnet18", 32, 2, False, 1.5, 2.5),
    Job("lenet5", 25, 1, False, 5, 10),
    Job("cnn", 128, 2, False, 3, 6),
    Job("vgg11", 1, 2, True, 1.3, 2),
    Job("vgg11", 64, 2, True, 1.3, 2),
]
MEMORY_JOB = JOBS[0]
PROGRAMS = ["PyTorch", "PyTorch channels last", "ringstep"]


def command(program, job, seconds):
    size = ["--model", job.model, "--batch", str(job.batch), "--threads", str(job.threads)]
    if program == "ringstep":
        return ["target/release/ringstep", "bench", "kernels", *size, "--json"]
    torch = [PYTHON, "bench/engine/pytorch.py", *size, "--seconds", str(seconds)]
    torch += ["--inference"] if job.inference else []
    return torch + (["--channels-last"] if program == "PyTorch channels last" else [])


def measure_once(program, job, seconds):
    """Seconds of a step and the program's JSON."""
    out = run(command(program, job, seconds))
    try:
        result = json.loads(out)
        if program != "ringstep":
            return float(result["seconds"]), result
        return float(result["evaluation_seconds" if job.inference else "step_seconds"]), result
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"output not understood: {error!r}") from error


def measure(args):
    """{(job, program): seconds of each round}, {(job, program): the last JSON}, what failed. Rounds alternate programs,
    so that a busy minute of the machine meets all of them."""
    times, results, failures = {}, {}, []
    for round_ in range(args.rounds):
        for job in args.only:
            for program in PROGRAMS:
                print(f"round {round_ + 1} of {args.rounds}: {program}, {job}", file=sys.stderr, flush=True)
                try:
                    seconds, result = measure_once(program, job, args.seconds)
                    times.setdefault((job, program), []).append(seconds)
                    results[job, program] = result
                except RuntimeError as error:
                    failures.append(f"{program}, {job}, left out of round {round_ + 1}: {error}")
    return times, results, failures


def verdict(job, ratio):
    return "aim ✓" if ratio >= job.aim else "at least ✓" if ratio >= job.at_least else "✗"


def report(args, times, results):
    """Lines: the table of times, how many are reached, the memory."""
    body, reached, aims = [], 0, 0
    for job in args.only:
        medians = {p: statistics.median(times[job, p]) for p in PROGRAMS if (job, p) in times}
        row = [str(job)] + [f"{medians[p] * 1e3:.2f}" if p in medians else "" for p in PROGRAMS]
        peers = [medians[p] for p in PROGRAMS[:2] if p in medians]
        ratio_cell, reached_cell, spread = "", "not measured", ""
        if peers and "ringstep" in medians:
            ratio = min(peers) / medians["ringstep"]
            ratio_cell, reached_cell = f"{ratio:.2f}", verdict(job, ratio)
            reached, aims = reached + (ratio >= job.at_least), aims + (ratio >= job.aim)
            peer = min(PROGRAMS[:2], key=lambda p: medians.get(p, float("inf")))
            # Each round has a ratio of its own, if no run of it failed.
            if len(times[job, peer]) == len(times[job, "ringstep"]):
                each = [theirs / ours for theirs, ours in zip(times[job, peer], times[job, "ringstep"])]
                spread = f"{min(each):.2f} to {max(each):.2f}"
        body.append(row + [ratio_cell, spread, f"{job.at_least:g}", f"{job.aim:g}", reached_cell])
    lines = ["Milliseconds, median over rounds; ratio = the faster PyTorch's time / ringstep's:", ""]
    lines += table(["job", *PROGRAMS, "ratio", "by round", "at least", "aim", "reached"], body)
    lines += ["", f"{reached} of {len(body)} reach at least what they must, {aims} the aim."]
    return lines + memory(results)


def memory(results):
    """The most memory of each process in the largest job, and what of PyTorch's is there before the model."""
    if any((MEMORY_JOB, program) not in results for program in PROGRAMS):
        return []
    body = []
    for program in PROGRAMS:
        result = results[MEMORY_JOB, program]
        peak, before = result["peak_bytes"], result.get("peak_bytes_before")
        split = ["", ""] if before is None else [f"{before / MIB:.0f}", f"{(peak - before) / MIB:.0f}"]
        body.append([program, f"{peak / MIB:.0f}", *split])
    lines = ["", f"Peak memory (VmHWM) in MiB, {MEMORY_JOB}; before: after importing PyTorch, without a model:", ""]
    return lines + table(["program", "peak", "before", "since"], body)


def onednn_version():
    config = "import torch; print(next(line for line in torch.__config__.show().splitlines() if 'DNN v' in line))"
    return first_line([PYTHON, "-c", config]).removeprefix("- ").split(" (Git")[0]


def job_list(text):
    names = text.split(",")
    models = sorted({job.model for job in JOBS})
    if unknown := set(names) - set(models):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(models)}")
    return [job for job in JOBS if job.model in names]


def main():
    parser = argparse.ArgumentParser(prog="bench/engine.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring in each run of PyTorch")
    parser.add_argument("--only", type=job_list, default=JOBS, help="the jobs of some models, such as vgg11,lenet5")
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the tables there too")
    args = parser.parse_args()

    load = os.getloadavg()[0]
    times, results, failures = measure(args)
    lines = circumstances("bench/engine.sh", load, [f"{pytorch_version()} ({onednn_version()})"]) + [""] + report(args, times, results)
    for failure in failures:
        lines += ["", failure]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(["# The engine beside PyTorch", "", *lines]) + "\n")


if __name__ == "__main__":
    main()
