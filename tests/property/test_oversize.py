"""A cost beyond the capacity of a limit with oversize="debt": it passes, and owes the rest."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from charge_model import storage_of
from debt_model import START, model_of
from polling import run_threads

ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


@pytest.mark.parametrize("kind", ["memory", "shm"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_passes_when_nothing_is_used_and_then_the_rate_holds(
    kind: str, algorithm: str, tmp_path: Path
) -> None:
    clock = tg.ManualClock(START)
    limit = tg.Limit("10/10 seconds", algorithm=algorithm, oversize="debt")
    limiter = tg.Limiter(limit, storage=storage_of(kind, tmp_path), clock=clock)
    assert limiter.hit("k")
    refused = limiter.hit("k", 35)
    assert not refused
    clock.advance(refused.retry_after)
    passed = limiter.hit("k", 35)
    assert (passed.allowed, passed.remaining, passed.retry_after) == (True, 0, 0.0)
    assert limiter.peek("k").debt == 25
    used = 36
    for _ in range(200):
        clock.advance(1)
        while limiter.hit("k"):
            used += 1
    assert used <= 36 + 200 + 10
    refused = limiter.hit("k", 111)
    assert (refused.allowed, refused.retry_after) == (False, float("inf")), "beyond max_debt"


def test_without_it_such_a_cost_is_refused_for_ever() -> None:
    limiter = tg.Limiter("10/minute")
    assert limiter.hit("k", 11).retry_after == float("inf")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_of_many_at_once_one_passes(algorithm: str) -> None:
    limit = tg.Limit("10/hour", algorithm=algorithm, oversize="debt")
    limiter = tg.Limiter(limit, clock=tg.ManualClock(START))
    passed: list[bool] = []
    threads = [
        threading.Thread(target=lambda: passed.append(bool(limiter.hit("k", 30)))) for _ in range(8)
    ]
    run_threads(threads)
    assert sum(passed) == 1
    assert limiter.peek("k").debt == 20


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_replay_decides_the_same(algorithm: str) -> None:
    limit = tg.Limit("10/10 seconds", algorithm=algorithm, oversize="debt")
    clock = tg.ManualClock(START)
    limiter = tg.Limiter(limit, clock=clock)
    times = [START + number * 7 * 10**9 for number in range(60)]
    costs = [1 + number * number % 31 for number in range(60)]
    expected = []
    for at, cost in zip(times, costs):
        clock.set_ns(at)
        expected.append(limiter.hit("k", cost))
    assert tg.replay(limit, ["k"] * 60, times, costs) == expected
    beside = [limit, tg.Limit("1000000/hour", name="beside")]
    together = tg.replay(beside, ["k"] * 60, times, costs)
    assert [each.allowed for each in together] == [each.allowed for each in expected]
    assert any(cost > 10 for cost, decision in zip(costs, expected) if decision)


def test_a_plan_charges_all_or_none() -> None:
    clock = tg.ManualClock(START)
    large = tg.Limiter(tg.Limit("10/minute", oversize="debt"), clock=clock)
    small = tg.Limiter("20/minute", storage=large.storage, clock=clock)
    plan = tg.Plan([large, small])
    assert not plan.hit(["a", "b"], [15, 21])
    assert (large.peek("a").remaining, small.peek("b").remaining) == (10, 20)
    assert plan.hit(["a", "b"], [15, 20])
    assert (large.peek("a").debt, small.peek("b").remaining) == (5, 0)
    assert not plan.hit(["c", "b"], [15, 1])
    assert large.peek("c").remaining == 10


def test_a_refund_and_a_reservation_of_it() -> None:
    limiter = tg.Limiter(tg.Limit("10/minute", oversize="debt"), clock=tg.ManualClock(START))
    assert limiter.hit("k", 50)
    limiter.refund("k", 50)
    assert limiter.peek("k").remaining == 10
    with limiter.reserve("k", 60) as reservation:
        assert limiter.peek("k").debt == 50
        assert not limiter.reserve("k", 60)
        reservation.commit(12)
    assert limiter.peek("k").debt == 2


def test_in_shadow_it_refuses_nothing() -> None:
    limit = tg.Limit("10/minute", oversize="debt", shadow=True)
    limiter = tg.Limiter(limit, clock=tg.ManualClock(START))
    assert all(limiter.hit("k", 15) for _ in range(3))
    assert (limiter.stats().denied_in_shadow, limiter.peek("k").debt) == (2, 5)


def test_oversize_is_part_of_a_limit_and_other_words_are_refused() -> None:
    limit = tg.Limit("10/minute", oversize="debt")
    assert (limit.oversize, tg.Limit("10/minute").oversize) == ("debt", "refuse")
    assert eval(repr(limit), {"Limit": tg.Limit}) == limit != tg.Limit("10/minute")
    assert pickle.loads(pickle.dumps(limit)) == limit
    assert len({limit, tg.Limit("10/minute"), tg.Limit("10/minute", oversize="debt")}) == 2
    wrong: Any = "owe"
    with pytest.raises(
        tg.ConfigurationError, match="oversize is 'owe' of type str; expected 'refuse'"
    ):
        tg.Limit("10/minute", oversize=wrong)
    wrong = True
    with pytest.raises(TypeError, match="oversize is True of type bool; expected 'refuse'"):
        tg.Limit("10/minute", oversize=wrong)
    with pytest.raises(tg.ConfigurationError, match="given back and not paid off by time"):
        tg.Limit("10/minute", algorithm="concurrency", oversize="debt")
    with pytest.raises(tg.ConfigurationError, match="periods pay no debt of the ones before"):
        tg.Limit("quota 10/month", oversize="debt")
    with pytest.raises(tg.ConfigurationError, match="expected a max_debt of 1 or more"):
        tg.Limit("10/minute", oversize="debt", max_debt=0)
    assert model_of(limit).hit(START, 110)
