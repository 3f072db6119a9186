"""What has limiters charge more while the service is under load."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import threading
import time
import weakref

from tidegate._errors import ArgumentTypeError, ConfigurationError, LimiterClosedError
from tidegate._load.measures import SystemLoad
from tidegate._load.steps import FactorSteps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable

    from typing_extensions import Self

__all__ = ["LoadShedding"]

log = logging.getLogger("tidegate")
# How long the end of the interpreter waits for a measurement.
_PATIENCE = 1.0


class LoadShedding:
    """Gives clients less of their limits while the service is under load.

        limiter = Limiter(rules=rules, load=LoadShedding())

    Once every `interval` seconds a thread asks `measure` for the load, a number that is 0 when the
    service is idle and 1 when nothing is left. Above each of the `steps` a request costs as many
    times more as the factor says: with 0.5 twice as much, so that a client gets half of what its
    limits allow. Counts that are shared with other processes stay true. Costs are whole units:
    what is left of a unit is rounded up or down at random, so that it is right on average, and no
    request costs more than its limit holds at once.

    Critical requests cost what they always do; for background ones the factor counts twice. What a
    request's priority is, its rules say (`priority` of costs), or its attribute ``priority``.

    The load is smoothed over `smoothing` seconds. The factor falls at once; it rises one step at a
    time, when the load is lower than the step by more than `hysteresis`, `recovery` seconds after
    the last change. A measurement that fails is logged, and changes nothing. Without `measure` it
    is that of SystemLoad.

    Thread-safe, and safe to use after `fork()`: the child has a thread of its own.
    """

    def __init__(
        self,
        measure: Callable[[], float] | None = None,
        *,
        steps: Sequence[tuple[float, float]] = ((0.6, 0.75), (0.8, 0.5)),
        hysteresis: float = 0.05,
        smoothing: float = 3.0,
        recovery: float = 10.0,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = FactorSteps(
            steps, hysteresis=hysteresis, smoothing=smoothing, recovery=recovery
        )
        if not isinstance(interval, (int, float)) or not 0 < interval <= threading.TIMEOUT_MAX:
            raise ConfigurationError(f"the interval is {interval!r}; expected seconds above 0")
        if measure is not None and not callable(measure):
            raise ArgumentTypeError(
                f"measure is {measure!r:.80}; expected a function that returns the load, from 0 "
                "to 1"
            )
        self._measure = SystemLoad() if measure is None else measure
        self._interval = interval
        self._clock = clock
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._limiters: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_failed = False
        self.failures = 0
        """How many measurements failed."""
        _all.add(self)

    @property
    def load(self) -> float:
        """The smoothed load; 0.0 before the first measurement."""
        return self._steps.load

    @property
    def factor(self) -> float:
        """How much of their limits normal requests get now: 1.0 without load."""
        return self._steps.factor

    def attach(self, limiter: Any) -> None:
        """Has `limiter`, one with rules, charge by the load from now on, while it lives."""
        if not hasattr(limiter, "_set_load_factor"):
            raise ArgumentTypeError(
                f"the limiter is {limiter!r:.80}; expected one with rules, Limiter(rules=...)"
            )
        with self._lock:
            self._limiters.add(limiter)
            self._apply_to(limiter)
            self._start()

    def refresh(self) -> float:
        """Measures now, and returns the factor. Never raises."""
        try:
            load = self._measure()
            if not isinstance(load, (int, float)) or not math.isfinite(load):
                raise ConfigurationError(f"the load is {load!r}; expected a number from 0 to 1")
        except Exception as error:
            self.failures += 1
            if not self._has_failed:
                log.warning("the load cannot be measured, the factor stays: %s", error)
            self._has_failed = True
            return self.factor
        self._has_failed = False
        with self._lock:
            before = self.factor
            if self._steps.observe(load, self._clock()):
                log.warning(
                    "the load is %.2f: the factor of limits is %g, after %g",
                    self.load, self.factor, before,
                )  # fmt: skip
                for limiter in list(self._limiters):
                    self._apply_to(limiter)
        return self.factor

    def close(self) -> None:
        """Ends the measurements. What limits give is all of them again."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
        with self._lock:
            for limiter in list(self._limiters):
                for priority in ("normal", "background"):
                    _set_factor(limiter, priority, 1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _apply_to(self, limiter: Any) -> None:
        _set_factor(limiter, "normal", self.factor)
        _set_factor(limiter, "background", self.factor**2)

    def _start(self) -> None:
        """Starts the thread, unless it runs. Called with the lock held."""
        if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._run, name="tidegate LoadShedding", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            with self._lock:
                if not len(self._limiters):
                    self._thread = None
                    return
            self.refresh()

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        was_stopped = self._stop.is_set()
        self._stop = threading.Event()
        if was_stopped:
            self._stop.set()
        if self._thread is not None:
            self._thread = None
            self._start()


def _set_factor(limiter: Any, priority: str, factor: float) -> None:
    with contextlib.suppress(LimiterClosedError):
        limiter._set_load_factor(priority, factor)


_all: weakref.WeakSet[LoadShedding] = weakref.WeakSet()


def _after_fork() -> None:
    for shedding in list(_all):
        shedding._after_fork()


def _stop_all() -> None:
    """No thread may be inside of a measurement when the interpreter goes."""
    running = [shedding for shedding in list(_all) if shedding._thread is not None]
    for shedding in running:
        shedding._stop.set()
    for shedding in running:
        thread = shedding._thread
        if thread is not None:
            thread.join(_PATIENCE)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_stop_all)
