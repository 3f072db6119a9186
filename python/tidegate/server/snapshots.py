"""Copies tokens and tiers from the database to the front whenever they change."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

import sqlalchemy as sa

from tidegate.rules.sql.connection import Database
from tidegate.rules.sql.schema import user_tiers
from tidegate.rules.sql.service_tables import api_tokens
from tidegate.server.native import _native

if TYPE_CHECKING:
    from collections.abc import Collection

    from tidegate.rules.sql.connection import DatabaseLike

__all__ = ["Snapshots"]

log = logging.getLogger("tidegate")

_TOKENS_EVERY = 1.0
# Finding out whether one of very many users has changed takes long.
_TIERS_EVERY = 5.0
_ROWS = 10_000


class Snapshots:
    """Reads tokens each second and tiers every few seconds, on a thread; and both when asked to.

    `checks` gets the tokens that may call it, and the tier of each user. While the database does
    not answer, the last data stays in force.
    """

    def __init__(
        self,
        database: DatabaseLike,
        checks: Any,
        *,
        timeout: float = 30.0,
    ) -> None:
        self._database = Database(database, timeout)
        self._checks = checks
        self._tiers_at = 0.0
        self._tiers_mark: Any = None
        self._tokens: list[tuple[bytes, str]] | None = None
        self.revoked: Callable[[], Collection[int]] = frozenset
        """Returns the ids of tokens whose end the database has not taken yet."""
        self._again = threading.Event()
        self._is_over = False
        self._is_failing = False
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tidegate snapshots", daemon=True)
        self.failures = 0
        """The number of failed reads of the database."""

    def start(self) -> None:
        """Reads both, then starts the thread. Raises StorageError if they cannot be read."""
        self._read(True)
        self._thread.start()

    def read_tokens(self) -> None:
        """Reads the tokens now, so that a revoked token is refused from now on.

        Raises StorageError if the database does not answer.
        """
        with self._reading, self._database.use() as connection:
            self._read_tokens(connection)

    def refresh(self) -> None:
        """Makes the thread read both again soon. Returns at once."""
        self._again.set()

    def close(self) -> None:
        """Ends the thread."""
        self._is_over = True
        self._again.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        if not self._thread.is_alive():  # a thread that is still in a read ends with the process
            self._database.close()

    def _run(self) -> None:
        while True:
            is_asked = self._again.wait(_TOKENS_EVERY)
            self._again.clear()
            if self._is_over:
                return
            try:
                self._read(is_asked)
                self._is_failing = False
            except Exception as error:
                self.failures += 1
                if not self._is_failing:
                    log.warning("tokens and tiers cannot be read, the last ones hold: %s", error)
                self._is_failing = True

    def _read(self, is_asked: bool) -> None:
        with self._reading, self._database.use() as connection:
            self._read_tokens(connection)
            if is_asked or time.monotonic() >= self._tiers_at:
                self._read_tiers(connection, is_asked)
                self._tiers_at = time.monotonic() + _TIERS_EVERY

    def _read_tokens(self, connection: sa.Connection) -> None:
        now = dt.datetime.now(dt.timezone.utc)
        revoked = self.revoked()  # first: one that is written leaves it meanwhile
        columns = api_tokens.c
        asked = (
            sa.select(columns.id, columns.hash, columns.role)
            .where(columns.revoked_at.is_(None))
            .where(sa.or_(columns.expires_at.is_(None), columns.expires_at > now))
            .order_by(columns.id)
        )
        rows = connection.execute(asked)
        tokens = [(bytes.fromhex(row.hash), row.role) for row in rows if row.id not in revoked]
        if tokens != self._tokens:
            self._checks.set_tokens(tokens)
            self._tokens = tokens

    def _read_tiers(self, connection: sa.Connection, is_asked: bool) -> None:
        columns = user_tiers.c
        asked = sa.select(sa.func.count(), sa.func.max(columns.updated_at))
        mark = tuple(connection.execute(asked).one())
        if mark == self._tiers_mark and not is_asked:
            return
        table = _native.TiersBuilder()
        rows = connection.execute(
            sa.select(columns.user_id, columns.tier), execution_options={"yield_per": _ROWS}
        )
        for part in rows.partitions():
            table.add([(row.user_id, row.tier) for row in part])
        self._checks.set_tiers(table.finish())
        self._tiers_mark = mark
