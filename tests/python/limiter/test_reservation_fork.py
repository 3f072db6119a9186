"""Reservations that a child of fork() inherits: no unit is given back twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

import pytest
import tidegate as tg
from tidegate.limiter.reservation import Reservation

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
NOW_NS = 1_700_000_000 * 10**9
REFUSED = "is of the process that this one was forked from, and has no token; expected"


@pytest.fixture(params=["token-bucket", "sliding-window"])
def shared(tmp_path: Path, request: pytest.FixtureRequest) -> tg.Limiter:
    return tg.Limiter(
        "1000/hour",
        algorithm=request.param,
        storage=f"shm://{tmp_path}/table?capacity=10000",
        clock=tg.ManualClock(NOW_NS),
    )


def in_child(call: Callable[[], Any]) -> str:
    """What a child of fork() says of a call: its result, or the error's text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(call())
        except BaseException as error:  # the child must end here
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return said


CALLS: dict[str, Callable[[Reservation], object]] = {
    "commit": lambda reservation: reservation.commit(40),
    "release": lambda reservation: reservation.release(),
    "extend": lambda reservation: reservation.extend(40),
    "token": lambda reservation: reservation.token,
}


@pytest.mark.parametrize("call", list(CALLS))
def test_a_child_settles_nothing_that_its_parent_reserved(shared: tg.Limiter, call: str) -> None:
    reservation = shared.reserve("k", 100)
    said = in_child(lambda: CALLS[call](reservation))
    assert said.startswith("ReservationError")
    assert REFUSED in said
    assert shared.peek("k").remaining == 900
    assert reservation.commit(40).charged == 40
    assert shared.peek("k").remaining == 960
    assert "settled before" in in_child(lambda: reservation.commit(41))
    assert shared.peek("k").remaining == 960


def test_a_child_that_leaves_the_block_gives_nothing_back(shared: tg.Limiter) -> None:
    reservation = shared.reserve("k", 100)

    def leave() -> None:
        with reservation:
            pass

    assert in_child(leave) == "None"
    assert shared.peek("k").remaining == 900
    leave()
    assert shared.peek("k").remaining == 1000


def test_a_child_settles_its_own(shared: tg.Limiter) -> None:
    assert in_child(lambda: shared.reserve("k", 100).commit(40).charged) == "40"
    assert shared.peek("k").remaining == 960


def test_with_a_token_the_first_of_both_settles(shared: tg.Limiter) -> None:
    reservation = shared.reserve("k", 100)
    assert reservation.token
    assert in_child(lambda: reservation.commit(40).charged) == "40"
    with pytest.raises(tg.ReservationError, match="settled before, at 40 units"):
        reservation.commit(70)
    assert shared.peek("k").remaining == 960


def test_what_a_hit_has_charged_is_settled_where_it_was_charged(shared: tg.Limiter) -> None:
    reservation = shared._reservation_of_hit("k", 100, shared.hit("k", 100))
    assert REFUSED in in_child(lambda: reservation.commit(40))
    assert reservation.commit(40).charged == 40
    assert shared.peek("k").remaining == 960


@pytest.fixture
def of_plan(shared: tg.Limiter) -> tuple[Reservation, Callable[[], tuple[int, int]]]:
    """A reservation of a plan, and what is left of its limits."""
    other = tg.Limiter("500/hour", storage=shared.storage, clock=shared._clock)
    reservation = tg.Plan([shared, other]).reserve(["k", "o"], [100, 50])
    return reservation, lambda: (shared.peek("k").remaining, other.peek("o").remaining)


CALLS_OF_PLAN: dict[str, Callable[[Reservation], object]] = {
    **CALLS,
    "commit": lambda reservation: reservation.commit([40, 20]),
    "extend": lambda reservation: reservation.extend([40, 20]),
}


@pytest.mark.parametrize("call", list(CALLS_OF_PLAN))
def test_a_plan_is_settled_by_the_process_that_reserved_it(of_plan: Any, call: str) -> None:
    reservation, standing = of_plan
    said = in_child(lambda: CALLS_OF_PLAN[call](reservation))
    assert said.startswith("ReservationError")
    assert REFUSED in said
    assert standing() == (900, 450)
    assert reservation.commit([40, 20]).charged == 20
    assert standing() == (960, 480)
    assert in_child(lambda: reservation.commit([40, 20]).charged) == "20"
    assert "settled before" in in_child(lambda: reservation.commit([40, 21]))
    assert standing() == (960, 480)


def test_the_token_of_a_plan_lets_the_first_process_settle_it(of_plan: Any) -> None:
    reservation, standing = of_plan
    assert reservation.token
    assert in_child(lambda: reservation.commit([40, 20]).charged) == "20"
    with pytest.raises(tg.ReservationError, match="settled before"):
        reservation.commit([0, 0])
    assert standing() == (960, 480)


@pytest.mark.parametrize("call", list(CALLS))
def test_rules_are_settled_by_the_process_that_reserved(shared: tg.Limiter, call: str) -> None:
    rules = {"rules": [{"id": "tokens", "by": "user", "limits": "1000/hour"}]}
    limiter = tg.Limiter(rules=tg.RuleSet(rules), storage=shared.storage, clock=shared._clock)
    reservation = limiter.reserve(cost=100, user="42")
    assert REFUSED in in_child(lambda: CALLS[call](reservation))
    assert limiter.peek(user="42").remaining == 900
    assert reservation.commit(40).charged == 40
    assert in_child(lambda: reservation.commit(40).charged) == "40"
    assert limiter.peek(user="42").remaining == 960


def test_in_memory_each_process_settles_its_copy() -> None:
    limiter = tg.Limiter("1000/hour", clock=tg.ManualClock(NOW_NS))
    reservation = limiter.reserve("k", 100)
    assert in_child(lambda: reservation.commit(40).remaining) == "960"
    assert reservation.commit(70).remaining == 930
