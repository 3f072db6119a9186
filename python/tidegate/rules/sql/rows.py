"""Reads the rows of a table of rules, and reports those that cannot be read."""

from __future__ import annotations

import datetime as dt
import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tidegate.rules.sql.schema import UtcTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    # Called for each problem with the name of the row, the column, and a message.
    Refuse = Callable[[str, str, str], None]

__all__ = ["UNREAD", "place_of", "rows_as_shown", "rows_of"]

# Columns that rules do not use.
UNREAD = ("created_at", "updated_at")
# These stand for times outside of Python's range: later ones never come, earlier ones have passed.
_NEVER = dt.datetime(9999, 1, 1, tzinfo=dt.timezone.utc)
_LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def rows_of(
    connection: sa.Connection, table: sa.Table, condition: Any, most: int, refuse: Refuse
) -> list[Any]:
    """Returns up to `most` rows in the order of their keys. Calls `refuse` for unreadable rows."""
    return list(_rows_of(connection, table, condition, most, refuse))


def rows_as_shown(
    connection: sa.Connection,
    table: sa.Table,
    condition: Any,
    most: int,
    *,
    newest_first: bool = False,
) -> list[Any]:
    """Returns up to `most` rows in the order of their keys, for people to read and to mend.

    With `newest_first`, the order is the opposite one. Bytes in a column of texts are a text, as is
    what is not JSON. A time that cannot be read is None. The columns that rules do not use are read
    too.
    """
    return list(_rows_of(connection, table, condition, most, None, newest_first))


def _rows_of(
    connection: sa.Connection,
    table: sa.Table,
    condition: Any,
    most: int,
    refuse: Refuse | None,
    newest_first: bool = False,
) -> Iterable[Any]:
    is_sqlite = connection.dialect.name == "sqlite"
    read = _as_it_stands if is_sqlite else _within_times
    columns = [each for each in table.columns if refuse is None or each.name not in UNREAD]
    (key,) = table.primary_key.columns
    order = key.desc() if newest_first else key
    asked = sa.select(*map(read, columns)).order_by(order).limit(most)
    if condition is not None:
        asked = asked.where(condition)
    found = connection.execute(asked).all()
    return _decoded(columns, found, refuse) if is_sqlite else found


def place_of(table: sa.Table, row: Any) -> str:
    """Returns the name of a row in messages."""
    (key,) = table.primary_key.columns
    return f"{table.name} row {getattr(row, key.name)!r}"


def _within_times(column: sa.Column[Any]) -> Any:
    """A column of times, limited to the range of Python; ``infinity`` is limited too."""
    if not isinstance(column.type, UtcTime):
        return column
    return sa.case(
        (column >= _NEVER, sa.null()), (column < _LONG_AGO, sa.literal(_LONG_AGO)), else_=column
    ).label(column.name)


def _as_it_stands(column: sa.Column[Any]) -> Any:
    """A column of SQLite, unconverted: SQLite stores values of any type in any column."""
    if isinstance(column.type, (UtcTime, sa.JSON)):
        return sa.type_coerce(column, sa.types.NullType()).label(column.name)
    return column


def _decoded(columns: list[sa.Column[Any]], rows: Any, refuse: Refuse | None) -> Iterator[Any]:
    def named(kind: type) -> list[str]:
        return [column.name for column in columns if isinstance(column.type, kind)]

    of_json, of_time, of_text = named(sa.JSON), named(UtcTime), named(sa.String)
    json_of = _json if refuse is not None else _json_to_show
    for row in rows:
        values = dict(row._mapping)
        is_good = True
        for names, decode in ((of_json, json_of), (of_time, _time)):
            for name in names:
                try:
                    values[name] = decode(values[name])
                except ValueError as error:
                    if refuse is None:
                        values[name] = _as_text(values[name]) if names is of_json else None
                        continue
                    refuse(place_of(columns[0].table, row), name, str(error))
                    is_good = False
        if refuse is None:
            values.update({name: _as_text(values[name]) for name in of_text})
        if is_good:
            yield SimpleNamespace(**values)


def _as_text(value: Any) -> str | None:
    if not isinstance(value, bytes):
        return None if value is None else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)


def _json(value: Any) -> Any:
    # SQLite stores a number in a column of JSON as a number.
    if value is None or isinstance(value, (int, float)):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is {value!r:.80}, which is not JSON ({error}); expected JSON") from None


def _json_to_show(value: Any) -> Any:
    found = _json(value)
    json.dumps(found, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    return found


def _time(value: Any) -> dt.datetime | None:
    if value is None or value == "infinity":
        return None
    try:
        at = dt.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
    except (TypeError, ValueError):
        raise ValueError(
            f"is {value!r:.80}; expected a time in UTC such as 2030-01-31 12:00:00"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=dt.timezone.utc)
