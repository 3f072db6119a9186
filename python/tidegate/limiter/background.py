"""Threads that work beside the calls: what they repeat, and what a fork and the exit do to them."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Protocol

    class Forked(Protocol):
        """What has threads or locks that a child of fork() cannot use."""

        def _after_fork(self) -> None:
            """Begins anew, in the child."""

    class Threaded(Protocol):
        """What runs on a thread of its own until `_stop` is set."""

        _stop: threading.Event
        _thread: threading.Thread | None


__all__ = ["Repeating", "copied", "end_at_exit", "renew_after_fork"]

# The most seconds that the interpreter's exit waits for threads that are inside of a call.
_PATIENCE = 1.0

_forked: weakref.WeakSet[Forked] = weakref.WeakSet()
_ended: weakref.WeakSet[Threaded] = weakref.WeakSet()


class Repeating:
    """Calls `step` every `interval` seconds, on a daemon thread, from start() until close()."""

    def __init__(self, step: Callable[[], object], interval: float, name: str) -> None:
        self._step = step
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, patience: float | None = None) -> None:
        """Ends the thread. A step under way has `patience` seconds; None waits for its end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(patience)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._step()


def copied(event: threading.Event) -> threading.Event:
    """Returns an event that is set if `event` is: a thread of the parent may hold its lock."""
    copy = threading.Event()
    if event.is_set():
        copy.set()
    return copy


def renew_after_fork(each: Forked) -> None:
    """Calls `each._after_fork()` in every child of fork(), as long as `each` lives."""
    _forked.add(each)


def end_at_exit(each: Threaded) -> None:
    """Ends the thread of `each` when the interpreter exits: none may be inside of a driver then."""
    if not _ended:
        # Handlers run in reverse order: this one before those of drivers that are imported by now.
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _ended.add(each)


def _renew_all() -> None:
    for each in list(_forked):
        each._after_fork()


def _end_all() -> None:
    """Ends all threads at once, and waits until they have ended, or for _PATIENCE."""
    running = [(each, each._thread) for each in list(_ended) if each._thread is not None]
    for each, _thread in running:
        each._stop.set()
    until = time.monotonic() + _PATIENCE
    for _each, thread in running:
        thread.join(max(0.0, until - time.monotonic()))


os.register_at_fork(after_in_child=_renew_all)
