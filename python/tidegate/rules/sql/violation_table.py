"""Reads and writes the table rate_limit_violations, and finds callers whose refusals rose."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from tidegate.limiter.errors import ConfigurationError
from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.schema import violations

if TYPE_CHECKING:
    from typing import Any

    from tidegate.rules.sql.connection import DatabaseLike
    from tidegate.rules.violation import Violation

__all__ = ["Rise", "ViolationTable", "top_violations"]

_HOUR = 3600.0


class ViolationTable:
    """Writes violations to the table, and deletes old ones."""

    def __init__(self, database: DatabaseLike, *, keep: float | None, timeout: float = 5.0) -> None:
        self._database = Database(database, timeout)
        self._keep = None if keep is None else dt.timedelta(days=keep)
        self._prune_at = 0.0

    def __call__(self, batch: list[Violation]) -> None:
        rows = [
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
        now = time.monotonic()
        with self._database.use() as connection:
            connection.execute(sa.insert(violations), rows)
            if self._keep is not None and now >= self._prune_at:
                oldest = dt.datetime.now(dt.timezone.utc) - self._keep
                connection.execute(sa.delete(violations).where(violations.c.timestamp < oldest))
            connection.commit()
        if now >= self._prune_at:
            self._prune_at = now + _HOUR

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
