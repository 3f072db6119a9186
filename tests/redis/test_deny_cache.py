"""Refusals that are repeated without asking: never for too long, never of somebody else's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tidegate
from polling import eventually, eventually_async
from redis_server import PATIENT, RedisServer

GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=600"
START = 1_700_000_000_000_000_000

ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


def scripts_run(server: RedisServer) -> int:
    calls = server.calls()
    return calls.get("evalsha", 0) + calls.get("eval", 0)


def asked_meanwhile(server: RedisServer, action: Callable[[], object]) -> int:
    before = scripts_run(server)
    action()
    return scripts_run(server) - before


@contextlib.contextmanager
def on_both_stores(
    server: RedisServer, limits: Any, clock: tidegate.ManualClock
) -> Iterator[tuple[tidegate.Limiter, tidegate.Limiter]]:
    """A limiter on `server`, which repeats refusals, and one in memory, which does not."""
    uri = server.uri(f"{GIVEN_TIME}&deny_cache_max=3600")
    with (
        tidegate.Limiter(limits, storage=uri, clock=clock) as shared,
        tidegate.Limiter(limits, clock=clock) as memory,
    ):
        yield shared, memory


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_refused_flood_sends_nothing(server: RedisServer, algorithm: str) -> None:
    limit = tidegate.Limit("3/hour", algorithm=algorithm)
    with tidegate.Limiter(limit, storage=server.uri(f"{PATIENT}&deny_cache_max=3600")) as limiter:
        assert [bool(limiter.hit("k")) for _ in range(4)] == [True] * 3 + [False]

        def flood() -> None:
            first = limiter.hit("k")
            for _ in range(2000):
                again = limiter.hit("k")
                assert not again
                assert again.remaining == 0
                assert 0 < again.retry_after <= first.retry_after
                assert not again.degraded

            async def tasks() -> None:
                assert not any(
                    await asyncio.gather(*(limiter.allow_async("k") for _ in range(500)))
                )

            asyncio.run(tasks())
            assert not any(limiter.hit_many(["k"] * 500))

        assert asked_meanwhile(server, flood) == 0
        assert limiter.stats().denied_locally >= 3000
        assert limiter.hit("another")


def test_it_can_be_turned_off(server: RedisServer) -> None:
    with tidegate.Limiter("1/hour", storage=server.uri(f"{PATIENT}&deny_cache_max=0")) as limiter:
        limiter.hit("k")
        assert asked_meanwhile(server, lambda: [limiter.hit("k") for _ in range(20)]) == 20
        assert limiter.stats().denied_locally == 0


@pytest.mark.parametrize("give_back", ["refund", "reset"])
def test_a_refund_takes_effect_at_once(server: RedisServer, give_back: str) -> None:
    uri = server.uri(f"{PATIENT}&deny_cache_max=3600")

    async def is_refused(limiter: tidegate.Limiter) -> bool:
        return not await limiter.allow_async("k")

    async def later(limiter: tidegate.Limiter) -> None:
        for _ in range(20):
            await eventually_async(lambda: is_refused(limiter), interval=0)
            await (limiter.refund_async("k") if give_back == "refund" else limiter.reset_async("k"))
            assert await limiter.allow_async("k")

    with tidegate.Limiter("2/hour", storage=uri) as limiter:
        for _ in range(20):
            eventually(lambda: not limiter.allow("k"), interval=0)
            limiter.refund("k") if give_back == "refund" else limiter.reset("k")
            assert limiter.allow("k")
        asyncio.run(later(limiter))


def test_a_refusal_from_before_a_refund_is_not_repeated_after_it(server: RedisServer) -> None:
    uri = server.uri(f"{PATIENT}&deny_cache_max=3600")

    async def main() -> None:
        async with tidegate.Limiter("1/hour", storage=uri) as limiter:
            assert await limiter.allow_async("k")
            # The script of refunds is not known to the server yet, so the hit behind it
            # comes first and is refused.
            refund = asyncio.ensure_future(limiter.refund_async("k"))
            hit = asyncio.ensure_future(limiter.allow_async("k"))
            await refund
            if await hit:
                pytest.fail("the refund was not sent a second time")
            assert await limiter.allow_async("k")

    asyncio.run(main())


def test_a_refund_elsewhere_takes_effect_soon(server: RedisServer) -> None:
    clock = tidegate.ManualClock(START)
    uri = server.uri(f"{GIVEN_TIME}&deny_cache_max=0.5")
    with (
        tidegate.Limiter("1/hour", storage=uri, clock=clock) as here,
        # With a client of its own, as another process has one.
        tidegate.Limiter("1/hour", storage=uri, clock=clock, client_name="elsewhere") as elsewhere,
    ):
        assert here.hit("k")
        assert not here.hit("k")
        elsewhere.reset("k")
        clock.advance_ns(499_999_999)
        assert not here.hit("k")
        clock.advance_ns(1)
        assert here.hit("k")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("text", ["7/second", "3/1000 seconds", "13/700001 us"])
def test_retry_after_is_exact(server: RedisServer, algorithm: str, text: str) -> None:
    """Law 2, with numbers from the cache: after it the call passes, a nanosecond before not."""
    limit = tidegate.Limit(text, algorithm=algorithm)
    clock = tidegate.ManualClock(START)
    with on_both_stores(server, limit, clock) as (shared, memory):
        for turn in range(30):
            while memory.hit("k"):
                assert shared.hit("k")
            refused = memory.hit("k")
            assert shared.hit("k") == refused
            clock.advance_ns(1 + turn * 7919 % 1000)
            forecast = memory.hit("k")
            from_cache = shared.stats().denied_locally
            assert shared.hit("k") == forecast
            assert shared.stats().denied_locally == from_cache + 1
            # Seconds as a double are not nanoseconds: the exact ones are looked for.
            low, high = 0, round(forecast.retry_after * 1e9) + 1000
            begin = clock.now_ns()
            while high - low > 1:
                middle = (low + high) // 2
                clock.set_ns(begin + middle)
                if memory.peek("k"):
                    high = middle
                else:
                    low = middle
            assert abs(high - forecast.retry_after * 1e9) < 300
            clock.set_ns(begin + high - 1)
            assert not shared.hit("k")
            clock.set_ns(begin + high)
            assert shared.hit("k")
            assert memory.hit("k")


def test_a_repeated_refusal_of_a_plan_names_the_same_limit(server: RedisServer) -> None:
    plan = ["5/hour", tidegate.Limit("2/hour", algorithm="fixed-window"), "100/day"]
    clock = tidegate.ManualClock(START)
    with on_both_stores(server, plan, clock) as (shared, memory):
        for step in range(200):
            clock.advance_ns(step * 1_000_000_007 % 97_000_000_000)
            # Keys that share a place in the cache may never be found there: not all of these do.
            for user in range(4):
                assert shared.hit(f"k{user}") == memory.hit(f"k{user}")
                assert shared.hit(f"j{user}", 2) == memory.hit(f"j{user}", 2)
        assert shared.stats().denied_locally > 50
        # One limit of the plan alone has room.
        with tidegate.Limiter(plan[0], storage=shared.storage, clock=clock) as one:
            assert one.hit("k0")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_costs_differ(server: RedisServer, algorithm: str) -> None:
    limit = tidegate.Limit("10/hour", algorithm=algorithm)
    clock = tidegate.ManualClock(START)
    with on_both_stores(server, limit, clock) as (shared, memory):
        for cost in [7, 5, 4, 3, 3, 2, 1, 1, 11, 1, 10, 1, 2]:
            clock.advance_ns(1000)
            assert shared.hit("k", cost) == memory.hit("k", cost), cost
        for _ in range(300):
            clock.advance_ns(61_000_000_000)
            for cost in (4, 1):
                assert shared.hit("k", cost) == memory.hit("k", cost)


def test_the_servers_time_is_never_told_too_early(server: RedisServer) -> None:
    """Whoever comes back after retry_after, real time and a repeated refusal, passes."""
    with tidegate.Limiter("1/50 ms", storage=server.uri(f"{PATIENT}&deny_cache_max=1")) as limiter:
        for _ in range(30):
            refusals: list[tidegate.Decision] = []
            while len(refusals) < 2:  # on a busy machine, time may pass between the two
                decision = limiter.hit("k")
                refusals = [] if decision else [*refusals, decision]
            time.sleep(refusals[-1].retry_after)
            assert limiter.hit("k")
