"""Weak scaling of ResNet-18, the tables of `ringstep bench scaling`, and recipes for large batches. bench/scaling.sh prepares what
this needs and passes its arguments on.

For weak scaling, one worker and two of one thread each take 32 images a step in turns, and the medians of their median steps are
compared: two workers are ideal if their steps take as long as one's. Beside them stand two workers that never talk, which
lose only what the machine itself makes them lose.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import ROOT, circumstances, report, run, table

RINGSTEP = "target/release/ringstep"
BATCH, STEPS = 32, 12
EFFICIENCY = 0.9
TRAININGS = [("1 worker", "ddp", 1), ("2 workers", "ddp", 2), ("2 workers that never talk", "none", 2)]


def step_seconds(sync, workers):
    job = ["--model", "resnet18", "--dataset", "synthetic", "--sync", sync, "--workers", str(workers)]
    job += ["--batch", str(BATCH), "--steps", str(STEPS), "--trace", "0"]
    with tempfile.TemporaryDirectory() as out:
        return json.loads(run([RINGSTEP, "train", "--json", *job, "--out", out]))["runs"][0]["seconds_per_step"]


def weak(args, failures):
    """Lines, and whether two workers are near enough to ideal."""
    steps = {name: [] for name, _, _ in TRAININGS}
    for number in range(args.rounds):
        for name, sync, workers in TRAININGS:
            print(f"round {number}: {name}", file=sys.stderr, flush=True)
            steps[name].append(step_seconds(sync, workers))
    medians = {name: statistics.median(seconds) for name, seconds in steps.items()}
    alone = medians[TRAININGS[0][0]]
    body = []
    for name, sync, workers in TRAININGS:
        low, high = min(steps[name]), max(steps[name])
        body.append(
            [name, sync, f"{1e3 * medians[name]:.0f}", f"{1e3 * low:.0f} to {1e3 * high:.0f}"]
            + [f"{workers * alone / medians[name]:.2f}", f"{100 * alone / medians[name]:.1f}%"]
        )
    holds = alone / medians["2 workers"] >= EFFICIENCY
    lines = ["", "## Weak scaling", "", f"ResNet-18, {BATCH} images a worker, one thread each, synthetic images; milliseconds a step,"]
    lines += [f"the median over {args.rounds} rounds of the median over {STEPS} steps:", ""]
    lines += table(["workers", "way", "a step", "from round to round", "speed-up", "efficiency"], body)
    return lines + ["", f"At least {100 * EFFICIENCY:.0f}% of ideal: {'✓' if holds else '✗'}"], holds


def text_of(command):
    """What a run of many minutes prints; what it tells meanwhile goes to the terminal."""
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {' '.join(command)}")
    return done.stdout.strip().splitlines()


def attempt(title, command, failures, more=()):
    with tempfile.TemporaryDirectory() as out:
        try:
            said = text_of([RINGSTEP, *command, *more, "--out", out])
        except RuntimeError as error:
            failures.append(f"{title}: {error}")
            return [], False
    # The last line says where the report is, which is gone.
    return ["", f"## {title}", "", f"`ringstep {' '.join(command)}`:", "", *("    " + line for line in said[:-1])], True


def tables(args, failures):
    flags = ["--dataset", "synthetic", "--samples", str(args.samples)]
    return attempt("The tables", ["bench", "scaling", *flags], failures)


def batches(args, failures):
    said, hold = [], True
    for title, file, folder in [
        ("Large batches: LeNet-5 on MNIST", "experiments/large-batch-mnist.toml", args.mnist),
        ("Large batches: ResNet-20 on a part of CIFAR-10", "experiments/large-batch.toml", args.cifar10),
    ]:
        lines, held = attempt(title, ["compare", file], failures, ["--data", str(folder)] if folder else [])
        said, hold = said + lines, hold and held
    return said, hold


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="the folder of MNIST")
    parser.add_argument("--cifar10", type=Path, help="the folder of CIFAR-10")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=1024, help="images of an epoch of the tables")
    parser.add_argument("--only", choices=["weak", "tables", "batches"])
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    for name in ["mnist", "cifar10"]:
        if getattr(args, name):
            setattr(args, name, getattr(args, name).resolve())
    load = os.getloadavg()[0]
    lines = circumstances("bench/scaling.sh", load, [])
    report("# Scaling, and large batches", lines, [("weak", weak), ("tables", tables), ("batches", batches)], args)


if __name__ == "__main__":
    main()
