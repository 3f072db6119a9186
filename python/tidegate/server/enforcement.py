"""Enforces anomalies: throttles or blocks callers, each for a time."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tidegate.server.anomalies.detector import Action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate.server.anomalies.detector import Anomaly

__all__ = ["BLOCK_RULE", "Enforcement", "Penalty", "is_enforceable"]

log = logging.getLogger("tidegate")

BLOCK_RULE = "anomaly:block"
"""The rule that the answer to a blocked caller names."""

# Longer names are cut in records, so several callers may share one.
_MOST_NAME_BYTES = 255
# Records write bytes that are not UTF-8 in this way, and any caller may send the same text.
_ESCAPED = re.compile(r"\\x[0-9a-f]{2}")
_SAID = {Action.THROTTLE: "throttled", Action.BLOCK: "blocked"}


class Penalty(NamedTuple):
    """The penalty of one caller."""

    caller: str
    action: Action
    reason: str
    left: float
    """The seconds until the penalty ends."""

    def said(self) -> dict[str, Any]:
        """Returns the penalty as JSON."""
        return {**self._asdict(), "action": self.action.value}

    @classmethod
    def read(cls, said: dict[str, Any]) -> Penalty:
        """Returns the penalty that said() wrote. Raises TypeError or ValueError for another."""
        found = cls(**said)
        return found._replace(action=Action(found.action))


class _Entry(NamedTuple):
    action: Action
    reason: str
    end: float


def is_enforceable(caller: str) -> bool:
    """Returns whether only one caller has this name, and requests name the caller the same way."""
    kind, _, name = caller.partition(":")
    if kind not in ("user", "ip") or not name or name.startswith("descriptor:"):
        return False
    return len(name.encode()) < _MOST_NAME_BYTES and _ESCAPED.search(name) is None


class Enforcement:
    """Makes `services` throttle or block callers, each for `seconds` after the last verdict.

    At most `most` callers have a penalty at a time; further verdicts are counted (`left_out`) and
    have no effect. Callers in `exempt`, such as ``user:42`` or ``ip:203.0.113.9``, are spared. A
    blocked caller stays blocked until the end, even if a later verdict asks for less. The services
    themselves end each penalty in time. Thread-safe.
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
        self._unlocked: list[str] = []
        self._lock = threading.Lock()
        self.left_out = 0
        """The number of verdicts without effect because `most` callers had a penalty already."""

    def apply(self, verdicts: Iterable[Anomaly]) -> None:
        """Enforces verdicts from now on, except those that ask for less than throttling."""
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
                    "%d anomalies are not enforced, since %d callers are throttled or blocked "
                    "already; expected a larger anomalies.enforce_most",
                    left_out,
                    len(self._entries),
                )
            if is_changed:
                self._pass_on(now)

    def resume(self, penalties: Iterable[Penalty]) -> None:
        """Puts penalties of another process into force, for what is left of them."""
        with self._lock:
            now = self._clock()
            for each in penalties:
                if each.caller not in self._exempt and len(self._entries) < self._most:
                    left = min(each.left, self._seconds)
                    self._entries[each.caller] = _Entry(each.action, each.reason, now + left)
            self._pass_on(now)

    def unlock(self, caller: str) -> Penalty | None:
        """Ends the penalty of a caller, and returns it."""
        with self._lock:
            now = self._clock()
            self._end_some(now)
            entry = self._entries.pop(caller, None)
            if entry is None:
                return None
            self._unlocked.append(caller)
            self._pass_on(now)
        log.info("anomaly: %r was unlocked and is no longer %s", caller, _SAID[entry.action])
        return _penalty(caller, entry, now)

    def take_unlocked(self) -> list[str]:
        """Returns the callers unlocked since the last call, whose present counts become usual."""
        with self._lock:
            unlocked, self._unlocked = self._unlocked, []
            return unlocked

    def find(self, caller: str) -> Penalty | None:
        """Returns the present penalty of a caller, or None."""
        with self._lock:
            now = self._clock()
            entry = self._entries.get(caller)
            return None if entry is None or entry.end <= now else _penalty(caller, entry, now)

    def in_force(self) -> list[Penalty]:
        """Returns all penalties, those that last longest first."""
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

    def _pass_on(self, now: float) -> None:
        # The native module exists on fewer systems than the admin API, which only reads penalties.
        from tidegate.server.native import _native

        rows = [
            (caller, entry.action.value, min(entry.end - now, self._seconds), entry.reason)
            for caller, entry in self._entries.items()
        ]
        table = _native.Penalties(rows, self._native_clock) if rows else None
        for service in self._services:
            service.set_penalties(table)


def _penalty(caller: str, entry: _Entry, now: float) -> Penalty:
    return Penalty(caller, entry.action, entry.reason, entry.end - now)
