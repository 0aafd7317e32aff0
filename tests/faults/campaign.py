"""Faults of every kind, under every way of synchronising, over every transport."""

import collections
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
import traceback

from job import Hosts, Job, TooLate, Wrong, resume, undisturbed, wait_until, weights

COMMON = ["--epochs", "200", "--checkpoint-every", "100", "--trace", "0"]
WAYS = {
    "gather-scatter": "", "all-reduce": "", "ddp": "", "ddp, top-k": "--compress top-k", "data-parallel": "",
    "local-sgd": "", "post-local-sgd": "", "diloco": "", "sma": "--learners 2", "none": "",
    "parameter-server": "--servers 2", "stale": "--staleness 0 --servers 1", "stale, 2 ahead": "--staleness 2 --servers 2",
    "async": "--servers 1", "parameter-server, colocated": "--servers colocated",
    "stale, colocated": "--staleness 0 --servers colocated", "async, colocated": "--servers colocated",
}
SERVERS = {"parameter-server": 2, "stale": 1, "stale, 2 ahead": 2, "async": 1}
FIRST = r"the first process of the job, on \S+, does"
ELASTIC = ["gather-scatter", "all-reduce", "ddp", "ddp, top-k", "local-sgd", "diloco", "sma"]
# What can be done to ranks that are threads, processes, processes of mpirun, and processes on several hosts, with and without --tls.
ON_HOSTS = ["rank killed", "rank replaced", "rank stopped", "rank paused", "launcher killed", "member killed", "member replaced",
            "first stopped", "link cut", "link flaps", "host missed"]
KINDS = {
    "threads": ["launcher killed", "disk full", "checkpoint torn"],
    "shm": ["rank killed", "rank replaced", "rank stopped", "rank paused", "launcher killed", "server killed", "disk full", "checkpoint torn"],
    "tcp": ["rank killed", "rank replaced", "rank stopped", "rank paused", "launcher killed", "server killed"],
    "mpi": ["rank killed", "rank stopped", "rank paused", "launcher killed", "server killed"],
    "hosts": ON_HOSTS,
    "hosts, tls": ON_HOSTS,
}


def arguments(way, transport):
    words = ["--sync", way.split(",")[0], *WAYS[way].split(), *COMMON]
    if transport == "threads":
        words += ["--launch", "threads"]
    if "hosts" in transport:
        words += ["--workers", "1"]
    if "tls" in transport:
        words += ["--tls"]
    if transport == "mpi":
        words += ["--workers", "4"]
    if transport in ("shm", "tcp", "mpi"):
        words += ["--transport", transport]
    return words


def ranks_of_mpi(way, transport):
    return 4 + SERVERS.get(way, 0) if transport == "mpi" else None


def result_of(way, transport):
    """What the weights depend on."""
    return way, transport if transport in ("threads", "mpi") else "processes"


def fits(way, transport, kind):
    if way == "data-parallel" and transport != "threads":
        return False
    # On four hosts of one worker each there is no process for a server.
    if way in SERVERS and "hosts" in transport or "colocated" in way and "hosts" not in transport:
        return False
    # Those that go on with fewer workers.
    if kind == "host missed" and (way not in ELASTIC):
        return False
    return kind != "server killed" or way in SERVERS


def plan(faults, chance, only):
    """Cases in turn over transports and kinds; each transport and kind goes on with the way that it has had least often."""
    cases, times = [], collections.Counter()
    turns = [(transport, kind) for transport in KINDS for kind in KINDS[transport] if not only or kind in only]
    for number in range(faults):
        transport, kind = turns[number % len(turns)]
        ways = [way for way in WAYS if fits(way, transport, kind)]
        chance.shuffle(ways)
        way = min(ways, key=lambda way: (times[transport, way], times[transport, kind, way]))
        times[transport, way] += 1
        times[transport, kind, way] += 1
        cases.append((transport, kind, way, chance.getrandbits(32)))
    return cases


class Case:
    def __init__(self, folder, hosts, references, case):
        self.transport, self.kind, self.way, self.number = case
        self.folder, self.hosts, self.references = folder, hosts, references
        self.chance = __import__("random").Random(self.number)
        self.mpi = ranks_of_mpi(self.way, self.transport)

    def start(self, timeout, out=None, more=()):
        words = [*arguments(self.way, self.transport), "--timeout", str(timeout), "--out", str(out or self.folder / "run"), *more]
        hosts = self.hosts if "hosts" in self.transport else None
        self.job = Job(self.folder, words, hosts, out, self.mpi)
        self.job.wait_for_checkpoint()
        time.sleep(self.chance.uniform(0, 0.2))
        if self.job.is_over():
            raise TooLate()
        return self.job

    def send(self, process, number):
        try:
            os.kill(process, number)
        except ProcessLookupError:
            raise TooLate() from None

    def error(self, pattern):
        """The run ends with a line like this one, and leaves nothing."""
        code, left = self.job.end()
        said = self.job.last_words()
        if code == 0:
            raise TooLate()
        if self.mpi:
            # mpirun has words and an exit code of its own.
            said = next((line for line in self.job.all_words() if re.match(pattern, line)), said)
        if (code != 1 and not self.mpi) or not re.match(pattern, said):
            raise Wrong(f"exit code {code}, {said!r} is not {pattern!r}")
        # What a killed process was writing is cleared away by whoever goes on.
        left = [path for path in left if "/run/checkpoints/" not in path]
        if left:
            raise Wrong(f"left behind: {left}")
        return said

    def recover(self, run=None):
        run = run or self.folder / "run"
        said, steps = resume(self.folder, run, self.mpi)
        self.same(run, steps)
        return said

    def same(self, run, steps=None):
        expected, repeatable, of = self.references[result_of(self.way, self.transport)]
        if repeatable and weights(run) != expected:
            raise Wrong("other weights than the undisturbed run")
        if steps is not None and steps != of:
            raise Wrong(f"{steps} steps instead of {of}")
        left = [str(path) for path in run.rglob("*") if ".tmp" in path.name or path.name.startswith(".")]
        if left:
            raise Wrong(f"left behind: {left}")

    def succeeds(self):
        code, left = self.job.end()
        if code != 0 or left:
            raise Wrong(f"exit code {code}, {self.job.last_words()!r}, left behind: {left}")
        self.same(self.folder / "run")

    def death_of(self, rank):
        """As those say it that are left; of processes that mpirun has started, mpirun may be the first to say anything."""
        if self.mpi is None:
            return rf"error: rank {rank}( on \S+)? died: killed by signal 9"
        who = rf"rank {rank} on \S+ died: its process is gone" if rank else r"the first process of the job, on \S+, is gone"
        return rf"error: {who}|mpirun\S* noticed that process rank {rank} with PID \d+ .*exited on signal 9"

    def told(self, words):
        """The line in which it said so; a run that was over before has no such line."""
        for line in self.job.all_words():
            if words in line:
                return line
        raise TooLate()

    # One kind of fault each.

    def rank_killed(self):
        rank = self.chance.randrange(4)
        self.start(20)
        self.send(self.job.worker(rank), signal.SIGKILL)
        said = self.error(self.death_of(rank))
        self.recover()
        return said

    def rank_replaced(self):
        """Another takes its place, perhaps again before all have met, and the run ends as if nothing had happened."""
        self.start(20, more=["--max-restarts", "9"])
        for _ in range(self.chance.randrange(1, 4)):
            rank = self.chance.randrange(4 + (SERVERS[self.way] if self.way in SERVERS else 0))
            try:
                self.send(self.job.worker(rank), signal.SIGKILL)
            except TooLate:
                pass
            time.sleep(self.chance.uniform(0, 0.3))
        self.succeeds()
        return self.told("; going on from step ")

    def member_replaced(self):
        """Its node is started anew, as Kubernetes does it."""
        number = self.chance.randrange(1, 4)
        self.start(20, more=["--max-restarts", "9"])
        self.send(self.job.processes[number].pid, signal.SIGKILL)
        time.sleep(self.chance.uniform(0, 0.5))
        self.job.start_again(number)
        self.succeeds()
        return self.told(" to come again, ")

    def server_killed(self):
        rank = 4 + self.chance.randrange(SERVERS[self.way])
        self.start(20)
        self.send(self.job.worker(rank), signal.SIGKILL)
        said = self.error(self.death_of(rank))
        self.recover()
        return said

    def rank_stopped(self):
        rank = self.chance.randrange(4)
        self.start(4)
        self.send(self.job.worker(rank), signal.SIGSTOP)
        who = rf"(rank {rank}( on \S+)? does|ranks {rank} and {4 + rank}( on \S+)? do)"
        if self.mpi and rank == 0:
            who = FIRST
        said = self.error(rf"error: {who} not answer any more \(")
        self.recover()
        return said

    def first_stopped(self):
        """The process that the others take their orders from: each of them says so."""
        self.start(4)
        stopped = [self.job.processes[0].pid, self.job.worker(0)]
        for process in stopped:
            self.send(process, signal.SIGSTOP)
        try:
            others = self.job.processes[1:]
            wait_until("the end of the others", lambda: all(process.poll() is not None for process in others))
            for number in range(1, 4):
                if not re.match(rf"error: {FIRST} not answer any more \(", self.job.last_words(number)):
                    raise Wrong(f"process {number}: {self.job.last_words(number)!r}")
        finally:
            for process in stopped:
                self.send(process, signal.SIGCONT)
        code, left = self.job.end()
        left = [path for path in left if "/run/checkpoints/" not in path]
        if code != 1 or left:
            raise Wrong(f"exit code {code}, {self.job.last_words()!r}, left behind: {left}")
        self.recover()
        return self.job.last_words(1)

    def rank_paused(self):
        self.start(20)
        process = self.job.worker(self.chance.randrange(4))
        self.send(process, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.2, 1.5))
        self.send(process, signal.SIGCONT)
        self.succeeds()
        return "went on"

    def launcher_killed(self):
        self.start(6)
        self.send(self.job.processes[0].pid, signal.SIGKILL)
        _, left = self.job.end()
        left = [path for path in left if "/run/" not in path]
        if left:
            raise Wrong(f"left behind: {left}")
        self.recover()
        return "all are gone"

    def member_killed(self):
        number = self.chance.randrange(1, 4)
        self.start(20)
        self.send(self.job.processes[number].pid, signal.SIGKILL)
        said = self.error(rf"error: rank {number}( on \S+)? died: ")
        self.recover()
        return said

    def link_cut(self):
        number = self.chance.randrange(4)
        self.start(4)
        self.hosts.pull(number)
        try:
            if number == 0:
                said = self.error(r"error: ranks 1, 2(, 3, 5, 6 and 7| and 3) do not answer any more \(|error: rank \d on \S+ died: ")
            else:
                who = rf"(rank {number}|ranks {number} and {4 + number}) on {self.hosts.address(number)}"
                said = self.error(rf"error: {who} (does not answer any more|do not answer any more|died: )")
        finally:
            self.hosts.plug(number)
        self.recover()
        return said

    def link_flaps(self):
        number = self.chance.randrange(4)
        self.start(20)
        for _ in range(self.chance.randrange(1, 3)):
            self.hosts.pull(number)
            time.sleep(self.chance.uniform(0.1, 1.5))
            self.hosts.plug(number)
            time.sleep(0.2)
        self.succeeds()
        return "went on"

    def host_missed(self):
        """Its worker or all of it is stopped, or its link is cut: the others go on, and train on all images."""
        number, how = self.chance.randrange(1, 4), self.chance.choice(["worker", "node", "link"])
        self.start(4, more=["--elastic", "2:4"])
        try:
            match how:
                case "worker":
                    self.send(self.job.worker(number), signal.SIGSTOP)
                case "node":
                    self.send(self.job.processes[number].pid, signal.SIGSTOP)
                    self.send(self.job.worker(number), signal.SIGSTOP)
                case "link":
                    self.hosts.pull(number)
            self.job.wait_for("going on", lambda: any("with 3 workers" in line for line in self.job.all_words()))
        finally:
            if how == "link":
                self.hosts.plug(number)
            elif how == "node":
                # It finds out that it was given up.
                self.send(self.job.processes[number].pid, signal.SIGCONT)
        code, left = self.job.end()
        left = [path for path in left if "/run/checkpoints/" not in path]
        if code != 0 or left:
            raise Wrong(f"exit code {code}, {self.job.last_words()!r}, left behind: {left}")
        steps = map(json.loads, (self.folder / "run/steps.jsonl").read_text().splitlines())
        images, of = sum(step["images"] for step in steps), 100 * 200
        if images != of:
            raise Wrong(f"{images} images instead of {of}")
        return self.told("; going on from step ")

    def disk_full(self):
        """A disk on which one checkpoint has room and not the next ones."""
        disk = self.folder / "disk"
        disk.mkdir()
        self.full = disk
        # Room for the records, and for less than three checkpoints of four ranks.
        size = self.chance.randrange(2500, 5000)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], check=True)
        words = [*arguments(self.way, self.transport), "--timeout", "20", "--keep-checkpoints", "100", "--out", str(disk / "run")]
        self.job = Job(self.folder, words, None, disk / "run")
        code, left = self.job.end()
        said = self.job.last_words()
        if code == 0:
            self.same(disk / "run")
            return f"the run ended: {said}"
        if not re.search(r"No space left on device", said) or left:
            raise Wrong(f"exit code {code}: {said!r}, left behind: {left}")
        if any((disk / "run/checkpoints").glob("[0-9]*/SHA256SUMS")):
            shutil.copytree(disk / "run", self.folder / "run")
            self.recover()
        return said

    def checkpoint_torn(self):
        """The last checkpoint loses its end, or a bit: the one before it is used."""
        run = self.folder / "run"
        words = [*arguments(self.way, self.transport), "--timeout", "20", "--out", str(run)]
        self.job = Job(self.folder, words)
        self.job.wait_for("two checkpoints", lambda: len(list((run / "checkpoints").glob("[0-9]*/SHA256SUMS"))) > 1)
        self.send(self.job.processes[0].pid, signal.SIGKILL)
        self.job.end()
        last = max((path.parent for path in (run / "checkpoints").glob("[0-9]*/SHA256SUMS")), key=lambda path: int(path.name))
        file = self.chance.choice(sorted(last.iterdir()))
        data = bytearray(file.read_bytes())
        if self.chance.random() < 0.5:
            del data[self.chance.randrange(len(data)):]
        else:
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        file.write_bytes(data)
        said = self.recover()
        if last.name not in said:
            raise Wrong(f"the torn checkpoint {last.name} ({file.name}) is not named: {said!r}")
        return next(line for line in said.splitlines() if last.name in line)

    def inject(self):
        self.folder.mkdir(parents=True)
        self.job = self.full = None
        try:
            return getattr(self, self.kind.replace(" ", "_"))()
        finally:
            if self.job:
                self.job.abandon()
                self.job.close()
            if self.full:
                subprocess.run(["umount", str(self.full)], check=False)
            shutil.rmtree(self.folder, ignore_errors=True)


def run(folder, faults, lanes, chance, only):
    began = time.monotonic()
    cases = plan(faults, chance, only)
    references = {}
    for transport, _, way, _ in cases:
        key = result_of(way, transport)
        if key not in references:
            place = folder / f"reference-{len(references)}"
            place.mkdir()
            words = arguments(way, "shm" if key[1] == "processes" else transport)
            references[key] = undisturbed(place, words, ranks_of_mpi(way, transport))
    waiting, results = queue.Queue(), []
    for number, case in enumerate(cases):
        waiting.put((number, case))

    def lane(index):
        hosts = Hosts(index)
        try:
            while True:
                number, case = waiting.get_nowait()
                outcome = None
                for attempt in range(5):
                    try:
                        place = folder / f"lane-{index}" / f"{number}-{attempt}"
                        outcome = True, Case(place, hosts, references, case).inject()
                        break
                    except TooLate as late:
                        outcome = False, f"was always over before it could be disturbed: {late}"
                    except Wrong as wrong:
                        outcome = False, str(wrong)
                        break
                    except Exception:
                        outcome = False, traceback.format_exc()
                        break
                results.append((number, case, outcome))
                if not outcome[0]:
                    print(f"FAILED: {number}: {case}: {outcome[1]}", flush=True)
        except queue.Empty:
            pass
        finally:
            hosts.remove()

    threads = [threading.Thread(target=lane, args=(index,)) for index in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [result for result in results if not result[2][0]]
    lines = [f"{len(results)} faults in {time.monotonic() - began:.0f} s, {lanes} at a time; {len(failed)} without the right end.",
             "", "| transport | fault | times | ways | right | for example |", "| --- | --- | --- | --- | --- | --- |"]
    groups = collections.OrderedDict()
    for number, case, outcome in sorted(results):
        groups.setdefault((case[0], case[1]), []).append((case, outcome))
    for (transport, kind), members in groups.items():
        right = [outcome for _, outcome in members if outcome[0]]
        ways = len({case[2] for case, _ in members})
        example = re.sub(r"/\S*/ringstep-faults-[^/\s]*/\S*?/run", "RUN", right[0][1]).replace("|", "\\|") if right else ""
        lines.append(f"| {transport} | {kind} | {len(members)} | {ways} | {len(right)} | {example} |")
    lines += ["", "Each right end is the error that names the rank, or the end of the run, and after an error `--resume` to the weights "
              "of the undisturbed run (where the way repeats; elsewhere to as many steps), with no process, temporary file or shared "
              "memory left."]
    for number, case, outcome in sorted(failed):
        lines += ["", f"FAILED: {case}: {outcome[1]}"]
    return lines, failed
