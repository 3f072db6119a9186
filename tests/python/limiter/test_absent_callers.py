"""Callers whose thread or event loop does not run when their turn comes hold nobody up for long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from tidegate.limiter.waiting import queue, turn


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PATIENCE", 0.02)
    monkeypatch.setattr(turn, "PATIENCE", 0.02)


@pytest.fixture
def limiter() -> tg.Limiter:
    """A limiter with a unit every 5 ms, none of which is left."""
    limiter = tg.Limiter("200/second burst 1")
    limiter.hit("k")
    return limiter


@pytest.fixture
def stopped(limiter: tg.Limiter) -> Iterator[tuple[asyncio.AbstractEventLoop, list[Any]]]:
    """A loop that does not run, and its tasks, which wait before everybody else."""
    loop = asyncio.new_event_loop()

    async def wait() -> tg.Decision:
        return await limiter.acquire_async("k", timeout=None)

    async def enter() -> list[asyncio.Task[tg.Decision]]:
        tasks = [asyncio.ensure_future(wait()) for _ in range(20)]
        await asyncio.sleep(0)
        return tasks

    limiter.charge("k", 20)  # nobody gets through while they enter
    yield loop, loop.run_until_complete(enter())
    if not loop.is_closed():
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def acquired_in_a_thread(limiter: tg.Limiter, **options: Any) -> tg.Decision:
    found: list[tg.Decision] = []
    thread = threading.Thread(
        target=lambda: found.append(limiter.acquire("k", **options)), daemon=True
    )
    thread.start()
    thread.join(20)
    assert found, "it waits still"
    return found[0]


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine")
def test_a_loop_that_does_not_run_is_passed_over(
    limiter: tg.Limiter, stopped: tuple[asyncio.AbstractEventLoop, list[Any]], is_closed: bool
) -> None:
    loop, tasks = stopped
    if is_closed:
        loop.close()
    for _ in range(3):
        assert acquired_in_a_thread(limiter, timeout=None).allowed
    if not is_closed:  # its callers were passed over, and are served once it runs
        decisions = loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks), 20))
        assert all(decisions)


def test_a_blocking_call_passes_the_tasks_of_its_own_loop(limiter: tg.Limiter) -> None:
    async def main() -> None:
        limiter.charge("k", 5)
        tasks = [asyncio.create_task(limiter.acquire_async("k", timeout=None)) for _ in range(3)]
        await asyncio.sleep(0)
        assert limiter.acquire("k", timeout=None).allowed
        assert all(await asyncio.wait_for(asyncio.gather(*tasks), 20))

    asyncio.run(main())


@pytest.mark.parametrize("way", ["slot", "refund", "reset"])
def test_what_is_given_back_passes_a_loop_that_does_not_run(way: str) -> None:
    """Nobody else would look before the place's lease ends, or a unit comes by time."""
    limiter = tg.Limiter("1 at once" if way == "slot" else "1/hour")
    held = limiter.slot("k") if way == "slot" else None
    if held is not None:
        held.__enter__()
    else:
        limiter.hit("k")
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(limiter.acquire_async("k", timeout=None)) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    found: list[tg.Decision] = []
    thread = threading.Thread(
        target=lambda: found.append(limiter.acquire("k", timeout=None)), daemon=True
    )
    thread.start()
    eventually(lambda: len(limiter._room.lines[b"k"]) == 4)
    if held is not None:
        held.__exit__(None, None, None)
    else:
        getattr(limiter, way)("k")
    thread.join(20)
    assert [decision.allowed for decision in found] == [True]
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


def test_callers_that_answer_are_not_passed_over() -> None:
    """The first waits for more than there is yet; a later one, for which there is room, waits."""
    limiter = tg.Limiter("20/second burst 10")
    assert limiter.hit("k", 9)
    served: list[int] = []
    threads = []
    for cost in (10, 1):
        thread = threading.Thread(
            target=lambda cost=cost: served.append(cost) if limiter.acquire("k", cost) else None,
            daemon=True,
        )
        thread.start()
        threads.append(thread)
        eventually(lambda: len(limiter._room.lines.get(b"k", ())) == len(threads))
    for thread in threads:
        thread.join(20)
    assert served == [10, 1]


class Stepped:
    """A clock that can be set back."""

    behind = 0.0

    def __call__(self) -> float:
        return time.time() - self.behind


@pytest.mark.parametrize("storage", ["memory://", "shm://"])
@pytest.mark.parametrize("seconds", [0.05, 6.0, 3600.0])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_clock_that_is_set_back_lengthens_no_wait(
    tmp_path: Any, storage: str, seconds: float, is_async: bool
) -> None:
    clock = Stepped()
    uri = f"{storage}{tmp_path / 'x'}" if storage == "shm://" else storage
    limiter = tg.Limiter("20/second burst 1", storage=uri, clock=clock)
    limiter.hit("k")
    found: list[tg.Decision] = []

    def first() -> None:
        if is_async:
            found.append(asyncio.run(limiter.acquire_async("k", timeout=2)))
        else:
            found.append(limiter.acquire("k", timeout=2))

    begin = time.monotonic()
    thread = threading.Thread(target=first, daemon=True)
    thread.start()
    eventually(lambda: bool(limiter._room.lines))
    clock.behind = seconds
    assert acquired_in_a_thread(limiter, timeout=None).allowed
    thread.join(20)
    assert [decision.allowed for decision in found] == [True]
    assert time.monotonic() - begin < 10, "the clock was set back by more"


def test_a_clock_that_is_set_back_puts_no_deadline_off() -> None:
    clock = Stepped()
    limiter = tg.Limiter("1 at once", clock=clock)
    held = limiter.acquire("k")
    assert held
    found: list[tg.Decision] = []
    thread = threading.Thread(
        target=lambda: found.append(limiter.acquire("k", timeout=0.3)), daemon=True
    )
    thread.start()
    eventually(lambda: bool(limiter._room.lines))
    clock.behind = 3600.0
    thread.join(20)
    assert [decision.allowed for decision in found] == [False]
