"""What one process of a host finds out of Redis, all that share a fallback know."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidegate
from host_process import HostProcess
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT, RedisServer

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")


@pytest.fixture
def fallback() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield f"shm://{name}/table?capacity=1000"


def commands(server: RedisServer) -> int:
    calls = server.calls()
    return sum(calls.get(name, 0) for name in ("evalsha", "eval", "ping"))


def test_one_process_suffers_and_the_other_does_not_ask(
    server: RedisServer, proxy: Proxy, fallback: str
) -> None:
    uri = f"redis://127.0.0.1:{proxy.port}/0?timeout=1&connect_timeout=20&breaker_open=3600"
    with (
        HostProcess("100/hour", uri, fallback) as one,
        HostProcess("100/hour", uri, fallback) as other,
    ):
        one.ask("ping")
        other.ask("ping")
        assert not one.is_degraded()
        assert not other.is_degraded()
        assert other.ask("stats")["breaker_open"] is False
        proxy.mode = "hole"
        assert all(degraded for _, degraded in one.hit(5))
        assert one.changes() == [True]
        # Redis is well again, but nobody asks it.
        proxy.mode = "pass"
        asked = commands(server)
        stats = other.ask("stats")
        assert (stats["breaker_open"], stats["breaker_opened"]) == (True, 1)
        assert other.changes() == []
        begin = time.monotonic()
        assert all(degraded for _, degraded in other.hit(50))
        assert time.monotonic() - begin < 1
        assert other.ask("stats")["errors"] == 0
        assert commands(server) == asked
        assert one.changes() == other.changes() == [True]
        # The fallback is one, too: those 5 and these 50, and 45 are left.
        assert sum(allowed for allowed, _ in one.hit(60)) == 45
        # A process that comes later knows at once, and is told.
        with HostProcess("100/hour", uri, fallback) as late:
            assert late.is_degraded()
            assert late.changes() == [True]
            assert late.ask("stats")["errors"] == 0
        # One that is told another deadline finds out for itself.
        with HostProcess("100/hour", uri.replace("3600", "3601"), fallback) as stranger:
            eventually(lambda: not stranger.is_degraded())


@contextlib.contextmanager
def two_processes(uri: str, fallback: str) -> Iterator[tuple[HostProcess, HostProcess]]:
    """Two processes of a host, both of which reach Redis."""
    with (
        HostProcess("10000000/hour", uri, fallback) as one,
        HostProcess("10000000/hour", uri, fallback) as other,
    ):
        eventually(lambda: not one.is_degraded())
        eventually(lambda: not other.is_degraded())
        yield one, other


def test_the_probe_of_one_closes_for_all(server: RedisServer, proxy: Proxy, fallback: str) -> None:
    uri = f"redis://127.0.0.1:{proxy.port}/0?timeout=0.5&connect_timeout=20&breaker_open=0.3"
    with two_processes(uri, fallback) as (one, other):
        proxy.mode = "reset"
        eventually(lambda: bool(one.ask("stats")["breaker_open"]) or not one.hit())
        assert other.is_degraded()
        assert other.changes() == [True]
        proxy.mode = "pass"
        eventually(lambda: not other.is_degraded())
        # Its own connection was reset, and is made anew in the background: what fails until
        # then opens nothing.
        eventually(lambda: not one.is_degraded())
        assert one.ask("stats")["breaker_open"] is False
        assert one.changes() == other.changes() == [True, False]
        assert one.ask("stats")["breaker_opened"] == other.ask("stats")["breaker_opened"] == 1


def test_a_process_that_is_killed_while_it_probes(
    server: RedisServer, proxy: Proxy, fallback: str
) -> None:
    uri = f"redis://127.0.0.1:{proxy.port}/0?timeout=20&connect_timeout=20&breaker_open=0.3"
    with two_processes(uri, fallback) as (prober, other):
        proxy.mode = "reset"
        eventually(lambda: bool(prober.ask("stats")["breaker_open"]) or not prober.hit())
        proxy.mode = "hole"
        begin = time.monotonic()
        # It is due within 0.33 s; what is sent then is not answered.
        eventually(lambda: bool(prober.hit()) and time.monotonic() - begin > 0.5)
        prober.kill()
        proxy.mode = "pass"
        eventually(lambda: not other.is_degraded())
        assert other.changes() == [True, False]


def test_a_refusal_of_one_process_is_repeated_by_the_other(
    server: RedisServer, fallback: str
) -> None:
    uri = server.uri(PATIENT)
    with (
        HostProcess("2/hour", uri, fallback, deny_cache_max=3600) as one,
        HostProcess("2/hour", uri, fallback, deny_cache_max=3600) as other,
    ):
        assert not other.is_degraded()
        assert [allowed for allowed, _ in one.hit(2)] == [True, False]
        asked = commands(server)
        assert other.hit(500) == [(False, False)] * 500
        assert commands(server) == asked
        assert other.ask("stats")["denied_locally"] == 500
        # What one gives back counts for all at once.
        other.ask("reset", "k")
        assert [allowed for allowed, _ in one.hit(3)] == [True, True, False]
        # A limiter that was told to remember nothing asks, and so does one of another database.
        asked = commands(server)
        with (
            HostProcess("2/hour", uri, fallback) as forgetful,
            HostProcess("2/hour", uri.replace("/0?", "/1?"), fallback, 3600) as elsewhere,
        ):
            assert forgetful.hit() == [(False, False)]
            assert elsewhere.hit() == [(True, False)]
        assert commands(server) > asked + 1


def test_damage_crashes_nobody_and_ends(server: RedisServer, fallback: str) -> None:
    work = """
import mmap, os, random, sys, time
import tidegate
uri, fallback = sys.argv[1:3]
dice = random.Random(3)
path = fallback[len("shm://") :].partition("?")[0]
changes = []
limiter = tidegate.Limiter(
    "3/hour", storage=uri, fallback=fallback, breaker_open=0.2,
    on_breaker=lambda *change: changes.append(change),
)
with open(path, "r+b") as file:
    board = mmap.mmap(file.fileno(), 270336)
for round in range(400):
    for _ in range(5):
        repr(limiter.hit(f"k{dice.randrange(50)}"))
    if dice.randrange(2):
        for _ in range(50):
            at = dice.choice([dice.randrange(4096, 4224), dice.randrange(4096, 270336)])
            board[at] ^= 1 << dice.randrange(8)
    elif dice.randrange(4):
        at = dice.choice([4096, dice.randrange(4096, 270336 - 4096)])
        board[at : at + 4096] = dice.choice([dice.randbytes(4096), b"\\xff" * 4096, bytes(4096)])
    repr(limiter.stats())
    limiter.refund(f"k{dice.randrange(50)}")
deadline = time.monotonic() + 20
while limiter.hit("z").degraded:
    assert time.monotonic() < deadline
    time.sleep(0.005)
assert not limiter.stats().breaker_open
"""
    subprocess.run([sys.executable, "-c", work, server.uri(), fallback], check=True, timeout=120)


@pytest.mark.parametrize("shared", [False, True])
def test_a_change_is_reported_to_each_limiter_of_a_process(
    server: RedisServer, proxy: Proxy, fallback: str, shared: bool
) -> None:
    options = "timeout=2&connect_timeout=20&breaker_open=3600&breaker_failures=1"
    uri = f"redis://127.0.0.1:{proxy.port}/0?{options}"
    told: dict[str, list[bool]] = {"one": [], "other": []}
    limiters = [
        tidegate.Limiter(
            "100/hour",
            storage=uri,
            fallback=fallback if shared else "memory://",
            on_breaker=lambda opened, _, name=name: told[name].append(opened),
        )
        for name in told
    ]
    for limiter in limiters:
        limiter.ping()  # a hit that finds no connection in time would count for the breaker
        assert not limiter.hit("k").degraded
    proxy.mode = "hole"
    assert limiters[0].hit("k").degraded
    proxy.mode = "pass"
    assert limiters[1].hit("k").degraded is shared
    assert told == {"one": [True], "other": [True] if shared else []}
    for limiter in limiters:
        limiter.close()
