"""Kill -9 at random steps, resumed each time: the weights of a run that was never disturbed, to the bit."""

import os
import shutil
import signal
import time

from job import Job, TooLate, undisturbed, weights

JOBS = {
    "ddp": "--sync ddp --momentum 0.9 --shuffle --epochs 1200",
    "all-reduce": "--sync all-reduce --momentum 0.9 --shuffle --epochs 1200",
    "local-sgd": "--sync local-sgd --momentum 0.9 --shuffle --epochs 1200",
    "stale, S = 0": "--sync stale --staleness 0 --shuffle --epochs 1200",
    "ddp, top-k with error feedback": "--sync ddp --compress top-k --shuffle --epochs 1200",
    "resnet20, batch norm, augmentation": "--model resnet20 --dataset synthetic --samples 400 --sync ddp --momentum 0.9 --shuffle "
                                          "--augment crop,flip --epochs 8",
}


def killed_again_and_again(folder, words, every, kills, chance, seconds):
    """Kills a random process of the run, or all of them at once by their launcher, until it was done as often as it should."""
    run, done, at = folder / "run", 0, []
    arguments = [*words, "--checkpoint-every", str(every), "--out", str(run), "--timeout", "60"]
    while True:
        job = Job(folder, arguments, out=run)
        arguments = ["--resume", str(run), "--timeout", "60"]
        try:
            if done < kills:
                sealed = {path.parent.name for path in (run / "checkpoints").glob("[0-9]*/SHA256SUMS")}

                def came_further():
                    return {path.parent.name for path in (run / "checkpoints").glob("[0-9]*/SHA256SUMS")} - sealed

                job.wait_for("another checkpoint", came_further)
                time.sleep(chance.uniform(0, seconds))
                victim = chance.choice(["launcher", 0, 1, 2, 3])
                os.kill(job.processes[0].pid if victim == "launcher" else job.worker(victim), signal.SIGKILL)
                code, _ = job.end()
                if code != 0:
                    done += 1
                    at.append(victim)
                    continue
            code, left = job.end()
            return code, left, done
        except (TooLate, ProcessLookupError):
            if job.processes[0].wait() != 0:
                return job.processes[0].returncode, [job.last_words()], done
            return 0, [], done
        finally:
            job.abandon()
            job.close()


def run(folder, kills, chance):
    lines = ["| job | steps | killed | the weights of the undisturbed run |", "| --- | --- | --- | --- |"]
    failed = False
    for number, (name, words) in enumerate(JOBS.items()):
        place = folder / str(number)
        place.mkdir()
        began = time.monotonic()
        expected, repeatable, steps = undisturbed(place, words.split())
        seconds = time.monotonic() - began
        # So many checkpoints that there is one between two kills.
        every = max(1, steps // (2 * kills + 4))
        code, left, done = killed_again_and_again(place, words.split(), every, kills, chance, seconds / (3 * kills))
        same = code == 0 and not left and repeatable and weights(place / "run") == expected
        failed |= not same or done < kills
        lines.append(f"| {name} | {steps} | {done} times | {'yes' if same else f'NO: {code} {left}'} |")
        print(lines[-1], flush=True)
        shutil.rmtree(place)
    lines += ["", "Each kill took a random one of the five processes, at a random moment after a new checkpoint, and the run went on "
              "by `ringstep train --resume`."]
    return lines, failed
