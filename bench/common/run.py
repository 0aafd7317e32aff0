"""What all comparisons do alike: run a program to its end, make tables, and say on what machine and commit."""

import datetime
import os
import platform
import shlex
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # commands run here
PYTHON = os.environ.get("RINGSTEP_PEER_PYTHON", "target/peers/venv/bin/python")
PATIENCE = 600  # seconds for one run of one program


def run(command):
    """Standard output, or RuntimeError that says what went wrong."""
    try:
        # A session of its own, so that a run that hangs ends with all its ranks.
        child = subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise RuntimeError(f"{command[0]}: {error.strerror}") from error
    try:
        out, err = child.communicate(timeout=PATIENCE)
    except BaseException as error:  # Ctrl-C included
        child.terminate()  # mpirun ends its ranks when asked
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if isinstance(error, subprocess.TimeoutExpired):
            raise RuntimeError(f"no end after {PATIENCE} s") from error
        raise
    if child.returncode:
        lines = [line for line in err.splitlines() if line.strip(" -")]
        raise RuntimeError(f"exit {child.returncode}: {lines[-1].strip() if lines else 'no message'}")
    return out


def first_line(command, contains=""):
    try:
        return next(line.strip() for line in run(command).splitlines() if contains in line)
    except (RuntimeError, StopIteration):
        return "unknown"


def table(header, body):
    """Markdown that is also aligned for reading in a terminal."""
    widths = [max(map(len, column)) for column in zip(header, *body)]
    lines = [header, ["-" * (w - 1) + ":" for w in widths], *body]
    return ["| " + " | ".join(cell.rjust(w) for cell, w in zip(line, widths)) + " |" for line in lines]


def cpuinfo(field):
    """What /proc/cpuinfo says of the first core; empty where it does not have the field."""
    lines = (line.split(":", 1) for line in open("/proc/cpuinfo") if ":" in line)
    return next((value.strip() for name, value in lines if name.strip() == field), "")


def processor():
    return cpuinfo("model name") or platform.machine()


def processor_flags():
    return set(cpuinfo("flags").split())


def circumstances(script, load, versions):
    """Command, commit, date, machine and versions, as a recorded run lists them."""
    commit = first_line(["git", "rev-parse", "--short", "HEAD"])
    if first_line(["git", "status", "--porcelain", "--untracked-files=no"]) != "unknown":
        commit += " with changes"
    machine = f"{processor()}, {os.cpu_count()} cores, Linux {platform.release()}"
    versions = [*versions, first_line(["rustc", "--version"])]
    return [
        f"- command: `{shlex.join([script, *sys.argv[1:]])}`",
        f"- commit: {commit}, {datetime.date.today()}",
        f"- machine: {machine}; load {load:.1f} before the run",
        f"- versions: {', '.join(versions)}",
    ]


def pytorch_version():
    return "PyTorch " + first_line([PYTHON, "-c", "import torch; print(torch.__version__)"])


def report(title, lines, parts, args):
    """Does the parts that `--only` leaves, each of which returns lines and whether it holds what it must; prints and, with
    `--record`, writes all; and ends with 1 if one does not hold."""
    holds, failures = True, []
    for name, part in parts:
        if args.only in (None, name):
            said, held = part(args, failures)
            lines, holds = lines + said, holds and held
    for failure in failures:
        lines += ["", failure]
    print("\n".join(lines))
    if args.record:
        args.record.write_text("\n".join([title, "", *lines]) + "\n")
    sys.exit(not holds)
