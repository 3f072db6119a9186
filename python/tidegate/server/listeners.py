"""Listeners to recorded decisions: the log, the usage history, violations and anomalies."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import logging
import math
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable

import sqlalchemy as sa

from tidegate.limiter.errors import ConfigurationError
from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.service_tables import anomalies
from tidegate.server.anomalies.detector import Action, Anomaly, AnomalyDetector
from tidegate.server.enforcement import Penalty
from tidegate.server.recording import caller_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tidegate.rules.sql.connection import DatabaseLike
    from tidegate.rules.sql.usage_history import UsageHistory
    from tidegate.rules.violation_log import ViolationLog
    from tidegate.server.anomalies.state_file import StateFile
    from tidegate.server.enforcement import Enforcement
    from tidegate.server.predecessor import Predecessor
    from tidegate.server.recording import Recorded

__all__ = ["AnomalyWatch", "DecisionLog", "to_history", "to_violations"]

log = logging.getLogger("tidegate")
refusal_log = logging.getLogger("tidegate.refusals")
access_log = logging.getLogger("tidegate.access")

_AGAIN_AFTER = 3600.0
_WEEK = 7 * 24 * 3600.0


class DecisionLog:
    """Logs refusals, and optionally all decisions: one line for each row of a second."""

    def __init__(self, *, refusals: bool, access: bool) -> None:
        self._refusals = refusals
        self._access = access

    def __call__(self, recorded: Recorded) -> None:
        for row in recorded.rows:
            if self._access:
                access_log.info(
                    "%r at %r: %d allowed, %d refused",
                    caller_of(row),
                    row.endpoint or "",
                    row.allowed,
                    row.refused,
                    extra={"decisions": row._asdict()},
                )
            if self._refusals and row.refused:
                refusal_log.warning(
                    "%r was refused %d times by %s at %r",
                    caller_of(row),
                    row.refused,
                    row.rule or "no rule",
                    row.endpoint or "",
                    extra={"decisions": row._asdict()},
                )


def to_history(history: UsageHistory) -> Any:
    """A listener that adds to the usage history."""

    def add(recorded: Recorded) -> None:
        for row in recorded.rows:
            history.add(
                row.user or row.ip,
                row.endpoint,
                allowed=row.allowed,
                refused=row.refused,
                cost=row.cost,
                at=recorded.at,
            )

    return add


def to_violations(violations: ViolationLog) -> Any:
    """A listener that records refusals as violations."""

    def note(recorded: Recorded) -> None:
        for row in recorded.rows:
            if row.refused:
                attributes = {
                    "user": row.user,
                    "ip": row.ip,
                    "tier": row.tier,
                    "endpoint": row.endpoint,
                }
                violations.note(row.rule, attributes, row.refused, recorded.at)

    return note


# Only the callers with the most requests of an interval are judged: there may be millions.
_MOST_CALLERS = 100_000


class AnomalyWatch:
    """Judges callers once an interval, logs anomalies and writes them to the database.

    Anomalies that call for no action are neither logged nor written. An ongoing anomaly is written
    again only when it calls for a stricter action, or after an hour. `enforcement` gets each
    anomaly that calls for an action, each time. `state` keeps what the detector has learned.
    A process that takes over goes on with everything, also with the counts of the interval that has
    not ended, and gets what this one counts afterwards. Thread-safe.
    """

    def __init__(
        self,
        detector: AnomalyDetector,
        database: DatabaseLike | None,
        *,
        enforcement: Enforcement | None = None,
        state: StateFile | None = None,
        timeout: float = 5.0,
    ) -> None:
        self._detector = detector
        self._state = state
        self._lock = threading.Lock()
        self._enforcement = enforcement
        self._database = None if database is None else Database(database, timeout)
        self._counts: Counter[str] = Counter()
        self._tiers: dict[str, str] = {}
        # A detector that was restored expects later intervals.
        self._begun = detector.next_at if state is not None and len(detector) else None
        # How far the detector's time is ahead of the clock after the clock was set back, in whole
        # weeks, so that the hour of the week is right.
        self._ahead = 0.0
        self._reported: dict[str, Anomaly] = {}
        # Sends counts to a process that takes over.
        self._send: Callable[[bytes], object] | None = None
        self.found = 0
        """The number of anomalies that called for an action."""
        self.not_written = 0
        """The number of these anomalies that could not be written."""

    def __call__(self, recorded: Recorded) -> None:
        counts = [
            (caller_of(row), row.allowed + row.refused, row.tier)
            for row in recorded.rows
            if not row.is_rest
        ]
        with self._lock:
            if self._send is None:
                self._count(recorded.at, counts)
                return
            try:
                self._send(_line([recorded.at, counts]))
            except OSError as error:
                log.warning("%d counts were not handed on: %s", len(counts), error)

    def _count(self, at: float, counts: Iterable[tuple[str, int, str | None]]) -> None:
        """Adds counts of callers, with their tiers, and judges an interval that has ended."""
        interval = self._detector.interval
        at += self._ahead
        if self._begun is not None and at < self._begun - interval:
            weeks = math.ceil((self._begun + interval - at) / _WEEK) * _WEEK
            self._ahead += weeks
            at += weeks
        begun = at // interval * interval
        before = self._begun
        self._begun = begun if before is None else max(before, begun)
        if before is not None and begun > before:
            self._judge(before)
        for caller, count, tier in counts:
            self._counts[caller] += count
            if tier:
                self._tiers[caller] = tier
        if len(self._counts) > 2 * _MOST_CALLERS:
            self._counts = Counter(dict(self._counts.most_common(_MOST_CALLERS)))
            self._tiers = {
                caller: tier for caller, tier in self._tiers.items() if caller in self._counts
            }

    def close(self) -> None:
        """Writes the state, and closes the connection."""
        with self._lock:
            if self._state is not None:
                self._state.keep()
            if self._database is not None:
                self._database.close()

    def hand_on(self, send: Callable[[bytes], object]) -> None:
        """Sends everything to a process that takes over, as a line, and each later count.

        From then on this object judges nothing and writes no state. `send` may raise OSError.
        """
        with self._lock:
            self._accept_unlocked()
            penalties = [] if self._enforcement is None else self._enforcement.in_force()
            tiers = self._tiers
            message = {
                "state": base64.b64encode(self._detector.state()).decode(),
                "begun": self._begun,
                "ahead": self._ahead,
                "counts": [[*each, tiers.get(each[0])] for each in self._counts.items()],
                "reported": [_written(each) for each in self._reported.values()],
                "penalties": [each.said() for each in penalties],
            }
            send(_line(message))
            self._send = send
            if self._state is not None:
                self._state.leave()

    def stay(self) -> None:
        """Undoes hand_on(), if the other process does not take over after all."""
        with self._lock:
            self._send = None
            if self._state is not None:
                self._state.leave(False)

    def take_over(self, predecessor: Predecessor) -> None:
        """Goes on where the process was that hands on, and adds what it counts until its end.

        What cannot be read, such as that of another version, is logged and left out.
        """
        said = predecessor.ask()
        if not said.strip():
            return
        try:
            self._restore(json.loads(said))
        except (ConfigurationError, ValueError, TypeError, KeyError, binascii.Error) as error:
            log.warning("anomaly detection does not go on where it was: %s", error)
            return
        log.info("anomaly detection goes on, with what is usual of %d callers", len(self._detector))
        threading.Thread(
            target=self._add_further, args=(predecessor,), name="tidegate taking over", daemon=True
        ).start()

    def _restore(self, said: dict[str, Any]) -> None:
        with self._lock:
            reported = [_read(each) for each in said["reported"]]
            counts = [(str(caller), int(count), tier) for caller, count, tier in said["counts"]]
            penalties = [Penalty.read(each) for each in said["penalties"]]
            begun, ahead = said["begun"], float(said["ahead"])
            self._detector.restore(base64.b64decode(said["state"]))
            self._begun, self._ahead = None if begun is None else float(begun), ahead
            self._reported = {each.caller: each for each in reported}
            self._counts = Counter({caller: count for caller, count, _ in counts})
            self._tiers = {caller: tier for caller, _, tier in counts if tier}
            if self._enforcement is not None:
                self._enforcement.resume(penalties)

    def _add_further(self, predecessor: Predecessor) -> None:
        for line in predecessor.further():
            try:
                at, counts = json.loads(line)
                with self._lock:
                    self._count(at, counts)
            except Exception:
                log.exception("counts of the process before were not added")

    def _judge(self, at: float) -> None:
        counts, self._counts = self._counts, Counter()
        self._reported = {
            caller: each for caller, each in self._reported.items() if at - each.at < _AGAIN_AFTER
        }
        tiers, self._tiers = self._tiers, {}
        found = [each for each in self._judged(counts, at, tiers) if self._is_news(each)]
        self._reported.update((each.caller, each) for each in found)
        if not found:
            return
        found = [each._replace(at=each.at - self._ahead) for each in found]
        self.found += len(found)
        for each in found:
            log.warning(
                "anomaly: %r, %s (score %.1f): %s",
                each.caller,
                each.action.value,
                each.score,
                each.reason,
                extra={"anomaly": {**each._asdict(), "action": each.action.value}},
            )
        if self._database is not None:
            self._write(self._database, found)

    def _judged(
        self, counts: Mapping[str, int], at: float, tiers: Mapping[str, str]
    ) -> list[Anomaly]:
        """Returns the anomalies that call for an action, after passing them to `enforcement`."""
        self._accept_unlocked()
        found = self._detector.judge(counts, at, tiers)
        if self._state is not None:
            self._state.note()
        found = [each for each in found if each.action >= Action.THROTTLE]
        if self._enforcement is not None:
            self._enforcement.apply(found)
        return found

    def _accept_unlocked(self) -> None:
        if self._enforcement is not None:
            for caller in self._enforcement.take_unlocked():
                self._detector.accept(caller)

    def _is_news(self, anomaly: Anomaly) -> bool:
        before = self._reported.get(anomaly.caller)
        return before is None or anomaly.action > before.action

    def _write(self, database: Database, found: list[Anomaly]) -> None:
        now = dt.datetime.now(dt.timezone.utc)
        rows = [
            {
                "time": now,
                "caller": each.caller[:255].replace("\0", "\ufffd"),
                "score": each.score,
                "action": each.action.value,
                "reason": each.reason,
                "window_start": dt.datetime.fromtimestamp(each.at, dt.timezone.utc),
            }
            for each in found
        ]
        try:
            with database.use() as connection:
                connection.execute(sa.insert(anomalies), rows)
                connection.commit()
        except Exception as error:
            self.not_written += len(found)
            log.warning("%d anomalies were not written: %s", len(found), error)


def _line(message: object) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _written(anomaly: Anomaly) -> list[Any]:
    return [*anomaly._replace(action=anomaly.action.value)]  # type: ignore[arg-type]


def _read(values: list[Any]) -> Anomaly:
    anomaly = Anomaly(*values)
    return anomaly._replace(action=Action(anomaly.action))
