"""Strangers who call at a job's door: attack.py PORT COUNT SECONDS SECRET SEED. Says what became of them as JSON."""

import collections
import hashlib
import hmac
import json
import random
import resource
import select
import socket
import sys
import time

CHALLENGE, RESPONSE = 64, 128
KINDS = ["garbage", "half an introduction", "slow drips", "right magic, wrong proof", "replayed"]
OPEN = 400  # At a time; the oldest are hung up on.


class Caller:
    def __init__(self, port, kind, chance, overheard):
        self.kind, self.heard = kind, b""
        self.line = socket.socket()
        self.line.setblocking(False)
        self.line.connect_ex(("127.0.0.1", port))
        self.said = False
        self.words = {
            "garbage": chance.randbytes(chance.randrange(1, 4096)),
            "half an introduction": chance.randbytes(RESPONSE // 2),
            "slow drips": chance.randbytes(RESPONSE),
            "right magic, wrong proof": chance.randbytes(RESPONSE),
            "replayed": overheard,
        }[kind]

    def go_on(self):
        """Says what can be said now; false once the line is dead."""
        try:
            try:
                heard = self.line.recv(CHALLENGE)
                if not heard:
                    return False
                self.heard += heard
            except BlockingIOError:
                pass
            waits = self.kind in ("right magic, wrong proof", "replayed") and len(self.heard) < CHALLENGE
            if self.words and not waits:
                part = 1 if self.kind == "slow drips" else len(self.words)
                self.words = self.words[self.line.send(self.words[:part]):]
                self.said = True
            return True
        except BlockingIOError:
            return True
        except OSError:
            return False


def main():
    port, count, seconds, secret, seed = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
    chance, made, became = random.Random(seed), 0, collections.Counter()
    # A proof that was right on another connection.
    challenge, body = chance.randbytes(CHALLENGE), chance.randbytes(RESPONSE - 32)
    key = hashlib.sha256(secret.encode()).digest()
    overheard = body + hmac.new(key, b"ringstep caller" + challenge + body, hashlib.sha256).digest()
    began, callers = time.monotonic(), collections.deque()
    while made < count:
        due = min(count, int(count * (time.monotonic() - began) / seconds) + 1)
        while made < due:
            callers.append(Caller(port, KINDS[made % len(KINDS)], chance, overheard))
            made += 1
        for _ in range(len(callers)):
            caller = callers.popleft()
            if len(callers) < OPEN and caller.go_on():
                callers.append(caller)
            else:
                became["were heard" if caller.heard or caller.said else "were never let in"] += 1
                caller.line.close()
        select.select([], [], [], 0.05)
    for caller in callers:
        became["were heard" if caller.heard or caller.said else "were never let in"] += 1
        caller.line.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"made": made, "seconds": time.monotonic() - began, "cpu": usage.ru_utime + usage.ru_stime, **became}))


main()
