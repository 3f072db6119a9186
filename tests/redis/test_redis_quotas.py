"""Quotas in Redis: the answers of the model, one round trip, top-ups, and Redis's own time."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from datetime import datetime, timezone
from typing import Any

import pytest
import tidegate
from quota_calls import check, four_weeks, random_calls, random_terms
from quota_vectors import CASES, NAMES, play
from redis_server import PATIENT, RedisServer
from tidegate.quotas import Quota, QuotaEvent, QuotaWatch

# Instants of these tests pass faster than real ones: keys must outlive them.
GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=600"
START_NS = 1_700_000_000 * 10**9


@pytest.mark.parametrize("seed", range(40))
def test_redis_answers_as_the_model(server: RedisServer, seed: int) -> None:
    rng = random.Random(seed)
    terms = random_terms(rng)
    limit = rng.choice([1, 7, 100, 10_000, 2**48 - 1])
    start = rng.choice([0, 1_700_000_000, rng.randrange(2 * 10**9)])
    uri = server.uri(GIVEN_TIME)
    check(uri, terms, limit, start, random_calls(rng, terms, limit, 40))


@pytest.mark.parametrize("seed", range(30))
def test_four_weeks_of_changes_in_redis_go_as_in_the_model(server: RedisServer, seed: int) -> None:
    rng = random.Random(f"weeks {seed}")
    terms = dataclasses.replace(
        random_terms(rng), period=rng.choice(["day", "week", "month"]), anchor_month=1, anchor_day=1
    )
    limit = rng.choice([7, 100, 10_000])
    uri = server.uri(GIVEN_TIME)
    check(uri, terms, limit, rng.randrange(2 * 10**9), four_weeks(rng, limit))


def test_a_reset_in_redis_leaves_what_was_bought(server: RedisServer) -> None:
    async def run() -> tuple[int, int, int]:
        # Another limit is reset too, in the same command.
        limiter = tidegate.Limiter(
            [Quota(100, name="monthly"), "90/hour"], storage=server.uri(PATIENT)
        )
        limiter.top_up("k", 5_000)
        assert await limiter.hit_async("k", 90)
        await limiter.reset_async("k")
        assert limiter.peek("k", 90)
        after = limiter.quota_status("k").available
        assert await limiter.hit_async("k", 90)
        limiter.reset("k")
        again = limiter.quota_status("k").available
        await limiter.forget_async("k")
        return after, again, limiter.quota_status("k").available

    assert asyncio.run(run()) == (5_100, 5_100, 100)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_redis_gives_the_answers_of_the_vectors(server: RedisServer, case: Any) -> None:
    play(case, server.uri(GIVEN_TIME))


def test_a_hit_on_a_quota_and_other_limits_is_one_command(server: RedisServer) -> None:
    limiter = tidegate.Limiter([Quota(100, rollover=50), "10/minute"], storage=server.uri(PATIENT))
    assert limiter.hit("k")
    before = server.calls()["evalsha"]
    for _ in range(5):
        assert limiter.hit("k")
    assert server.calls()["evalsha"] == before + 5
    assert limiter.quota_status("k").used == 6
    # The fifth to be refused by the minute leaves the quota as it was.
    assert not limiter.hit("k", 5)
    assert limiter.quota_status("k").used == 6


def test_the_period_follows_the_server_s_time(server: RedisServer) -> None:
    limiter = tidegate.Limiter(Quota(100, period="day"), storage=server.uri(PATIENT))
    assert limiter.hit("k", 60)
    status = limiter.quota_status("k")
    now = datetime.now(timezone.utc)
    assert now < status.resets_at
    assert status.resets_at.timestamp() % 86_400 == 0
    assert (status.resets_at - now).total_seconds() <= 86_400
    assert not limiter.hit("k", 41)


def test_an_idle_key_of_a_quota_vanishes(server: RedisServer) -> None:
    limiter = tidegate.Limiter(Quota(100, period="day"), storage=server.uri(PATIENT))
    limiter.hit("k")
    key = server.command("RANDOMKEY").split(b"\r\n")[1]
    left_ms = int(server.command("PTTL", key)[1:])
    assert 0 < left_ms <= 86_400_000 + 1000
    limiter.top_up("k", 5)
    assert int(server.command("PTTL", key)[1:]) == -1


def test_top_ups_in_redis(server: RedisServer) -> None:
    limiter = tidegate.Limiter(Quota(10), storage=server.uri(PATIENT))
    assert not limiter.hit("k", 11)
    limiter.top_up("k", 5, expires_at=time.time() + 3600, priority=3)
    assert limiter.hit("k", 11)
    status = limiter.quota_status("k")
    assert [(g.kind, g.left, g.priority) for g in status.grants] == [
        ("base", 0, 0),
        ("top-up", 4, 3),
    ]
    with pytest.raises(tidegate.ConfigurationError, match="expected a later instant"):
        limiter.top_up("k", 5, expires_at=time.time() - 10)


def test_without_blocking_the_event_loop(server: RedisServer) -> None:
    async def run() -> int:
        limiter = tidegate.Limiter(Quota(10, rollover=5), storage=server.uri(PATIENT))
        assert await limiter.hit_async("k", 3)
        await limiter.top_up_async("k", 4)
        assert (await limiter.charge_up_to_async("k", 100)).charged == 11
        return (await limiter.quota_status_async("k")).used

    assert asyncio.run(run()) == 14


def test_a_change_is_brought_forward_without_blocking_the_event_loop(server: RedisServer) -> None:
    clock = tidegate.ManualClock(
        int(datetime(2023, 11, 16, tzinfo=timezone.utc).timestamp()) * 10**9
    )
    storage = server.uri(GIVEN_TIME)
    free = tidegate.Limiter(Quota(3_000, id="plan"), storage=storage, clock=clock)
    premium = tidegate.Limiter(Quota(9_000, id="plan"), storage=storage, clock=clock)

    async def change() -> None:
        await free.bring_forward_async("k")
        await premium.bring_forward_async("k")

    asyncio.run(change())
    clock.advance(10 * 86_400)
    premium.hit("k")
    assert premium.quota_status("k").base == 6_000


def test_soft_events_come_once_from_all_limiters(server: RedisServer) -> None:
    uri = server.uri(GIVEN_TIME)
    clock = tidegate.ManualClock(START_NS)
    events: list[QuotaEvent] = []
    limiters = [tidegate.Limiter(Quota(10, id="q"), storage=uri, clock=clock) for _ in range(2)]
    watches = [QuotaWatch(limiter, events.append, every=None) for limiter in limiters]
    for i in range(12):
        limiters[i % 2].hit("k")
        if i == 8:
            limiters[0].refund("k")
    for watch in watches:
        watch.close()
    assert sorted((event.key, event.percent) for event in events) == [("k", 80), ("k", 100)]


def test_a_flood_on_a_quota_that_is_used_up_does_not_reach_redis(server: RedisServer) -> None:
    limiter = tidegate.Limiter(Quota(10), storage=server.uri(f"{PATIENT}&deny_cache_max=600"))
    assert limiter.hit("k", 10)
    refused = [limiter.hit("k") for _ in range(50)]
    assert not any(refused)
    assert limiter.stats().denied_locally == 49
    assert refused[-1].remaining == 0
    assert 0 < refused[-1].retry_after <= refused[0].retry_after
    limiter.top_up("k", 1)
    assert limiter.hit("k")


def test_the_status_of_a_quota_needs_redis(own_server: RedisServer) -> None:
    limiter = tidegate.Limiter(Quota(10), storage=own_server.uri(PATIENT))
    assert limiter.hit("k")
    own_server.kill()
    assert limiter.hit("k").degraded
    with pytest.raises(tidegate.StorageError):
        limiter.quota_status("k")
    with pytest.raises(tidegate.StorageError):
        limiter.top_up("k", 5)
