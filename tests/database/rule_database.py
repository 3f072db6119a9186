"""A database with tables of rules, for tests to write to."""

from __future__ import annotations

import json
from typing import Any


class RuleDatabase:
    """`connection` is one of psycopg or sqlite3 that commits each statement."""

    def __init__(self, url: str, connection: Any) -> None:
        self.url = url
        self.connection = connection

    def run(self, statement: str) -> None:
        self.connection.execute(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return list(self.connection.execute(statement).fetchall())

    def add(self, table: str, **columns: Any) -> None:
        """Adds a row. Lists and mappings are stored as JSON."""
        mark = "?" if self.url.startswith("sqlite") else "%s"
        values = [json.dumps(v) if isinstance(v, (list, dict)) else v for v in columns.values()]
        self.connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) "
            f"VALUES ({', '.join([mark] * len(columns))})",
            values,
        )

    def add_rule(self, id: str, limits: str, **columns: Any) -> None:
        self.add("rate_limit_rules", rule_id=id, limits=limits, **columns)

    def add_override(self, limits: str, **columns: Any) -> None:
        """Adds limits of user 42 by the rule `api`."""
        self.add("rate_limit_overrides", rule_id="api", key='"42"', limits=limits, **columns)
