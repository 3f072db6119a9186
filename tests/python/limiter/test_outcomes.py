"""Decision.outcomes, the decisions of each limit of a plan; and limits in shadow, which refuse
nothing."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest
import tidegate as tg
from hypothesis import example, given
from hypothesis import strategies as st

NOW = 1_700_000_000 * 10**9
ALGORITHMS = ("token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log")


def plan(storage: str, *limits: tg.Limit | str, **options: Any) -> tg.Plan:
    """One limiter for each limit, with the same options."""
    options["clock"] = tg.ManualClock(NOW)
    first = tg.Limiter(limits[0], storage=storage, prefix="p0", **options)
    others = [
        tg.Limiter(limit, storage=first.storage, prefix=f"p{number}", **options)
        for number, limit in enumerate(limits[1:], 1)
    ]
    return tg.Plan([first, *others])


def summary(decision: tg.Decision) -> list[tuple[bool, int]]:
    return [(each.allowed, each.remaining) for each in decision.outcomes]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_limit_of_an_allowed_plan_is_charged_in_its_outcome(
    storage: str, algorithm: str
) -> None:
    both = plan(storage, "10/hour", "3/hour", algorithm=algorithm)
    decision = both.hit(["a", "b"], [2, 1], outcomes=True)
    assert decision.allowed
    assert summary(decision) == [(True, 8), (True, 2)]
    assert [each.rule for each in decision.outcomes] == ["10/hour", "3/hour"]
    assert decision.outcomes[1] == decision


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_limit_that_would_have_passed_a_refused_plan_is_not_charged(
    storage: str, algorithm: str
) -> None:
    both = plan(storage, "10/hour", "1/hour", algorithm=algorithm)
    both.hit(["a", "b"])
    refused = both.hit(["a", "b"], outcomes=True)
    assert not refused.allowed
    assert summary(refused) == [(True, 9), (False, 0)]
    assert refused.outcomes[1] == refused
    assert refused.outcomes[0].retry_after == 0
    assert both.limiters[0].peek("a").remaining == 9


def test_outcomes_are_empty_unless_they_are_asked_for(storage: str) -> None:
    both = plan(storage, "10/hour", "1/hour")
    assert both.hit(["a", "b"]).outcomes == ()
    assert both.limiters[0].hit("a").outcomes == ()


def test_the_outcomes_of_an_awaited_plan_are_those_of_a_plan(storage: str) -> None:
    both = plan(storage, "10/hour", "1/hour")
    decision = asyncio.run(both.hit_async(["a", "b"], outcomes=True))
    assert summary(decision) == [(True, 9), (True, 0)]


def test_limits_of_one_limiter_are_outcomes_of_their_own(storage: str) -> None:
    clock = tg.ManualClock(NOW)
    several = tg.Limiter(["5/second", "100/hour"], storage=storage, clock=clock)
    other = tg.Limiter("7/day", storage=several.storage, clock=clock, prefix="other")
    decision = tg.Plan([several, other]).hit(["a", "b"], outcomes=True)
    assert [each.limit for each in decision.outcomes] == [5, 100, 7]


def test_a_limit_that_one_key_meets_twice_has_two_outcomes(storage: str) -> None:
    clock = tg.ManualClock(NOW)
    first = tg.Limiter("10/hour", storage=storage, clock=clock)
    again = tg.Limiter("10/hour", storage=first.storage, clock=clock)
    decision = tg.Plan([first, again]).hit(["k", "k"], [1, 2], outcomes=True)
    assert summary(decision) == [(True, 7), (True, 7)]


def test_outcomes_outlive_the_plan(storage: str) -> None:
    decision = plan(storage, "10/hour", "3/hour").hit(["a", "b"], outcomes=True)
    assert [each.rule for each in decision.outcomes] == ["10/hour", "3/hour"]
    assert pickle.loads(pickle.dumps(decision)).outcomes == ()


# ------------------------------------------------------------------------ shadow


def with_shadow(storage: str, algorithm: str, text: str) -> tg.Limiter:
    """Five an hour, and a limit in shadow."""
    limits = [
        tg.Limit("5/hour", algorithm=algorithm),
        tg.Limit(text, algorithm=algorithm, shadow=True),
    ]
    return tg.Limiter(limits, storage=storage, clock=tg.ManualClock(NOW))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_limit_in_shadow_refuses_nothing_and_counts_what_it_would_refuse(
    storage: str, algorithm: str
) -> None:
    limiter = with_shadow(storage, algorithm, "2/hour")
    assert [limiter.hit("k").allowed for _ in range(7)] == [True] * 5 + [False] * 2
    stats = limiter.stats()
    assert (stats.allowed, stats.denied) == (5, 2)
    # Two hits had room; the other five would have been refused.
    assert stats.denied_in_shadow == 5
    assert limiter._refused() == [2, 0]
    assert limiter._refused_in_shadow() == [0, 5]


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "concurrency"])
def test_a_limiter_whose_only_limit_is_in_shadow_allows_all(storage: str, algorithm: str) -> None:
    limiter = tg.Limiter(
        tg.Limit("2/hour", algorithm=algorithm, shadow=True),
        storage=storage,
        clock=tg.ManualClock(NOW),
    )
    decisions = [limiter.hit("k") for _ in range(3)]
    assert [each.allowed for each in decisions] == [True] * 3
    assert [each.retry_after for each in decisions] == [0.0] * 3
    assert [each.remaining for each in decisions] == [1, 0, 0]
    assert limiter.allow("k")
    assert limiter.hit_many(["k", "k", "other"]) == [True] * 3
    assert limiter.stats().denied_in_shadow == 4
    assert limiter.stats().denied == 0


def test_a_plan_that_is_refused_charges_no_limit_in_shadow(storage: str) -> None:
    both = plan(storage, "1/hour", tg.Limit("5/hour", shadow=True))
    both.hit(["a", "b"])
    refused = both.hit(["a", "b"], outcomes=True)
    assert summary(refused) == [(False, 0), (True, 4)]
    assert both.limiters[1].peek("b").remaining == 4


def test_the_binding_limit_is_never_one_in_shadow(storage: str) -> None:
    both = plan(storage, tg.Limit("1/hour", shadow=True), "5/hour")
    for left in (4, 3, 2):
        decision = both.hit(["a", "b"], outcomes=True)
        assert (both.binding(decision), decision.remaining) == (1, left)
    assert summary(decision) == [(False, 0), (True, 2)]
    assert both.limiters[0].stats().denied_in_shadow == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_refund_gives_nothing_back_to_a_limit_in_shadow_that_was_not_charged(
    storage: str, algorithm: str
) -> None:
    limiter = with_shadow(storage, algorithm, "1/hour")
    first, second = limiter.hit("k"), limiter.hit("k")
    limiter.refund("k", decision=second)
    assert not tg.Plan([limiter]).hit(["k"], outcomes=True).outcomes[1].allowed
    limiter.refund("k", decision=first)
    assert tg.Plan([limiter]).hit(["k"], outcomes=True).outcomes[1].allowed


def test_of_two_equal_limits_the_enforced_one_counts() -> None:
    for limits in (
        ["1/hour", tg.Limit("1/hour", shadow=True)],
        [tg.Limit("1/hour", shadow=True), "1/hour"],
    ):
        limiter = tg.Limiter(limits, storage="memory://", clock=tg.ManualClock(NOW))
        assert [limit.shadow for limit in limiter.limits] == [False]
        assert [limiter.hit("k").allowed for _ in range(2)] == [True, False]


def test_shadow_is_part_of_a_limits_value() -> None:
    limit = tg.Limit("5/minute", shadow=True)
    assert limit != tg.Limit("5/minute")
    assert limit == tg.Limit("5/minute", shadow=True)
    assert repr(limit) == "Limit('5/minute', shadow=True)"
    for copied in (copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))):
        assert copied == limit
    with pytest.raises(tg.ConfigurationError, match="shadow is 1 of type int; expected True or"):
        tg.Limit("5/minute", shadow=1)  # type: ignore[call-overload]


@given(
    limits=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([*ALGORITHMS]), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    hits=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2_000)), max_size=30),
)
@example(limits=[(1, "token-bucket", True)], hits=[(1, 0), (1, 0)])
def test_a_limit_in_shadow_counts_as_a_limiter_of_its_own_behind_the_others(
    limits: list[tuple[int, str, bool]], hits: list[tuple[int, int]]
) -> None:
    """What is enforced decides as if there were no shadow; each shadow counts what that admits."""
    whole = plan(
        "memory://",
        *(
            tg.Limit(count, 1.0, algorithm=algorithm, shadow=shadow)
            for count, algorithm, shadow in limits
        ),
    )
    clock = whole.limiters[0]._clock
    alone = [
        tg.Limiter(tg.Limit(count, 1.0, algorithm=algorithm), clock=clock)
        for count, algorithm, _ in limits
    ]
    keys = ["k"] * len(limits)
    for cost, pause_ms in hits:
        clock.advance_ns(pause_ms * 10**6)
        expected = all(
            limiter.peek("k", cost).allowed
            for limiter, (_, _, shadow) in zip(alone, limits)
            if not shadow
        )
        decision = whole.hit(keys, [cost] * len(keys), outcomes=True)
        assert decision.allowed == expected
        for outcome, limiter in zip(decision.outcomes, alone):
            reference = limiter.hit("k", cost) if expected else limiter.peek("k", cost)
            assert outcome.allowed == reference.allowed
            assert outcome.remaining == reference.remaining
            assert outcome.retry_after == reference.retry_after
