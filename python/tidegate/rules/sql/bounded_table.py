"""Bounds what a table of decisions holds: how many rows and bytes, and how much an hour adds."""

from __future__ import annotations

import datetime as dt
import logging
import sys
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import sqlalchemy as sa

from tidegate.limiter.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tidegate.rules.sql.connection import Database

__all__ = ["HOUR", "BoundedTable", "HourlyPrune", "Size", "check_bounds"]

log = logging.getLogger("tidegate")

HOUR = 3600
# Tables are made smaller once they hold the first share of their bound, down to the second one.
_FULL, _KEPT = 0.9, 0.8
_LEAST_ROWS, _LEAST_BYTES = 1000, 2**20
_MOST_DAYS = 100_000  # before which there is a date


def check_bounds(keep: float | None, most_rows: int | None, most_bytes: int | None) -> None:
    """Raises ConfigurationError for bounds that are too small, or no numbers."""
    is_number = isinstance(keep, (int, float)) and not isinstance(keep, bool)
    if keep is not None and not (is_number and 0 < keep <= _MOST_DAYS):
        raise ConfigurationError(
            f"keep is {keep!r}; expected days above 0, at most {_MOST_DAYS}, or None"
        )
    for name, given, least in (
        ("most_rows", most_rows, _LEAST_ROWS),
        ("most_bytes", most_bytes, _LEAST_BYTES),
    ):
        if given is None:
            continue
        if isinstance(given, bool) or not isinstance(given, int) or given < least:
            raise ConfigurationError(f"{name} is {given!r}; expected {least} or more, or None")


class HourlyPrune:
    """Each hour deletes the rows that are older than `keep` days by the column `at`.

    `what` names the rows in the log. Not thread-safe.
    """

    def __init__(self, what: str, at: sa.Column[Any], keep: float | None) -> None:
        self._what = what
        self._at = at
        self._keep = None if keep is None else dt.timedelta(days=keep)
        self._due_at = 0.0

    def prune_if_due(
        self, database: Database, now: float, make_room: Callable[[sa.Connection, int], object]
    ) -> None:
        """Prunes the table unless it was done within the last hour. Logs a failure.

        Then calls `make_room` with a connection and the number of the hour since the epoch.
        """
        if now < self._due_at:
            return
        self._due_at = now + HOUR
        try:
            with database.use() as connection:
                if self._keep is not None:
                    oldest = dt.datetime.fromtimestamp(now, dt.timezone.utc) - self._keep
                    connection.execute(sa.delete(self._at.table).where(self._at < oldest))
                    connection.commit()
                make_room(connection, int(now // HOUR))
        except StorageError as error:  # what called this has written all
            log.warning("old %s were not deleted: %s", self._what, error)


class Size(NamedTuple):
    """How much rows take."""

    rows: int
    bytes: int

    def plus(self, other: Size) -> Size:
        return Size(self.rows + other.rows, self.bytes + other.bytes)

    def share(self, part: float) -> Size:
        return Size(int(self.rows * part), int(self.bytes * part))

    def fits(self, room: Size) -> bool:
        return self.rows <= room.rows and self.bytes <= room.bytes


class BoundedTable:
    """Measures a table by hours, and says how much room its bound leaves. Not thread-safe.

    A row takes `row_bytes`, and `copies` times the bytes of its `texts`, since indexes repeat some.
    """

    def __init__(
        self,
        at: sa.Column[Any],
        texts: Sequence[sa.Column[Any]],
        *,
        row_bytes: int,
        copies: int,
        most_rows: int | None,
        most_bytes: int | None,
    ) -> None:
        self._at = at
        self._texts = texts
        self._row_bytes = row_bytes
        self._copies = copies
        self.most = Size(
            sys.maxsize if most_rows is None else most_rows,
            sys.maxsize if most_bytes is None else most_bytes,
        )
        # Hours before the last one do not grow.
        self._sizes: dict[int, Size] = {}

    def size_of(self, rows: int, texts: Iterable[str]) -> Size:
        """Returns the size of rows with these texts in all."""
        length = sum(len(each.encode()) for each in texts)
        return Size(rows, rows * self._row_bytes + length * self._copies)

    def within(self, hour: int) -> sa.ColumnElement[bool]:
        """The condition of rows of an hour, given by its number since the epoch."""
        begins = dt.datetime.fromtimestamp(hour * HOUR, dt.timezone.utc)
        return sa.and_(self._at >= begins, self._at < begins + dt.timedelta(hours=1))

    def measure(self, connection: sa.Connection, hour: int) -> Size:
        """Returns the size of the rows of an hour."""
        length: Any = sa.literal(0)
        for each in self._texts:
            text: Any = sa.cast(each, sa.Text)
            if connection.dialect.name == "sqlite":
                bytes_of = sa.func.length(sa.cast(text, sa.LargeBinary))
            else:
                bytes_of = sa.func.octet_length(text)
            length = length + sa.func.coalesce(bytes_of, 0)
        asked = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(length), 0))
        rows, length = connection.execute(asked.where(self.within(hour))).one()
        return Size(int(rows), int(rows) * self._row_bytes + int(length) * self._copies)

    def room(self, connection: sa.Connection, now_hour: int) -> Size:
        """Returns what the bound leaves for the hour `now_hour`, in all."""
        used = Size(0, 0)
        for _, size in self._of_past(connection, now_hour):
            used = used.plus(size)
        return Size(max(0, self.most.rows - used.rows), max(0, self.most.bytes - used.bytes))

    def _of_past(self, connection: sa.Connection, now_hour: int) -> Iterator[tuple[int, Size]]:
        """Yields the hours before `now_hour`, the earliest first. Each statement is short."""
        first = connection.execute(sa.select(sa.func.min(self._at))).scalar()
        begin = now_hour if first is None else int(first.timestamp() // HOUR)
        self._sizes = {hour: size for hour, size in self._sizes.items() if hour >= begin}
        for hour in range(begin, now_hour):
            # Late rows may still come to the last one.
            if hour not in self._sizes or hour == now_hour - 1:
                self._sizes[hour] = self.measure(connection, hour)
            yield hour, self._sizes[hour]

    def too_much(self, connection: sa.Connection, now_hour: int) -> list[int]:
        """Returns the hours before `now_hour`, the earliest first, if the table is almost full."""
        self._sizes.clear()  # another process may have made it smaller
        hours = [hour for hour, size in self._of_past(connection, now_hour) if size.rows]
        return [] if self._holds(_FULL) else hours

    def is_small_enough(self, connection: sa.Connection, hour: int) -> bool:
        """Whether enough was deleted, now also rows of `hour`, after too_much()."""
        self._sizes[hour] = self.measure(connection, hour)
        connection.rollback()
        return self._holds(_KEPT)

    def delete_hours(self, connection: sa.Connection, hours: Sequence[int]) -> int:
        """Deletes the first of `hours` until enough is deleted, and returns their number.

        Each is a transaction of its own, so that nobody has to wait long for the table.
        """
        for number, hour in enumerate(hours, 1):
            connection.execute(sa.delete(self._at.table).where(self.within(hour)))
            connection.commit()
            if self.is_small_enough(connection, hour):
                return number
        return len(hours)

    def _holds(self, share: float) -> bool:
        used = Size(0, 0)
        for size in self._sizes.values():
            used = used.plus(size)
        return used.fits(self.most.share(share))
