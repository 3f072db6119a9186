"""Transactions of the admin API, also those that the database takes later."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import sqlalchemy as sa

from tidegate.limiter.errors import StorageError
from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.stored_rules import begin_change
from tidegate.server.records.audit import record

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from tidegate.rules.rule_set import RuleSet
    from tidegate.rules.sql.connection import DatabaseLike
    from tidegate.rules.sql.read import Marks
    from tidegate.server.records.audit import Actor

    Write = Callable[["Change"], object]

__all__ = ["AdminDatabase", "Change", "LateChanges"]

log = logging.getLogger("tidegate")

# The timeout of a change of rules, in seconds.
_LONGEST_CHANGE = 60.0
# How often it is tried to write a change that is late, in seconds.
_LATE_EVERY = 5.0
# Operators make few: beyond this, a change that is not written is refused.
_MOST_LATE = 1000


class Change:
    """A transaction that changes something and records the change in the audit log."""

    def __init__(
        self,
        connection: sa.Connection,
        actor: Actor,
        now: dt.datetime,
        known: RuleSet | None = None,
    ) -> None:
        self.connection = connection
        self.actor = actor
        self.now = now
        self.known = known
        """The rules in hand, which may be those of the tables."""
        self.adopted: tuple[RuleSet, Marks | None] | None = None
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
        self, database: DatabaseLike, *, timeout: float, now: Callable[[], dt.datetime]
    ) -> None:
        self._timeout = timeout
        self.now = now
        """Returns the present time."""
        first = Database(database, timeout)  # raises for a malformed URL
        self.engine = first.engine
        self.name = first.name
        """The URL of the database, without the password."""
        self.late = LateChanges(self)
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


_WRONG = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError)


class _Late(NamedTuple):
    at: dt.datetime
    actor: Actor
    what: str
    write: Write


class LateChanges:
    """Changes in force although the database takes no write, such as on a full disk.

    Writes changes now, or else as soon as the database takes them, in order. Thread-safe.

    Until then they are in force in this process alone, and lost with it; the log has them.
    """

    def __init__(self, database: AdminDatabase, *, interval: float = _LATE_EVERY) -> None:
        self._database = database
        self._interval = interval
        self._waiting: list[_Late] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.revoked: set[int] = set()
        """The ids of tokens that were revoked while the database took no write."""

    def make(self, actor: Actor, what: str, write: Write) -> bool:
        """Makes a change, and returns whether it is written. Raises what `write` raises.

        Raises StorageError if the database takes no write and too many changes wait.
        """
        try:
            with self._database.change(actor) as change:
                write(change)
        except StorageError as error:
            if isinstance(error.__cause__, _WRONG) or "no such table" in str(error):
                raise  # the database would never take it
            with self._lock:
                if len(self._waiting) >= _MOST_LATE:
                    raise
                self._waiting.append(_Late(self._database.now(), actor, what, write))
                self._start()
            log.error(
                "%s by %s (%s) is in force in this process, and is written once the database takes "
                "it: %s",
                what,
                actor.name,
                actor.remote,
                error,
            )
            return False
        return True

    def write_all(self) -> bool:
        """Tries to write what waits, and returns whether nothing is left."""
        while True:
            with self._lock:
                if not self._waiting:
                    return True
                late = self._waiting[0]
            try:
                with self._database.change(late.actor, at=late.at) as change:
                    late.write(change)
            except StorageError:
                return False
            except Exception as error:  # somebody else has done it, such as at another instance
                log.warning("%s by %s was not written: %s", late.what, late.actor.name, error)
            else:
                log.info("%s by %s is written now", late.what, late.actor.name)
            with self._lock:
                self._waiting.pop(0)

    def close(self) -> None:
        """Tries once more, and logs what is lost."""
        if self.write_all():
            return
        with self._lock:
            for late in self._waiting:
                log.error("%s by %s is lost: it was never written", late.what, late.actor.name)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="tidegate late changes", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._interval)
            if not self.write_all():
                continue
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
