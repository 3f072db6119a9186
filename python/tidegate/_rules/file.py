"""Rules from a file that may change while they are in force."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate._errors import ConfigurationError
from tidegate._rules.document import read_file
from tidegate._rules.rule_set import RuleSet
from tidegate._rules.source import RuleSource, Source, Version

if TYPE_CHECKING:
    import threading

    from tidegate._rules.document import Document

__all__ = ["FileSource", "RuleFile", "stamp_of"]

# What tells two versions of a file apart. That of a link is that of the file it leads to, so
# the swap of a link, as Kubernetes mounts ConfigMaps, is a new version.
Stamp = tuple[int, int, int, int]


class FileSource(Source[Version]):
    """Rules, of whatever kind, from a path that is looked at again every `interval` seconds."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        interval: float = 0.5,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(interval, (int, float)) or isinstance(interval, bool) or interval <= 0:
            raise ConfigurationError(f"the interval is {interval!r}; expected seconds above 0")
        self._path = Path(path)
        self._read_stamp: Any = None
        super().__init__(interval=interval, cache=cache)

    def _read_path(self) -> Any:
        """The document that is there now."""
        raise NotImplementedError

    def _stamp(self) -> Any:
        """Equal for as long as the path holds the same version."""
        return stamp_of(self._path)

    def _read(self) -> Any:
        stamp = self._stamp()
        if stamp == self._read_stamp:
            return None
        before, self._read_stamp = self._read_stamp, stamp
        try:
            # Where it changes meanwhile, the next look reads it again.
            return self._read_path()
        except OSError:
            self._read_stamp = before
            raise

    def _wait(self, stop: threading.Event) -> None:
        before: Any = None
        while not stop.wait(self._interval):
            now = self._stamp()
            if now != self._read_stamp and now == before:
                return
            before = now

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})"


class RuleFile(FileSource[RuleSet], RuleSource):
    """The rules of a file, which is looked at again every `interval` seconds.

        limiter = Limiter(rules=RuleFile("rules.yaml"))

    A new version is read once the file has stayed the same for one interval: a file that is being
    written may look like rules too. It may be replaced, written in place, or be a link to
    another file. A version that is not valid is logged and counted, and the rules before it stay
    in force; so they do while the file is missing. Raises RulesError at construction for rules that
    are not valid, and OSError for a file that cannot be read.
    """

    def _read_path(self) -> Document:
        return read_file(self._path)


def stamp_of(path: Path) -> Stamp:
    """What tells this version of a file apart from others."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
