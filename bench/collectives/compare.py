"""All-reduce of fp32 sums on one host: ringstep beside Open MPI, MPICH and gloo, in turns. bench/collectives.sh
prepares what this needs and passes its arguments on.

The rule of timing, the same in every program: buffers are allocated, touched and reused; a barrier of the program's
own before each iteration; an iteration takes as long as its slowest rank, each by its own clock; ten iterations of
warm-up, then as many as fit 0.25 s, at least 7, at most 2000; times are gathered after the last. busbw = 2(p-1)/p *
bytes / time, in GB/s of 1e9 bytes. MPI reduces from one buffer to another, gloo in place: its users' ways.

The time of a program is the lower quartile over rounds of the median iteration. Not the median over rounds: virtual
machines have been seen whose cores were moved about, near each other half of the time and far apart the other half
(cores.c prints 50 and 250 ns), so that a median over rounds is the one or the other by chance.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import PYTHON, circumstances, first_line, pytorch_version, run, table

PEERS = Path("target/peers")  # what collectives.sh builds
KIB, MIB = 1 << 10, 1 << 20
PROGRAMS = ["openmpi", "mpich", "gloo", "shm", "tcp"]
# A time this many times the best means that other jobs held the cores, while a rank spun for one that had none.
# Beating a peer in that state proves nothing: such a ratio is marked ? and not counted as met.
DISTURBED = 10
RATIOS = [("shm", "openmpi"), ("shm", "mpich"), ("tcp", "gloo")]


def size_name(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def target(ours, peer, size):
    """The ratio of busbw to reach, if there is one."""
    if (ours, peer) == ("shm", "openmpi"):
        return 1.5 if size >= 64 * KIB else 1.0
    return 2.0 if (ours, peer) == ("tcp", "gloo") else None


def commands(program, workers, largest):
    """Ways to run a program; where there are several, each size counts with the fastest."""
    sizes = ["--min", str(KIB), "--max", str(largest)]
    if program == "openmpi":
        # More ranks than cores must be allowed, and ranks must not be tied to cores that other ranks hold; Open MPI
        # then yields when idle by itself. Copies through shared memory beat its default, the kernel's single copy
        # (CMA), at middle sizes and lose at the largest, so both run.
        run = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n", str(workers)]
        run += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        binary = [str(PEERS / "allreduce-openmpi"), *sizes]
        return [run + binary, run + ["--mca", "btl_vader_single_copy_mechanism", "none"] + binary]
    if program == "mpich":
        # It spins and never yields, whatever the settings: with more ranks than cores a hop costs a time slice.
        return [["mpirun.mpich", "-n", str(workers), str(PEERS / "allreduce-mpich"), *sizes]]
    if program == "gloo":
        return [[PYTHON, "bench/collectives/gloo_allreduce.py", "--workers", str(workers), *sizes]]
    ringstep = ["target/release/ringstep", "bench", "collectives", "--workers", str(workers), "--transport", program]
    largest = size_name(largest).replace(" ", "")
    return [ringstep + ["--algorithm", "auto", "--min", "1KiB", "--max", largest, "--json"]]


def rows(program, command):
    """{bytes: row} of one run."""
    out = run(command)
    try:
        if program in ("shm", "tcp"):
            found = json.loads(out)["rows"]
            found = [r for r in found if r["collective"].replace("-", "").replace("_", "") == "allreduce"]
        else:
            found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        wrong = [size_name(r["bytes"]) for r in found if r["wrong"]]
        result = {r["bytes"]: r for r in found}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeError(f"output not understood: {error!r}") from error
    if wrong:
        raise RuntimeError(f"wrong sums at {', '.join(wrong)}")
    if not result:
        raise RuntimeError("no rows")
    return result


def lower_quartile(ordered):
    return ordered[(len(ordered) + 3) // 4 - 1]


def measure(args):
    """{(workers, program, bytes): (lower quartile and median over rounds of us_p50, best us_min)}, best GB/s of
    streaming, ns between cores, what failed. Rounds alternate programs, so that a busy minute of the machine meets all of
    them."""
    seen = {}  # (workers, program, bytes) -> {way: [(us_p50, us_min) of each round]}
    bandwidth, between_cores, failures = 0.0, [], []
    for round_ in range(args.rounds):
        try:
            bandwidth = max(bandwidth, float(run([str(PEERS / "stream")])))
        except (RuntimeError, ValueError) as error:
            failures.append(f"stream left out of round {round_ + 1}: {error}")
        try:
            between_cores += map(int, run([str(PEERS / "cores")]).split())
        except (RuntimeError, ValueError) as error:
            failures.append(f"cores left out of round {round_ + 1}: {error}")
        for workers in args.workers:
            for program in args.only:
                for way, command in enumerate(commands(program, workers, args.max)):
                    print(f"round {round_ + 1} of {args.rounds}: {program} x{workers}", file=sys.stderr, flush=True)
                    try:
                        for size, row in rows(program, command).items():
                            times = seen.setdefault((workers, program, size), {}).setdefault(way, [])
                            times.append((row["us_p50"], row["us_min"]))
                    except RuntimeError as error:
                        failures.append(f"{program} x{workers} left out of round {round_ + 1}: {error}")
    best = {}
    for key, ways in seen.items():
        # The fastest way by its lower quartile, which is the nearest rank: a round that took place.
        medians = min((sorted(p50 for p50, _ in times) for times in ways.values()), key=lower_quartile)
        least = min(least for times in ways.values() for _, least in times)
        best[key] = lower_quartile(medians), statistics.median(medians), least
    return best, bandwidth, sorted(between_cores), failures


def machine(lines, between_cores):
    """What else there is to know of the machine."""
    if between_cores:
        near, half, far = (between_cores[int(share * (len(between_cores) - 1))] for share in (0.05, 0.5, 0.95))
        lines += ["", f"From one core to the other a word took {near} ns at the 5th percentile, {half} at the 50th,"]
        lines[-1] += f" {far} at the 95th of {len(between_cores)} tenths of a second."
    # How much the processor minds where it copies: crates/comm/src/copy.rs.
    if (PEERS / "movsb").exists():
        near, far = map(float, run([str(PEERS / "movsb")]).split())
        lines += ["", f"rep movsb copies {near:.1f} GB/s to 16 bytes further into a page than from, else {far:.1f}."]


def report(args, best, bandwidth):
    """Lines: for each number of workers both tables, the bounds; then how many targets are met."""
    lines, met, asked, unknown, disturbed = [], 0, 0, 0, 0
    sizes = [KIB * 4**i for i in range(32) if KIB * 4**i <= args.max]
    ratios = [pair for pair in RATIOS if set(pair) <= set(args.only)]
    for p in args.workers:
        busbw = lambda program, size: 2 * (p - 1) / p * size / best[p, program, size][0] / 1e3
        speeds, times = [], []
        for size in sizes:
            have = [program for program in args.only if (p, program, size) in best]
            speed, timing = [size_name(size)], [size_name(size)]
            for program in args.only:
                speed.append(f"{busbw(program, size):.3f}" if program in have else "")
                timing.append("{:.1f} / {:.1f} / {:.1f}".format(*best[p, program, size]) if program in have else "")
            for ours, peer in ratios:
                goal = target(ours, peer, size)
                asked += goal is not None
                if ours not in have or peer not in have:
                    unknown += goal is not None
                    speed.append("")
                    continue
                ratio = busbw(ours, size) / busbw(peer, size)
                mark = "" if goal is None else " ✓" if ratio >= goal else " ✗"
                usual, _, least = best[p, peer, size]
                if mark and usual > DISTURBED * least:
                    mark, disturbed = " ?", disturbed + 1
                met += mark == " ✓"
                speed.append(f"{ratio:.2f}{mark}")
            speeds.append(speed)
            times.append(timing)
        lines += ["", f"{p} workers, busbw in GB/s:", ""]
        lines += table(["bytes", *args.only, *(f"{ours}/{peer}" for ours, peer in ratios)], speeds)
        lines += ["", f"{p} workers, microseconds, of the rounds' medians the lower quartile / the median, / best of all:", ""]
        lines += table(["bytes", *args.only], times)
        if bandwidth and (p, "shm", 64 * MIB) in best:
            # No all-reduce into buffers of its ranks moves less: p inputs read once, p outputs written once.
            bound = 2 * p * 64 * MIB / (bandwidth * 1e3)
            took = best[p, "shm", 64 * MIB][0]
            lines += ["", f"shm at 64 MiB takes {took / 1e3:.1f} ms, {took / bound:.2f} times the {bound / 1e3:.1f} ms"]
            lines[-1] += f" that reading every input and writing every output once takes at {bandwidth:.1f} GB/s."
    if asked:
        lines += ["", f"{met} of {asked} targets met: shm at least 1.5 times Open MPI's busbw from 64 KiB on and"]
        lines[-1] += " no less below, tcp at least 2 times gloo's."
        if unknown:
            lines[-1] += f" {unknown} could not be measured."
        if disturbed:
            lines[-1] += f" {disturbed} marked ?: the machine was too busy for the peer; repeat on an idle one."
    return lines[1:]


def versions(args):
    of = {
        "openmpi": lambda: "Open MPI " + first_line(["mpirun.openmpi", "--version"]).split()[-1],
        "mpich": lambda: "MPICH " + first_line(["mpirun.mpich", "--version"], "Version:").split()[-1],
        "gloo": lambda: f"gloo of {pytorch_version()}",
    }
    return [version() for name, version in of.items() if name in args.only]


def byte_count(text):
    for unit, factor in (("KiB", KIB), ("MiB", MIB)):
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return int(text)


def program_list(text):
    names = text.split(",")
    if unknown := set(names) - set(PROGRAMS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    return [name for name in PROGRAMS if name in names]


def main():
    parser = argparse.ArgumentParser(prog="bench/collectives.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4])
    parser.add_argument("--max", type=byte_count, default=64 * MIB, help="largest size, such as 4MiB")
    parser.add_argument("--only", type=program_list, default=PROGRAMS, help="some of " + ",".join(PROGRAMS))
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the tables there too")
    args = parser.parse_args()

    load = os.getloadavg()[0]
    best, bandwidth, between_cores, failures = measure(args)
    lines = circumstances("bench/collectives.sh", load, versions(args)) + [""] + report(args, best, bandwidth)
    machine(lines, between_cores)
    for failure in failures:
        lines += ["", failure]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(["# All-reduce beside Open MPI, MPICH and gloo", "", *lines]) + "\n")


if __name__ == "__main__":
    main()
