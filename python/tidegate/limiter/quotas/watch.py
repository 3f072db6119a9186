"""Callbacks for keys that have used most or all of a quota."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import weakref
from dataclasses import dataclass

from tidegate import _core
from tidegate.limiter.background import copied, renew_after_fork
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.quotas.status import instant_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Protocol, Union

    from typing_extensions import Self

    from tidegate.limiter.quotas.status import HasQuotas

    class HasRules(Protocol):
        """A limiter with rules."""

        def _take_quota_events(self) -> list[tuple[str, bytes, int, int, int, int]]: ...

    Watched = Union[HasQuotas, HasRules]

__all__ = ["QuotaEvent", "QuotaWatch"]

log = logging.getLogger("tidegate")


@dataclass(frozen=True)
class QuotaEvent:
    """A key has reached a percentage of a quota, which happens once in each period."""

    key: str | bytes
    """The key; bytes if it is not UTF-8 text."""
    quota: str
    """The name of the quota."""
    percent: int
    """80 or 100, as a percentage of all units that the key had in the period."""
    used: int
    available: int
    resets_at: dt.datetime


class QuotaWatch:
    """Calls `callback` with a QuotaEvent for each key of `limiter` that reaches 80 % or 100 %.

    Charges only queue events. The watch's thread calls the callback about every `every` seconds;
    with None there is no thread, and deliver() has to be called. Exceptions of the callback are
    logged. At most 1,000 events are queued, and further ones are dropped. Only charges of this
    process cause events. Safe to use after `fork()`: the child has its own thread. A limiter has
    one watch. close() delivers the events that are left. For a
    limiter with rules, the quotas of all rules that it ever has are watched, and the key is what
    the rule counts by, as explain() shows it.
    """

    def __init__(
        self,
        limiter: Watched,
        callback: Callable[[QuotaEvent], object],
        *,
        every: float | None = 1.0,
    ) -> None:
        if not callable(callback):
            raise ArgumentTypeError(
                f"the callback is {callback!r} of type {type(callback).__name__}; expected a "
                "function of a QuotaEvent"
            )
        is_number = isinstance(every, (int, float)) and not isinstance(every, bool)
        if every is not None and not (is_number and 0 < every < 1e6):
            raise ConfigurationError(
                f"every is {every!r}; expected more than 0 seconds, or None for no thread"
            )
        if not hasattr(limiter, "_take_quota_events") and not hasattr(limiter, "limits"):
            raise ArgumentTypeError(
                f"the limiter is {limiter!r:.80} of type {type(limiter).__name__}; expected a "
                "Limiter with a quota, or one with rules"
            )
        if not _may_have_quotas(limiter):
            raise ConfigurationError(
                "a watch was given a limiter without a quota; expected one with a quota"
            )
        self._limiter = limiter
        self._callback = callback
        self._every = every
        self._delivering = threading.Lock()
        self._stop = threading.Event()
        renew_after_fork(self)
        self._start()

    def deliver(self) -> int:
        """Calls the callback for all queued events on this thread; returns their number."""
        with self._delivering:
            events = _taken(self._limiter)
            for name, key, percent, used, available, resets in events:
                event = QuotaEvent(
                    _text_of(key), name, percent, used, available, instant_of(resets)
                )
                try:
                    self._callback(event)
                except Exception:
                    log.exception("the callback of a QuotaWatch failed for %r", event)
            return len(events)

    def close(self) -> None:
        """Ends the thread, and delivers the events that are left."""
        self._stop.set()
        self.deliver()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._every is None or self._stop.is_set():
            return
        # The thread must not keep the watch alive.
        threading.Thread(
            target=_run,
            args=(weakref.ref(self), self._stop, self._every),
            name="tidegate QuotaWatch",
            daemon=True,
        ).start()

    def _after_fork(self) -> None:
        self._delivering = threading.Lock()
        # Queued events are delivered by the parent process.
        _taken(self._limiter)
        self._stop = copied(self._stop)
        self._start()


def _run(watch: weakref.ref[Any], stop: threading.Event, every: float) -> None:
    while not stop.wait(every):
        alive = watch()
        if alive is None:
            return
        alive.deliver()
        del alive


def _may_have_quotas(limiter: Any) -> bool:
    # Rules change, so that a quota may come with the next ones.
    if hasattr(limiter, "_take_quota_events"):
        return True
    return any(limit.algorithm == "quota" for limit in limiter.limits)


def _taken(limiter: Any) -> list[tuple[str, bytes, int, int, int, int]]:
    """The events since the last call, each with the name of its quota."""
    if hasattr(limiter, "_take_quota_events"):
        events: list[tuple[str, bytes, int, int, int, int]] = limiter._take_quota_events()
        return events
    limits = limiter.limits
    return [(limits[index].name, *event) for index, *event in _core.take_quota_events(limiter)]


def _text_of(key: bytes) -> str | bytes:
    try:
        return key.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return key
