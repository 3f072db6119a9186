"""tidegate.Plan: several limiters, each with a key and a cost of its own."""

from __future__ import annotations

import asyncio
import uuid

import pytest
import tidegate as tg
from hypothesis import given
from hypothesis import strategies as st
from tidegate._core import ShmStore

NOW = 1_700_000_000 * 10**9
ALGORITHMS = ("token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log")


def limiters(*limits: str, storage: str = "memory://", algorithm: str = "token-bucket"):
    clock = tg.ManualClock(NOW)
    first = tg.Limiter(limits[0], storage=storage, algorithm=algorithm, clock=clock)
    others = [
        tg.Limiter(
            limit, storage=first.storage, algorithm=algorithm, clock=clock, prefix=f"tg{number}"
        )
        for number, limit in enumerate(limits[1:])
    ]
    return [first, *others]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_or_none(algorithm):
    requests, tokens = limiters("10/minute", "100/minute", algorithm=algorithm)
    plan = tg.Plan([requests, tokens])
    assert plan.hit(["u", "t"], costs=[1, 60])
    refused = plan.hit(["u", "t"], costs=[1, 60])
    assert not refused
    assert plan.binding(refused) == 1
    assert (refused.limit, refused.rule) == (100, "100/minute")
    assert requests.peek("u").remaining == 9
    assert tokens.peek("t").remaining == 40
    # Others are not concerned.
    assert plan.hit(["u", "t2"], costs=[1, 60])
    assert requests.peek("u").remaining == 8


def test_the_limit_that_binds():
    first, second = limiters("5/minute", "100/minute")
    plan = tg.Plan([first, second])
    allowed = plan.hit(["a", "b"])
    assert (plan.binding(allowed), allowed.remaining) == (0, 4)
    several = tg.Limiter(["50/second", "3/hour"], storage=first.storage, clock=first._clock)
    plan = tg.Plan([first, several, second])
    assert plan.binding(plan.hit(["a2", "b2", "c2"])) == 1


def test_decisions_are_counted_where_they_belong():
    first, second = limiters("2/minute", "100/minute")
    plan = tg.Plan([first, second])
    for _ in range(5):
        plan.hit(["a", "b"])
    assert (first.stats().allowed, first.stats().denied) == (2, 3)
    assert (second.stats().allowed, second.stats().denied) == (2, 0)


def test_a_limit_that_meets_a_key_twice_is_charged_both_costs():
    (limiter,) = limiters("10/minute")
    plan = tg.Plan([limiter, limiter])
    assert plan.hit(["a", "a"], costs=[3, 4]).remaining == 3
    assert not plan.hit(["a", "a"], costs=[2, 2])
    assert limiter.peek("a").remaining == 3
    assert plan.hit(["a", "b"], costs=[3, 4])
    huge = plan.hit(["c", "c"], costs=[2**63, 2**63])
    assert huge.retry_after == float("inf")


def test_a_plan_gives_back_what_it_charged():
    first, second = limiters("10/minute", "100/minute")
    plan = tg.Plan([first, second])
    plan.hit(["a", "b"], costs=[4, 50])
    plan.refund(["a", "b"], costs=[4, 50])
    assert (first.peek("a").remaining, second.peek("b").remaining) == (10, 100)

    async def in_a_loop():
        await plan.hit_async(["a", "b"], costs=[4, 50])
        await plan.refund_async(["a", "b"], costs=[3, 50])

    asyncio.run(in_a_loop())
    assert (first.peek("a").remaining, second.peek("b").remaining) == (9, 100)


def test_a_refund_without_costs_gives_back_one_unit_each():
    first, second = limiters("10/minute", "100/minute")
    plan = tg.Plan([first, second])
    plan.hit(["a", "b"], costs=[3, 3])
    plan.refund(["a", "b"])
    assert (first.peek("a").remaining, second.peek("b").remaining) == (8, 98)


@pytest.mark.parametrize(
    ("keys", "costs"),
    [(["a"], [1]), (["a", "b", "c"], [1, 1, 1]), (["a", "b"], [1]), (["a", "b", "c"], [1, 1])],
)
def test_a_refund_has_a_key_and_a_cost_for_each_limiter(keys, costs):
    first, second = limiters("10/minute", "100/minute")
    plan = tg.Plan([first, second])
    plan.hit(["a", "b"], costs=[3, 3])
    with pytest.raises(tg.ConfigurationError, match="for 2 limiters; expected one for each"):
        plan.refund(keys, costs)
    assert (first.peek("a").remaining, second.peek("b").remaining) == (7, 97)


@pytest.mark.parametrize("algorithm", ["token-bucket", "sliding-log", "concurrency"])
def test_refund_of_a_decision(algorithm):
    clock = tg.ManualClock(10**15)
    first = tg.Limiter(["10/minute", "30/hour"], algorithm=algorithm, clock=clock)
    second = tg.Limiter("90/hour", storage=first.storage, algorithm=algorithm, clock=clock)
    plan = tg.Plan([first, second, first])
    keys, costs = ["a", "b", "c"], [4, 50, 2]

    def left():
        return [each.peek(key).remaining for each, key in zip(plan.limiters, keys)]

    decision = plan.hit(keys, costs)
    refused = plan.hit(keys, costs)
    assert left() == [6, 40, 8]
    plan.refund(keys, costs, decision=refused)
    assert left() == [6, 40, 8]
    plan.refund(keys, costs, decision=decision)
    assert left() == [10, 90, 10]

    async def in_a_loop():
        decision = await plan.hit_async(keys, costs)
        await plan.refund_async(keys, [1, 2, 1], decision=decision)

    asyncio.run(in_a_loop())
    assert left() == [7, 42, 9]


def test_each_limiter_is_told_which_of_its_own_limits_were_charged_elsewhere():
    clock = tg.ManualClock()
    first = tg.Limiter(["10/minute", "30/hour"], clock=clock)
    second = tg.Limiter("90/hour", storage=first.storage, clock=clock)
    plan = tg.Plan([first, second, first])
    make, state = plan.hit(["a", "b", "c"]).__reduce__()
    elsewhere = state.index(-1) - 1  # one bit for each limit, before what is not known
    for bits, parts in ((0b10110, [0b10110, 0b101, 0b10]), (0b00001, [0b1, 0, 0])):
        decision = make(*state[:elsewhere], bits, *state[elsewhere + 1 :])
        each = plan._each(["a", "b", "c"], None, decision)
        assert [part.__reduce__()[1][elsewhere] for _, _, _, part in each] == parts


def test_a_plan_in_shared_memory_charges_all_or_none():
    name = f"test-plan-{uuid.uuid4().hex[:12]}"
    try:
        first, second = limiters("10/minute", "3/minute", storage=f"shm://{name}")
        plan = tg.Plan([first, second])
        assert [bool(plan.hit(["a", "b"])) for _ in range(5)] == [True] * 3 + [False] * 2
        assert first.peek("a").remaining == 7
    finally:
        ShmStore.remove(name)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 2),
            st.integers(1, 6),
            st.integers(1, 6),
            st.integers(0, 20),
        ),
        max_size=40,
    ),
    st.sampled_from(ALGORITHMS),
)
def test_a_plan_equals_its_limits_asked_one_by_one(calls, algorithm):
    """Law 3, against limiters that are asked first and charged only where all agree."""
    plan_limiters = limiters("5/minute", "9/minute", algorithm=algorithm)
    others = limiters("5/minute", "9/minute", algorithm=algorithm)
    plan = tg.Plan(plan_limiters)
    for key_a, key_b, cost_a, cost_b, seconds in calls:
        for limiter in (plan_limiters[0], others[0]):
            limiter._clock.advance(seconds)
        keys, costs = [f"a{key_a}", f"b{key_b}"], [cost_a, cost_b]
        decision = plan.hit(keys, costs)
        each = list(zip(others, keys, costs))
        expected = all(limiter.peek(key, cost) for limiter, key, cost in each)
        assert bool(decision) is expected
        if expected:
            for limiter, key, cost in each:
                assert limiter.hit(key, cost)
        for mine, (limiter, key, _) in zip(plan_limiters, each):
            assert mine.peek(key) == limiter.peek(key)


def test_bad_input_charges_nothing():
    first, second = limiters("10/minute", "100/minute")
    plan = tg.Plan([first, second])
    first.hit("a")
    for keys, costs, message in (
        (["a"], None, "1 keys were given for 2 limiters; expected one for each"),
        (["a", ""], None, "the key is empty"),
        (["a", 3], None, "the key is 3"),
        ("ab", None, "the keys are 'ab'.*expected a list"),
        (["a", "b"], [1], "1 costs were given for 2 limiters"),
        (["a", "b"], [1, 0], "the cost is 0"),
        (["a", "b"], [1, True], "the cost is True"),
        (["a", "b"], 3, "the costs are 3"),
    ):
        with pytest.raises(tg.ConfigurationError, match=message):
            plan.hit(keys, costs)
        with pytest.raises(tg.ConfigurationError, match=r"expected"):
            plan.refund(keys, costs)
    assert (first.peek("a").remaining, second.peek("b").remaining) == (9, 100)
    second.close()
    with pytest.raises(tg.LimiterClosedError):
        plan.hit(["a", "b"])


def test_a_plan_shows_its_limiters():
    limiter = tg.Limiter("1/minute")
    assert repr(tg.Plan([limiter])) == f"Plan([{limiter!r}])"


def test_limiters_that_are_no_plan():
    first, second = limiters("10/minute", "100/minute")
    elsewhere = tg.Limiter("10/minute", clock=first._clock)
    for wrong, message in (
        ([], "expected at least one"),
        ([first, elsewhere], "different storages"),
        ([first, tg.Limiter("1/s", storage=first.storage)], "different clocks"),
        ([first, "100/minute"], "expected Limiters"),
        (first, "expected a list of Limiters"),
        (None, "expected a list of Limiters"),
        ("10/minute", "expected a list of Limiters"),
    ):
        with pytest.raises(tg.ConfigurationError, match=message):
            tg.Plan(wrong)
    several = tg.Limiter(["1/s", "2/s", "3/s"], storage=first.storage, clock=first._clock)
    third = tg.Plan([first, second, several]).hit(["a", "b", "c"])
    with pytest.raises(tg.ConfigurationError, match="of another plan"):
        tg.Plan([first]).binding(third)
    with pytest.raises(tg.ConfigurationError, match="expected a Decision"):
        tg.Plan([first]).binding(None)
