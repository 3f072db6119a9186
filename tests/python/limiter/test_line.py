"""How long those who wait for a turn sleep between two looks, and whom they let go first."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from typing import Any, Callable

import pytest
import tidegate as tg
from polling import eventually
from tidegate.limiter.loops import AsyncBridge
from tidegate.limiter.waiting.queue import PATIENCE, WaitingRoom
from tidegate.limiter.waiting.turn import KeyTurn

SECOND = 1_000_000_000

Acquire = Callable[..., tg.Decision]


def in_thread(limiter: tg.Limiter) -> Acquire:
    return limiter.acquire


def in_task(limiter: tg.Limiter) -> Acquire:
    def acquire(*args: Any, **kwargs: Any) -> tg.Decision:
        return asyncio.run(limiter.acquire_async(*args, **kwargs))

    return acquire


def in_task_of_a_store_that_waits(limiter: tg.Limiter) -> Acquire:
    # As with a store outside of the process, whose answers the event loop hears of.
    limiter._loops = AsyncBridge  # type: ignore[assignment]
    return in_task(limiter)


@pytest.fixture(params=[in_thread, in_task, in_task_of_a_store_that_waits])
def waiting(request: pytest.FixtureRequest) -> Callable[[tg.Limiter], Acquire]:
    return request.param  # type: ignore[no-any-return]


def start(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_who_cannot_wait_passes_nobody_who_came_before(waiting: Any) -> None:
    clock = tg.ManualClock()
    limiter = tg.Limiter("10/10 seconds", clock=clock)
    assert limiter.hit("k", 10)
    acquire = waiting(limiter)
    served: list[tg.Decision] = []
    first = start(lambda: served.append(acquire("k", 5, 100)))
    eventually(lambda: limiter._room.lines)
    clock.advance(3)
    late = acquire("k", 1, 0)
    assert not late.allowed
    assert late.retry_after == 3.0  # when there are 6, the first one's 5 and its own
    assert limiter.peek("k").remaining == 3
    clock.advance(2)
    first.join(10)
    assert [decision.allowed for decision in served] == [True]
    clock.advance(1)
    assert acquire("k", 1, 0).allowed


@pytest.mark.parametrize("in_shadow", [None, 0, 1])
def test_who_cannot_wait_is_served_where_there_is_enough_for_all(
    waiting: Any, in_shadow: int | None
) -> None:
    """A limit in shadow, of so many units, bounds nothing."""
    shadows = [] if in_shadow is None else [tg.Limit(in_shadow, 60, shadow=True)]
    limiter = tg.Limiter([*shadows, tg.Limit(10, 10)], clock=tg.ManualClock())
    ahead = limiter._room.enter("k", 5, lambda: None)
    acquire = waiting(limiter)
    assert acquire("k", 5, 0).allowed
    assert not acquire("k", 1, 0).allowed
    limiter._room.leave(ahead)
    assert acquire("k", 5, 0).allowed


def test_a_limiter_with_no_limit_but_in_shadow_refuses_nobody(waiting: Any) -> None:
    limiter = tg.Limiter(tg.Limit(1, 60, shadow=True), clock=tg.ManualClock())
    ahead = limiter._room.enter("k", 5, lambda: None)
    for _ in range(3):
        assert waiting(limiter)("k", 2, 0).allowed
    limiter._room.leave(ahead)


def test_a_wait_charges_and_refuses_nothing_before_its_end(waiting: Any) -> None:
    clock = tg.ManualClock()
    limiter = tg.Limiter("1/second", clock=clock)
    assert limiter.hit("k")
    acquire = waiting(limiter)
    thread = start(functools.partial(acquire, "k", 1, 100))
    eventually(lambda: limiter._room.lines)
    for _ in range(3):
        clock.advance(0.25)
    clock.advance(0.25)
    thread.join(10)
    stats = limiter.stats()
    assert (stats.allowed, stats.denied) == (2, 0)


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e9 + 1, None])
def test_a_timeout_of_decades_is_no_bound(timeout: float | None) -> None:
    limiter = tg.Limiter("1/second", clock=tg.ManualClock())
    assert limiter._deadline_ns(timeout) is None


@pytest.mark.parametrize("timeout", [0, 0.5, 1e9])
def test_a_timeout_is_in_seconds_of_the_clock(timeout: float) -> None:
    limiter = tg.Limiter("1/second", clock=tg.ManualClock(7 * SECOND))
    assert limiter._deadline_ns(timeout) == 7 * SECOND + timeout * SECOND


def test_a_clock_that_does_not_say_when_it_moves_is_looked_at_by_a_timer(waiting: Any) -> None:
    now = [1_000_000 * SECOND]
    limiter = tg.Limiter("1000/second", clock=lambda: now[0])
    assert limiter.hit("k", 1000)
    acquire = waiting(limiter)
    served: list[tg.Decision] = []
    thread = start(lambda: served.append(acquire("k", 1, None)))
    eventually(lambda: limiter._room.lines)
    now[0] += SECOND
    thread.join(20)
    assert [decision.allowed for decision in served] == [True]


class Sleeping:
    """A limiter of one unit in 8 seconds that is empty, and how long one sleeps for it."""

    def __init__(self, **options: Any) -> None:
        self.clock = tg.ManualClock(100 * SECOND)
        self.limiter = tg.Limiter("1/8 seconds", clock=self.clock, **options)
        self.fresh = self.limiter.peek("k")
        self.limiter.hit("k")
        self.empty = self.limiter.peek("k")

    def seconds(self, forecast: tg.Decision, left: float | None, first: bool = False) -> float:
        deadline = None if left is None else self.clock.now_ns() + round(left * SECOND)
        return KeyTurn(self.limiter, "k", 1, deadline)._sleep(forecast, first)


@pytest.mark.parametrize(
    ("left", "seconds"), [(None, 8.0), (9.5, 8.0), (8.0, 8.0), (7.5, 0.0), (0.0, 0.0), (-1.0, 0.0)]
)
def test_one_sleeps_until_there_is_a_unit_where_the_time_left_is_enough(
    left: float | None, seconds: float
) -> None:
    sleeping = Sleeping()
    assert sleeping.seconds(sleeping.empty, left) == seconds
    assert sleeping.seconds(sleeping.empty, left, first=True) == seconds


@pytest.mark.parametrize(
    ("left", "seconds"),
    [(None, PATIENCE), (0.125, 0.125), (2.0, PATIENCE), (0.0, 0.0), (-0.5, 0.0)],
)
def test_one_looks_again_soon_whether_those_who_came_before_took_the_unit(
    left: float | None, seconds: float
) -> None:
    sleeping = Sleeping()
    assert sleeping.seconds(sleeping.fresh, left) == seconds


@pytest.mark.parametrize(
    ("left", "seconds"), [(None, 8.0), (7.5, 7.5), (0.5, 0.5), (0.0, 0.0), (-0.5, 0.0)]
)
def test_the_wait_for_a_lease_is_the_longest_possible(left: float | None, seconds: float) -> None:
    sleeping = Sleeping(algorithm="concurrency")
    assert sleeping.seconds(sleeping.empty, left) == seconds


def test_one_does_not_sleep_for_what_never_comes() -> None:
    limiter = tg.Limiter("1/8 seconds", clock=tg.ManualClock())
    assert KeyTurn(limiter, "k", 2, None)._sleep(limiter.peek("k", 2), False) == 0.0


def test_what_is_ahead_is_what_those_who_came_before_wait_for() -> None:
    room = WaitingRoom()
    tickets = [room.enter("k", cost, lambda: None) for cost in (1, 2, 4, 8)]
    assert [room.cost_ahead(ticket) for ticket in tickets] == [0, 1, 3, 7]
    room.leave(tickets[1])
    assert room.cost_ahead(tickets[3]) == 5
    assert room.cost_ahead(room.enter("another", 1, lambda: None)) == 0


def test_who_has_left_the_line_may_leave_again() -> None:
    room = WaitingRoom()
    woken: list[str] = []
    first = room.enter("k", 1, lambda: woken.append("first"))
    second = room.enter("k", 1, lambda: woken.append("second"))
    room.leave(first)
    room.leave(first)
    assert woken == ["second"]
    room.leave(second)
    room.leave(second)
    assert not room.lines
