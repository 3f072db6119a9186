"""Transactions of the admin API."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

import sqlalchemy as sa

from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.stored_rules import begin_change
from tidegate.server.admin.late_changes import LateChanges
from tidegate.server.records.audit import record

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from tidegate.rules.rule_set import RuleSet
    from tidegate.rules.sql.connection import DatabaseLike
    from tidegate.rules.sql.read import Marks
    from tidegate.server.late_file import LateFile
    from tidegate.server.records.audit import Actor

__all__ = ["AdminDatabase", "Change"]

# The timeout of a change of rules, in seconds.
_LONGEST_CHANGE = 60.0


@dataclass(eq=False)
class Change:
    """A transaction that changes something and records the change in the audit log."""

    connection: sa.Connection
    actor: Actor
    now: dt.datetime
    known: RuleSet | None = None
    """The rules in hand, which may be those of the tables."""
    adopted: tuple[RuleSet, Marks | None] | None = field(default=None, init=False)
    """The rules that come into force with the commit, and the marks of their tables."""

    def adopts(self, rules: RuleSet, marks: Marks | None) -> None:
        """Says which rules come into force with the commit."""
        self.adopted = rules, marks

    def record(self, action: str, target: str, *, before: Any = None, after: Any = None) -> None:
        """Adds an entry to the audit log."""
        record(
            self.connection,
            self.actor,
            action,
            target,
            before=before,
            after=after,
            now=self.now,
        )


class AdminDatabase:
    """The database of the admin API.

    Each transaction has a connection of its own, so threads need not wait for each other.
    """

    def __init__(
        self,
        database: DatabaseLike,
        *,
        timeout: float,
        now: Callable[[], dt.datetime],
        late: LateFile | None = None,
    ) -> None:
        self._timeout = timeout
        self.now = now
        """Returns the present time."""
        first = Database(database, timeout)  # raises for a malformed URL
        self.engine = first.engine
        self.name = first.name
        """The URL of the database, without the password."""
        self.late = LateChanges(self.change, now, late)
        """Changes in force that are not written yet."""

    @contextlib.contextmanager
    def connect(self, timeout: float | None = None) -> Iterator[sa.Connection]:
        """Opens a connection; what the block does not commit is undone. Raises StorageError."""
        source = Database(self.engine, timeout or self._timeout)
        try:
            with source.use() as connection:
                yield connection
        finally:
            source.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Opens a connection on which all reads see the same instant."""
        source = Database(self.engine, self._timeout)
        try:
            with source.use(isolation="REPEATABLE READ") as connection:
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN")
                yield connection
        finally:
            source.close()

    @contextlib.contextmanager
    def change(
        self,
        actor: Actor,
        *,
        of_rules: bool = False,
        known: RuleSet | None = None,
        look: Callable[[sa.Connection], object] | None = None,
        at: dt.datetime | None = None,
    ) -> Iterator[Change]:
        """Opens a change, undone if the block raises. Changes of rules are made one at a time.

        `look` is called before the change begins, and reads on the same connection. `at` is the
        time of the change; now if it is None.
        """
        # The compiler has the same timeout, and takes long for very many overrides.
        timeout = max(self._timeout, _LONGEST_CHANGE) if of_rules else self._timeout
        with self.connect(timeout) as connection:
            if look is not None:
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN")
                look(connection)
                connection.rollback()
            begin_change(connection, of_rules=of_rules)
            yield Change(connection, actor, at or self.now(), known)
            connection.commit()
