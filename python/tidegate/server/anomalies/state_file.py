"""The file that keeps what anomaly detection has learned over a restart."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.server.anomalies.detector import AnomalyDetector

__all__ = ["StateFile", "beside_database", "folder_of"]

log = logging.getLogger("tidegate")

_SECONDS = 600.0


def beside_database(database: str | None, name: str = "anomalies") -> Path | None:
    """Returns the path of a file beside a database of SQLite; None for any other database."""
    file = None if database is None else _file_of(database)
    return None if file is None else Path(f"{file}.{name}")


def folder_of(database: str) -> Path | None:
    """Returns the folder of a database of SQLite; None for any other database."""
    file = _file_of(database)
    return None if file is None else Path(file).absolute().parent


def _file_of(database: str) -> str | None:
    url = sa.make_url(database)
    file = url.database
    if url.get_backend_name() != "sqlite" or not file or file.startswith((":memory:", "file:")):
        return None
    return file


class StateFile:
    """Keeps the state of `detector` in a file of mode 0600, written each ten minutes and by keep().

    A file that cannot be read or written is logged, and the detector goes on without. Not
    thread-safe.
    """

    def __init__(self, path: Path, detector: AnomalyDetector) -> None:
        self._path = path
        self._detector = detector
        self._is_left = False
        self._written = detector.next_at
        try:
            detector.restore(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ConfigurationError) as error:
            log.warning("%s: %s; anomaly detection begins without a past", path, error)
        self._written = detector.next_at

    def note(self) -> None:
        """Writes the file if that is due. To be called after each interval."""
        if not self._detector.next_at - self._written < _SECONDS:
            self.write()

    def keep(self) -> None:
        """Writes the file if anything was learned since it was written."""
        if self._detector.next_at > self._written:
            self.write()

    def leave(self, is_left: bool = True) -> None:
        """Leaves the file to another process: this one writes it no more. Or takes it back."""
        self._is_left = is_left

    def write(self) -> None:
        """Writes the file as a whole: another process reads the former one or this one."""
        if self._is_left:
            return
        self._written = self._detector.next_at
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(file, "wb") as opened:
                opened.write(self._detector.state())
            beside.replace(self._path)
        except OSError as error:
            log.warning("what is usual of callers was not written: %s", error)
            beside.unlink(missing_ok=True)
