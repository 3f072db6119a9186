"""Many calls on given clocks: Redis never drifts from the memory store, and time mints nothing."""

from __future__ import annotations

import asyncio
import os
import random

import pytest
import tidegate
from redis_server import PATIENT, RedisServer

# Instants that are given pass faster or slower than real ones: keys must outlive the test.
GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=3600&deny_cache_max=0"
NOON = 1_700_000_000_123_456_789
SECOND = 1_000_000_000
# `make long` makes the million of each that law 5 is held to.
CALLS = 1_000_000 if os.environ.get("TIDEGATE_LONG") else 12_500
AT_ONCE = 500


@pytest.mark.parametrize(
    ("text", "algorithm", "most"),
    [
        ("7/second", "token-bucket", 2),
        ("3/1000 seconds burst 11", "token-bucket", 3),
        ("1000000/second burst 50", "token-bucket", 9),
        ("101/700001 us", "sliding-window", 5),
        ("4294967291/week", "sliding-window", 10_000_000),  # count x period is above 2^80
    ],
)
def test_as_memory_over_very_many_calls(
    server: RedisServer, text: str, algorithm: str, most: int
) -> None:
    rng = random.Random(text)
    clock = tidegate.ManualClock(NOON)
    limit = tidegate.Limit(text, algorithm=algorithm)
    pace = 2 * most * limit.period_ns // limit.count  # half as much again as passes

    async def one(memory: tidegate.Limiter, shared: tidegate.Limiter) -> bool:
        # Tasks begin in the order in which they were made, so each has an instant of its own.
        clock.advance_ns(rng.choice([0, 1, 997, pace // 3, rng.randrange(pace)]))
        cost = rng.randint(1, most)
        expected = memory.hit("k", cost)
        decision = await shared.hit_async("k", cost)
        assert decision == expected, (clock.now_ns(), cost)
        return expected.allowed

    async def all_of_them() -> int:
        with (
            tidegate.Limiter(limit, clock=clock) as memory,
            tidegate.Limiter(limit, clock=clock, storage=server.uri(GIVEN_TIME)) as shared,
        ):
            assert shared.hit("k") == memory.hit("k")  # the script is there now
            admitted = 0
            for _ in range(CALLS // AT_ONCE):
                batch = [one(memory, shared) for _ in range(AT_ONCE)]
                admitted += sum(await asyncio.gather(*batch))
            assert shared.peek("k") == memory.peek("k")
            return admitted

    admitted = asyncio.run(all_of_them())
    assert CALLS // 10 < admitted < CALLS - CALLS // 10
