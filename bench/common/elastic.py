"""See bench/elastic.sh."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from run import ROOT, circumstances, table

JOBS = {
    "lenet5, batch 64": ["--samples", "2000", "--batch", "64", "--epochs", "100"],
    "lenet5, batch 5": ["--epochs", "2000"],
    "resnet20, batch 32": ["--model", "resnet20", "--dataset", "synthetic", "--samples", "1280", "--batch", "32", "--epochs", "8"],
}
VICTIM = 2


def worker(launcher, rank):
    """The process of a rank."""
    for children in pathlib.Path(f"/proc/{launcher}/task").glob("*/children"):
        for process in children.read_text().split():
            if pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[1:3] == [b"worker", str(rank).encode()]:
                return int(process)
    raise RuntimeError(f"no process of rank {rank}")


def run(options, folder):
    command = [ROOT / "target/release/ringstep", "train", "--sync", "ddp", "--workers", "4", "--elastic", "2:4", "--trace", "0", "--json"]
    process = subprocess.Popen([*command, *options, "--out", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        if process.poll() is not None:
            raise SystemExit(f"error: {process.communicate()[1].strip()}")
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(worker(process.pid, VICTIM), signal.SIGKILL)
    out, _ = process.communicate()
    row = json.loads(out)["runs"][0]
    (restart,) = row["restarts"]
    return row["seconds_per_step"], restart


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=pathlib.Path)
    args, load = parser.parse_args(), os.getloadavg()[0]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for job, options in JOBS.items():
            runs = [run(options, f"{folder}/{job}-{number}") for number in range(args.rounds)]
            rows.append([job, f"{1e3 * min(step for step, _ in runs):.2f}",
                         ", ".join(f"{1e3 * restart['seconds']:.0f}" for _, restart in runs),
                         ", ".join(str(restart["steps_lost"]) for _, restart in runs)])
    header = ["job", "step, ms", "until they train again, ms", "steps done again"]
    lines = ["# One of four workers killed, with --elastic", "", *circumstances("bench/elastic.sh", load, []), "", *table(header, rows), "",
             "The time is from when the launcher notices to the first step that is reported afterwards."]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(lines) + "\n")


main()
