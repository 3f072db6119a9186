"""Changes in force although the database takes no write, such as on a full disk."""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import sqlalchemy as sa

from tidegate.limiter.errors import StorageError
from tidegate.server.admin.problems import ProblemError
from tidegate.server.late_file import LateFile
from tidegate.server.records.api_tokens import revoke_token
from tidegate.server.records.audit import Actor

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    BeginChange = Callable[..., AbstractContextManager[Any]]

__all__ = ["LateChanges"]

log = logging.getLogger("tidegate")

# How often it is tried to write a change that is late, in seconds.
_EVERY = 5.0
# Operators make few: beyond this, a change that is not written is refused.
_MOST = 1000
_WRONG = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError)


def _end_token(change: Any, id: int) -> None:
    row = revoke_token(change.connection, id, change.now)
    if row is None:
        raise ProblemError(404, f"there is no token {id} that is not revoked yet")
    change.record("token.revoke", f"token:{id}", before={"name": row.name, "role": row.role})


def _record_unlock(change: Any, caller: str, penalty: Any) -> None:
    change.record("anomaly.unlock", caller, before=penalty)


_WRITES: dict[str, tuple[str, Callable[..., None]]] = {
    "token": ("the end of token {!a:.300}", _end_token),
    "unlock": ("the unlock of {!a:.300}", _record_unlock),
}


class _Late(NamedTuple):
    at: dt.datetime
    actor: Actor
    kind: str
    given: list[Any]

    def __str__(self) -> str:
        return _WRITES[self.kind][0].format(self.given[0])

    def write(self, change: Any) -> None:
        _WRITES[self.kind][1](change, *self.given)

    def line(self) -> bytes:
        return json.dumps([self.at.isoformat(), self.actor, self.kind, self.given]).encode()


def _late_of(line: bytes) -> _Late:
    at, actor, kind, given = json.loads(line)
    if kind not in _WRITES:
        raise ValueError(f"{kind!r} is of another version")
    return _Late(dt.datetime.fromisoformat(at), Actor(*actor), kind, given)


class LateChanges:
    """Writes changes now, or else as soon as the database takes them, in order. Thread-safe.

    Until then they are in force in this process, and in one that takes over. `begin` opens a change
    of an actor, and `file` keeps what is late for the process that comes after.
    """

    def __init__(
        self,
        begin: BeginChange,
        now: Callable[[], dt.datetime],
        file: LateFile | None = None,
        *,
        interval: float = _EVERY,
    ) -> None:
        self._begin = begin
        self._now = now
        self._file = file or LateFile()
        self._interval = interval
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._is_handed_on = False
        self._seen: tuple[list[bytes], frozenset[int]] = [], frozenset()
        waiting = self._file.read()
        if waiting:
            log.warning(
                "%d changes of operators are in force that the database has not taken yet",
                len(waiting),
            )
            self._start()

    @property
    def revoked(self) -> frozenset[int]:
        """The ids of tokens whose end the database has not taken yet."""
        lines = self._file.read()
        seen, found = self._seen
        if lines != seen:
            found = frozenset(
                each.given[0] for each in map(self._read, lines) if each and each.kind == "token"
            )
            self._seen = lines, found
        return found

    def end_token(self, actor: Actor, id: int) -> None:
        """Revokes a token. Raises ProblemError if there is none to revoke, and StorageError."""
        if id in self.revoked:
            raise ProblemError(404, f"there is no token {id} that is not revoked yet")
        self._make(_Late(self._now(), actor, "token", [id]))

    def record_unlock(self, actor: Actor, caller: str, penalty: Any) -> None:
        """Records that a caller is unlocked. Raises StorageError."""
        self._make(_Late(self._now(), actor, "unlock", [caller, penalty]))

    def _make(self, late: _Late) -> None:
        try:
            with self._begin(late.actor, at=late.at) as change:
                late.write(change)
        except StorageError as error:
            if isinstance(error.__cause__, _WRONG) or "no such table" in str(error):
                raise  # the database would never take it
            if not self._file.append(late.line(), most=_MOST):
                raise
            self._start()
            log.error(
                "%s by %s (%s) is in force in this process, and is written once the database takes "
                "it: %s",
                late,
                late.actor.name,
                late.actor.remote,
                error,
            )

    def write_all(self) -> bool:
        """Tries to write what waits, and returns whether nothing is left."""
        if not self._file.read():
            return True
        with self._file.as_writer() as is_writer:
            while is_writer:
                lines = self._file.read()
                if not lines:
                    return True
                late = self._read(lines[0])
                if late is not None and not self._write(late):
                    return False
                self._file.remove(lines[0])
        return False  # another process is about to

    def _write(self, late: _Late) -> bool:
        try:
            with self._begin(late.actor, at=late.at) as change:
                late.write(change)
        except StorageError:
            return False
        except Exception as error:  # somebody else has done it, such as at another instance
            log.warning("%s by %s was not written: %s", late, late.actor.name, error)
        else:
            log.info("%s by %s is written now", late, late.actor.name)
        return True

    def share(self) -> int | None:
        """Returns the descriptor of what a process that takes over needs; None if it has a path."""
        self._is_handed_on = True
        return None if self._file.path is not None else self._file.descriptor()

    def stay(self) -> None:
        """Undoes share(), if the other process does not take over after all."""
        self._is_handed_on = False

    def close(self) -> None:
        """Tries once more, and logs what is left."""
        self._is_over.set()
        if self.write_all():
            return
        for late in filter(None, map(self._read, self._file.read())):
            if self._is_handed_on:
                fate = "is left to the process that takes over"
            elif self._file.path is not None:
                fate = f"is in {self._file.path}, and is in force again once the service starts"
            else:
                fate = "is lost: it was never written"
            log.error("%s by %s %s", late, late.actor.name, fate)

    def _read(self, line: bytes) -> _Late | None:
        try:
            return _late_of(line)
        except (ValueError, TypeError) as error:
            log.error("a change that the database has not taken cannot be read: %s", error)
            return None

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tidegate late changes", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(self._interval):
            if not self.write_all():
                continue
            with self._lock:
                if not self._file.read():
                    self._thread = None
                    return
