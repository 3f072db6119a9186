"""Outcomes of plans and limits in shadow, on Redis: the same as in memory, in one round trip."""

from __future__ import annotations

import asyncio
import random

import pytest
import tidegate as tg
from redis_server import PATIENT, RedisServer

NOW = 1_700_000_000 * 10**9
ALGORITHMS = ("token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log")


def plans(storage: str, clock: tg.ManualClock | None, *limits: tg.Limit) -> tg.Plan:
    first = tg.Limiter(limits[0], storage=storage, clock=clock, prefix="p0")
    others = [
        tg.Limiter(limit, storage=first.storage, clock=clock, prefix=f"p{number}")
        for number, limit in enumerate(limits[1:], 1)
    ]
    return tg.Plan([first, *others])


def hit(plan: tg.Plan, way: str, keys: list[str]) -> tg.Decision:
    if way == "sync":
        return plan.hit(keys, outcomes=True)
    return asyncio.run(plan.hit_async(keys, outcomes=True))


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_outcomes_equal_those_of_a_memory_store(
    server: RedisServer, algorithm: str, shadow: bool, way: str
) -> None:
    clock = tg.ManualClock(NOW)
    limits = [
        tg.Limit("4/hour", algorithm=algorithm),
        tg.Limit("2/hour", algorithm="fixed-window", shadow=shadow),
        tg.Limit("9/hour", algorithm="sliding-log", shadow=shadow),
    ]
    remote = plans(server.uri(f"{PATIENT}&clock=client"), clock, *limits)
    local = plans("memory://", clock, *limits)
    for _ in range(6):
        expected = local.hit(["a", "b", "c"], outcomes=True)
        decision = hit(remote, way, ["a", "b", "c"])
        assert not decision.degraded
        assert decision == expected
        assert decision.outcomes == expected.outcomes
        clock.advance(1)
    for there, here in zip(remote.limiters, local.limiters):
        assert there.stats().denied_in_shadow == here.stats().denied_in_shadow
        assert there.stats().allowed == here.stats().allowed


@pytest.mark.parametrize("way", ["sync", "async"])
def test_outcomes_by_the_servers_time_take_one_command(server: RedisServer, way: str) -> None:
    plan = plans(server.uri(PATIENT), None, tg.Limit("3/hour"), tg.Limit("1/hour", shadow=True))
    assert not hit(plan, way, ["a", "b"]).degraded
    server.command("CONFIG", "RESETSTAT")
    decision = hit(plan, way, ["a", "b"])
    assert [each.allowed for each in decision.outcomes] == [True, False]
    assert [each.remaining for each in decision.outcomes] == [1, 0]
    assert server.calls().get("evalsha", 0) == 1
    assert not hit(plan, way, ["a", "b"]).outcomes[1].allowed
    refused = hit(plan, way, ["a", "b"])
    assert [each.allowed for each in refused.outcomes] == [False, False]


def test_refusals_from_the_deny_cache_have_outcomes(server: RedisServer) -> None:
    uri = server.uri(f"{PATIENT}&deny_cache_max=3600")
    plan = plans(uri, None, tg.Limit("1/hour"), tg.Limit("1/hour"))
    for user in range(20):
        keys = [f"a{user}", f"b{user}"]
        plan.hit(keys)
        for _ in range(5):
            refused = plan.hit(keys, outcomes=True)
            assert [each.allowed for each in refused.outcomes] == [False, False]
    # One pair of keys in 4,096 has the same place in the cache, which then repeats nothing.
    assert plan.limiters[0].stats().denied_locally >= 3 * 15


@pytest.mark.parametrize(
    "algorithm", ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window"]
)
def test_a_remembered_refusal_charges_no_limit_that_would_pass(
    server: RedisServer, algorithm: str
) -> None:
    uri = server.uri(f"{PATIENT}&deny_cache_max=3600")
    passing = tg.Limit("30/3650 days", algorithm=algorithm)
    plan = plans(uri, None, passing, tg.Limit("1/hour"))
    for user in range(20):
        keys = [f"a{user}", f"b{user}"]
        plan.limiters[0].hit(keys[0], 2)
        plan.limiters[1].hit(keys[1])
        for _ in range(3):
            refused = plan.hit(keys, [3, 1], outcomes=True)
            assert [each.remaining for each in refused.outcomes] == [28, 0]
    assert plan.limiters[0].stats().denied_locally >= 15


def test_a_quota_that_owes_says_so_in_each_refusal(server: RedisServer) -> None:
    with tg.Limiter("quota 3/year", storage=server.uri(PATIENT)) as limiter:
        limiter.charge("k", 8)
        assert [limiter.hit("k").debt for _ in range(3)] == [5, 5, 5]


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("policy", ["fallback", "open", "closed"])
def test_degraded_decisions_have_outcomes(own_server: RedisServer, policy: str, way: str) -> None:
    uri = own_server.uri(f"timeout=1&on_error={policy}&fallback_share=0.5")
    plan = plans(uri, None, tg.Limit("8/hour"), tg.Limit("2/hour", shadow=True))
    own_server.kill()
    decisions = [hit(plan, way, ["a", "b"]) for _ in range(3)]
    assert all(each.degraded for each in decisions)
    assert all(outcome.degraded for each in decisions for outcome in each.outcomes)
    expected = {
        # The fallback counts for half of each limit.
        "fallback": [[True, True], [True, False], [True, False]],
        "open": [[True, True]] * 3,
        "closed": [[False, False]] * 3,
    }[policy]
    assert [[outcome.allowed for outcome in each.outcomes] for each in decisions] == expected
    assert [each.allowed for each in decisions] == [policy != "closed"] * 3


def test_a_limiter_in_shadow_allows_all(server: RedisServer) -> None:
    async def hits() -> list[tg.Decision]:
        return list(await asyncio.gather(*(limiter.hit_async("k") for _ in range(5))))

    with tg.Limiter(tg.Limit("2/hour", shadow=True), storage=server.uri(PATIENT)) as limiter:
        assert all(decision.allowed for decision in asyncio.run(hits()))
        assert all(limiter.hit("k").allowed for _ in range(5))
        assert limiter.hit_many(["k"] * 3) == [True] * 3
        stats = limiter.stats()
        assert (stats.allowed, stats.denied, stats.denied_in_shadow) == (13, 0, 11)
        assert (stats.degraded, stats.script_errors) == (0, 0)


@pytest.mark.parametrize(("before", "after", "used"), [(10, 20, 10), (20, 10, 15), (7, 3, 2)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_used_stays_when_the_number_of_a_limit_with_an_id_changes(
    server: RedisServer, algorithm: str, before: int, after: int, used: int
) -> None:
    """The same in memory."""
    clock = tg.ManualClock(NOW)
    answers = []
    for storage in (server.uri(f"{PATIENT}&clock=client&deny_cache_max=0"), "memory://"):
        old, new = (
            tg.Limiter(
                tg.Limit(count, 60, algorithm=algorithm, id="api"), storage=storage, clock=clock
            )
            for count in (before, after)
        )
        if storage == "memory://":
            new = tg.Limiter(new.limits, storage=old.storage, clock=clock)
        else:
            new = tg.Limiter(new.limits, storage=storage, clock=clock)
        assert old.hit("k", used)
        assert new.peek("k").remaining == max(0, after - used)
        said = [new.hit("k", cost) for cost in (1, 1, 8)]
        old.refund("k", 1)
        said += [new.peek("k"), old.hit("k"), new.hit("k")]
        assert not any(decision.degraded for decision in said)
        answers.append(said)
    assert answers[0] == answers[1]


def test_by_the_servers_time_usage_stays_too(server: RedisServer) -> None:
    old, new = (
        tg.Limiter(tg.Limit(count, 3600, id="api"), storage=server.uri(PATIENT))
        for count in (10, 1000)
    )
    assert [old.hit("k").allowed for _ in range(11)] == [True] * 10 + [False]
    assert new.peek("k").remaining == 990


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("high", "low"), [(100, 50), (100, 1), (100, 0)])
def test_refusals_by_a_lower_number_give_nothing_back_to_a_higher_one(
    server: RedisServer, algorithm: str, high: int, low: int
) -> None:
    upper, lower = (
        tg.Limiter(
            tg.Limit(count, 3600, algorithm=algorithm, id="api"), storage=server.uri(PATIENT)
        )
        for count in (high, low)
    )
    admitted = 0
    for _ in range(3):
        while upper.allow("k"):
            admitted += 1
        assert not lower.hit("k")
    assert admitted in (high, high + 1)  # an hour gives little back meanwhile
    assert upper.stats().script_errors == lower.stats().script_errors == 0
    assert upper.stats().degraded == lower.stats().degraded == 0


@pytest.mark.parametrize(("before", "after"), [(10**6, 10), (10**6, 1), (7, 10**6), (999_983, 7)])
@pytest.mark.parametrize("period", [60, 86_400, 365 * 86_400])
def test_numbers_that_are_far_apart_are_converted(
    server: RedisServer, before: int, after: int, period: int
) -> None:
    clock = tg.ManualClock(NOW)
    said = []
    for storage in (server.uri(f"{PATIENT}&clock=client&deny_cache_max=0"), "memory://"):
        old = tg.Limiter(tg.Limit(before, period, id="api"), storage=storage, clock=clock)
        new = tg.Limiter(tg.Limit(after, period, id="api"), storage=old.storage, clock=clock)
        assert old.hit("k", before)
        decisions = [new.hit("k"), new.peek("k"), old.hit("k")]
        assert not any(decision.degraded for decision in decisions)
        said.append([(each.allowed, each.remaining) for each in decisions])
        assert new.stats().script_errors == 0
    assert said[0] == said[1]


def test_bursts_of_one_id_equal_those_in_memory(server: RedisServer) -> None:
    """Over clocks that go back, too."""
    rng = random.Random(7)
    clock = tg.ManualClock(NOW)
    texts = ["7/second", "7/second burst 30", "5/second burst 500", "5/second", "13/second burst 4"]
    limits = [tg.Limit(text, id="api") for text in texts]
    uri = server.uri(f"{PATIENT}&clock=client&deny_cache_max=0")
    shared = [tg.Limiter(limit, storage=uri, clock=clock) for limit in limits]
    memory = [tg.Limiter(limits[0], clock=clock)]
    memory += [tg.Limiter(each, storage=memory[0].storage, clock=clock) for each in limits[1:]]
    for _ in range(1_500):
        step = rng.choice([0, 1, 10**8, 10**9, -(10**9), -(10**11)])
        clock.set_ns(max(NOW, clock.now_ns() + step))
        at, cost = rng.randrange(len(limits)), rng.choice([1, 1, 2, 4, 25])
        if rng.random() < 0.1:
            memory[at].refund("k", 2)
            shared[at].refund("k", 2)
        here, there = memory[at].hit("k", cost), shared[at].hit("k", cost)
        assert (there.allowed, there.degraded) == (here.allowed, False)
        assert there.remaining == here.remaining
        assert there.retry_after == pytest.approx(here.retry_after, abs=3e-9)
    assert shared[0].stats().script_errors == 0


def test_a_raised_log_helps_at_once(server: RedisServer) -> None:
    few, many = (
        tg.Limiter(
            tg.Limit(count, 3600, algorithm="sliding-log", id="api"), storage=server.uri(PATIENT)
        )
        for count in (3, 10)
    )
    assert [few.hit("k").allowed for _ in range(5)] == [True] * 3 + [False] * 2
    assert many.hit("k").remaining == 6


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_refund_by_a_lower_number_gives_all_of_it_back(
    server: RedisServer, algorithm: str
) -> None:
    for storage in (server.uri(PATIENT), "memory://"):
        high = tg.Limiter(tg.Limit(20, 3600, algorithm=algorithm, id="api"), storage=storage)
        low = tg.Limiter(tg.Limit(3, 3600, algorithm=algorithm, id="api"), storage=high.storage)
        assert high.hit("k", 15)
        low.refund("k", 10)
        assert high.peek("k").remaining == 15
