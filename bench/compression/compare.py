"""Compressed gradients on a slow network, beside dense ones and beside PyTorch's hooks. bench/compression.sh prepares what
this needs and passes its arguments on.

A step is forward, loss, backward, synchronising and optimizer (SGD with momentum). A run's time is the median step, mean over the
ranks; a row's is the median over rounds, which alternate the programs. All talk over TCP, one thread a worker; at the limited
rate each worker of either program is in a network namespace of its own, and both use the same links.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import PATIENCE, PYTHON, ROOT, circumstances, pytorch_version, report, run, table
from ddp.network import NETWORK, WORKERS, limited_links, namespace

# ringstep alone: flags of a row, how many times as fast as dense it must be, and the aim.
ROWS = {
    "dense": ([], None, None),
    "int8": (["--compress", "int8"], 2, 2),
    "top-k, 1%": (["--compress", "top-k", "--keep", "0.01"], 3, 5),
    "power-sgd, rank 4": (["--compress", "power-sgd", "--rank", "4"], 3, 5),
}
ENCODER_AT_MOST = 0.1  # of backward, the fastest
HOOKS = {"fp16": ["--compress", "fp16"], "bf16": ["--compress", "bf16"], "power-sgd": ["--compress", "power-sgd", "--rank", "4"]}
WARM_UP = 4  # PyTorch's PowerSGD begins with its third step


def ringstep(args, flags, network):
    """The summary of one run."""
    job = ["--model", args.model, "--dataset", "synthetic", "--samples", str(WORKERS * args.batch), "--sync", "ddp"]
    job += ["--workers", str(WORKERS), "--threads", "1", "--batch", str(args.batch), "--steps", str(args.steps + 2)]
    job += ["--lr", "0.01", "--momentum", "0.9", "--transport", "tcp", "--trace", "0"]
    with tempfile.TemporaryDirectory() as out:
        return json.loads(run(["target/release/ringstep", "train", "--json", *job, *flags, *network, "--out", out]))["runs"][0]


def pytorch(args, hook, limited):
    """Seconds of a step."""
    job = ["--model", args.model, "--batch", str(args.batch), "--steps", str(args.steps), "--warm-up", str(WARM_UP), "--hook", hook]
    job += ["--master", f"{NETWORK}.1" if limited else "127.0.0.1", "--interface", "eth0" if limited else "lo"]
    job += ["--port", str(20000 + os.getpid() % 20000), "--world", str(WORKERS)]
    children = []
    try:
        for rank in range(WORKERS):
            within = ["ip", "netns", "exec", namespace(rank)] if limited else []
            command = [*within, PYTHON, "bench/compression/pytorch.py", *job, "--rank", str(rank)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            children.append(subprocess.Popen(command, cwd=ROOT, text=True, **pipes))
        results = [child.communicate(timeout=PATIENCE) for child in children]
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no end after {PATIENCE} s") from error
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    for rank, (child, (_, error)) in enumerate(zip(children, results)):
        if child.returncode:
            last = error.strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"rank {rank}: {last[0]}")
    return json.loads(results[0][0])["seconds"]


def attempt(name, work, failures):
    """What the work returns, or None with a line among the failures."""
    print(name, file=sys.stderr, flush=True)
    try:
        return work()
    except (RuntimeError, ValueError, KeyError) as error:
        failures.append(f"{name}: {error}")


def dense(args, failures):
    """Lines, and whether compression gains what it must: ringstep alone on limited links."""
    kernels = ["bench", "kernels", "--model", args.model, "--batch", str(args.batch), "--passes", "step", "--json"]
    alone = json.loads(run(["target/release/ringstep", *kernels]))
    backward = alone["backward_seconds"] / alone["step_seconds"]
    found = {name: [] for name in ROWS}
    with limited_links(args.rate) as network:
        for round_ in range(args.rounds):
            for name, (flags, *_) in ROWS.items():
                said = f"round {round_ + 1} of {args.rounds}: ringstep, {name}, {args.rate}"
                summary = attempt(said, lambda: ringstep(args, flags, network), failures)
                found[name] += [summary] if summary else []
    step = {name: statistics.median(run_["seconds_per_step"] for run_ in runs) for name, runs in found.items() if runs}
    body, holds, fastest = [], True, None
    for name, (_, least, aim) in ROWS.items():
        if name not in step or "dense" not in step:
            holds = False
            body.append([name, "", "", "", "", f"{least or ''}", f"{aim or ''}", "not measured"])
            continue
        run_ = min(found[name], key=lambda run_: abs(run_["seconds_per_step"] - step[name]))
        ratio = step["dense"] / step[name]
        # As a share of the backward of the same run, which shares its cores with as much.
        share = run_["encode_seconds"] / (run_["compute_seconds"] * backward)
        if least:
            holds &= ratio >= least
            fastest = share if fastest is None else min(fastest, share)
        verdict = "" if not least else "aim ✓" if ratio >= aim else "at least ✓" if ratio >= least else "✗"
        sent = f"{run_['bytes_sent'] / run_['steps'] / 1e6:.2f}"
        encode = f"{share:.1%}" if least else ""
        row = [name, f"{step[name] * 1e3:.0f}", sent, encode, f"{ratio:.2f}", f"{least or ''}", f"{aim or ''}"]
        body.append([*row, verdict])
    header = ["ringstep, ddp", "step, ms", "MB a step", "encoding, of backward", "times dense", "at least", "aim", "reached"]
    lines = ["", f"{args.model}, {WORKERS} workers of {args.batch} images, links of {args.rate}:", "", *table(header, body)]
    if fastest is not None:
        holds &= fastest <= ENCODER_AT_MOST
        mark = "✓" if fastest <= ENCODER_AT_MOST else "✗"
        lines += ["", f"The fastest of these takes {fastest:.1%} of backward to encode, at most {ENCODER_AT_MOST:.0%}: {mark}"]
    return lines, holds


def hooks(args, failures):
    """Lines, and whether ringstep is as fast beside PyTorch as it must be."""
    lines, holds = [], True
    for title, limited, least in [("loopback", False, 2.0), (f"links of {args.rate}", True, 1.0)]:
        times = {}
        with limited_links(args.rate) if limited else contextlib.nullcontext([]) as network:
            for round_ in range(args.rounds):
                for name, flags in HOOKS.items():
                    programs = {
                        "PyTorch": lambda: pytorch(args, name, limited),
                        "ringstep": lambda: ringstep(args, flags, network)["seconds_per_step"],
                    }
                    for program, work in programs.items():
                        said = f"round {round_ + 1} of {args.rounds}: {program}, {name}, {title}"
                        seconds = attempt(said, work, failures)
                        if seconds is not None:
                            times.setdefault((name, program), []).append(seconds)
        body = []
        for name in HOOKS:
            medians = [statistics.median(times[name, p]) if (name, p) in times else None for p in ("PyTorch", "ringstep")]
            cells = [f"{seconds * 1e3:.0f}" if seconds is not None else "" for seconds in medians]
            if None in medians:
                holds = False
                body.append([name, *cells, "", f"{least:g}", "not measured"])
                continue
            ratio = medians[0] / medians[1]
            holds &= ratio >= least
            body.append([name, *cells, f"{ratio:.2f}", f"{least:g}", "✓" if ratio >= least else "✗"])
        lines += ["", f"Beside PyTorch's DDP with its hooks, {title}; milliseconds a step, ratio = PyTorch's time / ringstep's:", ""]
        lines += table(["hook", "PyTorch", "ringstep", "ratio", "at least", "reached"], body)
    return lines, holds


def main():
    parser = argparse.ArgumentParser(prog="bench/compression.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rate", default="100mbit", help="of each link, in tc's words")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="images a worker")
    parser.add_argument("--model", default="vgg11")
    parser.add_argument("--only", choices=["dense", "pytorch"])
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the tables there too")
    args = parser.parse_args()

    lines = circumstances("bench/compression.sh", os.getloadavg()[0], [pytorch_version()])
    report("# What sending less is worth", lines, [("dense", dense), ("pytorch", hooks)], args)


if __name__ == "__main__":
    main()
