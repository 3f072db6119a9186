"""Anomalies that are enforced: callers who are throttled or blocked, each until its end."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tidegate._anomaly.detector import Action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate._anomaly.detector import Anomaly

__all__ = ["BLOCK_RULE", "Enforcement", "Penalty", "is_enforceable"]

log = logging.getLogger("tidegate")

BLOCK_RULE = "anomaly:block"
"""The rule that the answer to a blocked caller names."""

# Names are recorded up to this length: a longer one may be that of several callers.
_MOST_NAME_BYTES = 255
# So are bytes that are not UTF-8 written in a record, where anybody could have written them.
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}")
_SAID = {Action.THROTTLE: "throttled", Action.BLOCK: "blocked"}


class Penalty(NamedTuple):
    """What is enforced against one caller."""

    caller: str
    action: Action
    reason: str
    left: float
    """Seconds until it ends."""

    def said(self) -> dict[str, Any]:
        """It as JSON."""
        return {**self._asdict(), "action": self.action.value}


class _Entry(NamedTuple):
    action: Action
    reason: str
    end: float


def is_enforceable(caller: str) -> bool:
    """Whether the name of a record is that of one caller, whom requests name in the same way."""
    kind, _, name = caller.partition(":")
    if kind not in ("user", "ip") or not name or name.startswith("descriptor:"):
        return False
    return len(name.encode()) < _MOST_NAME_BYTES and _ESCAPED.search(name) is None


class Enforcement:
    """Has `services` throttle or block callers, each for `seconds` after the last verdict.

    At most `most` callers at a time: those beyond are left out and counted (`left_out`). Callers
    in `exempt`, such as ``user:42`` or ``ip:203.0.113.9``, are spared. A caller who is blocked
    stays so until the end, even if a later verdict asks for less. The services hold each penalty
    to its end by themselves. Thread-safe.
    """

    def __init__(
        self,
        services: Iterable[Any],
        *,
        seconds: float = 300.0,
        most: int = 1000,
        exempt: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        native_clock: Any = None,
    ) -> None:
        self._services = list(services)
        self._seconds = seconds
        self._most = most
        self._exempt = frozenset(exempt)
        self._clock = clock
        self._native_clock = native_clock
        self._entries: dict[str, _Entry] = {}
        self._lifted: list[str] = []
        self._lock = threading.Lock()
        self.left_out = 0
        """How many verdicts were not enforced because there were `most` already."""

    def apply(self, verdicts: Iterable[Anomaly]) -> None:
        """Enforces verdicts from now on. Those that ask for less than throttling are ignored."""
        with self._lock:
            now = self._clock()
            is_changed = self._end_some(now)
            left_out = 0
            for each in verdicts:
                if each.action < Action.THROTTLE or each.caller in self._exempt:
                    continue
                if not is_enforceable(each.caller):
                    continue
                known = self._entries.get(each.caller)
                if known is None and len(self._entries) >= self._most:
                    left_out += 1
                    continue
                if known is not None and known.action > each.action:
                    continue
                self._entries[each.caller] = _Entry(each.action, each.reason, now + self._seconds)
                is_changed = True
                if known is None or known.action is not each.action:
                    self._log_begin(each)
            if left_out:
                self.left_out += left_out
                log.warning(
                    "%d anomalies are not enforced; %d callers are throttled or blocked already, "
                    "expected at most that many",
                    left_out,
                    len(self._entries),
                )
            if is_changed:
                self._tell(now)

    def lift(self, caller: str) -> Penalty | None:
        """Ends what is enforced against a caller, and returns it."""
        with self._lock:
            now = self._clock()
            self._end_some(now)
            entry = self._entries.pop(caller, None)
            if entry is None:
                return None
            self._lifted.append(caller)
            self._tell(now)
        log.info("anomaly: %r is no longer %s: somebody lifted it", caller, _SAID[entry.action])
        return _penalty(caller, entry, now)

    def take_lifted(self) -> list[str]:
        """The callers that were lifted since the last call, whose ways are usual from then on."""
        with self._lock:
            lifted, self._lifted = self._lifted, []
            return lifted

    def find(self, caller: str) -> Penalty | None:
        """What is enforced against a caller now."""
        with self._lock:
            now = self._clock()
            entry = self._entries.get(caller)
            return None if entry is None or entry.end <= now else _penalty(caller, entry, now)

    def in_force(self) -> list[Penalty]:
        """All of them, that with the longest rest first."""
        with self._lock:
            now = self._clock()
            found = [_penalty(*each, now) for each in self._entries.items() if each[1].end > now]
        return sorted(found, key=lambda each: (-each.left, each.caller))

    def _end_some(self, now: float) -> bool:
        ended = [caller for caller, entry in self._entries.items() if entry.end <= now]
        for caller in ended:
            entry = self._entries.pop(caller)
            log.info("anomaly: %r is no longer %s", caller, _SAID[entry.action])
        return bool(ended)

    def _log_begin(self, anomaly: Anomaly) -> None:
        log.warning(
            "anomaly: %r is %s for %g s: %s",
            anomaly.caller,
            _SAID[anomaly.action],
            self._seconds,
            anomaly.reason,
            extra={"anomaly": {**anomaly._asdict(), "action": anomaly.action.value}},
        )

    def _tell(self, now: float) -> None:
        # Not on all systems, as the admin API is, which only looks.
        from tidegate._service._native import Penalties

        rows = [
            (caller, entry.action.value, min(entry.end - now, self._seconds), entry.reason)
            for caller, entry in self._entries.items()
        ]
        table = Penalties(rows, self._native_clock) if rows else None
        for service in self._services:
            service.set_penalties(table)


def _penalty(caller: str, entry: _Entry, now: float) -> Penalty:
    return Penalty(caller, entry.action, entry.reason, entry.end - now)
