"""Leaves room on the disk of an SQLite, so that operators can change something to the last."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any, Callable

from tidegate.limiter.background import Repeating

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["DiskWatch"]

log = logging.getLogger("tidegate")

_INTERVAL = 5.0
# The alarm is raised while the disk still has so many times the room that is left to operators.
_EARLY = 4


def _free_at(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class DiskWatch:
    """Looks at the free bytes of the disk with `folder` every few seconds.

    Below four times `least` bytes it warns. Below `least` it pauses `writers` until there is room.
    """

    def __init__(
        self,
        folder: Path,
        writers: Iterable[Any],
        *,
        least: int,
        free_at: Callable[[Path], int] = _free_at,
    ) -> None:
        self._folder = folder
        self._writers = list(writers)
        self._least = least
        self._free_at = free_at
        self._repeating = Repeating(self.look, _INTERVAL, "tidegate disk")
        self.free: int | None = None
        """The free bytes; None if they are not known."""
        self.problem: str | None = None
        """What an operator has to know; None if there is room."""
        self.look()

    def start(self) -> None:
        """Starts the thread."""
        self._repeating.start()

    def close(self) -> None:
        """Ends the thread."""
        self._repeating.close(5.0)

    def look(self) -> None:
        """Looks now."""
        try:
            self.free = self._free_at(self._folder)
        except OSError as error:
            if self.free is not None:
                log.warning("the free room of %s is not known: %s", self._folder, error)
            self.free = None
        free = self.free
        is_short = free is not None and free < self._least
        problem = None
        if free is not None and free < self._least * _EARLY:
            problem = f"the disk of the database has {_shown(free)} left; " + (
                f"nothing is added to the history below {_shown(self._least)}"
                if is_short
                else f"below {_shown(self._least)} nothing is added to the history"
            )
        was_short = any(each.pause is not None for each in self._writers)
        for each in self._writers:
            each.pause = problem if is_short else None
        if problem is not None and (self.problem is None or is_short != was_short):
            log.log(logging.ERROR if is_short else logging.WARNING, "%s", problem)
        elif problem is None and self.problem is not None:
            log.info("the disk of the database has room again")
        self.problem = problem


def _shown(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
