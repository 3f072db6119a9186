"""The end of threads when the interpreter exits."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable
    from typing import Protocol

    class Threaded(Protocol):
        """What runs on a thread of its own, until `_stop` is set."""

        _stop: threading.Event
        _thread: threading.Thread | None


__all__ = ["end_threads"]


def end_threads(of: Iterable[Threaded], seconds: float) -> None:
    """Ends all threads at once, and waits so many seconds at the most until they have ended."""
    running = [(each, each._thread) for each in of if each._thread is not None]
    for each, _thread in running:
        each._stop.set()
    until = time.monotonic() + seconds
    for _each, thread in running:
        thread.join(max(0.0, until - time.monotonic()))
