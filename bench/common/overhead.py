"""See bench/overhead.sh."""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

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
    binary, without, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    results = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            results["with"].append(run(binary, f"{folder}/with-{number}"))
            if without:
                results["without"].append(run(without, f"{folder}/without-{number}"))
    step, _, _ = map(statistics.median, zip(*results["with"]))
    share = max(spent / seconds for _, seconds, spent in results["with"])
    print(f"signs of life: {100 * share:.4f}% of the run's time on a core, both workers together; median step {1e6 * step:.1f} us")
    if without:
        other = statistics.median(result[0] for result in results["without"])
        print(f"without them: median step {1e6 * other:.1f} us: {100 * (step / other - 1):+.2f}%")
        print("medians of runs:", ", ".join(f"{1e6 * a[0]:.1f}/{1e6 * b[0]:.1f}" for a, b in zip(*results.values())))


main()
