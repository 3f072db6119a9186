"""The correction of a charge when the cost is known only afterwards."""

from __future__ import annotations

import pytest
import tidegate as tg
from flask import Flask
from tidegate import rate_limit
from tidegate.limiter.reserves_by_key import outstanding
from tidegate.web.execution import BLOCKING
from tidegate.web.request_limiter import RequestLimiter

START_NS = 1_700_000_000 * 10**9


def charge_of(limit="10/minute", cost=1, clock=None):
    clock = tg.ManualClock(START_NS) if clock is None else clock
    limiter = tg.Limiter(limit, clock=clock)
    request_limiter = RequestLimiter(
        limiter, key=lambda request: "k", cost=lambda request: cost, headers=()
    )
    (charge,) = request_limiter.check({"type": "http", "headers": []}, BLOCKING).charges
    return charge, limiter


def left(limiter):
    return limiter.peek("k").remaining


@pytest.mark.parametrize(
    ("more", "remaining"), [(1, 8), (8, 1), (9, 0), (10, 0), (11, 0), (500, 0)]
)
@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
def test_a_correction_charges_at_most_what_remains(more, remaining, algorithm):
    charge, limiter = charge_of(tg.Limit("10/minute", algorithm=algorithm))
    told = BLOCKING.run(BLOCKING.charge_up_to(limiter, charge.key, more))
    assert told.allowed
    assert told.remaining == left(limiter) == remaining


def test_a_correction_charges_nothing_if_nothing_remains():
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
        ("sliding-window", MINUTE_NS, 0),  # the charge belongs to the window before
        ("sliding-window", MINUTE_NS + 1, 4),
    ],
)
def test_expired_units_are_not_outstanding(algorithm, left_ns, units):
    limit = tg.Limit("10/minute", algorithm=algorithm)
    assert outstanding(limit, left_ns, 4) == units


@pytest.mark.parametrize("counts", [(9, 5, 7), (5, 7, 9), (7, 9, 5), (5, 5, 9)])
def test_the_limit_with_the_least_remaining_of_several_stores_is_reported(counts):
    app = Flask(__name__)

    def view():
        return "low tide"

    for count in counts:
        clock = tg.ManualClock(START_NS)
        view = rate_limit(f"{count}/minute", clock=clock, storage="memory://?capacity=10")(view)
    app.get("/")(view)
    answer = app.test_client().get("/")
    assert answer.headers["X-RateLimit-Limit"] == "5"
    assert answer.headers["X-RateLimit-Remaining"] == "4"
