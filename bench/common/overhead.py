"""See bench/overhead.sh."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import threading
import time

from run import ROOT, circumstances, table

JOB = ["train", "--sync", "ddp", "--workers", "2", "--epochs", "900", "--trace", "0", "--json"]


def threads(process):
    """Nanoseconds on a core of each thread of a process's workers that gives signs of life."""
    found = {}
    for children in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        for worker in children.read_text().split():
            for thread in pathlib.Path(f"/proc/{worker}/task").iterdir():
                if (thread / "comm").read_text().strip() == "pulse":
                    found[thread.name] = int((thread / "schedstat").read_text().split()[0])
    return found


def run(binary, folder):
    process = subprocess.Popen([binary, *JOB, "--out", folder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    spent = {}

    def watch():
        while process.poll() is None:
            try:
                spent.update(threads(process.pid))
            except OSError:
                pass
            time.sleep(0.5)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    watcher.join()
    row = json.loads(out)["runs"][0]
    return row["seconds_per_step"], row["seconds"], sum(spent.values()) / 1e9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--record", type=pathlib.Path)
    args, load = parser.parse_args(), os.getloadavg()[0]
    programs = {"with": ROOT / "target/release/ringstep", "without": ROOT / "target/peers/without-signs-target/release/ringstep"}
    results = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            # Whoever goes first is another one each time.
            for name in sorted(programs, reverse=number % 2 == 1):
                results[name].append(run(programs[name], f"{folder}/{name}-{number}"))
    meeting = json.loads(subprocess.run([ROOT / "target/release/examples/meeting", "2"], capture_output=True, text=True, check=True).stdout)
    steps = {name: statistics.median(step for step, _, _ in runs) for name, runs in results.items()}
    seconds = statistics.median(seconds for _, seconds, _ in results["with"])
    share = max(spent / seconds for _, seconds, spent in results["with"])
    rows = [[name, f"{1e6 * steps[name]:.1f}", " ".join(f"{1e6 * step:.1f}" for step, _, _ in runs)] for name, runs in results.items()]
    beyond = meeting["meeting"] - meeting["connections"]
    lines = [
        "# Signs of life and authentication, beside steps of LeNet-5", "", *circumstances("bench/overhead.sh", load, []), "",
        "ddp of two workers, in turns:", "",
        *table(["signs of life", "median step, us", "each run"], rows), "",
        f"With signs of life a median step takes {100 * (steps['with'] / steps['without'] - 1):+.2f}%. The threads that give them take "
        f"{100 * share:.4f}% of a run's time on a core, both workers together, in the run where they took most.", "",
        f"Two ranks meet in {meeting['meeting']:.0f} us, and as many connections that prove nothing are made in "
        f"{meeting['connections']:.0f} us: {beyond:.0f} us once a run, which is {100 * beyond / 1e6 / seconds:.4f}% of these runs of "
        f"{seconds:.1f} s.",
    ]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(lines) + "\n")


main()
