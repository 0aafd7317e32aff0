"""Training steps and inference on one host: ringstep beside PyTorch, ONNX Runtime and OpenVINO, in turns, and beside
itself with narrower vectors. bench/engine.sh prepares what this needs and passes its arguments on.

All programs warm up, then report the median step of a run; a job's time is the median over rounds, which alternate the
programs. A training step is forward, loss, backward and optimizer (SGD with momentum and weight decay); inference is a
forward pass in evaluation mode, of a frozen model in ringstep. All in float32, but for OpenVINO's default precision, which
is there for information. Of several peers in a comparison the fastest counts: PyTorch runs in both memory formats, and by
torch.compile in whichever of them was faster in that round.

Fails where a ratio is less than it must be, and where wider vectors are slower than narrower ones.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common.run import PYTHON, ROOT, circumstances, first_line, processor, processor_flags, pytorch_version, run, table

MIB = 1 << 20
ONNX = Path("target/peers/onnx")  # what export.py writes
# torch.compile keeps what it compiled from one round to the next.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / "target/peers/inductor"))


class Job(NamedTuple):
    model: str
    batch: int
    threads: int
    inference: bool = False

    def __str__(self):
        name = self.model + (" inference" if self.inference else "")
        return f"{name}, batch {self.batch}, {self.threads} thread{'s' if self.threads > 1 else ''}"


class Goal(NamedTuple):
    """The peer's time / ringstep's."""

    at_least: float
    aim: float


class Comparison(NamedTuple):
    title: str
    peers: list  # the fastest counts
    information: list  # shown, not counted
    goals: dict  # of jobs


FORMATS = ["PyTorch", "PyTorch channels last"]
BESIDE_PYTORCH = Comparison(
    "PyTorch",
    [*FORMATS, "PyTorch compiled"],
    [],
    {
        Job("vgg11", 64, 2): Goal(2.5, 3.5),
        Job("vgg11", 64, 1): Goal(2.5, 3.5),
        Job("resnet18", 32, 2): Goal(2.2, 3),
        Job("lenet5", 25, 1): Goal(5, 10),
        Job("cnn", 128, 2): Goal(4, 6),
        Job("vgg11", 1, 2, inference=True): Goal(2, 3),
        Job("vgg11", 64, 2, inference=True): Goal(2, 3),
    },
)
BESIDE_RUNTIMES = Comparison(
    "ONNX Runtime and OpenVINO",
    ["ONNX Runtime", "OpenVINO"],
    ["OpenVINO's default precision"],
    {Job(model, batch, 2, inference=True): Goal(1, 1.5) for model in ("vgg11", "resnet18") for batch in (1, 64)},
)
COMPARISONS = [BESIDE_PYTORCH, BESIDE_RUNTIMES]
JOBS = list(BESIDE_PYTORCH.goals | BESIDE_RUNTIMES.goals)
MEMORY_JOB = JOBS[0]

# Levels of instructions, narrow to wide, and what of /proc/cpuinfo's flags each needs.
LEVELS = {"portable": "", "avx2": "avx2 fma", "avx512": "avx512f avx512vl avx512bw avx512dq"}
# A wider level has at least this share of the speed of the narrower one.
WIDER_AT_LEAST = 0.95


def ringstep(level):
    return f"ringstep {level}"


def ringstep_command(job, level):
    size = ["--model", job.model, "--batch", str(job.batch), "--threads", str(job.threads)]
    passes = "evaluation" if job.inference else "step"
    return ["target/release/ringstep", "bench", "kernels", *size, "--passes", passes, "--instructions", level, "--json"]


def peer_command(program, job, seconds, faster_format):
    if program in BESIDE_PYTORCH.peers:
        command = [PYTHON, "bench/engine/pytorch.py", "--model", job.model, "--batch", str(job.batch)]
        command += ["--inference"] if job.inference else []
        command += ["--compile"] if program == "PyTorch compiled" else []
        format_ = faster_format if program == "PyTorch compiled" else program
        command += ["--channels-last"] if format_ == "PyTorch channels last" else []
    else:
        runtime = "onnxruntime" if program == "ONNX Runtime" else "openvino"
        command = [PYTHON, "bench/engine/runtime.py", runtime, str(ONNX / f"{job.model}-{job.batch}")]
        command += ["--any-precision"] if program == "OpenVINO's default precision" else []
    return [*command, "--threads", str(job.threads), "--seconds", str(seconds)]


class Measurements:
    """What the programs said, round by round."""

    def __init__(self):
        self.times = {}  # (job, program) -> {round: seconds}
        self.results = {}  # (job, program) -> the last JSON
        self.failures = []

    def take(self, round_, job, program, command):
        print(f"round {round_ + 1}: {program}, {job}", file=sys.stderr, flush=True)
        try:
            result = read(run(command))
            if program.startswith("ringstep"):
                seconds = result["evaluation_seconds" if job.inference else "step_seconds"]
            else:
                seconds = result["seconds"]
            self.times.setdefault((job, program), {})[round_] = float(seconds)
            self.results[job, program] = result
        except (RuntimeError, KeyError, TypeError) as error:
            self.failures.append(f"{program}, {job}, left out of round {round_ + 1}: {error}")

    def median(self, job, program):
        times = self.times.get((job, program))
        return statistics.median(times.values()) if times else None

    def fastest(self, job, programs):
        """The program with the least median."""
        measured = [program for program in programs if (job, program) in self.times]
        return min(measured, key=lambda program: self.median(job, program), default=None)

    def faster_format(self, round_, job):
        return min(FORMATS, key=lambda program: self.times.get((job, program), {}).get(round_, float("inf")))


def read(out):
    try:
        return json.loads(out)
    except ValueError as error:
        raise RuntimeError(f"output not understood: {error}") from error


def measure(args, levels, chosen):
    """Rounds alternate the programs, so that a busy minute of the machine meets all of them."""
    measured = Measurements()
    for round_ in range(args.rounds):
        for job in args.only:
            for comparison in COMPARISONS:
                for program in [*comparison.peers, *comparison.information] if job in comparison.goals else []:
                    faster_format = measured.faster_format(round_, job)
                    measured.take(round_, job, program, peer_command(program, job, args.seconds, faster_format))
            for level in [chosen] if job.inference else levels:
                # The portable level is so much slower that it needs no second look.
                if round_ == 0 or level != "portable" or level == chosen:
                    measured.take(round_, job, ringstep(level), ringstep_command(job, level))
    return measured


def milliseconds(seconds):
    return "" if seconds is None else f"{seconds * 1e3:.2f}"


def verdict(goal, ratio):
    return "aim ✓" if ratio >= goal.aim else "at least ✓" if ratio >= goal.at_least else "✗"


def compare(comparison, jobs, measured, chosen):
    """Lines with the table, and what is not reached."""
    ours, programs = ringstep(chosen), [*comparison.peers, *comparison.information]
    body, faults = [], []
    for job in jobs:
        goal = comparison.goals[job]
        row = [str(job), *(milliseconds(measured.median(job, program)) for program in [*programs, ours])]
        peer, cells = measured.fastest(job, comparison.peers), ["", "", "not measured"]
        if peer and (job, ours) in measured.times:
            ratio = measured.median(job, peer) / measured.median(job, ours)
            theirs_by_round, ours_by_round = measured.times[job, peer], measured.times[job, ours]
            each = [theirs_by_round[r] / ours_by_round[r] for r in theirs_by_round.keys() & ours_by_round.keys()]
            by_round = f"{min(each):.2f} to {max(each):.2f}" if each else ""
            cells = [f"{ratio:.2f}", by_round, verdict(goal, ratio)]
        if cells[-1] in ("✗", "not measured"):
            faults.append(f"{job}, beside {comparison.title}: {cells[0] or 'not measured'}, at least {goal.at_least:g}")
        body.append([*row, *cells[:2], f"{goal.at_least:g}", f"{goal.aim:g}", cells[2]])
    title = f"Beside {comparison.title}, ringstep with {chosen}, on {processor()}: milliseconds, median over rounds;"
    lines = ["", f"{title} ratio = the fastest peer's time / ringstep's:", ""]
    lines += table(["job", *programs, ours, "ratio", "by round", "at least", "aim", "reached"], body)
    aims = sum(row[-1] == "aim ✓" for row in body)
    return [*lines, "", f"{len(body) - len(faults)} of {len(body)} reach at least what they must, {aims} the aim."], faults


def compare_levels(jobs, measured, levels):
    """Lines with the time of each level, and where a wider one is slower than a narrower."""
    pairs, body, faults = list(zip(levels, levels[1:])), [], []
    for job in jobs:
        medians = {level: measured.median(job, ringstep(level)) for level in levels}
        speeds = []
        for narrow, wide in pairs:
            if medians[narrow] is None or medians[wide] is None:
                speeds.append("not measured")
                faults.append(f"{job}: {wide} beside {narrow} not measured")
                continue
            speed = medians[narrow] / medians[wide]
            speeds.append(f"{speed:.2f}" + ("" if speed >= WIDER_AT_LEAST else " ✗"))
            if speed < WIDER_AT_LEAST:
                faults.append(f"{job}: {wide} has {speed:.2f} of the speed of {narrow}, at least {WIDER_AT_LEAST}")
        body.append([str(job), *(milliseconds(medians[level]) for level in levels), *speeds])
    lines = ["", f"ringstep by level of instructions on {processor()}: milliseconds; ratio = the narrower level's time / the"]
    lines[-1] += f" wider's, at least {WIDER_AT_LEAST}:"
    ratios = [f"{narrow} / {wide}" for narrow, wide in pairs]
    return [*lines, "", *table(["job", *levels, *ratios], body)], faults


def memory(measured, chosen):
    """The most memory of each process in the largest job, and what of PyTorch's is there before the model."""
    programs = [*BESIDE_PYTORCH.peers, ringstep(chosen)]
    if any((MEMORY_JOB, program) not in measured.results for program in programs):
        return []
    body = []
    for program in programs:
        result = measured.results[MEMORY_JOB, program]
        peak, before = result["peak_bytes"], result.get("peak_bytes_before")
        split = ["", ""] if before is None else [f"{before / MIB:.0f}", f"{(peak - before) / MIB:.0f}"]
        body.append([program, f"{peak / MIB:.0f}", *split])
    lines = ["", f"Peak memory (VmHWM) in MiB, {MEMORY_JOB}; before: after importing PyTorch, without a model:", ""]
    return lines + table(["program", "peak", "before", "since"], body)


def report(args, measured, levels, chosen):
    """Lines of all tables, and what must hold and does not."""
    lines, faults = [], []
    for comparison in COMPARISONS:
        if jobs := [job for job in args.only if job in comparison.goals]:
            more, missed = compare(comparison, jobs, measured, chosen)
            lines, faults = lines + more, faults + missed
    precisions = {
        result["precision"] for (_, program), result in measured.results.items() if program in BESIDE_RUNTIMES.information
    }
    if precisions:
        lines += ["", f"OpenVINO's default precision is {', '.join(sorted(precisions))} here."]
    if jobs := [job for job in args.only if not job.inference]:
        more, missed = compare_levels(jobs, measured, levels)
        lines, faults = lines + more, faults + missed
    return lines + memory(measured, chosen), faults


def chosen_level():
    """What ringstep chooses by itself."""
    return read(run(ringstep_command(Job("lenet5", 1, 1), "auto")))["instructions"]


def versions():
    onednn = "import torch; print(next(line for line in torch.__config__.show().splitlines() if 'DNN v' in line))"
    onednn = first_line([PYTHON, "-c", onednn]).removeprefix("- ").split(" (Git")[0]
    of = lambda package: first_line([PYTHON, "-c", f"import {package}; print({package}.__version__)"])
    return [f"{pytorch_version()} ({onednn})", f"ONNX Runtime {of('onnxruntime')}", f"OpenVINO {of('openvino').split('-')[0]}"]


def job_list(text):
    names = text.split(",")
    models = sorted({job.model for job in JOBS})
    if unknown := set(names) - set(models):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(models)}")
    return [job for job in JOBS if job.model in names]


def main():
    parser = argparse.ArgumentParser(prog="bench/engine.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring in each run of a peer")
    parser.add_argument("--only", type=job_list, default=JOBS, help="the jobs of some models, such as vgg11,lenet5")
    parser.add_argument("--record", metavar="FILE.md", type=Path, help="write the tables there too")
    args = parser.parse_args()

    load = os.getloadavg()[0]
    levels = [level for level, needed in LEVELS.items() if set(needed.split()) <= processor_flags()]
    try:
        chosen = chosen_level()
        exported = [f"{job.model}-{job.batch}" for job in args.only if job in BESIDE_RUNTIMES.goals]
        if exported:
            run([PYTHON, "bench/engine/export.py", str(ONNX), *exported])
    except RuntimeError as error:
        sys.exit(f"bench/engine.sh: {error}")
    measured = measure(args, levels, chosen)
    lines, faults = report(args, measured, levels, chosen)
    lines = circumstances("bench/engine.sh", load, versions()) + lines
    for line in [*measured.failures, *(f"✗ {fault}" for fault in faults)]:
        lines += ["", line]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join(["# The engine beside PyTorch, ONNX Runtime and OpenVINO", "", *lines]) + "\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
