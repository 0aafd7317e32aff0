"""Measured steps beside simulated ones. bench/simulation.sh prepares what this needs and passes its arguments on.

Measured: worker processes that talk over TCP, on loopback and in network namespaces whose links pass 1 Gbit/s and 100 Mbit/s
(a token bucket at both ends of each link, with queues so long that no packet is lost); the mean step without the first, mean
over the ranks. Simulated: `ringstep simulate` with what it measures of this machine while nothing else runs: how long workers
compute that never talk, and what messages cost two processes and eight, in namespaces where the measured ones are, over links
without a limit. It knows the links' rates, and nothing of the runs that it predicts. Both take turns, and medians over rounds
count, since machines that are shared are now faster and now slower.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import circumstances, run, table
from ddp.network import limited_links

RINGSTEP = "target/release/ringstep"
SCALES = [1, 2, 4, 8]
# Left to itself, `simulate` looks for the best size of buckets, and a training takes one that suits typical networks.
WAYS = {"ddp": ["--bucket", "256KiB"], "all-reduce": [], "gather-scatter": [], "local-sgd": ["--every", "4"], "stale": []}
# Of 1514 bytes of a frame 1448 are data.
DATA = 1448 / 1514
NETWORKS = {"loopback": None, "1gbit": 1000 * DATA, "100mbit": 100 * DATA}
BURST = "128KiB"
EACH_AT_MOST, MEAN_AT_MOST = 0.15, 0.08
# When workers that meet at a server get out of each other's way is left to chance, and a simulation is the mean of several: so they
# are measured several times a round.
TIMES = {"stale": 3}


def measure(args, way, workers, network, links):
    """Seconds of a step. With one worker there is nobody to stay in step with."""
    sync = ["--sync", way, *WAYS[way]] if workers > 1 else ["--sync", "single"]
    # A multiple of local-sgd's rounds after the first step; fewer where steps are long. Workers of `stale` run ahead of each other at
    # first: as many as are simulated.
    steps = 1 + (32 if way == "stale" else args.steps if network == "loopback" or way == "local-sgd" else args.steps // 2)
    job = ["--model", args.model, "--dataset", "synthetic", "--samples", "1024", "--workers", str(workers), "--threads", "1"]
    job += ["--batch", str(args.batch), "--steps", str(steps), "--lr", "0.01", "--momentum", "0.9", "--trace", "0"]
    with tempfile.TemporaryDirectory() as out:
        command = [RINGSTEP, "train", "--json", *job, *sync, "--transport", "tcp", *links, "--out", out]
        return json.loads(run(command))["runs"][0]["mean_seconds_per_step"]


def simulate(args, way, network, links):
    """Seconds of a step at each scale."""
    rate = NETWORKS[network]
    link = ["--inside", "1000GB,0us"] if rate is None else ["--inside", f"{rate}mbit,0us", "--burst", BURST]
    algorithm = ["--algorithm", "ring"] if way not in ("gather-scatter", "stale") else []
    job = ["--model", args.model, "--batch", str(args.batch), "--workers", ",".join(map(str, SCALES)), "--sync", way, *WAYS[way]]
    machine = ["--hosts", str(max(SCALES) + 1), "--cores", str(os.cpu_count()), "--messages", "tcp", *links]
    rows = json.loads(run([RINGSTEP, "simulate", "--json", *job, *machine, *link, *algorithm]))["rows"]
    return {row["workers"]: row["step_seconds"] for row in rows}


def take_turns(args, found):
    """Measures and simulates each way on each network once more; `found` has lists of seconds by network, way and workers."""
    for network in NETWORKS:
        limited = network != "loopback"
        for way in args.only:
            print(network, way, file=sys.stderr, flush=True)
            for workers in SCALES:
                if workers == 1 and way != "ddp":
                    continue
                ranks = workers + (way == "stale")
                for _ in range(TIMES.get(way, 1)):
                    with limited_links(network, ranks, queue="2s") if limited else contextlib.nullcontext([]) as links:
                        seconds = measure(args, way, workers, network, links)
                    found.setdefault(f"{network} {way} {workers}", [[], []])[0].append(seconds)
            with limited_links(None, 4 * max(2, os.cpu_count())) if limited else contextlib.nullcontext([]) as links:
                simulated = simulate(args, way, network, links)
            for workers, seconds in simulated.items():
                if f"{network} {way} {workers}" in found:
                    found[f"{network} {way} {workers}"][1].append(seconds)
            if args.measured:
                args.measured.write_text(json.dumps(found, indent=1))


def main():
    parser = argparse.ArgumentParser(prog="bench/simulation.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=24, help="a multiple of 8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(WAYS), type=lambda ways: ways.split(","), help="ways, by commas")
    parser.add_argument("--measured", metavar="FILE.json", type=Path, help="keep all times there, and go on from these")
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the tables there too")
    args = parser.parse_args()

    load = os.getloadavg()[0]
    found = json.loads(args.measured.read_text()) if args.measured and args.measured.exists() else {}
    for _ in range(args.rounds):
        take_turns(args, found)
    lines = circumstances("bench/simulation.sh", load, [])
    errors = {}
    for network in NETWORKS:
        body = []
        for way in WAYS:
            for workers in SCALES:
                key = f"{network} {way} {workers}"
                if key not in found:
                    continue
                real, said = map(statistics.median, found[key])
                errors[key] = said / real - 1
                name = way if workers > 1 else "one worker"
                body.append([name, str(workers), f"{real * 1e3:.1f}", f"{said * 1e3:.1f}", f"{errors[key]:+.1%}"])
        header = ["way", "workers", "measured ms", "simulated ms", "error"]
        lines += ["", f"{args.model}, {args.batch} images a worker, {network}:", "", *table(header, body)]
    mean = sum(map(abs, errors.values())) / len(errors)
    worst = max(errors, key=lambda key: abs(errors[key]))
    beyond = [f"{key} ({error:+.1%})" for key, error in errors.items() if abs(error) > EACH_AT_MOST]
    claims = [
        (f"each within {EACH_AT_MOST:.0%}, the worst is {worst} ({errors[worst]:+.1%})", not beyond),
        (f"{mean:.1%} off on average, at most {MEAN_AT_MOST:.0%}", mean <= MEAN_AT_MOST),
    ]
    lines += [""] + [f"- {claim}: {'✓' if holds else '✗'}" for claim, holds in claims]
    if beyond:
        lines += ["", "It errs beyond that in: " + ", ".join(beyond) + "."]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(["# Simulated steps beside measured ones", "", *lines]) + "\n")
    sys.exit(not all(holds for _, holds in claims))


if __name__ == "__main__":
    main()
