"""The wall clock steps by an hour under load, without effect on deadlines, breaker and cache."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from redis_server import RedisServer
from wall_clock import WallClock, asked, build_shim

pytestmark = pytest.mark.alone

HOUR = 3_600_000_000_000

# Threads and a loop hit. Answers each line with what went wrong, once every worker has made
# twenty calls more.
PROGRAM = """
import asyncio, json, sys, threading, time, tidegate

limiter = tidegate.Limiter("1000000/30 days", storage=sys.argv[1])
limiter.ping()
over = threading.Event()
slowest = 0.0
calls = [0] * 7

def note(number, begin):
    global slowest
    slowest = max(slowest, time.monotonic() - begin)
    calls[number] += 1

def forever(number):
    while not over.is_set():
        begin = time.monotonic()
        limiter.hit("thread")
        note(number, begin)
        time.sleep(0.001)

async def main():
    async def task(number):
        while not over.is_set():
            begin = time.monotonic()
            await limiter.hit_async("task")
            note(number, begin)
            await asyncio.sleep(0.001)
    await asyncio.gather(*(task(number) for number in range(2, 7)))

workers = [threading.Thread(target=forever, args=(number,)) for number in range(2)]
workers.append(threading.Thread(target=asyncio.run, args=(main(),)))
for worker in workers:
    worker.start()
print(time.time(), flush=True)
for line in sys.stdin:
    enough = [count + 20 for count in calls]
    deadline = time.monotonic() + 10
    while any(count < n for count, n in zip(calls, enough)) and time.monotonic() < deadline:
        time.sleep(0.01)
    went_on = all(count >= n for count, n in zip(calls, enough))
    stats = limiter.stats()
    print(json.dumps(dict(
        degraded=stats.degraded, errors=stats.errors, opened=stats.breaker_opened,
        slowest=slowest, went_on=went_on, now=time.time(),
    )), flush=True)
over.set()
for worker in workers:
    worker.join()
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


class Load:
    """A child process under the shim, with workers that call Redis."""

    def __init__(self, uri: str, shim: Path, page: Path) -> None:
        self.clock = WallClock(shim, page)
        self.child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.clock.environment,
        )
        assert self.child.stdout is not None
        self.began = float(self.child.stdout.readline())

    def report(self) -> dict[str, Any]:
        """What the child found once all workers went on, or some did not for ten seconds."""
        return asked(self.child)

    def kill(self) -> None:
        self.child.kill()
        self.child.communicate()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_fails_no_call_that_is_in_flight(
    own_server: RedisServer, shim: Path, tmp_path: Path, step: int
) -> None:
    load = Load(own_server.uri("timeout=5&connect_timeout=20"), shim, tmp_path / "page")
    try:
        own_server.signal(signal.SIGSTOP)
        time.sleep(0.2)  # every worker has a call in flight
        load.clock.be_ahead(step)
        time.sleep(0.1)
        own_server.signal(signal.SIGCONT)
        found = load.report()
    finally:
        own_server.signal(signal.SIGCONT)
        load.kill()
    assert (found["degraded"], found["errors"], found["opened"]) == (0, 0, 0)
    assert found["went_on"]
    # The process did see the step.
    assert abs(found["now"] - load.began - step / 1e9) < 60


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_moves_no_deadline(
    own_server: RedisServer, shim: Path, tmp_path: Path, step: int
) -> None:
    uri = own_server.uri("timeout=0.5&connect_timeout=20&breaker_open=0.2")
    load = Load(uri, shim, tmp_path / "page")
    try:
        own_server.signal(signal.SIGSTOP)
        time.sleep(0.2)  # every worker has a call in flight
        load.clock.be_ahead(step)
        found = load.report()
        own_server.signal(signal.SIGCONT)
        deadline = time.monotonic() + 20
        while load.report()["degraded"] > found["degraded"] and time.monotonic() < deadline:
            found = load.report()
    finally:
        own_server.signal(signal.SIGCONT)
        load.kill()
    assert found["went_on"]
    assert found["slowest"] < 0.5 + 3
    assert found["opened"] >= 1
    assert time.monotonic() < deadline
