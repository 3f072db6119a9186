"""A replay and a live limiter make the same decisions for the same calls at the same times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate import Limit, Limiter, ManualClock, Plan, RuleSet, tuning

START = 1_700_000_000_123_456_789
SECOND = 10**9
ALGORITHMS = [
    "token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log", "concurrency",
]  # fmt: skip


@st.composite
def limits(draw: st.DrawFn) -> Limit:
    algorithm = draw(st.sampled_from(ALGORITHMS))
    count = draw(st.integers(1 if algorithm == "concurrency" else 0, 7))
    period = draw(st.sampled_from([0.000000007, 0.3, 1.0, 7.0, 60.0]))
    burst = None
    if algorithm in ("token-bucket", "leaky-bucket") and count > 0:
        burst = draw(st.one_of(st.none(), st.integers(1, 9)))
    return Limit(
        count,
        period,
        burst=burst,
        algorithm=algorithm,
        shadow=draw(st.integers(0, 5)) == 0,
        id=draw(st.sampled_from([None, None, None, "kept"])),
    )


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Lists of (time, one key, another key, cost), in any order."""
    scale = draw(st.sampled_from([1, 50_000_000, SECOND, 20 * SECOND]))
    events = st.tuples(
        st.integers(0, 40).map(lambda n: START + n * scale),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(1, 9).map(lambda cost: 1 if cost < 6 else cost - 4),
    )
    return draw(st.lists(events, max_size=40))


def columns(events: list[tuple[int, int, int, int]]) -> list[Any]:
    return [list(column) for column in zip(*events)] or [[], [], [], []]


def assert_agrees(result: tuning.Replay, at: int, live: Any, names_rules: bool = True) -> None:
    assert bool(result.allowed[at]) is live.allowed, at
    assert result.remaining[at] == live.remaining, at
    assert result.retry_after[at] == live.retry_after, at
    assert result.delay[at] == live.delay, at
    if names_rules:
        assert result.rule[at] == live.rule, at


def in_order(events: list[Any]) -> list[int]:
    return sorted(range(len(events)), key=lambda at: events[at][0])


@settings(max_examples=400, deadline=None)
@given(limits(), requests())
def test_a_replay_of_one_limit_agrees(
    limit: Limit, events: list[tuple[int, int, int, int]]
) -> None:
    times, keys, _, costs = columns(events)
    result = tuning.replay(limit, keys, times, costs)
    clock = ManualClock()
    limiter = Limiter(limit, clock=clock)
    for at in in_order(events):
        clock.set_ns(times[at])
        assert_agrees(result, at, limiter.hit(str(keys[at]), costs[at]))


@settings(max_examples=300, deadline=None)
@given(st.lists(limits(), min_size=1, max_size=3), requests())
def test_a_replay_of_several_limits_of_one_key_agrees(
    several: list[Limit], events: list[tuple[int, int, int, int]]
) -> None:
    clock = ManualClock()
    try:
        limiter = Limiter(several, clock=clock)
    except ValueError:  # two different limits with one id
        with pytest.raises(ValueError, match="expected"):
            tuning.replay(several, [], [])
        return
    times, keys, _, costs = columns(events)
    result = tuning.replay(several, keys, times, costs)
    assert result.limits == limiter.limits
    for at in in_order(events):
        clock.set_ns(times[at])
        names = {limit.name for limit in limiter.limits}
        live = limiter.hit(str(keys[at]), costs[at])
        assert_agrees(result, at, live, names_rules=len(names) == len(limiter.limits))


@settings(max_examples=300, deadline=None)
@given(limits(), limits(), requests())
def test_a_replay_of_limits_under_several_keys_agrees(
    of_ips: Limit, of_users: Limit, events: list[tuple[int, int, int, int]]
) -> None:
    """The replay agrees with a Plan of two limiters with different prefixes."""
    times, ips, users, costs = columns(events)
    keys = {"ip": ips, "user": users}
    by_name = tuning.replay({"ip": of_ips, "user": of_users}, keys, times, {"user": costs})
    clock = ManualClock()
    first = Limiter(of_ips, clock=clock, prefix="ip")
    plan = Plan([first, Limiter(of_users, clock=clock, prefix="user", storage=first.storage)])
    by_plan = tuning.replay(plan, [ips, users], times, [None, costs])
    for at in in_order(events):
        clock.set_ns(times[at])
        live = plan.hit([str(ips[at]), str(users[at])], [1, costs[at]])
        for result in (by_name, by_plan):
            assert_agrees(result, at, live, names_rules=of_ips.name != of_users.name)


RULES = RuleSet(
    {
        "tiers": ["free", "premium"],
        "default_tier": "free",
        "rules": [
            {
                "id": "posts",
                "by": "user",
                "endpoint": "/posts/*",
                "limits": {"free": "2/minute", "premium": "5/minute; 9/hour"},
            },
            {
                "id": "addresses",
                "by": "ip",
                "algorithm": "sliding-log",
                "limits": "4/10 seconds",
            },
            {"id": "all", "by": [], "limits": "25/minute"},
        ],
        "block": [{"name": "bad", "ip": "203.0.113.66"}],
        "costs": [{"endpoint": "/posts/{id}", "cost": 2}],
    }
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40).map(lambda n: START + n * SECOND),
            st.sampled_from(["ann", "bob", b"bob", None, ""]),
            st.sampled_from(["/posts/1", "/posts/2", "/health", None]),
            st.sampled_from(["free", "premium", "unknown", None]),
            st.sampled_from(["203.0.113.1", "203.0.113.66", "2001:db8::1"]),
            st.integers(1, 3),
        ),
        max_size=40,
    )
)
def test_a_replay_of_rules_agrees(events: list[Any]) -> None:
    times, *attributes, costs = list(zip(*events)) or [()] * 6
    names = ("user", "endpoint", "tier", "ip")
    given_columns = {name: list(column) for name, column in zip(names, attributes)}
    result = tuning.replay(RULES, {**given_columns, "other": [1] * len(times)}, times, costs)
    clock = ManualClock()
    limiter = Limiter(rules=RULES, clock=clock)
    for at in in_order(events):
        clock.set_ns(times[at])
        request = {name: column[at] for name, column in given_columns.items()}
        assert_agrees(result, at, limiter.check(cost=costs[at], **request))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_replay_of_a_long_log_of_many_keys_agrees(algorithm: Any) -> None:
    """The log is long enough to take the code paths for many requests."""
    random = np.random.default_rng(5)
    size = 60_000
    times = START + np.sort(random.integers(0, 600 * SECOND, size))
    keys = random.zipf(1.3, size) % 5_000
    costs = random.integers(1, 4, size)
    result = tuning.replay("20/minute", keys, times, costs, algorithm=algorithm)
    clock = ManualClock()
    limiter = Limiter("20/minute", algorithm=algorithm, clock=clock)
    refused = 0
    for at, (key, time, cost) in enumerate(zip(keys.tolist(), times.tolist(), costs.tolist())):
        clock.set_ns(time)
        live = limiter.hit(f"{key}", cost)
        refused += not live
        assert result.allowed[at] == live.allowed, at
        assert result.remaining[at] == live.remaining, at
        assert result.retry_after_ns[at] / 1e9 == live.retry_after, at
    assert 1_000 < refused == result.refused


@pytest.mark.parametrize("clients", ["obey", "back-off", "hammer"])
def test_the_attempts_of_clients_that_react_add_up(clients: str) -> None:
    """Each attempt is one call, and each request is decided by its last attempt."""
    random = np.random.default_rng(7)
    times = START + np.sort(random.integers(0, 60 * SECOND, 500))
    keys = random.integers(0, 5, 500)
    result = tuning.replay("10/second", keys, times, clients=clients)
    alone = tuning.replay("10/second", keys, times)
    assert result.total_attempts == int(result.attempts.sum())
    assert alone.total_attempts == 500
    assert result.refused_attempts == result.total_attempts - int(result.allowed.sum())


def test_unordered_requests_get_the_decisions_of_ordered_ones() -> None:
    random = np.random.default_rng(9)
    times = START + np.sort(random.integers(0, 60, 1_000)) * SECOND
    keys = random.integers(0, 3, 1_000)
    shuffled = random.permutation(1_000)
    # Requests of one instant keep their given order.
    stable = shuffled[np.argsort(times[shuffled], kind="stable")]
    result = tuning.replay("5/10 seconds", keys[shuffled], times[shuffled])
    expected = tuning.replay("5/10 seconds", keys[stable], times[stable])
    position = np.argsort(times[shuffled], kind="stable")
    assert result.allowed[position].tolist() == expected.allowed.tolist()
    assert result.retry_after_ns[position].tolist() == expected.retry_after_ns.tolist()
    assert result.notes
    assert not expected.notes


def test_a_replay_of_a_hundred_thousand_keys_evicts_none() -> None:
    rules = RuleSet({"rules": [{"id": "api", "by": "user", "limits": "1/hour"}]})
    users = np.tile(np.arange(100_000), 2)
    times = START + np.arange(200_000)
    result = tuning.replay(rules, {"user": users}, times)
    assert result.allowed.tolist() == [True] * 100_000 + [False] * 100_000
