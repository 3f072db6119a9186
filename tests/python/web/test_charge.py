"""What the charge for a request becomes when its cost is known only afterwards."""

from __future__ import annotations

import pytest
import tidegate as tg
from tidegate._web.charge import outstanding
from tidegate._web.execution import BLOCKING, Blocking
from tidegate._web.request_limiter import RequestLimiter

START_NS = 1_700_000_000 * 10**9


class Crowded(Blocking):
    """Others charge units between a look and the charge that follows it."""

    def __init__(self, *others: int) -> None:
        self.others = list(others)
        self.looks = 0

    async def peek(self, limiter, key, cost=1):
        found = limiter.peek(key, cost)
        self.looks += 1
        if self.others:
            units = self.others.pop(0)
            assert units == 0 or limiter.hit(key, units).allowed
        return found


def charge_of(limit="10/minute", cost=1, clock=None):
    clock = tg.ManualClock(START_NS) if clock is None else clock
    limiter = tg.Limiter(limit, clock=clock)
    judge = RequestLimiter(limiter, key=lambda request: "k", cost=lambda request: cost, headers=())
    (charge,) = judge.check({"type": "http", "headers": []}, BLOCKING).charges
    return charge, limiter


def left(limiter):
    return limiter.peek("k").remaining


@pytest.mark.parametrize(
    ("more", "remaining"), [(1, 8), (8, 1), (9, 0), (10, 0), (11, 0), (500, 0)]
)
@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
def test_all_that_is_left_is_charged_and_no_more(more, remaining, algorithm):
    charge, limiter = charge_of(tg.Limit("10/minute", algorithm=algorithm))
    told = BLOCKING.run(charge.charge_more(more, BLOCKING))
    assert told.allowed
    assert told.remaining == left(limiter) == remaining


@pytest.mark.parametrize(
    ("more", "others", "remaining", "looks"),
    [
        (5, [3], 1, 1),  # there is still enough
        (5, [4], 0, 1),
        (5, [5], 0, 2),  # one too few: all four that are left
        (5, [7], 0, 2),
        (5, [9], 0, 1),  # nothing is left
        (9, [2, 2, 2], 0, 4),
        (9, [2, 2, 2, 1], 2, 4),  # others came in at each look, so that it gives up
    ],
)
def test_others_that_come_in_between_are_charged_first(more, others, remaining, looks):
    charge, limiter = charge_of()
    crowded = Crowded(*others)
    told = crowded.run(charge.charge_more(more, crowded))
    assert told.allowed
    assert (left(limiter), crowded.looks) == (remaining, looks)


@pytest.mark.parametrize("at", ["peek", "hit"])
def test_a_refusal_lowers_the_charge_whatever_it_says_is_left(at):
    charge, limiter = charge_of()
    refused = tg.Limiter("100/minute").hit("k", 101)
    assert (refused.allowed, refused.remaining) == (False, 100)

    class Refusing(Blocking):
        refusals = 1

        async def ask(self, limiter, key, cost):
            self.refusals -= 1
            return refused if self.refusals >= 0 else getattr(limiter, at)(key, cost)

    refusing = Refusing()
    setattr(refusing, at, refusing.ask)
    assert refusing.run(charge.charge_more(5, refusing)).allowed
    assert left(limiter) == 10 - 1 - 4


def test_where_nothing_is_left_nothing_is_charged():
    charge, limiter = charge_of(cost=10)
    told = BLOCKING.run(charge.charge_more(1, BLOCKING))
    assert (told.allowed, told.remaining, left(limiter)) == (True, 0, 0)
    assert limiter.stats().denied == 0


MINUTE_NS = 60 * 10**9


@pytest.mark.parametrize(
    ("algorithm", "left_ns", "units"),
    [
        ("token-bucket", -1, 0),
        ("token-bucket", 0, 0),
        ("token-bucket", 6 * 10**9 - 1, 0),
        ("token-bucket", 6 * 10**9, 1),
        ("leaky-bucket", 18 * 10**9 - 1, 2),
        ("token-bucket", 24 * 10**9, 4),
        ("token-bucket", MINUTE_NS, 4),
        ("fixed-window", 0, 0),
        ("fixed-window", 1, 4),
        ("sliding-log", 1, 4),
        ("sliding-window", MINUTE_NS, 0),  # it is of the window before
        ("sliding-window", MINUTE_NS + 1, 4),
    ],
)
def test_what_has_run_out_is_not_outstanding(algorithm, left_ns, units):
    limit = tg.Limit("10/minute", algorithm=algorithm)
    assert outstanding(limit, left_ns, 4) == units
