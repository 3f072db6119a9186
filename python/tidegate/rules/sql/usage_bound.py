"""Keeps the usage history within its bound, whatever names strangers invent."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tidegate.rules.sql.bounded_table import HOUR, BoundedTable, Size
from tidegate.rules.sql.service_tables import usage_hours

if TYPE_CHECKING:
    from collections.abc import Iterable

    Key = tuple[str, str, int]
    Entries = dict[Key, list[int]]

__all__ = ["MOST_COST", "OTHERS", "UsageBound"]

log = logging.getLogger("tidegate")

OTHERS = ("", "(other)")
"""The user and the endpoint of the row that stands for all that have none of their own."""

# Of the room that is left, the shares of one hour: for users whom the table does not have, and for
# all.
_OF_STRANGERS, _OF_ALL = 1 / 24, 1 / 4
# The endpoints of one user in one write, beyond which they may be invented.
_MOST_ENDPOINTS = 100
# The column's largest number, which stands for all larger costs. A row that does not fit would keep
# all others from being written.
MOST_COST = 2**63 - 1
# Hours before these are made smaller, in which a user may come again.
_RECENT = 24


class UsageBound:
    """Admits entries to the table, and makes it smaller. Not thread-safe."""

    def __init__(self, most_rows: int | None, most_bytes: int | None) -> None:
        columns = usage_hours.c
        # As measured in files of SQLite; tables of PostgreSQL are smaller.
        self._table = BoundedTable(
            columns.hour,
            [columns.user_id, columns.endpoint],
            row_bytes=160,
            copies=3,
            most_rows=most_rows,
            most_bytes=most_bytes,
        )
        self._hour = -1
        self._room = Size(0, 0)
        self._size = Size(0, 0)  # of the hour, at least
        self._joined: set[int] = set()
        self.folded = 0

    def admit(self, connection: sa.Connection, entries: Entries) -> Entries:
        """Returns the entries for which there is room."""
        admitted: Entries = {}
        for hour in sorted({key[2] for key in entries}):
            of_hour = {key: entry for key, entry in entries.items() if key[2] == hour}
            admitted.update(self._admit_hour(connection, hour, of_hour))
        return admitted

    def _admit_hour(self, connection: sa.Connection, hour: int, entries: Entries) -> Entries:
        if hour != self._hour:
            self._hour = hour
            self._room = self._table.room(connection, hour)
            self._size = self._table.measure(connection, hour)
        size = self._table.size_of(len(entries), (text for key in entries for text in key[:2]))
        of_strangers = self._room.share(_OF_STRANGERS)
        if not self._size.plus(size).fits(of_strangers):
            self._size = self._table.measure(connection, hour)  # some rows were there before
        if self._size.plus(size).fits(of_strangers):
            self._size = self._size.plus(size)
            return entries
        known = _known(connection, {key[0] for key in entries})
        kept: Entries = {}
        endpoints: dict[str, int] = {}
        # Those with the most requests first, of equal ones any.
        for key in sorted(entries, key=lambda key: -entries[key][0] - entries[key][1]):
            user = key[0]
            endpoints[user] = endpoints.get(user, 0) + 1
            is_known = user in known and endpoints[user] <= _MOST_ENDPOINTS
            room = self._room.share(_OF_ALL) if is_known else of_strangers
            larger = self._size.plus(self._table.size_of(1, key[:2]))
            if larger.fits(room):
                self._size = larger
                kept[key] = entries[key]
            else:
                self.folded += entries[key][0] + entries[key][1]
        return kept

    def make_room(self, connection: sa.Connection, now_hour: int, adding: Any) -> None:
        """Makes the table smaller if it is almost full. `adding` is the statement that adds rows.

        Each hour is a transaction of its own.
        """
        hours = self._table.too_much(connection, now_hour)
        connection.rollback()
        if not hours:
            return
        for hour in hours:
            if hour not in self._joined and hour < now_hour - _RECENT:
                self._join_strangers(connection, hour, adding)
                self._joined.add(hour)
                if self._table.is_small_enough(connection, hour):
                    return
        log.warning(
            "the usage history is at its bound: its %d oldest hours were deleted; expected a "
            "larger bound (usage.most_rows, usage.most_bytes) to keep them",
            self._table.delete_hours(connection, hours),
        )

    def _join_strangers(self, connection: sa.Connection, hour: int, adding: Any) -> None:
        """Joins the rows of users who have no row of another hour."""
        here, other = usage_hours.c, usage_hours.alias("other").c
        comes_again = sa.exists().where(other.user_id == here.user_id, other.hour != here.hour)
        alone = sa.and_(self._table.within(hour), here.user_id != "", ~comes_again)
        sum_of = sa.func.sum
        sums = sa.select(
            sum_of(here.allowed), sum_of(here.refused), sum_of(sa.cast(here.cost, sa.Float))
        )
        allowed, refused, cost = connection.execute(sums.where(alone)).one()
        if allowed is None:
            return
        connection.execute(sa.delete(usage_hours).where(alone))
        row = {
            "user_id": OTHERS[0],
            "endpoint": OTHERS[1],
            "hour": dt.datetime.fromtimestamp(hour * HOUR, dt.timezone.utc),
            "allowed": int(allowed),
            "refused": int(refused),
            "cost": min(int(cost), MOST_COST),
        }
        connection.execute(adding, [row])
        connection.commit()


def _known(connection: sa.Connection, users: Iterable[str]) -> set[str]:
    """Returns the users whom the table has."""
    if connection.dialect.name == "sqlite":
        asked = "SELECT value FROM json_each(?) WHERE EXISTS "
        asked += "(SELECT 1 FROM usage_hours WHERE user_id = value)"
        rows = connection.exec_driver_sql(asked, (json.dumps([*users]),))
    else:
        asked = "SELECT name FROM unnest(%s::text[]) AS name WHERE EXISTS "
        asked += "(SELECT 1 FROM usage_hours WHERE user_id = name)"
        rows = connection.exec_driver_sql(asked, ([*users],))
    return {row[0] for row in rows}
