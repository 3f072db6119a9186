"""Redis gives the answers that every engine gives (law 5)."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tidegate
from redis_server import PATIENT, RedisServer

TESTS = Path(__file__).resolve().parent.parent
# Instants of the vectors pass faster than real ones: keys must outlive the case.
GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=600"

_spec = importlib.util.spec_from_file_location(
    "conformance_vectors", TESTS / "conformance" / "test_vectors.py"
)
assert _spec is not None
assert _spec.loader is not None
vectors = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(vectors)


@pytest.mark.parametrize("case", vectors.CASES)
def test_vector(server: RedisServer, case: dict[str, Any]) -> None:
    answers = vectors.through_a_limiter(case, storage=server.uri(GIVEN_TIME))
    for index, (call, answer) in enumerate(zip(case["calls"], answers)):
        if answer is None:
            continue
        expect = call["expect"]
        what = f"call {index} {json.dumps(call)}: {answer}"
        assert not answer.degraded, what
        assert answer.allowed is expect["allowed"], what
        assert answer.limit == expect["limit"], what
        assert answer.remaining == expect["remaining"], what
        vectors.check_seconds(answer.retry_after, expect["retry_after_ns"], what)
        vectors.check_seconds(answer.reset_after, expect["reset_after_ns"], what)
        vectors.check_seconds(answer.delay, expect["delay_ns"], what)
        assert answer.rule == f"rule{expect['rule_index']}", what
        if "debt" in expect:  # in the cases of debts
            assert answer.debt == expect["debt"], what
        assert answer.charged == expect.get("charged"), what


LIMITS = [
    ("7/second", "token-bucket"),
    ("3/1000 seconds burst 11", "token-bucket"),
    ("1000000/second burst 50", "token-bucket"),
    ("9007199254740991/100 hours burst 1000", "token-bucket"),
    ("7/second", "leaky-bucket"),
    ("9007199254740991/week", "fixed-window"),
    ("5/1500 ms", "fixed-window"),
    ("5/7 ns", "fixed-window"),
    ("5/month", "fixed-window"),
    ("5/3 years", "fixed-window"),
    ("4294967295/2 weeks", "sliding-window"),
    ("4294967295/1234567891 ns", "sliding-window"),
    ("13/700001 us", "sliding-window"),
    ("13/3 seconds", "sliding-log"),
    ("40/3 seconds", "concurrency"),
]


@pytest.mark.parametrize(("text", "algorithm"), LIMITS)
def test_equals_memory_over_a_random_walk(server: RedisServer, text: str, algorithm: str) -> None:
    rng = random.Random(f"{text} {algorithm}")
    clock = tidegate.ManualClock(1_700_000_000_123_456_789)
    limit = tidegate.Limit(text, algorithm=algorithm)
    capacity = limit.burst if "bucket" in algorithm else limit.count
    with (
        tidegate.Limiter(limit, clock=clock) as memory,
        tidegate.Limiter(limit, clock=clock, storage=server.uri(GIVEN_TIME)) as shared,
    ):
        pace = limit.period_ns / limit.count * capacity
        for _ in range(600):
            clock.advance_ns(int(rng.choice([0, 1, 1000, rng.random() * pace / 4])))
            cost = rng.choice([1, 1, 1, max(1, int(capacity * rng.random())), capacity + 1])
            if rng.random() < 0.1:
                memory.refund("k", min(cost, capacity))
                shared.refund("k", min(cost, capacity))
            assert shared.peek("k", cost) == memory.peek("k", cost)
            assert shared.hit("k", cost) == memory.hit("k", cost)
