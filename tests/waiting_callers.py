"""Callers that wait for room in a limiter, in threads of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tidegate as tg
from polling import eventually


@contextlib.contextmanager
def a_caller_that_waits(limiter: tg.Limiter, key: str, cost: int) -> Iterator[None]:
    """Begins once the caller waits, and asserts at the end that it has passed."""
    passed = threading.Event()

    def wait() -> None:
        if limiter.acquire(key, cost, timeout=None):
            passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: len(limiter._room.lines) == 1)
    yield
    thread.join(60)
    assert passed.is_set()
