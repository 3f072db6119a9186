"""Many calls on given clocks: Redis never drifts from the memory store, and time mints nothing."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest
import tidegate
from redis_server import PATIENT, RedisServer

# Instants that are given pass faster or slower than real ones: keys must outlive the test.
GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=3600&deny_cache_max=0"
NOON = 1_700_000_000_123_456_789
SECOND = 1_000_000_000
# `make campaign` makes the million of each that law 5 is held to.
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


COUNT, PERIOD = 10, 1.0
ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


class Hosts:
    """Two hosts with clocks of their own, which share a limit."""

    def __init__(self, server: RedisServer, algorithm: str, step: float, lone: bool) -> None:
        self.name = f"{algorithm} {step} {'alone' if lone else 'beside another'}"
        self.step = step
        self.wrong = 0.0  # seconds by which the clock of the first is ahead
        limit = tidegate.Limit(f"{COUNT}/{PERIOD} s", algorithm=algorithm)
        uri = server.uri(f"{PATIENT}&clock=client&deny_cache_max=0")
        clocks = [lambda: time.time() + self.wrong, *([] if lone else [time.time])]
        self.limiters = [
            tidegate.Limiter(limit, storage=uri, clock=clock, prefix=self.name) for clock in clocks
        ]
        self.admitted: list[float] = []
        self.turn = 0

    def hit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Once from each host, each time in another way."""
        self.turn += 1
        for limiter in self.limiters:
            if self.turn % 3 == 0:
                allowed = limiter.allow("k")
            elif self.turn % 3 == 1:
                (allowed,) = limiter.hit_many(["k"])
            else:
                allowed = loop.run_until_complete(limiter.allow_async("k"))
            if allowed:
                self.admitted.append(time.monotonic())


def test_clocks_that_are_set_or_differ_mint_nothing(server: RedisServer) -> None:
    """Law 6, of real clocks: a burst more at the most, and nobody waits for long."""
    hosts = [
        Hosts(server, algorithm, step, lone)
        for algorithm in ALGORITHMS
        for step in (-3600, -0.9, 0.9, 3600)
        for lone in (False, True)
    ]
    loop = asyncio.new_event_loop()
    for each in hosts:
        while len(each.admitted) < COUNT:
            each.hit(loop)
    begin = time.monotonic()
    for each in hosts:
        each.admitted.clear()
        each.wrong = each.step
    while time.monotonic() < begin + 3.5 * PERIOD:
        for each in hosts:
            each.hit(loop)
    end = time.monotonic()
    for each in hosts:
        # What the time grants, windows that it touches in part, and one burst.
        periods = (end - begin) / PERIOD
        assert len(each.admitted) <= (periods + 2) * COUNT, each.name
        waits = [b - a for a, b in zip([begin, *each.admitted], [*each.admitted, end])]
        # Keys live on for as long as what they hold counts: a sliding window's for two.
        most = 2 * PERIOD if each.name.startswith("sliding-window") else PERIOD
        assert max(waits) < most + 1, each.name  # all hosts take turns here
        assert all(limiter.stats().degraded == 0 for limiter in each.limiters)
        assert all(limiter.stats().script_errors == 0 for limiter in each.limiters)
        for limiter in each.limiters:
            limiter.close()
    loop.close()
