"""A third-party store in C++, slow and asynchronous, works wherever a store does.

tests/cpp/consumer/gated_store.cc is compiled from the installed headers by the C++ tests. Its calls
wait until the test opens a gate, so that a blocked event loop would never get there.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from polling import eventually, eventually_async
from servers import asgi_call, hello
from tidegate.asgi import RateLimitMiddleware

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "build" / "test" / "consumer" / "build"


@pytest.fixture(scope="module")
def module() -> Any:
    found = list(BUILT.glob(f"gated_store.cpython-{sys.version_info[0]}{sys.version_info[1]}-*.so"))
    headers = (ROOT / "cpp" / "include").rglob("*.h")
    if not found or found[0].stat().st_mtime < max(each.stat().st_mtime for each in headers):
        pytest.skip("make test-cpp has not built it for this Python and these headers")
    spec = importlib.util.spec_from_file_location("gated_store", found[0])
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def store(module: Any) -> Any:
    return module.GatedStore()


def test_a_limiter_decides_by_it(store: Any) -> None:
    with tg.Limiter("3/hour", storage=store) as limiter:
        assert [limiter.hit("k").allowed for _ in range(4)] == [True] * 3 + [False]
        assert limiter.peek("k").remaining == 0
        limiter.refund("k", 2)
        assert limiter.hit_many(["k", "k", "k"]) == [True, True, False]
        limiter.reset("k")
        assert limiter.allow("k")
        assert limiter.stats().allowed == 6


def test_its_properties_are_those_of_its_class(store: Any) -> None:
    assert (store.kind, store.blocks, store.reads_clock) == ("gated", True, True)
    limiter = tg.Limiter("3/hour", storage=store)
    with pytest.raises(tg.StorageError, match="nobody is at home"):
        limiter.ping()


def test_a_call_that_waits_releases_the_gil(store: Any) -> None:
    store.set_open(False)
    with tg.Limiter("3/hour", storage=store) as limiter:
        decisions: list[tg.Decision] = []
        thread = threading.Thread(target=lambda: decisions.append(limiter.hit("k")))
        thread.start()
        eventually(lambda: store.waiting == 1)
        store.set_open(True)
        thread.join(30)
        assert decisions[0].remaining == 2


def test_an_event_loop_goes_on_while_it_is_asked(store: Any) -> None:
    async def main() -> None:
        store.set_open(False)
        tasks = [asyncio.ensure_future(limiter.hit_async("k")) for _ in range(5)]
        await eventually_async(lambda: store.waiting == 5)
        assert not any(task.done() for task in tasks)
        await eventually_async(lambda: store.flushes > 0)
        store.set_open(True)
        decisions = await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert sum(decision.allowed for decision in decisions) == 3
        await limiter.refund_async("k")
        assert (await limiter.peek_async("k")).remaining == 1
        await limiter.reset_async("k")
        assert (await limiter.peek_async("k")).remaining == 3

    with tg.Limiter("3/hour", storage=store) as limiter:
        asyncio.run(main())


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_plan_is_charged_all_or_none_with_outcomes(store: Any, way: str) -> None:
    first = tg.Limiter("5/hour", storage=store)
    plan = tg.Plan([first, tg.Limiter("1/hour", storage=store, prefix="second")])

    def hit() -> tg.Decision:
        if way == "sync":
            return plan.hit(["a", "b"], outcomes=True)
        return asyncio.run(plan.hit_async(["a", "b"], outcomes=True))

    assert [each.remaining for each in hit().outcomes] == [4, 0]
    refused = hit()
    assert [(each.allowed, each.remaining) for each in refused.outcomes] == [(True, 4), (False, 0)]
    assert first.peek("a").remaining == 4


def test_acquire_waits_for_its_turn(store: Any) -> None:
    clock = tg.ManualClock(1_700_000_000 * 10**9)
    with tg.Limiter("1/second", storage=store, clock=clock) as limiter:
        assert limiter.hit("k")
        refused = asyncio.run(limiter.acquire_async("k", timeout=0))
        assert not refused.allowed
        clock.advance(1)
        assert asyncio.run(limiter.acquire_async("k", timeout=0)).allowed


def test_the_middleware_lets_the_loop_go_on(store: Any) -> None:
    app = RateLimitMiddleware(hello, "1/hour", key=lambda request: "k", storage=store)

    async def main() -> list[int]:
        store.set_open(False)
        requests = [asyncio.ensure_future(asgi_call(app)) for _ in range(2)]
        await eventually_async(lambda: store.waiting == 2)
        store.set_open(True)
        answers = await asyncio.wait_for(asyncio.gather(*requests), 30)
        return sorted(answer.status for answer in answers)

    assert asyncio.run(main()) == [200, 429]
