"""A run of ringstep that can be disturbed, and what must hold when it is over."""

import hashlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import threading
import time

RINGSTEP = os.environ["RINGSTEP"]
RINGSTEP_MPI = os.environ.get("RINGSTEP_MPI")  # The same with Open MPI built in.
PATIENCE = 60.0  # Whatever takes longer hangs.


class Wrong(Exception):
    """Something that must hold does not."""


class TooLate(Exception):
    """The run was over before it could be disturbed."""


def wait_until(what, condition, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"{what}: not within {patience:.0f} s")
        time.sleep(0.005)


def weights(run):
    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def living(mark):
    """The processes of a run, wherever they are: they inherit a mark in their environment."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes() and b"State:\tZ" not in (entry / "status").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            pass
    return found


def program(mpi=None):
    """What starts ringstep: by itself, or so many ranks of it by mpirun."""
    return [RINGSTEP] if mpi is None else ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(mpi), RINGSTEP_MPI]


class Job:
    """One run, of one process that starts workers, of one on each of several hosts, or of so many ranks that mpirun starts."""

    def __init__(self, folder, arguments, hosts=None, out=None, mpi=None):
        self.folder, self.run = folder, out or folder / "run"
        self.mark = secrets.token_hex(8).encode()
        self.temporary = folder / f"tmp-{self.mark.decode()}"
        self.temporary.mkdir(parents=True)
        self.environment = dict(os.environ, RINGSTEP_FAULT=self.mark.decode(), TMPDIR=str(self.temporary),
                                HOME=str(folder), RINGSTEP_SECRET=secrets.token_hex(16))
        self.shared_memory = set(os.listdir("/dev/shm"))
        words = [*program(mpi), "train", *arguments]
        if hosts is None:
            self.commands = [words]
        else:
            nodes = ["--nodes", str(len(hosts.names)), "--rendezvous", f"{hosts.address(0)}:{hosts.port()}"]
            self.commands = [["ip", "netns", "exec", name, *words, *nodes, "--node-rank", str(number)]
                             for number, name in enumerate(hosts.names)]
        self.said = [open(folder / f"said-{self.mark.decode()}-{number}", "w+") for number in range(len(self.commands))]
        self.processes = [self.start(number) for number in range(len(self.commands))]

    def start(self, number):
        return subprocess.Popen(self.commands[number], stdout=subprocess.DEVNULL, stderr=self.said[number],
                                env=self.environment, cwd=self.folder)

    def start_again(self, number):
        """Another process in the place of one that is gone."""
        self.processes[number].wait()
        self.processes[number] = self.start(number)

    def all_words(self):
        self.said[0].seek(0)
        return self.said[0].read().splitlines()

    def is_over(self):
        return self.processes[0].poll() is not None

    def wait_for(self, what, condition):
        def either():
            return condition() or self.is_over()
        wait_until(what, either)
        if self.is_over():
            raise TooLate(self.last_words())

    def wait_for_checkpoint(self):
        self.wait_for("a checkpoint", lambda: any((self.run / "checkpoints").glob("[0-9]*/SHA256SUMS")))

    def steps(self):
        try:
            return (self.run / "metrics.jsonl").stat().st_size
        except OSError:
            return 0

    def worker(self, rank):
        """The process of a rank."""
        for process, words in living(self.mark).items():
            if words[1:] == [b"worker", str(rank).encode()] or words[0] == str(RINGSTEP_MPI).encode() and self.is_rank(process, rank):
                return process
        raise TooLate(f"no process of rank {rank}")

    def is_rank(self, process, rank):
        """Whether it is this one for mpirun."""
        try:
            variables = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"OMPI_COMM_WORLD_RANK=%d" % rank in variables

    def last_words(self, number=0):
        self.said[number].seek(0)
        lines = [line for line in self.said[number].read().splitlines() if not line.startswith("waiting:")]
        return lines[-1] if lines else ""

    def end(self):
        """Waits for the end of all, and looks for what must not be left. Returns the first process's exit code."""
        wait_until("the end", self.is_over)
        wait_until("the end of all processes", lambda: not living(self.mark))
        for process in self.processes:
            process.wait()
        # Open MPI's are another program's, here and below.
        left = [str(path) for path in self.temporary.rglob("*") if "/ompi." not in str(path)]
        left += [str(path) for path in self.run.rglob("*") if ".tmp" in path.name or path.name.startswith(".")]
        left += sorted(name for name in set(os.listdir("/dev/shm")) - self.shared_memory if not name.startswith("vader_segment"))
        return self.processes[0].returncode, left

    def abandon(self):
        """After something went wrong, nobody stays."""
        for process in living(self.mark):
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        for process in self.processes:
            process.wait()

    def close(self):
        for said in self.said:
            said.close()


# Both ends of a cable have the name eth0 for a moment.
BUILDING = threading.Lock()


class Hosts:
    """Hosts that have nothing but a network in common: namespaces with addresses of their own on one bridge."""

    def __init__(self, lane, count=4):
        self.lane, self.next_port = lane, 29000
        self.names = [f"rs{lane}-host{number}" for number in range(count)]
        self.bridge = f"rs{lane}-bridge"
        self.remove()
        with BUILDING:
            self.build()

    def build(self):
        ip("link", "add", self.bridge, "type", "bridge")
        ip("link", "set", self.bridge, "up")
        for number, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("link", "add", self.cable(number), "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", self.cable(number), "master", self.bridge, "up")
            ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def cable(self, number):
        return f"rs{self.lane}-eth{number}"

    def address(self, number):
        return f"10.77.{100 + self.lane}.{10 + number}"

    def port(self):
        self.next_port += 1
        return self.next_port

    def pull(self, number):
        ip("link", "set", self.cable(number), "down")

    def plug(self, number):
        ip("link", "set", self.cable(number), "up")

    def remove(self):
        for name in self.names:
            ip("netns", "delete", name, check=False)
        for number in range(len(self.names)):
            ip("link", "delete", self.cable(number), check=False)
        ip("link", "delete", self.bridge, check=False)


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, stderr=None if check else subprocess.DEVNULL)


def undisturbed(folder, arguments, mpi=None):
    """The weights that a job ends with, and whether it would again."""
    run = folder / "run"
    done = subprocess.run([*program(mpi), "train", *arguments, "--out", str(run), "--json"], cwd=folder, capture_output=True,
                          text=True, timeout=300, check=True)
    summary = json.loads(done.stdout)["runs"][0]
    result = weights(run), summary["repeatable"], summary["steps"]
    shutil.rmtree(run)
    return result


def resume(folder, run, mpi=None):
    """Goes on from a checkpoint; returns what it said and the steps that it has done."""
    done = subprocess.run([*program(mpi), "train", "--resume", str(run), "--json", "--timeout", "60"], cwd=folder,
                          capture_output=True, text=True, timeout=PATIENCE * 2)
    if done.returncode != 0:
        raise Wrong(f"resume: {done.stderr.strip()}")
    return done.stderr, json.loads(done.stdout)["runs"][0]["steps"]
