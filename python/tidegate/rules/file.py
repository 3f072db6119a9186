"""Rules from a file that may change while they are in force."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from tidegate.rules.document import read_file
from tidegate.rules.source import ChangedMeanwhile, Reading, RuleSource

if TYPE_CHECKING:
    import threading

    from tidegate.rules.reading import Version
    from tidegate.rules.rule_set import RuleSet

__all__ = ["FileWatch", "RuleFile", "stamp_of"]

# Differs between two versions of a file: nobody can set the time of a change back. A link has the
# stamp of the file that it leads to, so a link that is swapped, as Kubernetes does with ConfigMaps,
# is a new version.
Stamp = tuple[int, int, int, int, int]
# Reading 1,000 rules here delays no decision by more than reading them apart does, and takes a
# fifth of the time.
_MOST_BYTES_HERE = 100_000
# How many intervals a file must have stayed the same, and how often its beginning is tried.
_TIMES_STILL = 2
_TRIES = 10


class FileWatch:
    """Notices new versions of files, by a function that returns their stamps."""

    def __init__(self, stamp: Callable[[], Any], interval: float) -> None:
        self._stamp = stamp
        self._interval = interval
        self._read: Any = None

    def look(self) -> Any:
        """The stamp, if it is another than that of the last look; else None."""
        stamp = self._stamp()
        if stamp == self._read:
            return None
        # If the file changes while it is read, the next look finds it changed.
        self._read = stamp
        return stamp

    def has_changed(self) -> bool:
        """Whether the version of the last look() is no longer there."""
        stamp: Any = self._stamp()
        return bool(stamp != self._read)

    def look_again(self) -> None:
        """Makes the next look() find a new version, since this one was not read after all."""
        self._read = None

    def wait(self, stop: threading.Event, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Returns once there is a new version that has stayed the same for two intervals.

        Returns too when nobody wants it any longer.
        """
        before: Any = None
        times = 0
        while not stop.wait(self._interval) and is_wanted():
            now = self._stamp()
            times = times + 1 if now == before else 0
            if now != self._read and times == _TIMES_STILL:
                return
            before = now


class RuleFile(RuleSource):
    """The rules of a file, which is checked for changes every `interval` seconds.

        limiter = Limiter(rules=RuleFile("rules.yaml"))

    A new version is read once the file has stayed the same for two intervals, and taken if it did
    not change while it was read, because half of a file may be valid rules too. A writer that
    pauses for longer writes another file and renames it. The file may be replaced, written in
    place, or be a link to another file. If a version is not valid, or has no rule in force and
    `allow_empty` is false, it is logged and counted, and the rules before it stay in force; they
    also stay in force while the file is missing. The constructor raises RulesError if the rules are
    not valid, and OSError if the file cannot be read, or changes each time that it is read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        interval: float = 0.25,
        cache: str | os.PathLike[str] | None = None,
        allow_empty: bool = False,
    ) -> None:
        self._path = Path(path)
        self._watch = FileWatch(partial(stamp_of, self._path), interval)
        super().__init__(interval=interval, cache=cache, allow_empty=allow_empty)

    def _reading_of_now(self) -> Reading | None:
        stamp = self._watch.look()
        if stamp is None:
            return None
        return Reading(partial(read_file, self._path), takes_long=stamp[-1] > _MOST_BYTES_HERE)

    def _first(self) -> RuleSet:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(ChangedMeanwhile):
                return super()._first()
        try:
            return super()._first()
        except ChangedMeanwhile as error:
            raise OSError(str(error)) from None

    def _version(self, reading: Reading) -> Version:
        version = super()._version(reading)
        if self._watch.has_changed():
            self._look_again()
            raise ChangedMeanwhile(
                f"the file {str(self._path)!r} changed while it was read; expected one that stays "
                "as it is, or is replaced by renaming another"
            )
        return version

    def _look_again(self) -> None:
        self._watch.look_again()

    def _wait(self, stop: threading.Event) -> None:
        self._watch.wait(stop, self._has_users)

    def __repr__(self) -> str:
        return f"RuleFile({str(self._path)!r})"


def stamp_of(path: Path) -> Stamp:
    """The stamp of the version of a file that is there now."""
    status = path.stat()
    return (
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
    )
