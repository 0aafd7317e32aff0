"""MPI's all-reduce through ringstep beside C, and ddp over MPI beside TCP. Started by bench/mpi.sh."""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from run import ROOT, circumstances, first_line, report, run, table

SIZES = (1 << 10, 16 << 20, 8)  # the smallest, the largest, the factor
# Calls that are timed together. How far apart ranks leave the barrier before is part of the time, and of a single call so much
# that the two sides differ by it: only calls in a row are held against the bound.
IN_A_ROW = (20, 1)
MOST = 1.05  # times as long as from C in the same process
LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
    "mpich": ["mpirun.mpich", "-bind-to", "core"],  # as Open MPI does where it is not told
}


def under(mpi, workers, command):
    return run([*LAUNCHERS[mpi], "-n", str(workers), *command])


def from_c(mpi, workers, in_a_row):
    lines = under(mpi, workers, [f"target/peers/mpi-allreduce-{mpi}", *map(str, SIZES), str(in_a_row)]).splitlines()
    return {int(size): float(time) for size, time in map(str.split, lines)}


def through_ringstep(mpi, workers, in_a_row):
    """By ringstep, and from C in the same process."""
    low, high, factor = map(str, SIZES)
    bench = ["bench", "collectives", "--transport", "mpi", "--algorithm", "mpi", "--json", "--in-a-row", str(in_a_row)]
    with tempfile.NamedTemporaryFile("r") as inside:
        preload = [f"LD_PRELOAD={ROOT}/target/peers/mpi-inside-{mpi}.so", f"INSIDE={inside.name}", f"IN_A_ROW={in_a_row}", f"MIN={low}"]
        program = ["env", *preload, f"target/peers/ringstep-{mpi}", *bench]
        out = under(mpi, workers, [*program, "--min", low, "--max", high, "--factor", factor])
        beside = {int(size): float(time) for size, time in map(str.split, inside)}
    return {row["bytes"]: row["us_p50"] for row in json.loads(out)["rows"]}, beside


def allreduce(args, failures):
    lines, holds = [], True
    for mpi, in_a_row in itertools.product(args.mpi, IN_A_ROW):
        rounds = {"C": [], "C inside": [], "ringstep": []}

        def alone():
            rounds["C"].append(from_c(mpi, args.workers, in_a_row))

        def together():
            own, beside = through_ringstep(mpi, args.workers, in_a_row)
            rounds["ringstep"].append(own)
            rounds["C inside"].append(beside)

        for at in range(args.rounds):
            for side in [alone, together][:: 1 if at % 2 else -1]:  # in turns, each first as often
                side()
        body = []
        for size in rounds["C"][0]:
            times = {side: [round[size] for round in rounds[side]] for side in rounds}
            c, inside, own = (statistics.median(times[side]) for side in rounds)
            ratio = statistics.median(mine / theirs for mine, theirs in zip(times["ringstep"], times["C inside"]))
            holds = holds and (in_a_row == 1 or ratio <= MOST)
            spread = [f"{min(times[side]):.2f} to {max(times[side]):.2f}" for side in rounds]
            body.append([str(size), f"{c:.2f}", f"{inside:.2f}", f"{own:.2f}", f"{ratio:.3f}", f"{own / c:.3f}", *spread])
        header = ["bytes", "C, us", "C inside", "ringstep", "ringstep / C inside", "ringstep / C", "C, all rounds", "C inside", "ringstep"]
        calls = "one call after a barrier" if in_a_row == 1 else f"{in_a_row} calls in a row"
        lines += ["", f"MPI_Allreduce in {mpi}, {args.workers} ranks, {calls}, medians over {args.rounds} rounds:", ""]
        lines += table(header, body)
    lines += ["", "C is a program of its own, C inside the same calls from C in ringstep's process, on ringstep's communicator."]
    return lines, holds


def ddp(args, failures):
    """A step's shares, as summary.json has them."""
    body = []
    with tempfile.TemporaryDirectory() as folder:
        for at in range(args.rounds):
            for mpi, transport in [*((mpi, "mpi") for mpi in args.mpi), (args.mpi[0], "tcp")]:
                out = Path(folder) / f"{mpi}-{transport}-{at}"
                job = ["train", "--sync", "ddp", "--model", args.model, "--dataset", "synthetic", "--samples", "256"]
                job += ["--batch", "16", "--steps", str(args.steps), "--trace", "0", "--transport", transport, "--json"]
                text = under(mpi, 2, [f"target/peers/ringstep-{mpi}", *job, "--out", str(out)])
                summary = json.loads(text)["runs"][0]
                body.append([f"{transport} ({mpi})" if transport == "mpi" else transport, *shares(summary)])
    body.sort(key=lambda row: row[0])
    header = ["transport", "median step, ms", "compute", "exposed", "waiting", "hidden", "hidden of communication"]
    return ["", f"ddp of {args.model}, 2 ranks of one thread, each round:", "", *table(header, body)], True


def shares(summary):
    """Of the wall time; and what is hidden of all that is not waiting."""
    waiting, hidden = summary["waiting_seconds"], summary["hidden_seconds"]
    exposed = summary["comm_seconds"] - waiting
    parts = [summary["compute_seconds"], exposed, waiting, hidden]
    of_communication = f"{hidden / (hidden + exposed):.1%}" if hidden + exposed else "-"
    of_all = [f"{part / summary['seconds']:.1%}" for part in parts]
    return [f"{summary['seconds_per_step'] * 1e3:.1f}", *of_all, of_communication]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--mpi", type=lambda text: text.split(","), default=["openmpi", "mpich"])
    parser.add_argument("--only", choices=["allreduce", "ddp"])
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the tables there too")
    args = parser.parse_args()
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    versions = [first_line(["mpirun.openmpi", "--version"]), "MPICH " + first_line(["mpichversion"], "Version").split()[-1]]
    lines = circumstances("bench/mpi.sh", os.getloadavg()[0], versions)
    report("# MPI's all-reduce through ringstep, and ddp over MPI", lines, [("allreduce", allreduce), ("ddp", ddp)], args)


main()
