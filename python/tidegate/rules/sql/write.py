"""Writes a document of rules to the rows of the tables."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tidegate.rules.compile import as_instant
from tidegate.rules.problems import Problem, RulesError
from tidegate.rules.sql import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tidegate.rules import model

    Row = dict[str, Any]

__all__ = [
    "delete_rule",
    "override_row",
    "rows_as_written",
    "write_costs",
    "write_document",
    "write_lists",
    "write_rule",
]

_MOST_OF_INTEGER = 2**31 - 1


def write_rule(connection: sa.Connection, rule: model.Rule, replaced: list[int]) -> None:
    """Replaces the rows with the ids `replaced` by one rule. Raises RulesError.

    The rule keeps its place among the others, which is that of its first row.
    """
    rows = list(_rule_rows(rule))
    _check_sizes(schema.rules, rule.id, rows)
    created = sa.select(sa.func.min(schema.rules.c.created_at)).where(
        schema.rules.c.id.in_(replaced)
    )
    since = connection.execute(created).scalar() if replaced else None
    delete_rule(connection, replaced)
    now = dt.datetime.now(dt.timezone.utc)
    times = {"created_at": since or now, "updated_at": now}
    kept = sorted(replaced)
    for i, row in enumerate(rows):
        place = {"id": kept[i]} if i < len(kept) else {}
        connection.execute(sa.insert(schema.rules), {**row, **times, **place})


def delete_rule(connection: sa.Connection, rows: list[int]) -> None:
    """Deletes the rows with these ids."""
    if rows:
        connection.execute(sa.delete(schema.rules).where(schema.rules.c.id.in_(rows)))


def write_document(connection: sa.Connection, rules: model.Rules, *, with_overrides: bool) -> None:
    """Replaces the rules, settings, costs and lists of the tables, and the overrides if asked.

    The tiers and limits of single users (user_tiers) stay as they are. Raises RulesError.
    """
    tables: list[tuple[sa.Table, list[Row]]] = [
        (schema.rules, [row for rule in rules.rules for row in _rule_rows(rule)]),
        (schema.settings, list(_settings(rules))),
        (schema.costs, [_cost_row(cost) for cost in rules.costs]),
        (schema.lists, list(_list_rows(rules))),
    ]
    if with_overrides:
        tables.append((schema.overrides, [override_row(each) for each in rules.overrides]))
    for table, rows in tables:
        _replace(connection, table, rows)


def rows_as_written(field: str, items: list[Any]) -> list[Row]:
    """Returns the rows that `items`, all of one of the fields of a document, are written to."""
    if field == "rules":
        return [row for rule in items for row in _rule_rows(rule)]
    if field == "costs":
        return [_cost_row(cost) for cost in items]
    return [_list_row(field, entry) for entry in items]


def write_lists(connection: sa.Connection, rules: model.Rules) -> None:
    """Replaces the lists of requests to allow and to block. Raises RulesError."""
    _replace(connection, schema.lists, list(_list_rows(rules)))


def write_costs(connection: sa.Connection, rules: model.Rules) -> None:
    """Replaces the costs of operations. Raises RulesError."""
    _replace(connection, schema.costs, [_cost_row(cost) for cost in rules.costs])


def _replace(connection: sa.Connection, table: sa.Table, rows: list[Row]) -> None:
    _check_sizes(table, "", rows)
    connection.execute(sa.delete(table))
    for row in rows:
        connection.execute(sa.insert(table), row)


def _rule_rows(rule: model.Rule) -> Iterator[Row]:
    fields = {
        "rule_id": rule.id,
        "count_by": "+".join(rule.by) or "global",
        "algorithm": rule.algorithm,
        "counts": rule.counts,
        "counter": rule.counter,
        "replaces": rule.replaces or None,
        "shadow": rule.shadow,
        "headers": rule.headers,
        "enabled": rule.enabled,
        "carry_over": rule.carry_over,
        "also": rule.also,
        "description": rule.description,
        "reserve": _reserve(rule.reserve),
        **_conditions(rule, rule.when),
        **_endpoints(rule.endpoints),
    }
    by_tier = rule.limits if isinstance(rule.limits, dict) else {"*": rule.limits}
    for tier, given in by_tier.items():
        for text in [given] if isinstance(given, str) else given:
            yield {**fields, "tier": tier, "limits": text}


def _endpoints(endpoints: list[str]) -> Row:
    if len(endpoints) == 1 and len(endpoints[0]) <= 255:
        return {"endpoint_pattern": endpoints[0], "endpoints": None}
    return {"endpoint_pattern": None, "endpoints": endpoints or None}


def _reserve(reserve: model.Reserve) -> Row | None:
    if not (reserve.normal or reserve.background):
        return None
    return {"normal": f"{reserve.normal}%", "background": f"{reserve.background}%"}


def _conditions(fields: Any, when: dict[str, str]) -> Row:
    return {
        "methods": fields.methods or None,
        "tiers": fields.tiers or None,
        "networks": fields.networks or None,
        "conditions": when or None,
    }


def _settings(rules: model.Rules) -> Iterator[Row]:
    if rules.attributes:
        yield {"name": "attributes", "value": rules.attributes}
    if rules.tiers:
        yield {"name": "tiers", "value": rules.tiers}
    if rules.default_tier is not None:
        yield {"name": "default_tier", "value": rules.default_tier}
    if "algorithm" in rules.model_fields_set:
        yield {"name": "algorithm", "value": rules.algorithm}
    if rules.default is not None:
        value = rules.default.model_dump(mode="json", exclude_defaults=True)
        if "reserve" in value:
            value["reserve"] = _reserve(rules.default.reserve)
        yield {"name": "default", "value": value}


def _cost_row(cost: model.Cost) -> Row:
    given = cost.model_fields_set
    return {
        "cost": cost.units if "cost" in given else None,
        "usage": None if isinstance(cost.cost, int) else cost.cost.model_dump()["usage"],
        "priority": cost.priority if "priority" in given else None,
        "endpoints": cost.endpoints or None,
        **_conditions(cost, cost.when),
    }


def _list_rows(rules: model.Rules) -> Iterator[Row]:
    for name, entries in (("allow", rules.allow), ("block", rules.block)):
        for entry in entries:
            yield _list_row(name, entry)


def _list_row(name: str, entry: model.ListEntry) -> Row:
    return {
        "list": name,
        "name": entry.id,
        "endpoints": entry.endpoints or None,
        "reason": entry.reason or None,
        "begins_at": _instant(entry.begin),
        "expires_at": _instant(entry.until),
        **_conditions(entry, entry.__pydantic_extra__ or {}),
    }


def _instant(given: dt.datetime | dt.date | None) -> dt.datetime | None:
    return None if given is None else as_instant(given)


def override_row(override: model.Override) -> Row:
    """Returns the columns of an override."""
    limits = override.limits
    return {
        "rule_id": override.rule,
        "key": override.key,
        "limits": limits if isinstance(limits, str) else "; ".join(limits),
        "algorithm": override.algorithm,
        "begins_at": _instant(override.begin),
        "expires_at": _instant(override.until),
        "reason": override.reason or None,
    }


def _check_sizes(table: sa.Table, of: str, rows: Iterable[Row]) -> None:
    """Raises RulesError for values that a column of PostgreSQL cannot hold; those of SQLite can."""
    problems = []
    for row in rows:
        place = f"{table.name} {row.get('rule_id') or of}".strip()
        for name, value in row.items():
            kind = table.c[name].type
            message = ""
            if isinstance(value, str) and isinstance(kind, sa.String):
                most = kind.length
                if most is not None and len(value) > most:
                    message = f"has {len(value)} characters; expected at most {most}"
            elif type(value) is int and type(kind) is sa.Integer and value > _MOST_OF_INTEGER:
                message = f"is {value}; expected at most {_MOST_OF_INTEGER}"
            if message:
                problems.append(Problem(place, None, name, message))
    if problems:
        raise RulesError(problems)
