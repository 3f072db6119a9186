"""charge() charges all of a cost: what finds no room is owed, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
import threading
from fractions import Fraction
from pathlib import Path
from typing import Callable

import pytest
import tidegate as tg
from charge_model import storage_of
from debt_model import (
    CLOCK_STEPS,
    LIMITS,
    OVERSIZE,
    START,
    check_a_clock_that_steps_back,
    check_against_the_model,
    model_of,
)
from hypothesis import given
from hypothesis import strategies as st
from polling import run_threads

ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


@pytest.mark.parametrize("kind", ["memory", "shm"])
@pytest.mark.parametrize("limit", [*LIMITS, *OVERSIZE], ids=lambda limit: f"{limit!r}")
def test_a_key_stands_as_in_the_model(kind: str, limit: tg.Limit, tmp_path: Path) -> None:
    for seed in range(20):
        check_against_the_model(limit, storage_of(kind, tmp_path), seed)


@pytest.mark.parametrize("kind", ["memory", "shm"])
@pytest.mark.parametrize("owed", [0, 0.5, 3, 9.5])
@pytest.mark.parametrize("limit", CLOCK_STEPS, ids=lambda limit: f"{limit.algorithm} {limit}")
def test_a_stepped_clock_and_a_debt_are_told_apart(
    kind: str, limit: tg.Limit, owed: float, tmp_path: Path
) -> None:
    check_a_clock_that_steps_back(limit, storage_of(kind, tmp_path), owed)


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    count=st.integers(1, 20),
    period=st.integers(1, 40),
    calls=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(1, 200)), max_size=40
    ),
)
def test_over_any_interval_no_more_is_used_than_burst_rate_and_one_call(
    algorithm: str, count: int, period: int, calls: list[tuple[int, int, int]]
) -> None:
    """Calls that pass by an estimate and charge the rest, one after the other."""
    limit = tg.Limit(count, float(period), algorithm=algorithm, max_debt=math.inf)
    clock = tg.ManualClock(START)
    limiter = tg.Limiter(limit, clock=clock)
    used: list[tuple[int, int, int]] = []  # when, how much, and how much beyond the estimate
    for seconds, estimate, more in calls:
        clock.advance(seconds)
        if not limiter.hit("k", min(estimate, count)):
            continue
        assert limiter.charge("k", more).charged == more
        used.append((clock.now_ns(), min(estimate, count) + more, more))
    for first in range(len(used)):
        total = 0
        for last in range(first, len(used)):
            total += used[last][1]
            at = used[first][0], used[last][0]
            if algorithm == "fixed-window":
                granted = Fraction(count * (at[1] // limit.period_ns - at[0] // limit.period_ns))
            elif algorithm == "sliding-log":
                granted = Fraction(count * ((at[1] - at[0]) // limit.period_ns))
            else:
                granted = Fraction(count * (at[1] - at[0]), limit.period_ns)
            bound = count + granted + used[last][2]
            assert total <= bound, (used[first : last + 1], bound)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_hour_of_low_estimates_uses_what_the_limit_grants(algorithm: str) -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter(
        tg.Limit("1000/minute", algorithm=algorithm), clock=clock, storage="memory://"
    )
    used = 0
    for _ in range(3600):
        if limiter.hit("k", 10):
            limiter.charge("k", 4990)
            used += 5000
        clock.advance(1)
    assert 60_000 - 5000 <= used <= 61_000 + 5000


@pytest.mark.parametrize("kind", ["memory", "shm"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_threads_together_charge_all(kind: str, algorithm: str, tmp_path: Path) -> None:
    limit = tg.Limit("100/hour", algorithm=algorithm, max_debt=math.inf)
    limiter = tg.Limiter(limit, storage=storage_of(kind, tmp_path), clock=tg.ManualClock(START))

    def charge() -> None:
        for cost in range(1, 40):
            assert limiter.charge("k", cost).charged == cost

    threads = [threading.Thread(target=charge) for _ in range(8)]
    run_threads(threads)
    assert limiter.peek("k").debt == 8 * sum(range(1, 40)) - 100


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "quota"])
@pytest.mark.parametrize("kind", ["memory", "shm"])
def test_what_exceeds_max_debt_is_written_off_counted_and_logged(
    kind: str, algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = (
        tg.Limit("quota 10/day", max_debt=7)
        if algorithm == "quota"
        else tg.Limit("10/day", algorithm=algorithm, max_debt=7)
    )
    limiter = tg.Limiter(limit, clock=tg.ManualClock(START), storage=storage_of(kind, tmp_path))
    with caplog.at_level(logging.WARNING, "tidegate"):
        decision = limiter.charge("k", 10**15)
    assert (decision.charged, decision.debt, decision.remaining) == (17, 7, 0)
    assert limiter.charge("k", 3).charged == 0
    assert limiter.stats().written_off == 10**15 - 17 + 3
    assert "written off" in caplog.text


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "quota"])
@pytest.mark.parametrize("kind", ["memory", "shm"])
def test_a_refund_pays_what_is_owed_first(kind: str, algorithm: str, tmp_path: Path) -> None:
    limit = (
        tg.Limit("quota 10/day")
        if algorithm == "quota"
        else tg.Limit("10/day", algorithm=algorithm)
    )
    limiter = tg.Limiter(limit, clock=tg.ManualClock(START), storage=storage_of(kind, tmp_path))
    limiter.charge("k", 45)
    for back, debt, remaining in [(3, 32, 0), (25, 7, 0), (11, 0, 4), (99, 0, 10)]:
        limiter.refund("k", back)
        stands = limiter.peek("k")
        if algorithm == "sliding-window" and remaining:
            remaining = stands.remaining  # the window before counts as full, and is not given back
        assert (stands.debt, stands.remaining) == (debt, remaining)


def test_a_quota_owes_within_its_period_and_starts_anew() -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter("quota 100/month rollover 50", clock=clock)
    assert limiter.charge("k", 130).debt == 30
    status = limiter.quota_status("k")
    assert (status.used, status.available, status.base) == (130, 0, 100)
    decision = limiter.hit("k")
    assert not decision
    clock.advance(decision.retry_after)
    assert limiter.peek("k").remaining == 100


def test_a_limit_with_an_id_owes_the_same_units_when_its_number_changes() -> None:
    clock = tg.ManualClock(START)
    before = tg.Limiter(tg.Limit("100/minute", id="api"), clock=clock)
    before.charge("k", 250)
    after = tg.Limiter(tg.Limit("200/minute", id="api"), clock=clock, storage=before.storage)
    assert after.peek("k").debt == 50


def test_each_of_several_limits_is_charged_all_of_it() -> None:
    clock = tg.ManualClock(START)
    limits = ["10/second", "100/hour"]
    limiter = tg.Limiter(limits, clock=clock)
    decision = limiter.charge("k", 105)
    assert (decision.charged, decision.remaining, decision.allowed) == (105, 0, True)
    for text, debt in zip(limits, (95, 5)):
        alone = tg.Limiter(text, storage=limiter.storage, clock=clock)
        assert alone.peek("k").debt == debt
    refused = limiter.hit("k")
    assert (refused.rule, refused.allowed) == ("100/hour", False)
    clock.advance(refused.retry_after)
    assert limiter.hit("k")


def test_a_concurrency_limit_owes_nothing() -> None:
    limiter = tg.Limiter(tg.Limit("3/minute", algorithm="concurrency"))
    assert limiter.limits[0].max_debt == 0
    decision = limiter.charge("k", 5)
    assert (decision.charged, decision.debt) == (3, 0)


def test_a_limit_of_nothing_owes_nothing() -> None:
    limiter = tg.Limiter("0/minute")
    assert limiter.charge("k", 5).charged == 0
    assert (limiter.stats().keys, limiter.stats().written_off) == (0, 5)


def test_it_counts_as_no_decision() -> None:
    limiter = tg.Limiter("10/minute", clock=tg.ManualClock(START))
    limiter.charge("k", 25)
    assert (limiter.stats().allowed, limiter.stats().denied) == (0, 0)


def test_its_decision_can_be_pickled() -> None:
    decision = tg.Limiter("10/minute", clock=tg.ManualClock(START)).charge("k", 23)
    copied = pickle.loads(pickle.dumps(decision))
    assert (copied, copied.charged, copied.debt) == (decision, 23, 13)


def test_a_bound_belongs_to_the_limit() -> None:
    limit = tg.Limit("10/minute", max_debt=25)
    assert (limit.max_debt, tg.Limit("10/minute burst 4").max_debt) == (25, 40)
    assert pickle.loads(pickle.dumps(limit)) == limit != tg.Limit("10/minute")
    assert repr(limit) == "Limit('10/minute', max_debt=25)"
    unbounded = tg.Limit("10/minute", max_debt=math.inf)
    assert unbounded.max_debt == 525_959_990  # what is owed is paid within 100 years
    assert pickle.loads(pickle.dumps(unbounded)).max_debt == unbounded.max_debt


@pytest.mark.parametrize("bound", [-1, 1.5, "3", True, math.nan, -math.inf])
def test_a_bound_that_is_none_is_refused(bound: object) -> None:
    with pytest.raises(tg.ConfigurationError, match="max_debt"):
        tg.Limit("10/minute", max_debt=bound)  # type: ignore[arg-type]


@pytest.mark.parametrize("charge", [tg.Limiter.charge, tg.Limiter.charge_up_to])
@pytest.mark.parametrize("cost", [0, -1, 1.5, True, None, "3"])
def test_what_is_no_cost_charges_nothing(cost: object, charge: Callable[..., object]) -> None:
    limiter = tg.Limiter("10/minute")
    with pytest.raises(tg.ConfigurationError, match="expected"):
        charge(limiter, "k", cost)
    assert limiter.peek("k").remaining == 10


@pytest.mark.parametrize("charge", [tg.Limiter.charge, tg.Limiter.charge_up_to])
def test_a_closed_limiter_says_so(charge: Callable[..., object]) -> None:
    limiter = tg.Limiter("10/minute")
    limiter.close()
    with pytest.raises(tg.LimiterClosedError):
        charge(limiter, "k", 1)


def test_the_model_refuses_what_a_limiter_refuses() -> None:
    """The model is one: it refuses by itself, or the comparison would prove nothing."""
    model = model_of(tg.Limit("3/second"))
    assert model.charge(START, 5) == 5
    assert not model.hit(START + 10**9, 2)


def test_a_plan_charges_each_limiter_its_cost() -> None:
    clock = tg.ManualClock(START)
    requests = tg.Limiter("10/minute", clock=clock)
    tokens = tg.Limiter("1000/minute", clock=clock, storage=requests.storage, prefix="tokens")
    plan = tg.Plan([requests, tokens])
    assert plan.hit(["user", "tenant"], [1, 10])
    decision = plan.charge(["user", "tenant"], [1, 4990])
    assert (decision.charged, decision.debt, plan.binding(decision)) == (1, 4000, 1)
    assert requests.peek("user").remaining == 8
    refused = plan.hit(["user", "tenant"], [1, 1])
    assert (bool(refused), plan.binding(refused)) == (False, 1)
    assert plan.charge(["user", "tenant"], [10**6, 10**6]).charged == 108
    assert requests.stats().written_off == 10**6 - 108


def test_a_plan_that_names_a_key_twice_charges_both_costs() -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter("10/minute", clock=clock)
    again = tg.Limiter("10/minute", clock=clock, storage=limiter.storage)
    assert tg.Plan([limiter, again]).charge(["k", "k"], [9, 9]).debt == 8


def test_rules_charge_what_counts_costs_and_no_request_again() -> None:
    clock = tg.ManualClock(START)
    rules = tg.RuleSet(
        {
            "rules": [
                {"id": "requests", "limits": ["10/minute"], "by": "user", "counts": "requests"},
                {"id": "tokens", "limits": ["1000/minute"], "by": "user"},
            ]
        }
    )
    limiter = tg.Limiter(rules=rules, clock=clock)
    assert limiter.check(user="u", cost=10)
    decision = limiter.charge(user="u", cost=4990)
    assert (decision.rule, decision.charged, decision.debt) == ("tokens", 4990, 4000)
    refused = limiter.check(user="u")
    assert (bool(refused), refused.rule) == (False, "tokens")
    clock.advance(refused.retry_after)
    assert limiter.check(user="u")
    assert limiter.charge(user="u", cost=10**6).charged == 10_000
    assert limiter.stats().written_off == 10**6 - 10_000


def test_many_keys_are_charged_by_one_call() -> None:
    limiter = tg.Limiter("10/hour", clock=tg.ManualClock(START))
    assert [each.debt for each in limiter.charge_many(["a", "b", "a"], [12, 3, 4])] == [2, 0, 6]
    decisions = asyncio.run(limiter.charge_many_async((key for key in "ab"), [1, 8]))
    assert [each.debt for each in decisions] == [7, 1]
    for keys, costs, message in (
        (["a", "b"], [1], "1 costs were given for 2 keys"),
        (["a", "b"], [1, -1], "the cost is -1"),
        (["a", 7], [1, 1], "the key is 7"),
        ("ab", [1, 1], "the keys are 'ab'"),
    ):
        with pytest.raises((tg.ConfigurationError, TypeError), match=message):
            limiter.charge_many(keys, costs)  # type: ignore[arg-type]
    assert [limiter.peek(key).debt for key in "ab"] == [7, 1]
