"""Reads and changes the rules of the tables as one transaction sees them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tidegate.rules.compile import StaleOverridesError, compile_rules, validate
from tidegate.rules.document import Document
from tidegate.rules.rule_set import RuleSet
from tidegate.rules.sql import schema
from tidegate.rules.sql.read import (
    NOBODY,
    marks_of,
    read_current,
    read_document,
    rule_id_of,
    times_as_texts,
)

if TYPE_CHECKING:
    from tidegate.rules import model

__all__ = [
    "StoredRules",
    "begin_change",
    "commits_of_others",
    "compiled_model",
    "etag_of",
    "rows_of_rules",
]

# The values of columns that nobody has set.
_UNSAID = {
    "counts": "cost",
    "shadow": False,
    "headers": True,
    "enabled": True,
    "carry_over": "as-is",
    "also": False,
}


def begin_change(connection: sa.Connection, *, of_rules: bool) -> None:
    """Begins a transaction that writes. Transactions that change rules wait for each other."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif of_rules:
        names = ", ".join(table.name for table in schema.RULE_TABLES)
        connection.exec_driver_sql(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE")


def commits_of_others(connection: sa.Connection) -> object:
    """Returns a value that another connection's commit to an SQLite changes; else None."""
    if connection.dialect.name != "sqlite":
        return None
    return connection.exec_driver_sql("PRAGMA data_version").scalar()


def etag_of(value: Any) -> str:
    """Returns a text that is equal for equal values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compiled_model(document: Document) -> model.Rules:
    """Returns the fields of a document that is accepted as a whole. Raises RulesError."""
    rules = validate(document)
    compile_rules(document, rules)
    return rules


class StoredRules:
    """Reads the rules. Raises RulesError if they are not accepted.

    `of` says whose overrides and own limits are read too, which takes long if there are very many.
    """

    rule_set: RuleSet
    """The rules with all overrides; only of current() and accepted()."""

    def __init__(self, connection: sa.Connection, source: str, of: Any = NOBODY) -> None:
        document = read_document(connection, source, of)
        self._fill(document, compiled_model(document))

    @classmethod
    def current(
        cls, connection: sa.Connection, source: str, known: RuleSet | None = None
    ) -> StoredRules:
        """Reads all rules; of overrides that are still those of `known`, nothing but that."""
        document = read_current(connection, source, known)
        if known is not None and known.etag == etag_of(_plain(document.data)) and document.kept:
            return cls.accepted(document, known.model, known)
        try:
            return cls._validated(document)
        except StaleOverridesError:
            return cls._validated(read_current(connection, source, None))

    @classmethod
    def _validated(cls, document: Document) -> StoredRules:
        rules = validate(document)
        rule_set = RuleSet._of(document, rules, compile_rules(document, rules))
        return cls.accepted(document, rules, rule_set)

    @classmethod
    def accepted(cls, document: Document, rules: model.Rules, rule_set: RuleSet) -> StoredRules:
        """The rules of a document that is accepted already."""
        stored = cls.__new__(cls)
        stored._fill(document, rules)
        rule_set.etag = stored.etag
        stored.rule_set = rule_set
        return stored

    def _fill(self, document: Document, rules: model.Rules) -> None:
        self.document = document
        self.model = rules
        self.plain = _plain(document.data)
        """Returns the document without overrides, which versions keep."""
        self.etag = etag_of(self.plain)

    def are_still_in(self, connection: sa.Connection) -> bool:
        """Whether the tables have not changed since current() read them."""
        marks = self.document.marks
        return marks is not None and marks_of(connection) == marks

    def rule(self, id: str) -> dict[str, Any] | None:
        """Returns the fields of a rule as a document has them."""
        return next((rule for rule in self.plain["rules"] if rule["id"] == id), None)


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in data.items() if name != "overrides" and value != []}
    plain["rules"] = [_tidy(rule) for rule in data.get("rules", [])]
    for name in ("allow", "block"):
        if name in plain:
            plain[name] = [times_as_texts(entry) for entry in plain[name]]
    return plain


def _tidy(rule: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in rule.items()
        if not (name in _UNSAID and value == _UNSAID[name])
    }


def rows_of_rules(connection: sa.Connection) -> dict[str, list[int]]:
    """Returns the ids of the rows of each rule, by the rule's id."""
    table = schema.rules
    asked = sa.select(table.c.id, table.c.rule_id, table.c.endpoint_pattern).order_by(table.c.id)
    found: dict[str, list[int]] = {}
    for row in connection.execute(asked):
        found.setdefault(rule_id_of(row), []).append(row.id)
    return found
