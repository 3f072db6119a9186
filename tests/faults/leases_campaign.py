"""Leases under kills, stops, cut connections and lost scripts: no interval admits too much.

    python tests/faults/leases_campaign.py [--seconds 20] [--processes 16] [--seed 1]

Processes hit one key of a leased Redis without pause and log each call that passes, with readings
of the clock before and after. Meanwhile they are killed and stopped, and the server's connections
are cut and its scripts forgotten. Then every interval is checked: the calls that lie within it are
at most burst + rate * its length. Exits with 1 if one has more.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "redis"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lease_calls import most_over
from redis_server import RedisServer

RATE, BURST = 500, 500
OPTIONS = "mode=leased&timeout=1&on_error=closed&deny_cache_max=0&breaker_failures=1000000"
_RECORD = struct.Struct("dd?")

WORKER = """
import logging, os, struct, sys, time
import tidegate as tg
uri, path, limit = sys.argv[1:]
logging.disable()
log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
limiter = tg.Limiter(limit, storage=uri)
while True:
    before = time.monotonic()
    decision = limiter.hit("k")
    after = time.monotonic()
    if decision:
        os.write(log, struct.pack("dd?", before, after, decision.leased))
    time.sleep(0.002)
"""


class Workers:
    """Processes that are started again when they are killed."""

    def __init__(self, uri: str, directory: Path, count: int) -> None:
        self._uri, self._directory = uri, directory
        self._started = 0
        self.all = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        path = self._directory / f"admitted-{self._started}"
        limit = f"{RATE}/second burst {BURST}"
        return subprocess.Popen([sys.executable, "-c", WORKER, self._uri, str(path), limit])

    def kill(self, index: int) -> None:
        self.all[index].kill()
        self.all[index].wait()
        self.all[index] = self._start()

    def end(self) -> None:
        for worker in self.all:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.wait()


def admitted(directory: Path) -> np.ndarray:
    """The readings before and after each call that passed, and whether a lease decided it."""
    calls: list[tuple[float, float, bool]] = []
    for path in directory.glob("admitted-*"):
        log = path.read_bytes()
        calls += _RECORD.iter_unpack(log[: len(log) // _RECORD.size * _RECORD.size])
    return np.array(calls).reshape(-1, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description="leases under faults")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    faults = {"killed": 0, "stopped": 0, "connections cut": 0, "scripts forgotten": 0}
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        directory = Path(name)
        server = RedisServer(directory)
        server.start()
        workers = Workers(server.uri(OPTIONS), directory, options.processes)
        stopped: list[tuple[float, int]] = []
        try:
            end = time.monotonic() + options.seconds
            while (now := time.monotonic()) < end:
                time.sleep(0.05)
                for until, pid in [each for each in stopped if each[0] <= now]:
                    stopped.remove((until, pid))
                    os.kill(pid, signal.SIGCONT)
                fault = chance.choices(list(faults), (1, 6, 2, 2))[0]
                faults[fault] += 1
                index = chance.randrange(options.processes)
                pid = workers.all[index].pid
                if fault == "killed":
                    stopped = [each for each in stopped if each[1] != pid]
                    workers.kill(index)
                elif fault == "stopped":
                    os.kill(pid, signal.SIGSTOP)
                    stopped.append((now + chance.uniform(0.05, 0.6), pid))
                elif fault == "connections cut":
                    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                else:
                    server.command("SCRIPT", "FLUSH")
        finally:
            workers.end()
            server.kill()
        calls = admitted(directory)
    told = ", ".join(f"{count} {fault}" for fault, count in faults.items())
    over = most_over(calls, RATE, BURST)
    leased = int(calls[:, 2].sum())
    print(f"{len(calls)} calls passed in {options.seconds:g} s, {leased} by leases; {told}")
    print(f"the fullest interval has {over:+.2f} calls beyond burst + rate * its length")
    return 1 if over > 0 or leased == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
