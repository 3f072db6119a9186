"""Leases under faults: no interval admits too much.

    python tests/faults/leases_campaign.py [--seconds S] [--processes N] [--seed N] [--broken RULE]

Processes hit one key of a leased Redis and log each call that passes, with readings of the clock
before and after: without pause at first; then they let the bucket fill, all take leases, and spend
them at once just before they end, or a second later. Meanwhile they are killed and stopped, replies
are lost after the server has executed their commands, connections are cut, scripts are forgotten,
and the server's clock is set forward and back. Then every interval is checked: the calls that lie
within it are at most burst + rate * its length, and min(rate * step, burst) for each step forward
in it or within two leases before it. Exits with 1 if one has more.

With `--broken` a rule that leases rest on is broken from outside, without other faults, and the
program exits with 1 if no interval shows that: `late` has the clock of nodes go slow, so that
leases are spent past their end; `given` gives back what nodes still hold; `step` sets the server's
clock forward while they hold it, and allows for nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "redis"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lease_calls import Step, most_over
from proxy import Proxy
from redis_server import RedisServer
from wall_clock import WallClock, build_shim

RATE, BURST, LEASE = 500, 500, 0.2
LOST = 0.01  # the share of replies
# How much slower the clock of nodes goes with --broken late.
SLOWNESS = 20
PERIOD = 3.4  # of the processes' waves
OPTIONS = "mode=leased&timeout=1&on_error=closed&deny_cache_max=0&breaker_failures=1000000"
_RECORD = struct.Struct("dd?")

WORKER = """
import logging, os, struct, sys, time
import tidegate as tg
uri, path, limit, period = sys.argv[1:]
logging.disable()
log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
limiter = tg.Limiter(limit, storage=uri)

def hit():
    before = time.monotonic()
    decision = limiter.hit("k")
    after = time.monotonic()
    if decision:
        os.write(log, struct.pack("dd?", before, after, decision.leased))
    return decision

while True:
    # All processes are in step.
    number, phase = divmod(time.monotonic(), float(period))
    spends_at = 3.2 if number % 2 else 2.17
    if phase < 1:
        hit()
        time.sleep(0.002)
    elif 2 < phase < 2.1:
        leased = 0
        for _ in range(12):
            leased += hit().leased
            if leased == 3:
                break
        time.sleep(0.1)
    elif spends_at < phase < spends_at + 0.15:
        hit()
    else:
        time.sleep(0.002)
"""

# Takes what nodes hold for given back, with the microseconds of a unit.
GIVE_BACK = """
local value = redis.call('GET', KEYS[1])
if not value or #value ~= 42 then return 0 end
local _, s, n = struct.unpack('>I2I5I4', value)
local current, previous = struct.unpack('>I6I6', value, 31)
local at = s * 1000000 + n / 1000 - (current + previous) * ARGV[1]
redis.call('SET', KEYS[1], string.format('%.0f', at), 'KEEPTTL')
return current + previous
"""


class LosingProxy(Proxy):
    """Loses some replies after the server has executed their commands, and then the connection."""

    def __init__(self, port: int, chance: random.Random, share: float) -> None:
        self.chance, self.share, self.lost = chance, share, 0
        super().__init__(port)

    def _reply(self, client: socket.socket, data: bytes) -> None:
        if self.chance.random() < self.share:
            self.lost += 1
            raise OSError
        super()._reply(client, data)


class Workers:
    """Processes that are started again when they are killed."""

    def __init__(self, uri: str, directory: Path, count: int, environment: dict[str, str]) -> None:
        self._uri, self._directory, self._environment = uri, directory, environment
        self._started = 0
        self.all = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        path = self._directory / f"admitted-{self._started}"
        limit = f"{RATE}/second burst {BURST}"
        arguments = (self._uri, str(path), limit, str(PERIOD))
        return subprocess.Popen([sys.executable, "-c", WORKER, *arguments], env=self._environment)

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


class Campaign:
    """One run against one server."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.options, self.directory = options, directory
        self.chance = random.Random(options.seed)
        self.faults = dict.fromkeys(
            ("killed", "stopped", "connections cut", "scripts forgotten", "steps of TIME"), 0
        )
        self.steps: list[Step] = []
        shim = build_shim(directory)
        self.clock = WallClock(shim, directory / "server-clock")
        self.ahead = 0.0
        self.broken = -1.0  # the last wave
        self.server = RedisServer(directory, environment=self.clock.environment)
        environment = dict(os.environ)
        if options.broken == "late":
            nodes = WallClock(shim, directory / "nodes-clock")
            nodes.be_slow(SLOWNESS)
            environment = nodes.environment
        self.server.start()
        self.proxy = LosingProxy(self.server.port, self.chance, 0 if options.broken else LOST)
        uri = f"redis://127.0.0.1:{self.proxy.port}/0?lease={LEASE}&{OPTIONS}"
        self.workers = Workers(uri, directory, options.processes, environment)

    def run(self) -> np.ndarray:
        """Returns the calls that passed."""
        stopped: list[tuple[float, int]] = []
        try:
            end = time.monotonic() + self.options.seconds
            while (now := time.monotonic()) < end:
                self._break(now)
                time.sleep(0.02)
                for until, pid in [each for each in stopped if each[0] <= now]:
                    stopped.remove((until, pid))
                    os.kill(pid, signal.SIGCONT)
                if self.options.broken or self.chance.random() < 0.6:
                    continue
                fault = self.chance.choices(list(self.faults), (1, 6, 2, 2, 0.3))[0]
                self.faults[fault] += 1
                index = self.chance.randrange(self.options.processes)
                pid = self.workers.all[index].pid
                if fault == "killed":
                    stopped = [each for each in stopped if each[1] != pid]
                    self.workers.kill(index)
                elif fault == "stopped":
                    os.kill(pid, signal.SIGSTOP)
                    stopped.append((now + self.chance.uniform(0.05, 0.6), pid))
                elif fault == "connections cut":
                    self.server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                elif fault == "scripts forgotten":
                    self.server.command("SCRIPT", "FLUSH")
                else:
                    self._step(self.chance.uniform(-0.5, 0.5))
        finally:
            self.workers.end()
            self.proxy.close()
            self.server.kill()
        return admitted(self.directory)

    def _step(self, by: float) -> None:
        """Sets the server's clock."""
        self.ahead += by
        before = time.monotonic()
        self.clock.be_ahead(int(self.ahead * 1e9))
        self.steps.append(Step(before, time.monotonic() + 2 * LEASE, max(0, min(RATE * by, BURST))))

    def _break(self, now: float) -> None:
        number, phase = divmod(now, PERIOD)
        if self.options.broken == "given":
            unit = str(1_000_000 // RATE)
            for key in self.server.command("KEYS", "tg:*").split(b"\r\n"):
                if key.startswith(b"tg:"):
                    self.server.command("EVAL", GIVE_BACK, "1", key, unit)
        elif self.options.broken == "step" and number != self.broken and 2.1 < phase < 2.2:
            self.broken = number
            self._step(0.9)  # beyond the slots of the longest leases


def main() -> int:
    parser = argparse.ArgumentParser(description="leases under faults")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broken", choices=("late", "given", "step"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        campaign = Campaign(options, Path(name))
        calls = campaign.run()
    over = most_over(calls, RATE, BURST, campaign.steps)
    leased = int(calls[:, 2].sum())
    told = ", ".join(f"{count} {fault}" for fault, count in campaign.faults.items())
    print(f"{len(calls)} calls passed in {options.seconds:g} s, {leased} by leases")
    print(f"{told}, {campaign.proxy.lost} replies lost")
    print(f"the fullest interval has {over:+.2f} calls beyond what the limit allows")
    if options.broken is None:
        return 1 if over > 0 or leased == 0 else 0
    # A step admits more than no step, and no more than is said of it.
    plain = most_over(calls, RATE, BURST)
    noticed = plain > 0 and (over <= 0 or options.broken != "step")
    print(f"{options.broken}: {plain:+.2f} beyond burst + rate * its length")
    print("noticed, as it must be" if noticed else "NOT NOTICED")
    return 0 if noticed else 1


if __name__ == "__main__":
    sys.exit(main())
