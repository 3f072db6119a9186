"""The file with changes that the database has not taken yet, whose room is taken beforehand."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LateFile"]

log = logging.getLogger("tidegate")

_ROOM = 2**18
_USUAL = 2**10
# Bytes behind the content, whose locks say who reads and changes it, and who writes it elsewhere.
_CONTENT, _WRITER = _ROOM, _ROOM + 1


class LateFile:
    """Holds lines that outlive the process, also those that come while the disk is full.

    They are in a file at `path` of mode 0600, or in memory without one. Memory outlives the process
    if a process that takes over inherits its `descriptor`. Both processes may use the lines at
    once. Thread-safe.
    """

    def __init__(self, path: Path | None = None, *, descriptor: int | None = None) -> None:
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._file: int | None = None
        self.path: Path | None = None
        """Where the lines are; None for those in memory."""
        if path is not None:
            try:
                self._open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                self.path = path
            except OSError as error:
                log.warning(
                    "%s cannot be made (%s); what the database does not take ends with the process",
                    path,
                    error,
                )
        if self._file is None and descriptor is not None:
            self._open(descriptor)

    def descriptor(self) -> int:
        """Returns the descriptor of the lines."""
        if self._file is None:
            self._open(os.memfd_create("tidegate late changes", os.MFD_CLOEXEC))
            assert self._file is not None
        return self._file

    def _open(self, file: int) -> None:
        closing = weakref.finalize(self, os.close, file)
        try:
            os.posix_fallocate(file, 0, _ROOM)
        except OSError:
            closing()
            raise
        self._file = file

    def read(self) -> list[bytes]:
        """Returns the lines."""
        if self._file is None:
            return []
        with self._alone(_CONTENT):
            return self._read()

    def append(self, line: bytes, *, most: int) -> bool:
        """Adds a line; returns False if there are `most` lines already, or if there is no room."""
        self.descriptor()
        with self._alone(_CONTENT):
            lines = self._read()
            return len(lines) < most and self._write([*lines, line])

    def remove(self, line: bytes) -> None:
        """Removes a line."""
        with self._alone(_CONTENT):
            lines = self._read()
            if line in lines:
                lines.remove(line)
                self._write(lines)

    @contextlib.contextmanager
    def as_writer(self) -> Iterator[bool]:
        """Keeps other threads waiting, and says whether no other process is in such a block."""
        with self._writing:
            file = self.descriptor()
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WRITER)
            except OSError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN, 1, _WRITER)

    @contextlib.contextmanager
    def _alone(self, place: int) -> Iterator[None]:
        # Locks of files are those of a process, so its threads need one of their own.
        file = self.descriptor()
        with self._lock:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
            try:
                yield
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN, 1, place)

    def _read(self) -> list[bytes]:
        # Usually there is nothing, and each request with a token looks.
        begin = os.pread(self.descriptor(), _USUAL, 0)
        content = begin if b"\0" in begin else os.pread(self.descriptor(), _ROOM, 0)
        return content.partition(b"\0")[0].splitlines()

    def _write(self, lines: list[bytes]) -> bool:
        content = b"".join(line + b"\n" for line in lines)
        if len(content) >= _ROOM:
            return False
        os.pwrite(self.descriptor(), content + b"\0", 0)
        os.fdatasync(self.descriptor())
        return True
