"""Reservations that nobody settles in time: kept at their estimates, or given back."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg

START = 1_700_000_000 * 10**9
ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


@pytest.fixture(params=["memory", "shm"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"shm://{tmp_path}/t?capacity=4096"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_is_given_back_with_the_next_reservation(storage: str, algorithm: str) -> None:
    clock = tg.ManualClock(START)
    limit = tg.Limit(1000, 365 * 86_400.0, algorithm=algorithm)
    limiter = tg.Limiter(limit, storage=storage, clock=clock)
    abandoned = limiter.reserve("k", 600, ttl=10, on_expiry="release")
    kept = limiter.reserve("k", 300, ttl=10)
    del abandoned, kept
    gc.collect()
    clock.advance(9)
    assert not limiter.reserve("k", 200)
    clock.advance(1)
    assert limiter.reserve("k", 200)
    assert limiter.peek("k").remaining == 500


def test_a_commit_in_time_is_the_last_word(storage: str) -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter("1000/365 days", storage=storage, clock=clock)
    first, second = (limiter.reserve("k", 100, ttl=10, on_expiry="release") for _ in range(2))
    clock.advance(9.5)
    assert first.commit(40).charged == 40
    assert limiter.commit(second.token, 70).charged == 70
    clock.advance(100)
    assert limiter.reserve("k", 1)
    assert limiter.peek("k").remaining == 1000 - 40 - 70 - 1


def test_a_commit_after_the_end_changes_nothing(storage: str) -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter("1000/365 days", storage=storage, clock=clock)
    late = limiter.reserve("k", 100, ttl=10, on_expiry="release")
    token = late.token
    clock.advance(10)
    for _ in range(2):
        for call in (lambda: late.commit(50), lambda: late.extend(1), late.release):
            with pytest.raises(tg.ReservationError, match=r"not known .any more"):
                call()
    with pytest.raises(tg.ReservationError, match="settled before, at 0 units"):
        limiter.commit(token, 50)
    assert limiter.peek("k").remaining == 1000


def test_only_what_still_counts_is_given_back() -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter("100/100 seconds", clock=clock)
    limiter.reserve("k", 60, ttl=1000, on_expiry="release")
    clock.advance(60)  # all has come back
    assert limiter.hit("k", 100)
    clock.advance(940)
    assert limiter.hit("k", 100)
    assert limiter.reserve("other", 1)
    assert limiter.peek("k").remaining == 0


def test_an_extended_one_is_given_back_as_a_whole(storage: str) -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter("1000/365 days", storage=storage, clock=clock)
    limiter.reserve("k", 100, ttl=10, on_expiry="release").extend(300)
    assert limiter.peek("k").remaining == 600
    clock.advance(10)
    assert limiter.reserve("k", 1)
    assert limiter.peek("k").remaining == 999


def test_of_a_plan_of_rules_and_async() -> None:
    clock = tg.ManualClock(START)
    requests = tg.Limiter("10/365 days", clock=clock)
    tokens = tg.Limiter("1000/365 days", storage=requests.storage, clock=clock)
    plan = tg.Plan([requests, tokens])
    rules = tg.RuleSet({"rules": [{"id": "r", "by": "user", "limit": "1000/365 days"}]})
    limiter: Any = tg.Limiter(rules=rules, clock=clock)

    async def reserve() -> None:
        await plan.reserve_async(["a", "b"], [1, 500], ttl=5, on_expiry="release")
        await limiter.reserve_async(cost=500, ttl=5, on_expiry="release", user="u")
        clock.advance(5)
        await plan.reserve_async(["x", "y"], [1, 1])
        await limiter.reserve_async(cost=1, user="v")

    asyncio.run(reserve())
    assert (requests.peek("a").remaining, tokens.peek("b").remaining) == (10, 1000)
    assert limiter.peek(user="u").remaining == 1000


def test_another_word_is_an_error() -> None:
    wrong: Any = "drop"
    limiter = tg.Limiter("10/minute")
    with pytest.raises(tg.ConfigurationError, match="on_expiry is 'drop'; expected 'keep' or"):
        limiter.reserve("k", 1, on_expiry=wrong)
    assert limiter.peek("k").remaining == 10
