"""Waits for what other threads, processes or servers do, and never without a bound."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Iterable
from typing import Any, Callable, TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T],
    seconds: float = 30,
    *,
    interval: float = 0.005,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """Calls `condition` until it returns something true, and returns that.

    Fails after `seconds`. An exception listed in `despite` counts as false.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            result = condition()
        except despite:
            pass
        else:
            if result:
                return result
        _check(deadline, seconds)
        time.sleep(interval)


async def eventually_async(
    condition: Callable[[], T | Awaitable[T]], seconds: float = 30, *, interval: float = 0.001
) -> T:
    """As eventually(), and lets the event loop run; `condition` may be asynchronous."""
    deadline = time.monotonic() + seconds
    while True:
        result: Any = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result  # type: ignore[no-any-return]
        _check(deadline, seconds)
        await asyncio.sleep(interval)


def _check(deadline: float, seconds: float) -> None:
    if time.monotonic() >= deadline:
        raise AssertionError(f"the condition did not hold; expected it to within {seconds:g} s")


def run_threads(threads: Iterable[threading.Thread]) -> None:
    """Starts all threads, and returns when all have ended."""
    team = list(threads)
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
