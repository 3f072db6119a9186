"""Reads and writes the table rate_limit_violations, and finds callers whose refusals rose."""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from typing import TYPE_CHECKING, Callable, NamedTuple

import sqlalchemy as sa

from tidegate.limiter.errors import ConfigurationError
from tidegate.rules.sql.bounded_table import HOUR, BoundedTable, HourlyPrune, check_bounds
from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.schema import violations
from tidegate.rules.violation import Violation

if TYPE_CHECKING:
    from typing import Any

    from tidegate.rules.sql.connection import DatabaseLike

__all__ = ["Rise", "ViolationTable", "top_violations"]

log = logging.getLogger("tidegate")

# The violations of one write that have rows of their own even where many callers were refused.
_FOREMOST = 100
# The caller and the endpoint of the row of all others.
_OTHERS = "(other)"


class ViolationTable:
    """Writes violations to the table, and deletes old ones."""

    def __init__(
        self,
        database: DatabaseLike,
        *,
        keep: float | None,
        most_rows: int | None = None,
        most_bytes: int | None = None,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_bounds(keep, most_rows, most_bytes)
        self._database = Database(database, timeout)
        self._clock = clock
        columns = violations.c
        self._prune = HourlyPrune("violations", columns.timestamp, keep)
        self._bound: BoundedTable | None = None
        if most_rows is not None or most_bytes is not None:
            self._bound = BoundedTable(
                columns.timestamp,
                [columns.endpoint, columns.caller, columns.attributes],
                row_bytes=250,
                copies=2,
                most_rows=most_rows,
                most_bytes=most_bytes,
            )

    def __call__(self, batch: list[Violation]) -> None:
        now = self._clock()
        with self._database.use() as connection:
            if self._bound is not None:
                batch = self._admitted(self._bound, connection, batch, int(now // HOUR))
            connection.execute(sa.insert(violations), self._rows(batch))
            connection.commit()
        self._prune.prune_if_due(self._database, now, self._make_room)

    def _rows(self, batch: list[Violation]) -> list[dict[str, Any]]:
        return [
            {
                "user_id": each.attributes.get("user"),
                "endpoint": each.endpoint,
                "timestamp": each.time,
                "attempted_count": min(each.attempted, 2**31 - 1),
                "rule_id": each.rule and each.rule[:100],
                "caller": each.caller,
                "attributes": each.attributes,
            }
            for each in batch
        ]

    def _admitted(
        self, bound: BoundedTable, connection: sa.Connection, batch: list[Violation], hour: int
    ) -> list[Violation]:
        """Returns what to write: those with the most refusals, and for each rule one of the rest.

        Each hour may fill a 24th of the room that is left, and a fourth with the foremost.
        """
        size = bound.measure(connection, hour)
        room = bound.room(connection, hour)
        foremost = sorted(batch, key=lambda each: -each.attempted)
        kept: list[Violation] = []
        rest: dict[str | None, Violation] = {}
        for number, each in enumerate(foremost):
            texts = (each.endpoint, each.caller, json.dumps(each.attributes))
            larger = size.plus(bound.size_of(1, texts))
            if larger.fits(room.share(1 / 4 if number < _FOREMOST else 1 / 24)):
                size = larger
                kept.append(each)
                continue
            known = rest.get(each.rule)
            rest[each.rule] = Violation(
                each.time if known is None else min(each.time, known.time),
                each.rule,
                _OTHERS,
                _OTHERS,
                each.attempted + (0 if known is None else known.attempted),
                {},
            )
        return [*kept, *rest.values()]

    def _make_room(self, connection: sa.Connection, hour: int) -> None:
        if self._bound is None:
            return
        hours = self._bound.too_much(connection, hour)
        connection.rollback()
        if hours:
            log.warning(
                "the violations are at their bound: those of the %d oldest hours were deleted",
                self._bound.delete_hours(connection, hours),
            )

    def close(self) -> None:
        """Closes the connection."""
        self._database.close()

    def forget_parent(self) -> None:
        """In a child of fork(): leaves the connection to the parent."""
        self._database.forget_parent()


class Rise(NamedTuple):
    """Compares the refusals of one caller in the last period with the periods before it."""

    name: str
    """The caller, such as ``user:42``; or the rule, or the endpoint."""
    recent: int
    """Requests refused in the last period."""
    before: float
    """The mean per period over the periods before."""

    @property
    def factor(self) -> float:
        """The factor of the rise. One is added to both numbers: a first refusal is a small rise."""
        return (self.recent + 1) / (self.before + 1)


_GROUPS = {
    "caller": violations.c.caller,
    "rule": violations.c.rule_id,
    "endpoint": violations.c.endpoint,
}


def top_violations(
    database: DatabaseLike,
    *,
    period: float = 3600,
    past: int = 24,
    by: str = "caller",
    most: int = 20,
    now: dt.datetime | None = None,
    timeout: float = 30.0,
) -> list[Rise]:
    """Returns the callers whose refusals rose most; the greatest rise comes first.

    Compares the last `period` of seconds with the mean of the `past` periods before it. Raises
    StorageError if the database does not answer.
    """
    if by not in _GROUPS:
        raise ConfigurationError(f"by is {by!r}; expected 'caller', 'rule' or 'endpoint'")
    if not period > 0 or past < 1 or most < 1:
        raise ConfigurationError(
            f"the period is {period!r} s, the past {past!r}, the most {most!r}; expected numbers "
            "above 0"
        )
    now = now or dt.datetime.now(dt.timezone.utc)
    begun = now - dt.timedelta(seconds=period)
    first = begun - dt.timedelta(seconds=period * past)
    group = _GROUPS[by]
    at, count = violations.c.timestamp, violations.c.attempted_count
    recent = sa.func.sum(sa.case((at > begun, count), else_=0))
    earlier = sa.func.sum(sa.case((at <= begun, count), else_=0))
    rise = (recent + 1.0) / (earlier * 1.0 / past + 1.0)
    asked: sa.Select[Any] = (
        sa.select(group, recent, earlier)
        .where(at > first, at <= now)
        .group_by(group)
        .having(recent > 0)
        .order_by(rise.desc(), recent.desc(), group)
        .limit(most)
    )
    source = Database(database, timeout)
    try:
        with source.use() as connection:
            rows = connection.execute(asked).all()
    finally:
        source.close()
    return [Rise(str(name), int(recent), int(earlier) / past) for name, recent, earlier in rows]
