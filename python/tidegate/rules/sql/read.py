"""Makes a document of rules from the rows of the tables."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from tidegate.limiter.errors import StorageError
from tidegate.rules.document import Document, as_text
from tidegate.rules.problems import Problem, RulesError
from tidegate.rules.sql import schema
from tidegate.rules.sql.rows import UNREAD, rows_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from tidegate.rules.rule_set import RuleSet

    Where = tuple[str | int, ...]

__all__ = [
    "EVERYBODY",
    "NOBODY",
    "Marks",
    "fields_of_override",
    "marks_of",
    "read_current",
    "read_document",
    "row_count",
    "rule_id_of",
    "section_as_stored",
    "times_as_texts",
]

MOST_ROWS = 1_000_000
_SETTINGS = ("attributes", "tiers", "default_tier", "algorithm", "default")
# The columns of fields whose names differ.
_COLUMNS = {
    "id": "rule_id",
    "by": "count_by",
    "when": "conditions",
    "from": "begins_at",
    "until": "expires_at",
    "rule": "rule_id",
}
# Columns that must be equal in all rows of one rule.
_OF_A_RULE = (
    "endpoint_pattern",
    "count_by",
    "algorithm",
    "endpoints",
    "methods",
    "tiers",
    "networks",
    "conditions",
    "counts",
    "counter",
    "replaces",
    "shadow",
    "headers",
    "enabled",
    "reserve",
    "carry_over",
    "also",
)


class _RowDocument(Document):
    """A document whose problems name tables, rows and columns."""

    def __init__(self, data: dict[str, Any], source: str, places: dict[Where, str]) -> None:
        super().__init__(data, source, lambda where: None)
        self._places = places

    def leave_out(self, problems: list[Problem]) -> bool:
        """Drops overrides alone: those of one user must not keep everybody from a change."""
        rows = {
            at
            for at, place in self._places.items()
            if at[0] == "overrides"
            and any(problem.source == f"{self.source}: {place}" for problem in problems)
        }
        named = {f"{self.source}: {self._places[at]}" for at in rows}
        if not rows or any(problem.source not in named for problem in problems):
            return False
        kept = [at for at in self._places if at[0] == "overrides" and at not in rows]
        self.data = {**self.data, "overrides": [self.data["overrides"][at[1]] for at in kept]}
        places = {at: place for at, place in self._places.items() if at[0] != "overrides"}
        places.update({("overrides", i): self._places[at] for i, at in enumerate(kept)})
        self._places = places
        self.skipped = (*self.skipped, *problems)
        return True

    def problem(self, where: Where, message: str) -> Problem:
        for length in range(len(where), 0, -1):
            place = self._places.get(where[:length])
            if place is not None:
                named = where[length:] if "custom_limits" in place else _columns(where, length)
                return Problem(f"{self.source}: {place}", None, as_text(named), message)
        return Problem(self.source, None, as_text(where), message)


def _columns(where: Where, length: int) -> Where:
    """Returns the parts of `where` after the first `length`, as columns of a row."""
    rest = where[length:]
    if "limits" in where[:length]:  # the row has the limits of one tier
        return ("limits",)
    return (_COLUMNS.get(str(rest[0]), rest[0]), *rest[1:]) if rest else ()


class _Builder:
    """Builds a document, and records the row from which each part comes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.data: dict[str, Any] = {}
        self.places: dict[Where, str] = {}
        self.problems: list[Problem] = []
        self.skipped: list[Problem] = []

    def refuse(self, place: str, column: str, message: str) -> None:
        self.problems.append(Problem(f"{self.source}: {place}", None, column, message))

    def skip(self, place: str, column: str, message: str) -> None:
        self.skipped.append(Problem(f"{self.source}: {place}", None, column, message))

    def add(self, section: str, place: str, fields: dict[str, Any]) -> Where:
        items = self.data.setdefault(section, [])
        items.append({name: value for name, value in fields.items() if value is not None})
        where = (section, len(items) - 1)
        self.places[where] = place
        return where

    def settings(self, rows: Iterable[Row[Any]]) -> None:
        for row in rows:
            place = f"rate_limit_settings row {row.name!r}"
            if row.name not in _SETTINGS:
                self.refuse(place, "name", f"is not a setting; expected {', '.join(_SETTINGS)}")
                continue
            self.data[row.name] = row.value
            self.places[(row.name,)] = place

    def rules(self, rows: Iterable[Row[Any]]) -> None:
        by_rule: dict[str, list[Row[Any]]] = {}
        for row in rows:
            by_rule.setdefault(rule_id_of(row), []).append(row)
        for id, of_rule in by_rule.items():
            self.rule(id, of_rule)

    def rule(self, id: str, rows: list[Row[Any]]) -> None:
        first = rows[0]
        for row in rows[1:]:
            for column in _OF_A_RULE:
                given, expected = getattr(row, column), getattr(first, column)
                if given != expected:
                    self.refuse(
                        f"rate_limit_rules row {row.id}",
                        column,
                        f"is {given!r:.80}; expected {expected!r:.80}, as in row {first.id} of the "
                        f"same rule {id!r}",
                    )
        fields = {
            "id": id,
            "by": first.count_by,
            "endpoints": _endpoints(first.endpoint_pattern, first.endpoints),
            "algorithm": first.algorithm,
            "counts": first.counts,
            "counter": first.counter,
            "replaces": first.replaces,
            "shadow": first.shadow,
            "headers": first.headers,
            "enabled": first.enabled,
            "reserve": first.reserve,
            "carry_over": first.carry_over,
            "also": first.also,
            "description": first.description,
            **_conditions(first),
        }
        where = self.add("rules", f"rate_limit_rules row {first.id}", fields)
        self.data["rules"][-1]["limits"] = self.limits(where, rows)

    def limits(self, where: Where, rows: list[Row[Any]]) -> Any:
        by_tier: dict[str, list[str]] = {}
        for row in rows:
            text = self.limit(row)
            if text is None:
                continue
            of_tier = by_tier.setdefault(row.tier, [])
            place = f"rate_limit_rules row {row.id}"
            self.places[(*where, "limits", row.tier, len(of_tier))] = place
            self.places.setdefault((*where, "limits", row.tier), place)
            if set(by_tier) == {"*"}:
                self.places[(*where, "limits", len(of_tier))] = place
            of_tier.append(text)
        return by_tier["*"] if set(by_tier) == {"*"} else by_tier

    def limit(self, row: Row[Any]) -> str | None:
        place = f"rate_limit_rules row {row.id}"
        given = [
            column
            for column in ("limit_count", "window_seconds", "burst_capacity")
            if getattr(row, column) is not None
        ]
        if row.limits is not None:
            if given:
                self.refuse(place, "limits", f"is given with {given[0]}; expected one of them")
            return str(row.limits)
        if given[:2] != ["limit_count", "window_seconds"]:
            self.refuse(
                place,
                "limits",
                "is missing; expected a text such as '100/minute', or limit_count and "
                "window_seconds",
            )
            return None
        burst = "" if row.burst_capacity is None else f" burst {row.burst_capacity}"
        return f"{row.limit_count}/{row.window_seconds} seconds{burst}"

    def overrides(self, rows: Iterable[Row[Any]]) -> None:
        for row in rows:
            place = f"rate_limit_overrides row {row.id}"
            self.add("overrides", place, fields_of_override(row))

    def custom_limits(self, rows: Iterable[Row[Any]]) -> None:
        """Reads ``{"api": "500/minute"}`` or ``{"api": {"limits": ..., "until": ...}}``"""
        for row in rows:
            place = f"user_tiers row {row.user_id!r}"
            if not isinstance(row.custom_limits, dict):
                problem = (
                    f"is {row.custom_limits!r:.80}; expected an object of rules and limits, such "
                    'as {"api": "500/minute"}'
                )
                self.skip(place, "custom_limits", problem)
                continue
            for rule, limits in row.custom_limits.items():
                more = limits if isinstance(limits, dict) else {"limits": limits}
                fields = {**more, "rule": rule, "key": row.user_id}
                self.add("overrides", f"{place}: custom_limits", fields)

    def costs(self, rows: Iterable[Row[Any]]) -> None:
        for row in rows:
            cost = row.cost
            if row.usage is not None:
                cost = {"estimate": 1 if cost is None else cost, "usage": row.usage}
            fields = {"cost": cost, "priority": row.priority, **_conditions(row)}
            fields["endpoints"] = _endpoints(row.endpoint, row.endpoints)
            if row.method is not None:
                fields["methods"] = [row.method, *_several(row.methods)]
            self.add("costs", f"operation_costs row {row.id}", fields)

    def lists(self, rows: Iterable[Row[Any]]) -> None:
        for row in rows:
            place = f"rate_limit_lists row {row.id}"
            if row.list not in ("allow", "block"):
                self.refuse(place, "list", f"is {row.list!r}; expected 'allow' or 'block'")
                continue
            conditions = _conditions(row)
            when = conditions.pop("when")
            if not isinstance(when or {}, dict):
                self.refuse(place, "conditions", f"is {when!r:.80}; expected an object")
                continue
            fields = {
                **(when or {}),
                **conditions,
                "endpoints": row.endpoints,
                "id": row.name,
                "from": row.begins_at,
                "until": row.expires_at,
                "reason": row.reason,
            }
            self.add(row.list, place, fields)


def times_as_texts(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an entry or an override with their times as JSON has them."""
    times = {name: at for name, at in fields.items() if isinstance(at, dt.date)}
    return {**fields, **{name: at.isoformat() for name, at in times.items()}}


def fields_of_override(row: Row[Any]) -> dict[str, Any]:
    """An override as a document of rules writes it."""
    return {
        "rule": row.rule_id,
        "key": row.key,
        "limits": row.limits,
        "algorithm": row.algorithm,
        "from": row.begins_at,
        "until": row.expires_at,
        "reason": row.reason,
    }


def rule_id_of(row: Any) -> str:
    """Returns the id of a row's rule. Rows without an id but with one endpoint are one rule."""
    if row.rule_id is not None:
        return str(row.rule_id)
    return f"endpoint:{row.endpoint_pattern}" if row.endpoint_pattern else f"row-{row.id}"


def _endpoints(one: str | None, more: Any) -> Any:
    if one is None:
        return more
    return [one, *_several(more)]


def _several(more: Any) -> list[Any]:
    """What a column of texts holds: a list, one text in place of it, or nothing."""
    if more is None:
        return []
    return more if isinstance(more, list) else [more]


def _conditions(row: Row[Any]) -> dict[str, Any]:
    return {
        "methods": row.methods,
        "tiers": row.tiers,
        "networks": row.networks,
        "when": row.conditions,
    }


# The keys whose own limits read_document() reads: all keys, or none.
EVERYBODY: Any = object()
NOBODY: Any = object()


def read_document(connection: Connection, source: str, of: Any = EVERYBODY) -> Document:
    """Reads the tables of rules, in one transaction of the caller's. Raises RulesError.

    `of` is the key whose overrides and own limits are read, or EVERYBODY or NOBODY.
    """
    builder = _Builder(source)
    for table, read in (
        (schema.settings, builder.settings),
        (schema.rules, builder.rules),
        (schema.overrides, builder.overrides),
        (schema.user_tiers, builder.custom_limits),
        (schema.costs, builder.costs),
        (schema.lists, builder.lists),
    ):
        # SqlTiers looks up the tiers of single users.
        condition: Any = None
        if table is schema.user_tiers:
            condition = table.c.custom_limits.is_not(None)
        if table in (schema.user_tiers, schema.overrides) and of is not EVERYBODY:
            if of is NOBODY or (table is schema.user_tiers and not isinstance(of, str)):
                continue
            is_key = table.c.user_id == of if table is schema.user_tiers else _is_key(of)
            condition = is_key if condition is None else condition & is_key
        unreadable = builder.skip if table in _OF_OVERRIDES else builder.refuse
        found = rows_of(connection, table, condition, MOST_ROWS + 1, unreadable)
        if len(found) > MOST_ROWS:
            message = f"has more than {MOST_ROWS} rows; expected fewer"
            raise RulesError([Problem(f"{source}: {table.name}", None, "", message)])
        read(found)
    if builder.problems:
        raise RulesError(builder.problems)
    document = _RowDocument(builder.data, source, builder.places)
    document.skipped = tuple(builder.skipped)
    return document


def _is_key(key: Any) -> Any:
    """Returns the overrides of a key. A key of digits may have been written as a number."""
    column = schema.overrides.c.key
    found = column == sa.type_coerce(key, schema.json_type)
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 18:
        found |= column == sa.type_coerce(int(key), schema.json_type)
    return found


def read_current(connection: Connection, source: str, known: RuleSet | None) -> Document:
    """Like read_document() with EVERYBODY; keeps the overrides of `known` if they are the same.

    Raises StorageError while the tables are being restored, since not all of them may have rows.
    """
    _check_that_tables_are_whole(connection, source)
    marks = marks_of(connection)
    mark = None if marks is None else marks.overrides
    is_known = known is not None and mark is not None and known._overrides_mark == mark
    document = read_document(connection, source, NOBODY if is_known else EVERYBODY)
    document.overrides_mark = mark
    document.marks = marks
    document.kept = known if is_known else None
    return document


# pg_restore makes functions first, then tables, one after the other with their rows, and triggers
# last. Both are looked up in the snapshot of the transaction, as the rows are.
_TABLES_WITHOUT_TRIGGER = sa.text(
    f"""
    SELECT c.relname FROM pg_class c
    WHERE c.relname IN :tables AND c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid)
    AND NOT EXISTS (
        SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = '{schema.TRIGGER}'
    )
    AND EXISTS (
        SELECT FROM pg_proc p WHERE p.proname = '{schema.TRIGGER}'
        AND p.pronamespace = c.relnamespace
    )
    ORDER BY c.relname
    """
).bindparams(sa.bindparam("tables", [table.name for table in schema.RULE_TABLES], expanding=True))


def _check_that_tables_are_whole(connection: Connection, source: str) -> None:
    if connection.dialect.name != "postgresql":
        return
    lacking = connection.execute(_TABLES_WITHOUT_TRIGGER).scalars().all()
    if lacking:
        raise StorageError(
            f"{source}: the tables seem to be restored at this moment: {', '.join(lacking)} has no "
            f"trigger {schema.TRIGGER}, though there is the function of that name; expected one on "
            "each table of rules"
        )


def section_as_stored(section: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what read_document() will read of the rows of `rules`, `costs`, `allow` or `block`.

    `rows` are those that tidegate.rules.sql.write makes.
    """
    table = {"rules": schema.rules, "costs": schema.costs}.get(section, schema.lists)
    empty = {column.name: None for column in table.columns}
    builder = _Builder("")
    read = {schema.rules: builder.rules, schema.costs: builder.costs}.get(table, builder.lists)
    stored: list[Any] = [SimpleNamespace(**{**empty, **row}) for row in rows]
    read(stored)
    found: list[dict[str, Any]] = builder.data.get(section, [])
    return found


# The tables of overrides; the others of RULE_TABLES have the rules.
_OF_OVERRIDES = (schema.overrides, schema.user_tiers)
_OF_RULES = tuple(table for table in schema.RULE_TABLES if table not in _OF_OVERRIDES)


class Marks(NamedTuple):
    """Values that differ after each change of the tables, on any connection."""

    rules: tuple[str, ...]
    overrides: tuple[str, ...]


def marks_of(connection: Connection, known: Marks | None = None) -> Marks | None:
    """Returns the marks of what the transaction sees; None for a database that has none.

    With `known`, those of an instant since which the overrides did not change, only the rules are
    looked at.
    """
    look = {"sqlite": _contents_of, "postgresql": _writers_of}.get(connection.dialect.name)
    if look is None:
        return None
    overrides = look(connection, _OF_OVERRIDES) if known is None else known.overrides
    return Marks(look(connection, _OF_RULES), overrides)


def _writers_of(connection: Connection, tables: Iterable[sa.Table]) -> tuple[str, ...]:
    # xmin is the number of the transaction that wrote a row. Each change has a new number.
    what = "count(*) || ':' || coalesce(sum(xmin::text::bigint), 0)"
    return tuple(_of_each_table(connection, what, tables))


def _contents_of(connection: Connection, tables: Iterable[sa.Table]) -> tuple[str, ...]:
    # SQLite has no number of a change. It joins all rows in one step, without the GIL.
    found = []
    for table in tables:
        columns = [column.name for column in table.columns if column.name not in UNREAD]
        if table is schema.user_tiers:
            columns = ["user_id", "custom_limits"]
        row = " || ',' || ".join(f'quote("{name}")' for name in columns)
        (text,) = _of_each_table(connection, f"group_concat({row}, ';')", (table,))
        found.append(hashlib.sha256((text or "").encode("utf-8", "surrogatepass")).hexdigest())
    return tuple(found)


def row_count(connection: Connection, *, with_overrides: bool) -> int:
    """Returns the number of rows that read_document() would read."""
    tables = schema.RULE_TABLES if with_overrides else _OF_RULES
    return sum(_of_each_table(connection, "count(*)", tables))


def _of_each_table(connection: Connection, what: str, tables: Iterable[sa.Table]) -> Row[Any]:
    parts = []
    for table in tables:
        asked = f"SELECT {what} FROM {table.name}"
        if table is schema.user_tiers:
            asked += " WHERE custom_limits IS NOT NULL"
        parts.append(f"({asked})")
    return connection.exec_driver_sql(f"SELECT {', '.join(parts)}").one()
