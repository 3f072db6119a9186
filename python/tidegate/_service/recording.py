"""What the front recorded of decisions, passed on to all that keep or watch it."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Recorded", "Recording", "Row", "caller_named", "caller_of"]

log = logging.getLogger("tidegate")

_INTERVAL = 1.0
# How much the dashboard shows of the past.
_KEPT_SECONDS = 300


class Row(NamedTuple):
    """Decisions about one user at one endpoint that one rule bound, since the last row of them."""

    user: str | None
    endpoint: str | None
    tier: str | None
    rule: str | None
    """The rule that refused; None if the requests were allowed."""
    ip: str | None
    """The address of the first of these requests."""
    allowed: int
    refused: int
    refused_in_shadow: int
    degraded: int
    cost: int

    @property
    def is_rest(self) -> bool:
        """Whether it sums up all users and endpoints for which there was no room."""
        return self.user is None and self.endpoint == "(other)"


class Recorded(NamedTuple):
    """The rows of about one second."""

    at: float
    """When they were taken, in seconds since the epoch."""
    rows: list[Row]


def caller_of(row: Row) -> str:
    """``user:42``, ``ip:203.0.113.9``, or ``anyone``: who the requests of a row are from."""
    for kind, value in (("user", row.user), ("ip", row.ip)):
        if value:
            return f"{kind}:{value}"
    return "anyone"


def caller_named(attributes: Mapping[str, str]) -> str:
    """The same of a request: a caller with a key alone goes by a digest of it."""
    user = attributes.get("user")
    if user is None and "api_key" in attributes:
        user = "key:sha256-" + hashlib.sha256(attributes["api_key"].encode()).hexdigest()[:16]
    return f"user:{user}" if user else f"ip:{attributes.get('ip', '')}"


def _merged(rows: Iterable[Row]) -> list[Row]:
    """One row for each user, endpoint and rule: each loop of the front has one of its own."""
    merged: dict[tuple[str | None, str | None, str | None], Row] = {}
    for row in rows:
        key = (row.user or row.ip, row.endpoint, row.rule)
        known = merged.get(key)
        if known is not None:
            row = known._replace(
                allowed=known.allowed + row.allowed,
                refused=known.refused + row.refused,
                refused_in_shadow=known.refused_in_shadow + row.refused_in_shadow,
                degraded=known.degraded + row.degraded,
                cost=known.cost + row.cost,
            )
        merged[key] = row
    return list(merged.values())


class Recording:
    """Takes what `recorder` has summed, once a second, and hands it to listeners.

    A listener is called with a Recorded, on this thread: one that raises is logged and the others
    are called all the same. The last five minutes are kept for who looks at the service now.
    Thread-safe.
    """

    def __init__(
        self,
        recorder: Any,
        listeners: Iterable[Callable[[Recorded], object]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._recorder = recorder
        self._listeners = list(listeners)
        self._clock = clock
        self._recent: deque[Recorded] = deque(maxlen=int(_KEPT_SECONDS / _INTERVAL))
        self._stop = threading.Event()
        self._taking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tidegate recording", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Hands on what is left and ends the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self.take()

    def take(self) -> None:
        """Hands on what was recorded since the last time, now."""
        with self._taking:
            rows = _merged(Row(*row) for row in self._recorder.drain())
            if not rows:
                return
            recorded = Recorded(self._clock(), rows)
            self._recent.append(recorded)
            for listener in self._listeners:
                try:
                    listener(recorded)
                except Exception:
                    log.exception("decisions were not passed on to %r", listener)

    def recent(self, seconds: float = _KEPT_SECONDS) -> list[Recorded]:
        """What was recorded in the last `seconds`, the earliest first; at most five minutes."""
        since = self._clock() - seconds
        return [each for each in list(self._recent) if each.at >= since]

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self.take()
