"""Strangers call by the thousand while a job meets and trains: the result is the same, and what it costs is measured."""

import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys
import threading
import time

from job import RINGSTEP, wait_until, weights

JOB = ["--sync", "ddp", "--workers", "1", "--transport", "tcp", "--timeout", "30", "--trace", "0", "--nodes", "2"]
ATTACK = pathlib.Path(__file__).parent / "attack.py"


def is_listening(port):
    wanted = f":{port:04X}"
    return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A"
               for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:])


def once(folder, number, strangers, seconds, epochs, port):
    """One run of two nodes; returns its weights, times, peak memory and what became of the strangers."""
    secret, run = secrets.token_hex(16), folder / f"run-{number}"
    environment = dict(os.environ, RINGSTEP_SECRET=secret)
    command = [RINGSTEP, "train", *JOB, "--epochs", str(epochs), "--rendezvous", f"127.0.0.1:{port}"]
    began = time.monotonic()
    first = subprocess.Popen([*command, "--node-rank", "0", "--out", str(run), "--json"], env=environment, cwd=folder,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    peak = [0]

    def watch():
        while first.poll() is None:
            try:
                for line in open(f"/proc/{first.pid}/status"):
                    if line.startswith("VmHWM"):
                        peak[0] = max(peak[0], int(line.split()[1]))
            except OSError:
                pass
            time.sleep(0.1)

    threading.Thread(target=watch, daemon=True).start()
    wait_until("the meeting is open", lambda: is_listening(port))
    attack = None
    if strangers:
        words = [sys.executable, str(ATTACK), str(port), str(strangers), str(seconds), secret, str(number)]
        attack = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        # Before the second node comes they are there already.
        time.sleep(0.3)
    second = subprocess.Popen([*command, "--node-rank", "1"], env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    out, _ = first.communicate(timeout=120)
    wall = time.monotonic() - began
    assert first.returncode == 0 and second.wait(30) == 0
    became = json.loads(attack.communicate(timeout=120)[0]) if attack else None
    return weights(run), json.loads(out)["runs"][0]["seconds"], wall, peak[0], became


def run(folder, count, chance, rounds=3, epochs=4500):
    port = 20000 + chance.randrange(10000)
    once(folder, 0, 0, 0, 50, port)
    plain, attacked, expected = [], [], None
    for number in range(rounds):
        quiet = once(folder, 2 * number + 1, 0, 0, epochs, port + 2 * number + 1)
        # As many in the time that the run takes.
        loud = once(folder, 2 * number + 2, count, quiet[2] * 0.9, epochs, port + 2 * number + 2)
        plain.append(quiet)
        attacked.append(loud)
        print(f"undisturbed {quiet[1]:.2f} s, {quiet[3]} kB; attacked {loud[1]:.2f} s, {loud[3]} kB, {loud[4]}", flush=True)
    same = len({result[0] for result in plain + attacked}) == 1
    times = [statistics.median(result[1] for result in results) for results in (plain, attacked)]
    memory = [max(result[3] for result in results) for results in (plain, attacked)]
    slower = 100 * (times[1] / times[0] - 1)
    strangers = attacked[-1][4]
    cpu = 100 * strangers["cpu"] / strangers["seconds"]
    each = [1e6 * (times[1] - times[0]) / count, 1e6 * strangers["cpu"] / count]
    lines = [f"{count} connections a run at the port of the meeting, of five kinds in turn (garbage, half introductions, slow drips, the "
             "right magic with a wrong proof, replayed proofs), from before the ranks meet until shortly before the end; two nodes of "
             f"one worker, LeNet-5, ddp over TCP on loopback. Medians of {rounds} runs each, in turns:", "",
             "| | undisturbed | attacked |", "| --- | --- | --- |",
             f"| seconds of training | {times[0]:.2f} | {times[1]:.2f} ({slower:+.1f}%) |",
             f"| peak memory of the first process | {memory[0] / 1000:.1f} MB | {memory[1] / 1000:.1f} MB |",
             f"| weights | | {'the same' if same else 'OTHERS'} |", "",
             f"A connection costs the run {each[0]:.0f} us, {each[1]:.0f} of which are the strangers' own: their process used {cpu:.0f}% of one of "
             "the cores that both nodes run on. Of those of the last run "
             + ", ".join(f"{value} {key}" for key, value in strangers.items() if key.startswith("were"))
             + ": the door is only attended while ranks meet (with --elastic, always), and afterwards the system's queue is full of "
             "callers that nobody hears."]
    return lines, not same or slower > 10 or memory[1] > memory[0] + 50_000
