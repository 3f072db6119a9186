"""acquired(): what it guards runs within the limit, or not at all."""

from __future__ import annotations

import asyncio
import inspect

import pytest
import tidegate as tg


def limiter(limit: str = "2/minute") -> tg.Limiter:
    return tg.Limiter(limit, clock=tg.ManualClock())


def test_a_block_runs_within_the_limit_or_not_at_all() -> None:
    one = limiter()
    ran = 0
    for _ in range(2):
        with one.acquired("api") as decision:
            assert decision.allowed
            ran += 1
    with pytest.raises(tg.RateLimitExceeded) as caught, one.acquired("api", timeout=1):
        ran += 1
    assert ran == 2
    assert caught.value.decision.retry_after == 30.0


def test_an_async_block() -> None:
    one = limiter("1/minute")

    async def calls() -> None:
        async with one.acquired("api"):
            pass
        with pytest.raises(tg.RateLimitExceeded):
            async with one.acquired("api", timeout=1):
                pytest.fail("it ran")

    asyncio.run(calls())


def test_a_function_that_calls_out() -> None:
    one = limiter()

    @one.acquired(lambda host: host, timeout=0)
    def fetch(host: str) -> str:
        """Fetches."""
        return f"from {host}"

    assert [fetch("a"), fetch(host="a"), fetch("b")] == ["from a", "from a", "from b"]
    with pytest.raises(tg.RateLimitExceeded):
        fetch("a")
    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetches.")


def test_an_async_function_that_calls_out() -> None:
    one = limiter()

    @one.acquired("api", cost=2, timeout=0)
    async def fetch() -> str:
        return "fetched"

    assert inspect.iscoroutinefunction(fetch)
    assert fetch.__name__ == "fetch"
    assert asyncio.run(fetch()) == "fetched"
    with pytest.raises(tg.RateLimitExceeded):
        asyncio.run(fetch())


def test_a_wrong_key_or_cost_is_said_at_once() -> None:
    with pytest.raises(tg.ConfigurationError, match="expected"):
        limiter().acquired("")
    with pytest.raises(tg.ConfigurationError, match="expected"):
        limiter().acquired("k", cost=0)
