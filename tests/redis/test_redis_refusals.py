"""A server that is there and will not, or cannot yet: laws 1, 7, 8 and 9 hold, and why is told."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidegate
from polling import eventually
from redis_server import PATIENT, RedisServer

DEADLINE = 0.05
# What a call may take on top of its deadline on a machine that does other things too.
SCHEDULING = 2
QUICK = f"timeout={DEADLINE}&connect_timeout=0.2&breaker_open=0.3"
# The outage that `make campaign` tries as well.
OUTAGE = 10.0 if os.environ.get("TIDEGATE_LONG") else 1.5


def timed_hit(limiter: tidegate.Limiter, key: str = "k") -> tidegate.Decision:
    begin = time.monotonic()
    decision = limiter.hit(key)
    assert time.monotonic() - begin < DEADLINE + SCHEDULING
    return decision


def scripts_sent(server: RedisServer) -> int:
    calls = server.calls()
    return calls.get("evalsha", 0) + calls.get("eval", 0)


def grant(server: RedisServer, *rules: str) -> str:
    """A user with these rules: where it logs in."""
    assert server.command("ACL", "SETUSER", "app", "reset", "on", ">hunter2", "~*", *rules) == (
        b"+OK\r\n"
    )
    return f"redis://app:hunter2@127.0.0.1:{server.port}/0"


# ------------------------------------------------------------------ permissions


def test_a_user_without_the_script_command(own_server: RedisServer) -> None:
    uri = grant(own_server, "+@all", "-script")
    with tidegate.Limiter(["5/hour", "9/day"], storage=f"{uri}?{PATIENT}") as limiter:
        assert limiter.hit("k").remaining == 4
        own_server.command("SCRIPT", "FLUSH")
        assert limiter.hit("k").remaining == 3
        assert asyncio.run(limiter.hit_async("k")).remaining == 2
        assert limiter.stats().degraded == 0


@pytest.mark.parametrize("forbidden", ["eval", "evalsha", "get", "set"])
def test_the_message_names_the_permission_that_a_user_lacks(
    own_server: RedisServer, forbidden: str
) -> None:
    reasons: list[str] = []
    uri = f"{grant(own_server, '+@all', f'-{forbidden}')}?{PATIENT}"
    with tidegate.Limiter(
        "3/hour", storage=uri, on_breaker=lambda opened, why: reasons.append(why)
    ) as limiter:
        limiter.ping()  # the server answers: that is all that a ping tells
        decisions = [limiter.hit("k") for _ in range(4)]
        assert all(decision.degraded for decision in decisions)
        assert [bool(decision) for decision in decisions] == [True, True, True, False]
        assert asyncio.run(limiter.hit_async("k")).degraded
        stats = limiter.stats()
        # What an ACL forbids is no mistake in a script of ours.
        assert (stats.errors, stats.script_errors, stats.breaker_open) == (5, 0, True)
    (reason,) = reasons
    assert "perm" in reason.lower() or "can't run this command" in reason
    if forbidden.startswith("eval"):
        assert forbidden in reason
    assert "hunter2" not in reason


def left_in_redis(limiter: tidegate.Limiter) -> int:
    """What is left of the key by Redis, as soon as it answers in time."""
    peeks: list[tidegate.Decision] = []

    def is_of_redis() -> bool:
        peeks.append(limiter.peek("k"))
        return not peeks[-1].degraded

    eventually(is_of_redis)
    return peeks[-1].remaining


# --------------------------------------------------------------- loading, busy


@pytest.fixture
def saved_server(server_directory: Path) -> Iterator[RedisServer]:
    """One that has its data on disk, and reads it slowly when it is started again."""
    arguments = ("--key-load-delay", "25000", "--rdbcompression", "no")
    with RedisServer(server_directory, *arguments) as server:
        # It answers once in two megabytes.
        fill = "for i = 1, 90 do redis.call('SET', 'x' .. i, string.rep('x', 1000000)) end"
        server.command("EVAL", fill, "0")
        yield server


def test_a_server_that_loads_its_data(saved_server: RedisServer) -> None:
    with tidegate.Limiter("30/day", storage=saved_server.uri(PATIENT)) as patient:
        for left in range(29, 19, -1):
            decision = patient.hit("k")
            assert (decision.remaining, decision.degraded) == (left, False)
    with tidegate.Limiter("30/day", storage=saved_server.uri(QUICK)) as limiter:
        eventually(lambda: not limiter.hit("warm").degraded)
        assert saved_server.command("SAVE") == b"+OK\r\n"
        saved_server.kill()
        saved_server.start()
        assert saved_server.command("PING").startswith(b"-LOADING")
        before = limiter.stats().errors
        decisions = []
        while saved_server.command("PING").startswith(b"-LOADING"):
            decisions.append(timed_hit(limiter, "other"))
            time.sleep(0.005)
        # It may have been done between the question and the last of them.
        assert len(decisions) > 5
        assert all(decision.degraded for decision in decisions[:-1])
        assert sum(map(bool, decisions)) <= 31  # those of the fallback, and that one
        stats = limiter.stats()
        assert stats.errors > before
        assert stats.script_errors == 0
        # What was on disk counts on, and what the fallback decided is not added to it.
        assert left_in_redis(limiter) == 20


def test_a_server_busy_with_a_script(own_server: RedisServer) -> None:
    own_server.command("CONFIG", "SET", "lua-time-limit", "1")
    with tidegate.Limiter("1000/day", storage=own_server.uri(QUICK)) as limiter:
        eventually(lambda: not limiter.hit("k").degraded)
        had = left_in_redis(limiter)
        own_server.command("CONFIG", "RESETSTAT")
        endless = threading.Thread(
            target=own_server.command, args=("EVAL", "while true do end", "0")
        )
        endless.start()
        try:
            eventually(lambda: own_server.command("PING").startswith(b"-BUSY"))
            decisions = [timed_hit(limiter) for _ in range(20)]
            several = asyncio.run(all_of(limiter, 20))
        finally:
            assert own_server.command("SCRIPT", "KILL") == b"+OK\r\n"
            endless.join()
        assert all(decision.degraded for decision in decisions + several)
        stats = limiter.stats()
        assert stats.script_errors == 0
        # It never got to them: BUSY is told before anything is run.
        assert left_in_redis(limiter) == had


async def all_of(limiter: tidegate.Limiter, calls: int) -> list[tidegate.Decision]:
    return list(await asyncio.gather(*(limiter.hit_async("k") for _ in range(calls))))


# ------------------------------------------------------------- stopped for long


@pytest.mark.alone
def test_stopped_for_long_under_load(own_server: RedisServer) -> None:
    """SIGSTOP and SIGCONT, while threads and tasks go on: no call is late, then or after."""
    limiter = tidegate.Limiter("1000000/365 days", storage=own_server.uri(QUICK))
    eventually(lambda: not limiter.peek("k").degraded)
    own_server.command("CONFIG", "RESETSTAT")
    stop = threading.Event()
    waits: list[float] = []
    shared: list[int] = []

    def threads() -> None:
        count, slowest = 0, 0.0
        while not stop.is_set():
            begin = time.monotonic()
            decision = limiter.hit("k")
            slowest = max(slowest, time.monotonic() - begin)
            count += not decision.degraded
            time.sleep(0.001)
        waits.append(slowest)
        shared.append(count)

    async def tasks() -> None:
        count, slowest = 0, 0.0
        while not stop.is_set():
            begin = time.monotonic()
            decisions = await all_of(limiter, 5)
            slowest = max(slowest, time.monotonic() - begin)
            count += sum(not decision.degraded for decision in decisions)
            await asyncio.sleep(0.001)
        waits.append(slowest)
        shared.append(count)

    team = [threading.Thread(target=threads) for _ in range(3)]
    team.append(threading.Thread(target=lambda: asyncio.run(tasks())))
    for thread in team:
        thread.start()
    try:
        eventually(lambda: scripts_sent(own_server) > 50)
        own_server.signal(signal.SIGSTOP)
        try:
            time.sleep(OUTAGE)  # the outage itself, which is what is tried
            assert limiter.stats().breaker_open
        finally:
            own_server.signal(signal.SIGCONT)
        eventually(lambda: not limiter.stats().breaker_open)
        eventually(lambda: not limiter.hit("after").degraded)
    finally:
        stop.set()
        for thread in team:
            thread.join()
    assert len(waits) == len(team)
    assert max(waits) < DEADLINE + SCHEDULING
    # What was decided by Redis was charged, what failed may have been, and nothing twice.
    stats = limiter.stats()
    eventually(lambda: not limiter.peek("k").degraded)
    charged = 1_000_000 - limiter.peek("k").remaining
    assert sum(shared) <= charged <= sum(shared) + stats.errors
    limiter.close()
