"""`t` of the RateLimit field is the seconds until more quota comes, for every algorithm."""

from __future__ import annotations

import re

import pytest
import tidegate as tg
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.web.execution import BLOCKING
from tidegate.web.request_limiter import RequestLimiter

SECOND = 10**9
START = 1_700_000_000 * SECOND
ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]
KEY = "192.0.2.1"
REQUEST = {"type": "http", "client": (KEY, 80)}


@st.composite
def limits(draw: st.DrawFn, algorithm: str) -> tg.Limit:
    count = draw(st.integers(1, 12) | st.sampled_from([60, 1000]))
    period = draw(st.sampled_from(["second", "minute", "hour", "7 seconds", "90 seconds"]))
    burst = draw(st.none() | st.integers(1, 20)) if algorithm.endswith("bucket") else None
    return tg.Limit(count, period, burst=burst, algorithm=algorithm)


@pytest.mark.parametrize("storage", ["memory", "shm"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_after_t_seconds_r_has_grown_and_not_before(
    tmp_path_factory: pytest.TempPathFactory, algorithm: str, storage: str, data: st.DataObject
) -> None:
    limit = data.draw(limits(algorithm))
    clock = tg.ManualClock(START)
    path = tmp_path_factory.mktemp("more") / "table"
    uri = "memory://?capacity=4096" if storage == "memory" else f"shm://{path}?capacity=4096"
    with tg.Limiter(limit, storage=uri, clock=clock) as limiter:
        costs = st.integers(1, limit.capacity) | st.just(1)
        judge = RequestLimiter(limiter, cost=lambda request: cost, headers=("ietf",))
        for _ in range(data.draw(st.integers(1, 12))):
            clock.advance_ns(data.draw(st.integers(0, 2 * limit.period_ns)) // 8)
            cost = data.draw(costs)
            outcome = judge.check(REQUEST, BLOCKING)
            assert outcome is not None
            r, t = told(outcome.text_fields())
            if not outcome.decision.allowed:
                fields = dict(outcome.text_fields())
                assert t == int(fields["Retry-After"])
            now_ns = clock.now_ns()
            clock.set_ns(now_ns + t * SECOND)
            later = limiter.peek(KEY).remaining
            assert later > r or r == limit.capacity
            if t > 0 and outcome.decision.allowed:
                clock.set_ns(now_ns + (t - 1) * SECOND)
                assert limiter.peek(KEY).remaining == r
            clock.set_ns(now_ns)


def told(fields: list[tuple[str, str]]) -> tuple[int, int]:
    (value,) = (value for name, value in fields if name == "RateLimit")
    found = re.fullmatch(r'".*";r=(\d+);t=(\d+)', value)
    assert found is not None, value
    return int(found[1]), int(found[2])
