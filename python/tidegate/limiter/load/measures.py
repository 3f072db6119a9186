"""How loaded a service is, as a number: 0 when idle, 1 when nothing is left."""

from __future__ import annotations

import os
import time

from tidegate.limiter.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Any, Callable

__all__ = ["EventLoopLag", "QueueWait", "SystemLoad", "highest"]


class SystemLoad:
    """The larger share of the machine's CPU and memory that is in use, by psutil.

    The CPU's share is that since the call before. Limits of a container are not looked at: there,
    give LoadShedding a function of your own. Needs the extra ``load``. Thread-safe.
    """

    def __init__(self) -> None:
        try:
            import psutil
        except ModuleNotFoundError:
            raise ConfigurationError(
                "the load of the machine needs the package psutil; expected `pip install "
                "'tidegate[load]'`, or measure= with a function that returns the load"
            ) from None
        self._psutil: Any = psutil
        psutil.cpu_percent(None)  # where the first share begins

    def __call__(self) -> float:
        cpu: float = self._psutil.cpu_percent(None)
        memory: float = self._psutil.virtual_memory().percent
        return max(cpu, memory) / 100


class EventLoopLag:
    """How late an event loop runs its callbacks, as a share of `full` seconds.

        lag = EventLoopLag(full=0.1)
        lag.watch(asyncio.get_running_loop())  # in the application's lifespan

    The load is the worst lag since the call before; one that has not ended yet counts too.
    A loop that was closed, and that of the parent of a forked process, have no lag. Thread-safe,
    but for watch(), which is called on the loop.
    """

    def __init__(self, full: float = 0.1, *, interval: float = 0.1) -> None:
        self._full = _seconds("full", full)
        self._interval = _seconds("interval", interval)
        self._worst = 0.0
        self._watched: _Watched | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to watch `loop`, in place of the one watched before."""
        watched = _Watched(loop, self._interval, self._saw)
        self.stop()
        self._watched = watched

    def stop(self) -> None:
        """Ends the watch. The load is 0 from then on."""
        if self._watched is not None:
            self._watched.stop()
        self._watched = None
        self._worst = 0.0

    def _saw(self, lag: float) -> None:
        self._worst = max(self._worst, lag)

    def __call__(self) -> float:
        worst, self._worst = self._worst, 0.0
        watched = self._watched
        if watched is not None:
            worst = max(worst, watched.lag_of_now())
        return max(0.0, worst) / self._full


class _Watched:
    """One loop, of one process."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: float, saw: Callable[[float], None]
    ) -> None:
        self._loop = loop
        self._interval = interval
        self._saw = saw
        self._process = os.getpid()
        self._is_stopped = False
        self._due = time.monotonic() + interval
        loop.call_later(interval, self._tick)  # raises where it is closed

    def stop(self) -> None:
        """The next callback is the last."""
        self._is_stopped = True

    def lag_of_now(self) -> float:
        """How late the callback is that has not run; 0 where nothing runs the loop any more."""
        if self._loop.is_closed() or self._process != os.getpid():
            return 0.0
        return time.monotonic() - self._due

    def _tick(self) -> None:
        if self._is_stopped:
            return
        now = time.monotonic()
        self._saw(now - self._due)
        self._due = now + self._interval
        self._loop.call_later(self._interval, self._tick)


class QueueWait:
    """How long requests waited before they were begun, as a share of `full` seconds.

    `record()` takes the wait of each; the load is the longest since the call before. Thread-safe.
    """

    def __init__(self, full: float = 1.0) -> None:
        self._full = _seconds("full", full)
        # Changed without a lock, which a fork could leave held: a wait that is recorded while
        # another thread records one may be lost.
        self._longest = 0.0

    def record(self, seconds: float) -> None:
        """Takes the wait of one request. One below 0, of clocks that differ, counts as none."""
        if seconds > self._longest:
            self._longest = seconds

    def __call__(self) -> float:
        longest, self._longest = self._longest, 0.0
        return longest / self._full


def highest(*measures: Callable[[], float]) -> Callable[[], float]:
    """Returns the highest of several loads: ``highest(SystemLoad(), lag)``."""
    if not measures or not all(callable(each) for each in measures):
        raise ConfigurationError(
            f"the measures are {measures!r:.80}; expected functions that return a load"
        )
    return lambda: max(measure() for measure in measures)


def _seconds(name: str, value: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ConfigurationError(f"{name} is {value!r}; expected seconds above 0")
    return value
