"""acquired(): guarded code runs within the limit, or not at all."""

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


def test_an_async_block_raises_instead_of_running_without_its_turn() -> None:
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


def test_a_generator_waits_before_its_first_item() -> None:
    one = limiter("1/minute")

    @one.acquired("api", timeout=0)
    def lines(count: int):
        yield from range(count)
        return "end"

    refused = [lines(2), lines(2)]
    assert inspect.isgeneratorfunction(lines)
    assert list(refused[0]) == [0, 1]
    with pytest.raises(tg.RateLimitExceeded):
        next(refused[1])


def test_an_async_generator_waits_before_its_first_item_and_is_closed_with_its_caller() -> None:
    one = limiter("1/minute")
    closed = []

    @one.acquired("api", timeout=0)
    async def tokens():
        try:
            yield "when"
            yield "tide"
        finally:
            closed.append(True)

    async def calls() -> None:
        stream = tokens()
        assert await stream.__anext__() == "when"
        await stream.aclose()
        assert closed == [True]
        with pytest.raises(tg.RateLimitExceeded):
            await tokens().__anext__()

    asyncio.run(calls())


def test_an_object_whose_call_is_async() -> None:
    one = limiter("1/minute")

    class Fetch:
        async def __call__(self) -> str:
            return "fetched"

    fetch = one.acquired("api", timeout=0)(Fetch())
    assert asyncio.run(fetch()) == "fetched"
    with pytest.raises(tg.RateLimitExceeded):
        asyncio.run(fetch())


@pytest.mark.parametrize("wrong", ["a function", None, int])
def test_what_is_no_function_is_refused_when_it_is_decorated(wrong: object) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected a function"):
        limiter().acquired("api")(wrong)


@pytest.mark.parametrize(
    "options", [{"timeout": -1}, {"timeout": "soon"}, {"cost": 0}, {"cost": 1.5}]
)
def test_a_wrong_timeout_or_cost_is_refused_at_once(options: dict) -> None:
    for key in ("api", lambda: "api"):
        with pytest.raises(tg.ConfigurationError, match="expected"):
            limiter().acquired(key, **options)
