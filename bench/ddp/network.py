"""Four workers in network namespaces with limited links, and the same over plain loopback. bench/network.sh prepares
what this needs and passes its arguments on.

Each namespace has a virtual link to a bridge; a token bucket at both ends of a link limits what goes in and what comes
out. The launcher sits at the bridge, and starts each worker within its namespace.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import circumstances, run, table

WORKERS = 4
BRIDGE = "ringstep-br"
NETWORK = "10.213.71"
WAYS = ["gather-scatter", "all-reduce", "ddp"]
HIDDEN_AT_LEAST = 0.8


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def namespace(rank):
    return f"ringstep{rank}"


def remove(ranks):
    quiet = {"stderr": subprocess.DEVNULL}
    for rank in range(ranks):
        subprocess.run(["ip", "netns", "del", namespace(rank)], **quiet)
        subprocess.run(["ip", "link", "del", f"ringstep-v{rank}"], **quiet)
    subprocess.run(["ip", "link", "del", BRIDGE], **quiet)


@contextlib.contextmanager
def limited_links(rate, ranks=WORKERS, queue="50ms"):
    """A bridge, and a namespace a rank whose link passes no more than `rate` and drops what would wait longer than `queue`;
    without a rate it passes all that it can."""
    remove(ranks)  # what a run that was killed has left
    shape = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", queue]
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for rank in range(ranks):
            name, outside = namespace(rank), f"ringstep-v{rank}"
            ip("netns", "add", name)
            ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", outside, "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{rank + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            if rate is not None:
                subprocess.run(["tc", "qdisc", "add", "dev", outside, *shape], check=True)
                subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape], check=True)
        yield ["--meet", f"{NETWORK}.254", "--start-with", "ip netns exec ringstep{rank}"]
    finally:
        remove(ranks)


def compare(args, network):
    """The rows of one comparison."""
    job = ["--model", args.model, "--dataset", "synthetic", "--samples", "2000", "--sync", ",".join(WAYS)]
    job += ["--workers", str(WORKERS), "--batch", "64", "--steps", str(args.steps), "--lr", "0.01", "--momentum", "0.9"]
    with tempfile.TemporaryDirectory() as out:
        result = run(["target/release/ringstep", "compare", "--json", *job, *network, "--out", out])
    return json.loads(result)["runs"]


def report(title, rows):
    body = []
    for row in rows:
        steps = row["steps"]
        exposed = row["comm_seconds"] - row["waiting_seconds"]
        hidden = row["hidden_seconds"]
        share = hidden / (hidden + exposed)
        milliseconds = [row["mean_seconds_per_step"], row["predicted_seconds_per_step"], row["compute_seconds"] / steps]
        milliseconds += [exposed / steps, row["waiting_seconds"] / steps, hidden / steps]
        cells = [f"{time * 1e3:.0f}" for time in milliseconds]
        body.append([row["sync"], *cells, f"{share:.0%}", f"{row['bytes_sent'] / steps / 1e6:.1f}"])
    header = ["way", "mean step", "predicted", "computation", "exposed", "waiting", "hidden", "hidden of all", "MB a step"]
    return ["", f"{title}, milliseconds:", "", *table(header, body)]


def main():
    parser = argparse.ArgumentParser(prog="bench/network.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rate", default="1gbit", help="of each link, in tc's words")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", default="vgg11")
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the tables there too")
    args = parser.parse_args()

    load = os.getloadavg()[0]
    with limited_links(args.rate) as network:
        limited = compare(args, network)
    plain = compare(args, [])
    lines = circumstances("bench/network.sh", load, [])
    lines += report(f"{args.model}, {WORKERS} workers of 64 images, links of {args.rate}", limited)
    lines += report("The same over plain loopback", plain)

    by_way = {row["sync"]: row for row in limited}
    step = {way: by_way[way]["mean_seconds_per_step"] for way in WAYS}
    ddp = by_way["ddp"]
    hidden = ddp["hidden_seconds"] / (ddp["hidden_seconds"] + ddp["comm_seconds"] - ddp["waiting_seconds"])
    claims = [
        ("ddp is no slower than all-reduce", step["ddp"] <= step["all-reduce"]),
        ("all-reduce is faster than gather-scatter", step["all-reduce"] < step["gather-scatter"]),
        (f"ddp hides {hidden:.0%} of its communication, at least {HIDDEN_AT_LEAST:.0%}", hidden >= HIDDEN_AT_LEAST),
    ]
    lines += ["", f"On links of {args.rate}:"] + [f"- {claim}: {'✓' if holds else '✗'}" for claim, holds in claims]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(["# The four-way experiment on a slow network", "", *lines]) + "\n")
    sys.exit(not all(holds for _, holds in claims))


if __name__ == "__main__":
    main()
