"""Reservations in Redis that nobody settles in time, whoever made them."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import processes
import pytest
import tidegate as tg
from polling import eventually
from redis_server import PATIENT, RedisServer

START = 1_700_000_000 * 10**9
GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=6000000"
ALGORITHMS = [
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-window",
    "sliding-log",
    "quota",
]


def limit_of(algorithm: str) -> tg.Limit:
    if algorithm == "quota":
        return tg.Limit("quota 1000/year")
    return tg.Limit(1000, 365 * 86_400.0, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_is_given_back_with_the_next_reservation(server: RedisServer, algorithm: str) -> None:
    clock = tg.ManualClock(START)
    # As another process would, that has died since.
    dead, alive = (
        tg.Limiter(limit_of(algorithm), storage=server.uri(GIVEN_TIME), clock=clock)
        for _ in range(2)
    )
    dead.reserve("k", 400, ttl=10, on_expiry="release")
    dead.reserve("k", 200, ttl=20, on_expiry="release")
    dead.reserve("k", 300, ttl=10)
    settled = dead.reserve("k", 50, ttl=10, on_expiry="release")
    clock.advance(9)
    assert alive.commit(settled.token, 20).charged == 20
    assert not alive.reserve("k", 200)
    clock.advance(1)
    assert alive.reserve("k", 100)
    assert alive.peek("k").remaining == 1000 - 200 - 300 - 20 - 100
    clock.advance(10)
    assert alive.reserve("k", 1)
    assert alive.peek("k").remaining == 1000 - 300 - 20 - 100 - 1
    assert b":open" not in server.command("KEYS", "*")


def test_a_commit_after_the_end_changes_nothing(server: RedisServer) -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter("1000/365 days", storage=server.uri(GIVEN_TIME), clock=clock)
    late = limiter.reserve("k", 100, ttl=10, on_expiry="release")
    if late.extend(50):
        clock.advance(10)
    for call in (lambda: late.commit(500), late.release, lambda: limiter.commit(late.token, 1)):
        with pytest.raises(tg.ReservationError, match=r"not known .any more"):
            call()
    assert limiter.peek("k").remaining == 1000


@pytest.mark.parametrize("algorithm", ["token-bucket", "leaky-bucket", "sliding-window"])
def test_only_what_still_counts_is_given_back(server: RedisServer, algorithm: str) -> None:
    """As memory does for the same calls, also where units have come back meanwhile."""
    clock = tg.ManualClock(START)
    limit = tg.Limit(100, 100.0, algorithm=algorithm)
    limiters = [
        tg.Limiter(limit, storage=storage, clock=clock)
        for storage in (server.uri(GIVEN_TIME), "memory://")
    ]
    rng = random.Random(7)
    for number in range(150):
        clock.advance(rng.choice([0, 1, 7, 30]))
        cost, ttl = rng.randint(1, 60), rng.choice([5, 20, 100])
        if number % 3 == 0:
            found = [bool(limiter.hit("k", cost)) for limiter in limiters]
        else:
            found = [
                bool(limiter.reserve("k", cost, ttl=ttl, on_expiry="release"))
                for limiter in limiters
            ]
        assert found[0] == found[1], number
        # With the reservation of another key memory gives back; Redis with one of the key itself.
        standing = [limiter.reserve("k", 1) for limiter in limiters]
        assert standing[0].decision == standing[1].decision, number
        for each in standing:
            if each:
                each.release()
        assert limiters[0].peek("k") == limiters[1].peek("k"), number


def test_what_killed_processes_had_reserved_is_given_back(
    server: RedisServer, tmp_path: Path
) -> None:
    uri = server.uri(PATIENT)
    ready = tmp_path / "ready"
    code = f"""
import pathlib, sys, time
import tidegate as tg

limiter = tg.Limiter("1000/36500 days", storage={uri!r})
for number in range(20):
    limiter.reserve("k", 30, ttl=0.001, on_expiry="release")
    limiter.reserve("k", 1, ttl=3600, on_expiry="release")
    limiter.reserve("k", 1, ttl=0.001)
pathlib.Path({str(ready)!r}).write_text("ready")
time.sleep(600)
"""
    with processes.running([sys.executable, "-c", code]):
        eventually(ready.exists, 120)
    limiter = tg.Limiter("1000/36500 days", storage=uri)
    assert limiter.reserve("k", 1)
    assert limiter.peek("k").remaining == 1000 - 20 - 20 - 1
