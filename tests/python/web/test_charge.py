"""The correction of a charge when the cost is known only afterwards."""

from __future__ import annotations

import pytest
import tidegate as tg
from tidegate._web.charge import outstanding
from tidegate._web.execution import BLOCKING
from tidegate._web.request_limiter import RequestLimiter

START_NS = 1_700_000_000 * 10**9


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
    told = BLOCKING.run(BLOCKING.charge_up_to(limiter, charge.key, more))
    assert told.allowed
    assert told.remaining == left(limiter) == remaining


def test_with_nothing_left_nothing_is_charged():
    charge, limiter = charge_of(cost=10)
    told = BLOCKING.run(BLOCKING.charge_up_to(limiter, charge.key, 1))
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
def test_expired_units_are_not_outstanding(algorithm, left_ns, units):
    limit = tg.Limit("10/minute", algorithm=algorithm)
    assert outstanding(limit, left_ns, 4) == units
