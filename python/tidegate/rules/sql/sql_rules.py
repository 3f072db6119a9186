"""Rules from a database that may change while they are in force."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.rules.compile import StaleOverridesError
from tidegate.rules.rule_set import RuleSet
from tidegate.rules.source import Reading, RuleSource
from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.read import Marks, marks_of, read_current, row_count
from tidegate.rules.sql.schema import NOTIFICATIONS
from tidegate.rules.sql.upgrade import unknown_version

if TYPE_CHECKING:
    from tidegate.rules.document import Document
    from tidegate.rules.reading import Version
    from tidegate.rules.sql.connection import DatabaseLike

__all__ = ["SqlRules", "read_rules"]

log = logging.getLogger("tidegate")

# The most seconds until a thread that waits for notifications notices that it must end.
_SLICE = 0.25
# Reading this many rows here delays no decision by more than reading them in a process of its own
# does, and takes a fifth of the time.
_MOST_ROWS_HERE = 1_000


def read_rules(database: DatabaseLike, *, timeout: float = 5.0) -> RuleSet:
    """Reads the current rules of a database.

    Raises RulesError, whose problems name tables and rows, and StorageError if the database does
    not answer within `timeout` seconds.
    """
    return RuleSet._from(_document_of(database, timeout))


def _document_of(database: DatabaseLike, timeout: float) -> Document:
    source = Database(database, timeout)
    try:
        return _document_by(source)
    finally:
        source.close()


def _document_by(database: Database, known: RuleSet | None = None) -> Document:
    with database.use(isolation="REPEATABLE READ") as connection:
        _begin(connection)
        return read_current(connection, database.name, known)


class Look(NamedTuple):
    """What a look at the tables found."""

    rows: int
    """The number of rows to read."""
    known: RuleSet | None
    """The rules in force, if their overrides are those of the tables."""


class SqlRules(RuleSource):
    """The rules of a database, which may change: a RuleSource for PostgreSQL and SQLite.

        source = SqlRules("postgresql://db.internal/shop", cache="/var/lib/shop/rules.json")
        limiter = Limiter(rules=source)

    `database` is a URL or an Engine of SQLAlchemy; tidegate.rules.sql.upgrade() makes its tables.
    PostgreSQL notifies of changes. In addition, the source checks every `interval` seconds whether
    the tables have changed, which is the only way for SQLite. A thread of the source does this; it
    waits at most `timeout` seconds for each answer. The constructor raises StorageError if the
    database cannot be read, unless `cache` has the rules of an earlier run. After rules, a version
    without any in force, as during a restore of the database, is refused unless `allow_empty`.
    """

    def __init__(
        self,
        database: DatabaseLike,
        *,
        interval: float = 1.0,
        timeout: float = 5.0,
        cache: str | os.PathLike[str] | None = None,
        allow_empty: bool = False,
    ) -> None:
        self._database = Database(database, timeout)
        self._listener = _Listener(self._database, timeout)
        self._timeout = timeout
        self._url = _url_for_others(database, self._database)
        self._marks: Marks | None = None
        # Of SQLite: differs after each change of the file by others, and is found at once.
        self._file_version: object = None
        self._seconds = 0.0  # how long the last read took
        super().__init__(interval=interval, cache=cache, allow_empty=allow_empty)
        self._note_version()

    def _note_version(self) -> None:
        """Warns of tables that another version of the package has made."""
        with contextlib.suppress(Exception):  # that the database fails is said elsewhere
            with self._database.use() as connection:
                version = unknown_version(connection)
            if version is not None:
                log.warning(
                    "%s: its tables have the version %s, which this version of tidegate does not "
                    "know, so columns there may be left out; expected a newer tidegate",
                    self, version,
                )  # fmt: skip

    def adopt(self, rules: RuleSet, marks: Marks | None) -> bool:
        """Puts rules into force that this process has written, without reading them again.

        `marks` are those of the tables after the change, which must be committed. If the tables
        have changed once more, they are read. True if a new version came into force. Never raises.
        """
        # The cache keeps the whole text, which only a read returns.
        if marks is not None and self._cache is None:
            with self._reading, contextlib.suppress(Exception):
                self._check_that_rules_stay(self.current, rules)
                self._look()  # None if the thread of the source has looked since the change
                if self._marks == marks:
                    self._reached()
                    return self._accept(rules)
                self._look_again()
        return self.refresh()

    def _look(self) -> Look | None:
        """Returns what the tables have now; None if they have not changed since the last call."""
        with self._database.use(isolation="REPEATABLE READ") as connection:
            version: object = None
            begun = time.monotonic()
            if connection.dialect.name == "sqlite":
                # SQLite does not report here what another connection has read.
                data_version = connection.exec_driver_sql("PRAGMA data_version").scalar()
                version = self._database.opened, data_version
                begun = time.monotonic()  # a writer may have had a lock until now
                if version == self._file_version:
                    self._seconds = 0.0
                    return None
            _begin(connection)
            marks = marks_of(connection)
            if marks is not None and marks == self._marks:
                self._file_version = version
                self._seconds = time.monotonic() - begun
                return None
            known = self._known_with(marks)
            # Without marks the rules are read at each look, and no process is started for that.
            rows = 0 if marks is None else row_count(connection, with_overrides=known is None)
            self._seconds = time.monotonic() - begun
        # Changes from here on have other marks, so the rules are read again. A refused version is
        # not read again until it changes.
        self._marks, self._file_version = marks, version
        return Look(rows, known)

    def _known_with(self, marks: Marks | None) -> RuleSet | None:
        """Returns the rules in force if their overrides are those with these marks."""
        current: RuleSet | None = getattr(self, "current", None)  # not yet at the first look
        if marks is None or current is None or self._cache is not None:
            return None
        return current if current._overrides_mark == marks.overrides else None

    def _reading_of_now(self) -> Reading | None:
        look = self._look()
        return None if look is None else self._reading_at(look)

    def _reading_at(self, look: Look) -> Reading:
        if look.rows > _MOST_ROWS_HERE and self._url is not None:
            return Reading(partial(_document_of, self._url, self._timeout), takes_long=True)
        return Reading(partial(_document_by, self._database, look.known), takes_long=False)

    def _version(self, reading: Reading) -> Version:
        version = super()._version(reading)
        if isinstance(version.refusal, StaleOverridesError):
            with self._database.use() as connection:
                rows = row_count(connection, with_overrides=True)
            version = super()._version(self._reading_at(Look(rows, None)))
        return version

    def _look_again(self) -> None:
        self._marks = self._file_version = None

    def _wait(self, stop: threading.Event) -> None:
        # Reading very many rows takes at most a twentieth of the time.
        until = time.monotonic() + max(self._interval, 20 * self._seconds)
        if self._listener.begin():
            return  # this wakes up for changes made before
        while not stop.is_set() and (left := until - time.monotonic()) > 0:
            if self._listener.hears(min(left, _SLICE), stop):
                return

    def _forget_parent(self) -> None:
        self._database.forget_parent()
        self._listener.forget_parent()
        self._look_again()

    def _release(self) -> None:
        self._listener.close()
        self._database.close()

    def __str__(self) -> str:
        return f"SqlRules({self._database.name!r})"

    __repr__ = __str__


def _url_for_others(given: DatabaseLike, database: Database) -> str | None:
    """Returns the URL by which another process finds the database, or None if it must not."""
    url = database.engine.url
    is_sqlite = url.get_backend_name() == "sqlite"
    if given is database.engine or (is_sqlite and not os.path.isfile(url.database or "")):
        return None
    return url.render_as_string(hide_password=False)


def _begin(connection: Any) -> None:
    """Begins a transaction in which all reads see the same instant."""
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
        """Begins to listen. Returns True if this call began."""
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
        """Waits for a notification. Returns False if none came within `seconds`."""
        if self._raw is None:
            stop.wait(seconds)
            return False
        try:
            return any(True for _ in self._raw.notifies(timeout=seconds, stop_after=1))
        except Exception as error:
            self._fail(error)
            return False

    def _fail(self, error: Exception) -> None:
        log.info(
            "the database %s sends no notifications of changed rules: %s",
            self._database.name,
            error,
        )
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
