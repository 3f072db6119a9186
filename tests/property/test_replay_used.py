"""A replay of what was used decides as reservations do that are settled at once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tidegate as tg
from tidegate import tuning

START = 1_700_006_400 * 10**9
LIMITS = [
    "60/minute",
    tg.Limit("7/second burst 20", max_debt=33),
    tg.Limit("10/3 seconds", algorithm="leaky-bucket"),
    tg.Limit("30/minute", id="kept"),
    tg.Limit("11/7 seconds", algorithm="fixed-window"),
    tg.Limit("13/7 seconds", algorithm="sliding-window"),
    tg.Limit("9/7 seconds", algorithm="sliding-log", max_debt=50),
    tg.Limit("quota 200/day"),
    ["20/minute", tg.Limit("500/hour", algorithm="sliding-window")],
    ["20/minute", tg.Limit("9/minute", shadow=True)],
    tg.Limit("9/minute", oversize="debt"),
]


def requests(limit: Any, seed: int) -> tuple[list[str], list[int], list[int], list[int]]:
    rng = random.Random(f"{limit} {seed}")
    now, keys, times, costs, used = START, [], [], [], []
    for _ in range(80):
        now += rng.choice([0, 1, rng.randrange(10**9), rng.randrange(20 * 10**9)])
        keys.append(rng.choice("ab"))
        times.append(now)
        costs.append(rng.choice([1, 2, rng.randint(1, 9)]))
        used.append(rng.choice([0, costs[-1], rng.randint(0, 9), rng.randint(0, 90)]))
    return keys, times, costs, used


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_replay_of_what_was_used_decides_as_a_limiter(limit: Any) -> None:
    for seed in range(10):
        keys, times, costs, used = requests(limit, seed)
        clock = tg.ManualClock(START)
        live = []
        limiter = tg.Limiter(limit, clock=clock)
        for key, time, cost, units in zip(keys, times, costs, used):
            clock.set_ns(time)
            reserved = limiter.reserve(key, cost)
            live.append(reserved.decision)
            if reserved.decision.allowed:
                reserved.commit(units)
        replayed = tg.replay(limit, keys, times, costs, used=used)
        assert [(d.allowed, d.remaining, d.retry_after) for d in replayed] == [
            (d.allowed, d.remaining, d.retry_after) for d in live
        ]
        columns = tuning.replay(limit, keys, np.array(times), np.array(costs), used=np.array(used))
        assert columns.allowed.tolist() == [d.allowed for d in live]
        assert columns.remaining.tolist() == [d.remaining for d in live]


def test_requests_out_of_order_keep_what_they_used() -> None:
    keys, times, costs, used = requests("60/minute", 1)
    order = random.Random(1).sample(range(len(keys)), len(keys))
    sorted_by_time = sorted(order, key=times.__getitem__)
    expected = tg.replay(
        "60/minute",
        *([column[at] for at in sorted_by_time] for column in (keys, times, costs)),
        used=[used[at] for at in sorted_by_time],
    )
    shuffled = tg.replay(
        "60/minute",
        *([column[at] for at in order] for column in (keys, times, costs)),
        used=[used[at] for at in order],
    )
    by_request = dict(zip(order, shuffled))
    assert [by_request[at].remaining for at in sorted_by_time] == [d.remaining for d in expected]


def test_an_hour_of_low_estimates_uses_what_the_limit_grants() -> None:
    """What the log says was used, by the limit that would have counted it."""
    times = START + np.arange(3600) * 10**9
    keys = np.zeros(3600, dtype=np.int64)
    spent = np.full(3600, 5000)
    forgetful = tuning.replay("1000/minute", keys, times, np.full(3600, 10))
    owed = tuning.replay("1000/minute", keys, times, np.full(3600, 10), used=spent)
    assert spent[forgetful.allowed].sum() == 18_000_000
    assert 55_000 <= spent[owed.allowed].sum() <= 66_000


def test_each_limit_of_a_plan_has_its_own_column() -> None:
    times = START + np.arange(4) * 10**9
    keys = {"key": ["k"] * 4, "model": ["m"] * 4}
    limits = {"key": "3/hour", "model": tg.Limit("100/hour", max_debt=1000)}
    told = tuning.replay(limits, keys, times, {"model": [10] * 4}, used={"model": [10, 95, 1, 1]})
    assert told.allowed.tolist() == [True, True, False, False]
    assert tuning.replay(limits, keys, times, {"model": [10] * 4}).allowed.tolist() == [
        True,
        True,
        True,
        False,
    ]


def test_clients_that_wait_wait_until_the_debt_is_paid() -> None:
    times = START + np.arange(2) * 10**9
    keys = ["k", "k"]
    told = tuning.replay("60/minute", keys, times, used=[120, 1], clients="obey")
    assert told.allowed.tolist() == [True, True]
    assert told.waited_ns is not None
    assert told.waited_ns.tolist() == [0, 60 * 10**9]


@pytest.mark.parametrize(
    ("used", "message"),
    [
        ([-1], "the used cost at index 0 is -1"),
        ([2**63], "the used cost at index 0 is 9223372036854775808"),
        ([1.5], "the used cost at index 0 is 1.5"),
        ([True], "the used cost at index 0 is True"),
        ([None], "the used cost at index 0 is None"),
        ([1, 2], "expected"),
        ("1", "the used costs are '1'"),
    ],
)
def test_bad_columns_are_refused(used: Any, message: str) -> None:
    for replay in (tg.replay, tuning.replay):
        with pytest.raises(tg.ConfigurationError) as raised:
            replay("1/minute", ["k"], [START], used=used)  # type: ignore[operator]
        assert message in str(raised.value), replay


def test_rules_have_no_such_column() -> None:
    rules = tg.RuleSet({"rules": [{"id": "a", "by": "user", "limit": "1/minute"}]})
    with pytest.raises(tg.ConfigurationError, match="was given for rules; expected limits"):
        tuning.replay(rules, {"user": ["1"]}, [START], used=[2])
