"""The laws, for whatever calls hypothesis thinks of, through the Python face."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Optional

import oracle
import pytest
import tidegate
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from oracle import ALGORITHMS, BUCKETS, TOLERANCE_NS, Algorithm, Oracle, excess

SECOND = 10**9
LATE = 1_700_000_000_123_456_789

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
thorough = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)

starts = st.integers(0, 10**11) | st.just(LATE) | st.integers(LATE, LATE + 10**12)


@st.composite
def limits(draw: st.DrawFn, algorithm: Algorithm) -> oracle.Limit:
    """Limits of all kinds, up to the fastest that is promised: one unit a nanosecond."""
    most = 30 if algorithm in ("sliding-log", "concurrency") else 10**9
    count = draw(st.sampled_from([*range(1, 13), *[10**6, 999_999_937, 10**9] * 4]))
    period = draw(
        st.sampled_from([1, 7, 1000, SECOND, SECOND + 7, 1000 * SECOND]) | st.integers(1, 10**13)
    )
    count = min(count, most, period)
    burst = draw(st.sampled_from([None] * 40 + [*range(1, 41)])) if algorithm in BUCKETS else None
    return oracle.Limit(count, period, burst, algorithm)


any_limit = st.sampled_from(ALGORITHMS).flatmap(limits)


@dataclass(frozen=True)
class Call:
    """A call, in measures that suit every limit."""

    op: str
    sixteenths: int  # of the period, that pass before it
    nanoseconds: int
    cost: Fraction  # of the capacity; 0: one unit
    key: int

    def gap(self, limit: oracle.Limit) -> int:
        return limit.period_ns * self.sixteenths // 16 + self.nanoseconds

    def units(self, limit: oracle.Limit) -> int:
        return max(1, math.ceil(limit.capacity * self.cost))


def calls(*ops: str, keys: int = 1, most: int = 20) -> st.SearchStrategy[list[Call]]:
    every = product(
        ops,
        [*range(17), *[0, 0, 0, 32, 100] * 3],
        range(3),
        [Fraction(n, 8) for n in (0, 0, 0, 1, 3, 4, 8, 9)],
        range(keys),
    )
    # One draw for a call: draws are most of what these tests cost.
    return st.lists(st.sampled_from([Call(*each) for each in every]), max_size=most)


def real(limit: oracle.Limit, name: str = "rule0") -> tidegate.Limit:
    made = tidegate.Limit(
        limit.count,
        limit.period_ns / 1e9,
        burst=limit.burst,
        algorithm=limit.algorithm,
        name=name,
    )
    assert made.period_ns == limit.period_ns
    return made


def real_plan(plan: Sequence[oracle.Limit]) -> list[tidegate.Limit]:
    return [real(limit, f"rule{index}") for index, limit in enumerate(plan)]


class Machine:
    """A limiter whose clock is told with each call, and who was let through."""

    def __init__(self, *plan: oracle.Limit) -> None:
        self.clock = tidegate.ManualClock()
        self.limiter = tidegate.Limiter(real_plan(plan), clock=self.clock)
        self.admitted: list[tuple[int, int]] = []

    def hit(self, now: int, cost: int = 1, key: str = "k") -> tidegate.Decision:
        self.clock.set_ns(now)
        decision = self.limiter.hit(key, cost=cost)
        if decision.allowed:
            self.admitted.append((now, cost))
        return decision

    def peek(self, now: int, cost: int = 1, key: str = "k") -> tidegate.Decision:
        self.clock.set_ns(now)
        return self.limiter.peek(key, cost=cost)

    def play(self, start: int, play: Sequence[Call], limit: oracle.Limit) -> int:
        for call in play:
            start += call.gap(limit)
            self.hit(start, call.units(limit))
        return start


@st.composite
def played(
    draw: st.DrawFn, algorithm: Algorithm, starts: st.SearchStrategy[int] = starts
) -> tuple[oracle.Limit, Machine, int]:
    """A limit, a machine that has seen hits of it, and the instant of the last one."""
    limit = draw(limits(algorithm))
    machine = Machine(limit)
    return limit, machine, machine.play(draw(starts), draw(calls("hit")), limit)


def ns(seconds: float) -> int:
    """Exact for what these tests see: doubles carry nanoseconds for three weeks."""
    assert seconds < 1_900_000
    return round(seconds * 1e9)


Answer = tuple[bool, int, int, Optional[float], float, float, Optional[str]]


def answer(decision: tidegate.Decision) -> Answer:
    wait = None if math.isinf(decision.retry_after) else decision.retry_after
    return (
        decision.allowed,
        decision.limit,
        decision.remaining,
        wait,
        decision.reset_after,
        decision.delay,
        decision.rule,
    )


def expected(decision: oracle.Decision) -> Answer:
    wait = decision.retry_after_ns
    return (
        decision.allowed,
        decision.limit,
        decision.remaining,
        None if wait is None else wait / 1e9,
        decision.reset_after_ns / 1e9,
        decision.delay_ns / 1e9,
        f"rule{decision.rule_index}",
    )


# Law 1: never more.


@every_algorithm
@given(data=st.data())
@thorough
def test_never_more(algorithm: Algorithm, data: st.DataObject) -> None:
    limit, machine, _ = data.draw(played(algorithm))
    assert excess(limit, machine.admitted) <= 0


@every_algorithm
@given(data=st.data(), start=starts, eager=st.integers(1, 40))
@thorough
def test_never_more_to_one_who_asks_at_the_first_instant(
    algorithm: Algorithm, data: st.DataObject, start: int, eager: int
) -> None:
    limit = data.draw(limits(algorithm))
    machine = Machine(limit)
    now = start
    for _ in range(eager):
        now += ns(machine.hit(now, min(limit.capacity, 1 + limit.capacity // 3)).retry_after)
    assert excess(limit, machine.admitted) <= 0


# Law 2: retry is exact.


@every_algorithm
@given(data=st.data())
@thorough
def test_retry_is_exact(algorithm: Algorithm, data: st.DataObject) -> None:
    limit, machine, now = data.draw(played(algorithm))
    cost = data.draw(st.integers(1, limit.capacity))
    decision = machine.hit(now, cost)
    if decision.allowed:
        assert decision.retry_after == 0.0
        decision = machine.hit(now, limit.capacity)
        assume(not decision.allowed)
        cost = limit.capacity
    wait = ns(decision.retry_after)
    assert wait > 0
    early = data.draw(st.lists(st.integers(0, wait - 1), max_size=8))
    for offset in sorted([*early, wait - 1]):
        refused = machine.hit(now + offset, cost)
        assert not refused.allowed
        assert ns(refused.retry_after) == wait - offset
    assert machine.hit(now + wait, cost).allowed


# Law 3: all or none.


@given(plan=st.lists(any_limit, min_size=2, max_size=4), start=starts, play=calls("hit"))
@thorough
def test_a_plan_passes_when_each_of_its_limits_would(
    plan: list[oracle.Limit], start: int, play: list[Call]
) -> None:
    whole, parts = Machine(*plan), [Machine(limit) for limit in plan]
    now = start
    for call in play:
        now += call.gap(plan[0])
        cost = call.units(plan[-1])
        alone = [part.peek(now, cost) for part in parts]
        together = whole.hit(now, cost)
        assert together.allowed == all(alone)
        assert together.retry_after == max(decision.retry_after for decision in alone)
        if together.allowed:
            for part in parts:
                assert part.hit(now, cost).allowed


@given(plan=st.lists(any_limit, min_size=1, max_size=4), start=starts, play=calls("hit"))
@thorough
def test_a_refused_plan_leaves_everything_as_it_was(
    plan: list[oracle.Limit], start: int, play: list[Call]
) -> None:
    asked, spared = Machine(*plan), Machine(*plan)
    now = asked.play(start, play, plan[0])
    for instant, cost in asked.admitted:
        assert spared.hit(instant, cost).allowed
    for cost in {1, 2, *(limit.capacity for limit in plan)}:
        for later in (0, 1, plan[0].period_ns // 2, plan[0].period_ns):
            assert answer(asked.peek(now + later, cost)) == answer(spared.peek(now + later, cost))


# Law 5: the same answer everywhere.


def same_as_the_oracle(
    plan: list[oracle.Limit], start: int, play: list[Call], steps: Sequence[int] = (0,)
) -> None:
    machine, naive = Machine(*plan), Oracle(plan)
    now = start
    for index, call in enumerate(play):
        now = max(0, now + call.gap(plan[0]) + steps[index % len(steps)])
        cost, key = call.units(plan[index % len(plan)]), f"k{call.key}"
        if call.op == "hit":
            assert answer(machine.hit(now, cost, key)) == expected(naive.hit(key, now, cost))
        elif call.op == "peek":
            assert answer(machine.peek(now, cost, key)) == expected(naive.peek(key, now, cost))
        elif call.op == "refund":
            machine.clock.set_ns(now)
            machine.limiter.refund(key, cost=cost)
            naive.refund(key, now, cost)
        else:
            machine.clock.set_ns(now)
            machine.limiter.reset(key)
            naive.reset(key)


ANYTHING = ("hit", "hit", "hit", "hit", "peek", "refund", "reset")


@every_algorithm
@given(data=st.data(), start=starts, play=calls(*ANYTHING, keys=3, most=30))
@thorough
def test_memory_answers_as_the_oracle(
    algorithm: Algorithm, data: st.DataObject, start: int, play: list[Call]
) -> None:
    same_as_the_oracle([data.draw(limits(algorithm))], start, play)


@given(
    plan=st.lists(any_limit, min_size=2, max_size=4),
    start=starts,
    play=calls(*ANYTHING, keys=3, most=30),
)
@thorough
def test_memory_answers_as_the_oracle_to_plans(
    plan: list[oracle.Limit], start: int, play: list[Call]
) -> None:
    same_as_the_oracle(plan, start, play)


moves = st.sampled_from(
    [0, -1, 1 - TOLERANCE_NS, -TOLERANCE_NS, -1 - TOLERANCE_NS, -SECOND, -(10**13), 10**13]
) | st.integers(-(10**13), 10**13)


# One key: what an idle key of another was reused for is the business of the store.
@given(
    plan=st.lists(any_limit, min_size=1, max_size=3),
    start=starts,
    play=calls(*ANYTHING),
    steps=st.lists(moves | st.just(0), min_size=1, max_size=7),
)
# A bucket that lies further ahead than its depth, of which more is given back than that.
@example(
    plan=[oracle.Limit(1, 1)],
    start=SECOND,
    play=[
        Call("hit", 0, 0, Fraction(), 0),
        Call("hit", 0, 0, Fraction(), 0),
        Call("refund", 0, 0, Fraction(9, 8), 0),
        Call("hit", 0, 0, Fraction(), 0),
    ],
    steps=[-1],
)
@thorough
def test_memory_answers_as_the_oracle_when_the_clock_steps(
    plan: list[oracle.Limit], start: int, play: list[Call], steps: list[int]
) -> None:
    same_as_the_oracle(plan, start, play, steps)


@given(
    plan=st.lists(any_limit, min_size=1, max_size=3),
    start=starts,
    play=calls("hit", keys=3, most=30),
    steps=st.lists(moves | st.just(0), min_size=1, max_size=7) | st.just([0]),
)
@thorough
def test_replay_answers_as_the_oracle(
    plan: list[oracle.Limit], start: int, play: list[Call], steps: list[int]
) -> None:
    naive = Oracle(plan)
    keys, times, costs, wanted = [], [], [], []
    now = start
    for index, call in enumerate(play):
        now = max(0, now + call.gap(plan[0]) + steps[index % len(steps)])
        keys.append(f"k{call.key}")
        times.append(now)
        costs.append(call.units(plan[-1]))
        wanted.append(expected(naive.hit(keys[-1], now, costs[-1])))
    # In the order given, also where the clock steps back.
    decisions = tidegate._core.replay(real_plan(plan), keys, times, costs)
    assert [answer(d) for d in decisions] == wanted


# Law 6: time never mints.


@every_algorithm
@given(data=st.data(), after=calls("hit"), step=moves)
@thorough
def test_a_step_of_the_clock_mints_at_most_one_burst(
    algorithm: Algorithm, data: st.DataObject, after: list[Call], step: int
) -> None:
    limit, machine, now = data.draw(played(algorithm, st.just(LATE)))
    earlier = list(machine.admitted)
    machine.admitted.clear()
    machine.play(now + step, after, limit)
    # By its own clock it never lets more through, on neither side of the step.
    assert excess(limit, earlier) <= 0
    assert excess(limit, machine.admitted) <= 0
    if algorithm in ("fixed-window", "sliding-window"):
        return  # what they say is about windows of their own clock
    # By a clock that did not step: one burst more where it jumped ahead, none where it went back.
    steady = earlier + [(instant - step, cost) for instant, cost in machine.admitted]
    assert excess(limit, steady) <= (limit.capacity if step > 0 else 0)


@every_algorithm
@given(data=st.data(), step=moves)
@thorough
def test_at_the_instant_of_a_step_at_most_one_burst_passes(
    algorithm: Algorithm, data: st.DataObject, step: int
) -> None:
    limit, machine, now = data.draw(played(algorithm, st.just(LATE)))
    machine.admitted.clear()
    cost = max(1, limit.capacity // 5)
    for _ in range(12):
        machine.hit(now + step, cost)
    assert sum(cost for _, cost in machine.admitted) <= limit.capacity


@every_algorithm
@given(
    data=st.data(), play=calls("hit"), steps=st.lists(moves, min_size=1, max_size=5), start=starts
)
@thorough
def test_steps_of_the_clock_lock_nobody_out(
    algorithm: Algorithm, data: st.DataObject, play: list[Call], steps: list[int], start: int
) -> None:
    limit = data.draw(limits(algorithm))
    machine = Machine(limit)
    now = start
    for index, call in enumerate(play):
        now = max(0, now + call.gap(limit) + steps[index % len(steps)])
        machine.hit(now, call.units(limit))
    now = max(0, now + steps[-1])
    decision = machine.hit(now)
    # Whoever filled a sliding window is kept out into the next, stepped or not.
    periods = 2 if algorithm == "sliding-window" else 1
    assert ns(decision.retry_after) <= periods * limit.period_ns + TOLERANCE_NS
    if not decision.allowed:
        assert machine.hit(now + ns(decision.retry_after)).allowed
