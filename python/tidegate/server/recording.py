"""Passes the decisions that the front recorded to listeners."""

from __future__ import annotations

import hashlib
import heapq
import logging
import re
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tidegate.limiter.background import Repeating

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Recorded", "Recording", "Row", "caller_named", "caller_of"]

log = logging.getLogger("tidegate")

_INTERVAL = 1.0
# The dashboard shows this much of the past, and this many rows of each second: a busy service has
# tens of thousands of callers in one second.
_KEPT_SECONDS = 300
_KEPT_ROWS = 200
# Users with such names are not the holders of these keys.
_LIKE_A_KEY = re.compile("(user:)*key:sha256-")
# The most users whose last tier is known.
_KEPT_TIERS = 100_000


class Row(NamedTuple):
    """Decisions about one user at one endpoint by one binding rule since the last such row."""

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
        """Whether the row sums up all users and endpoints that found no free row."""
        return self.user is None and self.ip is None and self.endpoint == "(other)"


class Recorded(NamedTuple):
    """The rows of about one second."""

    at: float
    """When the rows were taken, in seconds since the epoch."""
    rows: list[Row]


def caller_of(row: Row) -> str:
    """Returns the caller of a row: ``user:42``, ``ip:203.0.113.9``, or ``anyone``."""
    for kind, value in (("user", row.user), ("ip", row.ip)):
        if value:
            return f"{kind}:{value}"
    return "anyone"


def caller_named(attributes: Mapping[str, str]) -> str:
    """Returns the caller of a request. A caller with only a key is named by a digest of it.

    A user whose name looks like such a digest has ``user:`` before its name, as in records.
    """
    user = attributes.get("user")
    if user is not None and _LIKE_A_KEY.match(user):
        user = f"user:{user}"
    elif user is None and "api_key" in attributes:
        user = "key:sha256-" + hashlib.sha256(attributes["api_key"].encode()).hexdigest()[:16]
    return f"user:{user}" if user else f"ip:{attributes.get('ip', '')}"


def _merged(rows: Iterable[Row]) -> list[Row]:
    """Joins rows of the same user, endpoint and rule, since each loop of the front has its own."""
    merged: dict[tuple[str | None, ...], Row] = {}
    for row in rows:
        # A user whose name is an address is not the caller with that address.
        key = (row.user, None if row.user else row.ip, row.endpoint, row.rule)
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


def _foremost(rows: list[Row], most: int) -> list[Row]:
    """Returns the rows with the most refusals, then the most requests, and one row for the rest."""
    if len(rows) <= most:
        return rows

    def weight(row: Row) -> tuple[bool, int, int]:
        return row.is_rest, row.refused + row.refused_in_shadow, row.allowed

    kept = [row for row in heapq.nlargest(most, rows, key=weight) if not row.is_rest]
    rest = [all_of - of_kept for all_of, of_kept in zip(_sums(rows), _sums(kept))]
    return [*kept, Row(None, "(other)", None, None, None, *rest)]


def _sums(rows: list[Row]) -> list[int]:
    return [sum(column) for column in zip(*(row[5:] for row in rows))]


class Recording:
    """Drains `recorder` once a second and passes the rows to listeners.

    Listeners are called with a Recorded on this object's thread. If a listener raises, the error is
    logged and the other listeners are still called. The foremost rows of the last five minutes are
    kept for the dashboard. `each_second` is called on the same thread; it does not raise.
    Thread-safe.
    """

    def __init__(
        self,
        recorder: Any,
        listeners: Iterable[Callable[[Recorded], object]],
        *,
        clock: Callable[[], float] = time.time,
        each_second: Callable[[], object] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self._listeners = list(listeners)
        self._clock = clock
        self._each_second = each_second
        self._recent: deque[Recorded] = deque(maxlen=int(_KEPT_SECONDS / _INTERVAL))
        self._tiers: dict[str, str] = {}
        self._taking = threading.Lock()
        self._repeating = Repeating(self._step, _INTERVAL, "tidegate recording")

    def start(self) -> None:
        """Starts the thread."""
        self._repeating.start()

    def close(self) -> None:
        """Passes the remaining rows to the listeners and ends the thread."""
        self._repeating.close(5.0)
        self.take()

    def take(self) -> None:
        """Passes everything that was recorded since the last time to the listeners, now."""
        with self._taking:
            rows = _merged(Row(*row) for row in self._recorder.drain())
            if not rows:
                return
            recorded = Recorded(self._clock(), rows)
            self._note_tiers(rows)
            self._recent.append(recorded._replace(rows=_foremost(rows, _KEPT_ROWS)))
            for listener in self._listeners:
                try:
                    listener(recorded)
                except Exception:
                    log.exception("decisions were not passed on to %r", listener)

    def _note_tiers(self, rows: list[Row]) -> None:
        for row in rows:
            if row.user and row.tier:
                self._tiers.pop(row.user, None)  # so that the users seen last are at the end
                self._tiers[row.user] = row.tier
        for user in list(self._tiers)[: max(0, len(self._tiers) - _KEPT_TIERS)]:
            del self._tiers[user]

    def tier_of(self, user: str) -> str | None:
        """Returns the tier of the last request of a user that was seen, or None."""
        return self._tiers.get(user)

    def recent(self, seconds: float = _KEPT_SECONDS) -> list[Recorded]:
        """Returns the foremost rows of the last `seconds`, the earliest first; at most 300 s."""
        since = self._clock() - seconds
        return [each for each in list(self._recent) if each.at >= since]

    def _step(self) -> None:
        self.take()
        self._each_second()
