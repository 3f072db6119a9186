"""Deadlines of uses of databases, on one thread for all of them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["within"]


class _Deadlines:
    """Calls functions whose time has come. A thread for each would cost more than most uses.

    The thread never ends, and keeps no process from ending.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[object, tuple[float, Callable[[], object]]] = {}
        self._wakes_at: float | None = None  # None without a thread

    def add(self, key: object, at: float, call: Callable[[], object]) -> None:
        with self._changed:
            self._waiting[key] = at, call
            if self._wakes_at is None:
                self._wakes_at = at
                threading.Thread(target=self._run, name="tidegate deadlines", daemon=True).start()
            elif at < self._wakes_at:
                self._changed.notify()

    def remove(self, key: object) -> None:
        with self._changed:
            self._waiting.pop(key, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [key for key, (at, _) in self._waiting.items() if at <= now]
                calls = [self._waiting.pop(key)[1] for key in due]
                if not calls:
                    # What has no deadline meanwhile is looked at again as late.
                    first = min((at for at, _ in self._waiting.values()), default=now + 3600)
                    self._wakes_at = first
                    self._changed.wait(first - now)
            for call in calls:
                call()


_deadlines = _Deadlines()


def _forget() -> None:
    """Begins anew in a child of fork(), which does not have the thread."""
    global _deadlines
    _deadlines = _Deadlines()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def within(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Calls `call` on another thread if the block takes longer. It must not raise, nor wait."""
    deadlines, key = _deadlines, object()
    deadlines.add(key, time.monotonic() + seconds, call)
    try:
        yield
    finally:
        deadlines.remove(key)
