"""Measured steps of the default `ringstep compare` beside predicted ones. bench/predicted.sh passes its arguments on.

Each run predicts its own steps from how long its workers computed and from exchanges that they time when they are through. Where
workers outnumber cores both change from run to run, with who shares a core with whom: medians over rounds count.
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

RINGSTEP = "target/release/ringstep"
AT_MOST = 0.25


def rows(args, _):
    found = {}
    for number in range(args.rounds):
        print(f"round {number}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as out:
            runs = json.loads(run([RINGSTEP, "compare", "--json", "--out", out]))["runs"]
        for row in runs:
            found.setdefault(row["name"], []).append((row["mean_seconds_per_step"], row["predicted_seconds_per_step"]))
    body, errors = [], []
    for name, times in found.items():
        measured, predicted = map(statistics.median, zip(*times))
        each = [said / real - 1 for real, said in times]
        errors.append(statistics.median(each))
        body.append(
            [name, f"{1e6 * measured:.0f}", f"{1e6 * predicted:.0f}", f"{errors[-1]:+.0%}", f"{min(each):+.0%} to {max(each):+.0%}"]
        )
    holds = max(map(abs, errors)) <= AT_MOST
    lines = ["", f"Microseconds a step, medians of {args.rounds} rounds:", ""]
    lines += table(["row", "measured", "predicted", "error in the median", "from round to round"], body)
    return lines + ["", f"Each within {AT_MOST:.0%}: {'✓' if holds else '✗'}"], holds


def main():
    parser = argparse.ArgumentParser(prog="bench/predicted.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the table there too")
    args = parser.parse_args()
    args.only = None
    report("# Predicted steps of `compare`", circumstances("bench/predicted.sh", os.getloadavg()[0], []), [("rows", rows)], args)


if __name__ == "__main__":
    main()
