"""See tests/faults.sh."""

import argparse
import datetime
import pathlib
import platform
import random
import subprocess
import sys
import tempfile

import campaign
import hostile
import kills

HERE = pathlib.Path(__file__).resolve().parent


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--faults", type=int, default=264)
    parser.add_argument("--lanes", type=int, default=3)
    parser.add_argument("--kills", type=int, nargs="?", const=20)
    parser.add_argument("--hostile", type=int, nargs="?", const=10000)
    parser.add_argument("--only", help="kinds of faults, by commas")
    parser.add_argument("--record", type=pathlib.Path)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="ringstep-faults-") as folder:
        folder = pathlib.Path(folder)
        if args.kills:
            lines, failed = kills.run(folder, args.kills, chance)
        elif args.hostile:
            lines, failed = hostile.run(folder, args.hostile, chance)
        else:
            only = args.only.split(",") if args.only else None
            lines, failed = campaign.run(folder, args.faults, args.lanes, chance, only)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    words = " ".join(word for word in sys.argv[1:] if word != "--record" and word != str(args.record))
    head = [f"    tests/faults.sh {words}".rstrip(), "",
            f"Seed {args.seed}, commit {commit.strip()}, {processor()}, {len(__import__('os').sched_getaffinity(0))} cores, "
            f"{datetime.date.today()}.", ""]
    text = "\n".join(head + lines) + "\n"
    print(text)
    if args.record:
        args.record.write_text(text)
    sys.exit(1 if failed else 0)


main()
