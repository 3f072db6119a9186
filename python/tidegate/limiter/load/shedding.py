"""Makes limiters charge more while the service is under load."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref

from tidegate.limiter.background import copied, end_at_exit, renew_after_fork
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, LimiterClosedError
from tidegate.limiter.load.measures import SystemLoad
from tidegate.limiter.load.steps import FactorSteps

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
    a fraction of a unit is rounded up or down at random, so that it is right on average, and no
    request costs more than its limit holds at once.

    The cost of critical requests stays as it is; for background ones the factor counts twice. The
    priority of a request is what its rules say (`priority` of costs), or its attribute
    ``priority``.

    The load counts as 0 below 0 and as 1 above 1, and is smoothed over `smoothing` seconds. The
    factor falls at once; it rises one step at a time, when the load is lower than the step by
    more than `hysteresis`, `recovery` seconds after the last change. A measurement that fails
    is logged, and changes nothing. Without `measure` it is that of SystemLoad.

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
        if (
            not isinstance(interval, (int, float))
            or isinstance(interval, bool)
            or not 0 < interval <= threading.TIMEOUT_MAX
        ):
            raise ConfigurationError(f"the interval is {interval!r}; expected seconds above 0")
        if measure is not None and not callable(measure):
            raise ArgumentTypeError(
                f"measure is {measure!r:.80}; expected a function that returns the load, from 0 "
                "to 1"
            )
        if not callable(clock):
            raise ArgumentTypeError(
                f"clock is {clock!r:.80}; expected a function such as monotonic"
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
        renew_after_fork(self)
        end_at_exit(self)

    @property
    def load(self) -> float:
        """The smoothed load; 0.0 before the first measurement."""
        return self._steps.load

    @property
    def factor(self) -> float:
        """How much of their limits normal requests get now: 1.0 without load, and when closed."""
        return 1.0 if self._stop.is_set() else self._steps.factor

    def attach(self, limiter: Any) -> None:
        """Makes `limiter`, a limiter with rules, charge by the load from now on, while it lives.

        Raises ConfigurationError for one that another LoadShedding is attached to.
        """
        if not hasattr(limiter, "_set_load_factor"):
            raise ArgumentTypeError(
                f"the limiter is {limiter!r:.80}; expected one with rules, Limiter(rules=...)"
            )
        other = getattr(limiter, "_shedding", None)
        if other is not None and other is not self and not other._stop.is_set():
            raise ConfigurationError(
                f"another LoadShedding is attached to the limiter {limiter!r:.80}; expected one, "
                "with highest(...) of several measures"
            )
        with self._lock:
            limiter._shedding = self
            self._limiters.add(limiter)
            self._apply_to(limiter)
            self._start()

    def refresh(self) -> float:
        """Measures now, and returns the factor. Raises nothing that is an Exception."""
        try:
            load, now = _checked(self._measure()), self._clock()
        except Exception as error:
            self._fail(error)
            return self.factor
        self._has_failed = False
        with self._lock:
            before = self.factor
            if self._steps.observe(load, now) and not self._stop.is_set():
                log.warning(
                    "the load is %.2f: the factor of limits is %g, after %g",
                    self.load, self.factor, before,
                )  # fmt: skip
                for limiter in list(self._limiters):
                    self._apply_to(limiter)
        return self.factor

    def _fail(self, error: BaseException) -> None:
        self.failures += 1
        if not self._has_failed:
            log.warning("the load cannot be measured, the factor stays: %r", error)
        self._has_failed = True

    def close(self) -> None:
        """Ends the measurements. Requests have their usual costs again."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
        with self._lock:
            for limiter in list(self._limiters):
                self._apply_to(limiter)

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
        thread = threading.Thread(target=self._run, name="tidegate LoadShedding", daemon=True)
        thread.start()
        self._thread = thread  # now, for only one that has started can be joined

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            with self._lock:
                if not len(self._limiters):
                    self._thread = None
                    return
            try:
                self.refresh()
            except BaseException as error:  # SystemExit, say, of a measure: it ends nothing
                self._fail(error)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._stop = copied(self._stop)
        measures = self._thread is not None
        # A measure that forks must not have its children measure, and fork, in turn.
        forked_by_measure = self._thread is threading.current_thread()
        self._thread = None
        if measures and not forked_by_measure:
            self._start()


def _checked(load: Any) -> float:
    """A load from 0 to 1; what lies outside is the nearer of them."""
    if isinstance(load, (bool, str)) or not hasattr(load, "__float__"):
        raise ConfigurationError(f"the load is {load!r:.80}; expected a number from 0 to 1")
    number = float(load)
    if math.isnan(number):
        raise ConfigurationError("the load is nan; expected a number from 0 to 1")
    return min(max(number, 0.0), 1.0)


def _set_factor(limiter: Any, priority: str, factor: float) -> None:
    with contextlib.suppress(LimiterClosedError):
        limiter._set_load_factor(priority, factor)
