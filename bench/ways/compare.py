"""Every way to stay in step and every compression beside ddp, on one job: accuracy over seeds, and images a second with a
worker that is slow. bench/ways.sh prepares what this needs and passes its arguments on.

The job is LeNet-5 on MNIST, four workers of 16 images, SGD with momentum and a learning rate that falls like a cosine.
Accuracies are those of the final models; a way's difference is to ddp with the same seed.

For the slow worker, batches are of 128 images, so that a step is computation rather than messages, and all workers sleep:
three until their steps have taken four times as long, the fourth until its has taken sixteen times as long. So it is four
times as slow as the others, and there is a core for everybody even where cores are few.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import circumstances, report, run, table

SYNCHRONOUS = "ddp"
WAYS = ["gather-scatter", "all-reduce", "data-parallel", "parameter-server", "stale", "async", "local-sgd", "post-local-sgd"]
WAYS += ["diloco", "sma", "none"]
COMPRESSIONS = ["fp16", "bf16", "int8", "int4", "sign", "top-k", "random-k", "threshold", "dgc", "power-sgd"]
POINTS = {"async": 1.0, "sign": 1.0}  # that accuracy may be off by; the others by half a point
SLOW = "0:4+1:4+2:4+3:16"
GAIN = 2.0

# Rows of the second table: name, flags, and whether it must gain by not waiting.
STRAGGLERS = [
    ("all-reduce", ["--sync", "all-reduce"], False),
    ("parameter-server", ["--sync", "parameter-server"], False),
    ("stale, staleness 1", ["--sync", "stale", "--staleness", "1"], False),
    # The bound holds nobody before the end of so short a job.
    ("stale, staleness 32, 32 steps", ["--sync", "stale", "--staleness", "32", "--batch", "128", "--steps", "32"], True),
    ("async", ["--sync", "async"], True),
    ("local-sgd, every 8", ["--sync", "local-sgd", "--every", "8"], False),
    ("local-sgd, period 0.5 s", ["--sync", "local-sgd", "--period", "0.5"], True),
    ("diloco, every 32", ["--sync", "diloco"], False),
    ("sma", ["--sync", "sma"], False),
]


def train(args, flags):
    """The summary of one run."""
    job = ["--model", "lenet5", "--dataset", "mnist", "--workers", "4", "--lr", "0.01", "--momentum", "0.9"]
    job += ["--schedule", "cosine", "--shuffle", "--trace", "0"] + (["--data", str(args.data)] if args.data else [])
    job += ["--samples", str(args.samples)] if args.samples else []
    with tempfile.TemporaryDirectory() as out:
        return json.loads(run(["target/release/ringstep", "train", "--json", *job, *flags, "--out", out]))["runs"][0]


def attempt(args, name, flags, failures):
    """The summary, or None with a line among the failures."""
    print(f"{name}: {' '.join(flags)}", file=sys.stderr, flush=True)
    try:
        return train(args, flags)
    except (RuntimeError, ValueError, KeyError) as error:
        failures.append(f"{name}: {error}")


def accuracy(args, failures):
    """Lines, and whether all are near enough."""
    rows = [(SYNCHRONOUS, ["--sync", SYNCHRONOUS])] + [(way, ["--sync", way]) for way in WAYS]
    rows += [(name, ["--sync", SYNCHRONOUS, "--compress", name]) for name in COMPRESSIONS]
    found = {}
    for seed in range(args.seeds):
        for name, flags in rows:
            summary = attempt(args, name, [*flags, "--batch", "16", "--epochs", str(args.epochs), "--seed", str(seed)], failures)
            if summary:
                found[name, seed] = 100 * summary["test_accuracy"]
    body, near = [], True
    for name, _ in rows:
        seeds = [seed for seed in range(args.seeds) if (name, seed) in found and (SYNCHRONOUS, seed) in found]
        bound = POINTS.get(name, 0.5)
        if len(seeds) < args.seeds:
            near = False
            body.append([name, "", "", "", f"{bound:g}", "not measured"])
            continue
        differences = [found[name, seed] - found[SYNCHRONOUS, seed] for seed in seeds]
        # Who is better than ddp is near enough.
        holds = min(differences) >= -bound
        near &= holds
        mean = statistics.mean(found[name, seed] for seed in seeds)
        row = [name, f"{mean:.2f}%", f"{statistics.mean(differences):+.2f}", f"{min(differences):+.2f}", f"{bound:g}"]
        body.append([*row, "✓" if holds else "✗"])
    header = ["way or compression", "test accuracy", "difference to ddp", "worst", "may be off by", "holds"]
    title = f"Accuracy after {args.epochs} epochs, mean over {args.seeds} seeds; differences in points, to ddp of the same seed:"
    return ["", title, "", *table(header, body)], near


def straggler(args, failures):
    """Lines, and whether those who need not wait gain by it."""
    epoch = ["--batch", "128", "--epochs", "1"]
    base = attempt(args, SYNCHRONOUS, ["--sync", SYNCHRONOUS, *epoch, "--slow", SLOW], failures)
    if not base:
        return ["", "Nothing to compare with: ddp did not end."], False
    body, gains = [], True
    for name, way, must in [(SYNCHRONOUS, None, False), *STRAGGLERS]:
        length = [] if way and "--steps" in way else epoch
        summary = base if way is None else attempt(args, name, [*way, *length, "--slow", SLOW], failures)
        bound = f"{GAIN:g}" if must else ""
        if not summary:
            gains &= not must
            body.append([name, "", "", "", bound, "not measured"])
            continue
        ratio = summary["images_per_second"] / base["images_per_second"]
        holds = ratio >= GAIN
        gains &= holds or not must
        waited = summary["waiting_seconds"] / summary["seconds"]
        verdict = ("✓" if holds else "✗") if must else ""
        body.append([name, f"{summary['images_per_second']:.0f}", f"{waited:.0%}", f"{ratio:.2f}", bound, verdict])
    title = f"One epoch with --slow {SLOW} (one worker four times as slow as the others), where 3.25 times ddp's images a second is what not waiting can give:"
    return ["", title, "", *table(["way", "images/s", "waiting", "times ddp", "at least", "reached"], body)], gains


def main():
    parser = argparse.ArgumentParser(prog="bench/ways.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, help="folder with MNIST's files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, help="train on so many images")
    parser.add_argument("--only", choices=["accuracy", "straggler"])
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the tables there too")
    args = parser.parse_args()
    args.data = args.data and args.data.resolve()

    lines = circumstances("bench/ways.sh", os.getloadavg()[0], [])
    report("# Every way to stay in step, every compression", lines, [("accuracy", accuracy), ("straggler", straggler)], args)


if __name__ == "__main__":
    main()
