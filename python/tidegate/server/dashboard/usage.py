"""Sums a user's requests from the usage history."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from tidegate.rules.sql.service_tables import usage_hours

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Period", "by_endpoint", "days_of", "hours_of", "requests_since"]

_COLUMNS = usage_hours.c
_MOST_ENDPOINTS = 100
_HOUR = dt.timedelta(hours=1)


class Period(NamedTuple):
    """The decisions of an hour or of a day."""

    begin: dt.datetime
    allowed: int
    refused: int

    @property
    def requests(self) -> int:
        """The number of all decisions."""
        return self.allowed + self.refused


def requests_since(connection: sa.Connection, user: str, since: dt.datetime | None) -> int:
    """Returns the number of a user's requests since `since`, or of all that are kept."""
    asked = sa.select(sa.func.sum(_COLUMNS.allowed + _COLUMNS.refused)).where(
        _COLUMNS.user_id == user
    )
    if since is not None:
        asked = asked.where(_COLUMNS.hour >= since)
    return int(connection.execute(asked).scalar() or 0)


def by_endpoint(connection: sa.Connection, user: str) -> dict[str, int]:
    """Returns the number of requests by endpoint, for the hundred most used endpoints."""
    total = sa.func.sum(_COLUMNS.allowed + _COLUMNS.refused)
    asked = (
        sa.select(_COLUMNS.endpoint, total)
        .where(_COLUMNS.user_id == user)
        .group_by(_COLUMNS.endpoint)
        .order_by(total.desc(), _COLUMNS.endpoint)
        .limit(_MOST_ENDPOINTS)
    )
    return {endpoint: int(count) for endpoint, count in connection.execute(asked)}


def hours_of(
    connection: sa.Connection, user: str, since: dt.datetime, until: dt.datetime
) -> list[Period]:
    """Returns each hour that begins in [since, until), including hours without requests."""
    asked = (
        sa.select(_COLUMNS.hour, sa.func.sum(_COLUMNS.allowed), sa.func.sum(_COLUMNS.refused))
        .where(_COLUMNS.user_id == user, _COLUMNS.hour >= since, _COLUMNS.hour < until)
        .group_by(_COLUMNS.hour)
    )
    return _filled(connection.execute(asked), since, until, _HOUR)


def days_of(
    connection: sa.Connection, user: str, since: dt.datetime, until: dt.datetime
) -> list[Period]:
    """Returns each day of UTC in [since, until), including days without requests."""
    sums: dict[dt.datetime, list[int]] = {}
    for hour in hours_of(connection, user, since, until):
        day = hour.begin.replace(hour=0)
        known = sums.setdefault(day, [0, 0])
        known[0] += hour.allowed
        known[1] += hour.refused
    return [Period(day, *counts) for day, counts in sums.items()]


def _filled(
    rows: Iterable[Any], since: dt.datetime, until: dt.datetime, step: dt.timedelta
) -> list[Period]:
    known = {begin.astimezone(dt.timezone.utc): (int(good), int(bad)) for begin, good, bad in rows}
    found = []
    at = since.astimezone(dt.timezone.utc).replace(minute=0, second=0, microsecond=0)
    while at < until:
        found.append(Period(at, *known.get(at, (0, 0))))
        at += step
    return found
