"""charge_up_to() charges as much as there is room for, and never more, by every algorithm."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest
import tidegate as tg
from charge_model import LIMITS, START, check_against_the_model, storage_of
from polling import run_threads


@pytest.mark.parametrize("kind", ["memory", "shm"])
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.algorithm} {limit}")
def test_a_key_stands_as_after_a_hit_of_what_remained(
    kind: str, limit: tg.Limit, tmp_path: Path
) -> None:
    for seed in range(20):
        check_against_the_model([limit], storage_of(kind, tmp_path), seed)


@pytest.mark.parametrize("kind", ["memory", "shm"])
def test_each_of_several_limits_is_charged_as_far_as_it_has_room(kind: str, tmp_path: Path) -> None:
    limits = [tg.Limit("5/second"), tg.Limit("40/minute", algorithm="fixed-window")]
    for seed in range(20):
        check_against_the_model(limits, storage_of(kind, tmp_path), seed)


def test_a_limit_in_shadow_is_charged_and_does_not_bind() -> None:
    limits = [tg.Limit("10/minute"), tg.Limit("3/minute", shadow=True, name="tried")]
    clock = tg.ManualClock(START)
    limiter = tg.Limiter(limits, clock=clock)
    decision = limiter.charge_up_to("k", 5)
    assert (decision.charged, decision.remaining, decision.rule) == (5, 5, "10/minute")
    shadow = tg.Limiter(tg.Limit("3/minute"), storage=limiter.storage, clock=clock)
    assert shadow.peek("k").remaining == 0


@pytest.mark.parametrize("kind", ["memory", "shm"])
@pytest.mark.parametrize("algorithm", sorted({limit.algorithm for limit in LIMITS}))
def test_threads_together_charge_exactly_what_there_is(
    kind: str, algorithm: str, tmp_path: Path
) -> None:
    limit = tg.Limit("1000/hour", algorithm=algorithm)
    limiter = tg.Limiter(limit, storage=storage_of(kind, tmp_path), clock=tg.ManualClock(START))
    charged = [0] * 8

    def charge(number: int) -> None:
        for cost in range(1, 40):
            charged[number] += limiter.charge_up_to("k", cost).charged or 0

    threads = [threading.Thread(target=charge, args=(number,)) for number in range(8)]
    run_threads(threads)
    assert sum(charged) == 1000
    assert limiter.peek("k").remaining == 0


def test_a_clock_that_went_back_lets_nothing_more_be_charged() -> None:
    clock = tg.ManualClock(START)
    limiter = tg.Limiter(
        ["10/minute", tg.Limit("20/minute", algorithm="fixed-window")], clock=clock
    )
    assert limiter.charge_up_to("k", 15).charged == 10
    clock.advance(-3600)
    assert limiter.charge_up_to("k", 15).charged == 0
    clock.advance(60)
    assert limiter.peek("k").remaining == 10


def test_it_counts_as_no_decision_and_can_be_given_back() -> None:
    limiter = tg.Limiter("10/minute", clock=tg.ManualClock(START))
    decision = limiter.charge_up_to("k", 25)
    assert (limiter.stats().allowed, limiter.stats().denied) == (0, 0)
    assert decision.charged == 10
    limiter.refund("k", decision.charged, decision=decision)
    assert limiter.peek("k").remaining == 10


def test_its_decision_can_be_pickled() -> None:
    decision = tg.Limiter("10/minute", clock=tg.ManualClock(START)).charge_up_to("k", 3)
    copied = pickle.loads(pickle.dumps(decision))
    assert (copied, copied.charged) == (decision, 3)


@pytest.mark.parametrize("kind", ["memory", "shm"])
@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
def test_a_limit_of_nothing_keeps_nothing(kind: str, algorithm: str, tmp_path: Path) -> None:
    limit = tg.Limit("0/minute", algorithm=algorithm)
    limiter = tg.Limiter(limit, storage=storage_of(kind, tmp_path))
    for number in range(100):
        decision = limiter.charge_up_to(f"k{number}", 3)
        assert (decision.allowed, decision.charged, decision.remaining) == (True, 0, 0)
    assert limiter.stats().keys == 0
