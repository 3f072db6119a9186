"""Rules from a database that may change while they are in force."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from tidegate._database.connection import Database
from tidegate._database.read import change_mark, read_document
from tidegate._database.schema import NOTIFICATIONS
from tidegate._rules.problems import RulesError
from tidegate._rules.rule_set import RuleSet
from tidegate._rules.source import RuleSource

if TYPE_CHECKING:
    import os

    from tidegate._database.connection import DatabaseLike
    from tidegate._rules.document import Document

__all__ = ["SqlRules", "read_rules"]

log = logging.getLogger("tidegate")

# The most seconds until a thread that waits for notifications notices that it must end.
_SLICE = 0.25


def read_rules(database: DatabaseLike, *, timeout: float = 5.0) -> RuleSet:
    """Reads the current rules of a database.

    Raises RulesError, whose problems name tables and rows, and StorageError if the database does
    not answer within `timeout` seconds.
    """
    source = Database(database, timeout)
    try:
        with source.use(isolation="REPEATABLE READ") as connection:
            _begin(connection)
            document = read_document(connection, source.name)
    finally:
        source.close()
    return RuleSet._from(document)


class SqlRules(RuleSource):
    """The rules of a database, which may change: a RuleSource for PostgreSQL and SQLite.

        source = SqlRules("postgresql://db.internal/shop", cache="/var/lib/shop/rules.json")
        limiter = Limiter(rules=source)

    `database` is a URL or an Engine of SQLAlchemy; tidegate.rules.sql.upgrade() makes its tables.
    PostgreSQL notifies of changes. In addition, the source checks every `interval` seconds whether
    the tables have changed, which is the only way for SQLite. A thread of the source does this; it
    waits at most `timeout` seconds for each answer. The constructor raises StorageError if the
    database cannot be read, unless `cache` has the rules of an earlier run.
    """

    def __init__(
        self,
        database: DatabaseLike,
        *,
        interval: float = 1.0,
        timeout: float = 5.0,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        self._database = Database(database, timeout)
        self._listener = _Listener(self._database, timeout)
        self._mark: object = None
        self._seconds = 0.0  # that the last read took
        super().__init__(interval=interval, cache=cache)

    def _read(self) -> Document | None:
        begun = time.monotonic()
        with self._database.use(isolation="REPEATABLE READ") as connection:
            is_sqlite = connection.dialect.name == "sqlite"
            # SQLite's mark is read outside of the transaction, in which it would not change.
            mark = change_mark(connection) if is_sqlite else None
            _begin(connection)
            # It cannot be compared with a mark of an earlier connection.
            mark = (self._database.opened, mark) if is_sqlite else change_mark(connection)
            if mark is not None and mark == self._mark:
                self._seconds = time.monotonic() - begun
                return None
            # A refused version is not read again until it changes.
            self._mark = mark
            try:
                return read_document(connection, self._database.name)
            except RulesError:
                raise
            except Exception:
                self._mark = None
                raise

    def _wait(self, stop: threading.Event) -> None:
        # Looks at very many rows take at most a twentieth of the time.
        until = time.monotonic() + max(self._interval, 20 * self._seconds)
        if self._listener.begin():
            return  # for what changed before
        while not stop.is_set() and (left := until - time.monotonic()) > 0:
            if self._listener.hears(min(left, _SLICE), stop):
                return

    def _forget_parent(self) -> None:
        self._database.forget_parent()
        self._listener.forget_parent()
        self._mark = None

    def _release(self) -> None:
        self._listener.close()
        self._database.close()

    def __str__(self) -> str:
        return f"SqlRules({self._database.name!r})"

    __repr__ = __str__


def _begin(connection: Any) -> None:
    """Begins a transaction that reads all tables as they were at one instant."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN")


class _Listener:
    """Waits for notifications of PostgreSQL. With other databases it only sleeps."""

    def __init__(self, database: Database, timeout: float) -> None:
        self._engine = database.engine
        self._timeout = timeout
        self._database = Database(database.engine, timeout)
        self._raw: Any = None
        self._retry_at = 0.0
        # Other drivers have no call that waits with a timeout.
        self._is_possible = self._engine.dialect.driver == "psycopg"

    def begin(self) -> bool:
        """Begins to listen. True if this call began it."""
        if not self._is_possible or self._raw is not None or time.monotonic() < self._retry_at:
            return False
        try:
            with self._database.use(isolation="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(f"LISTEN {NOTIFICATIONS}")
                self._raw = connection.connection.driver_connection
        except Exception as error:
            self._fail(error)
            return False
        return True

    def hears(self, seconds: float, stop: threading.Event) -> bool:
        """Waits for a notification. False if none came within `seconds`."""
        if self._raw is None:
            stop.wait(seconds)
            return False
        try:
            return any(True for _ in self._raw.notifies(timeout=seconds, stop_after=1))
        except Exception as error:
            self._fail(error)
            return False

    def _fail(self, error: Exception) -> None:
        log.info("the database sends no notifications of changed rules: %s", error)
        self._raw = None
        self._retry_at = time.monotonic() + self._timeout
        self.close()

    def close(self) -> None:
        self._raw = None
        with contextlib.suppress(Exception):
            self._database.close()

    def forget_parent(self) -> None:
        self._raw = None
        self._retry_at = 0.0
        self._database.forget_parent()
