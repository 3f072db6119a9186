"""What a hit has charged, settled without a record by the process that made it."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import tidegate as tg
from tidegate.web.rule_charge import _reservation_of_check

RULES = {"rules": [{"id": "tokens", "by": "user", "limits": "1000/hour"}]}


class Clock:
    """A clock in Python, which may do something when it is read."""

    def __init__(self) -> None:
        self.once: Callable[[], object] | None = None

    def __call__(self) -> float:
        once, self.once = self.once, None
        if once is not None:
            once()
        return 1_700_000_000.0


@pytest.fixture(params=["limiter", "rules"])
def charged(request: Any) -> tuple[Clock, tg.Reservation, Callable[[], int]]:
    """A clock, the reservation of a hit of 10, and what is left of 1,000."""
    clock = Clock()
    if request.param == "limiter":
        limiter = tg.Limiter("1000/hour", clock=clock)
        reservation = limiter._reservation_of_hit("42", 10, limiter.hit("42", 10))
        return clock, reservation, lambda: limiter.peek("42").remaining
    by_rules = tg.Limiter(rules=tg.RuleSet(RULES), clock=clock)
    attributes: dict[str, Any] = {"user": "42", "cost": 10}
    reservation = _reservation_of_check(by_rules, attributes, by_rules.check(**attributes))
    return clock, reservation, lambda: by_rules.peek(user="42").remaining


def test_with_a_clock_in_python_it_is_settled_once(charged: Any) -> None:
    _, reservation, left = charged
    for _ in range(2):
        assert reservation.commit(30)
        assert left() == 970
    for again in (lambda: reservation.commit(31), reservation.release):
        with pytest.raises(tg.ReservationError, match=r"before, (at 30|by a commit)") as error:
            again()
        assert error.value.settled
    assert left() == 970


def test_of_two_commits_at_once_one_settles_it(charged: Any) -> None:
    """Another thread runs while the clock is read."""
    clock, reservation, left = charged

    def other() -> None:
        reservation.commit(30)
        with pytest.raises(tg.ReservationError, match="settled before, at 30"):
            reservation.commit(50)

    clock.once = other
    reservation.commit(30)
    assert left() == 970


def test_a_commit_that_failed_may_be_made_again(charged: Any) -> None:
    clock, reservation, left = charged

    def fail() -> None:
        raise OSError("no time")

    clock.once = fail
    with pytest.raises(OSError, match="no time"):
        reservation.commit(30)
    assert left() == 990
    reservation.commit(40)
    assert left() == 960
