"""What runs, since when, and whether the newest version of each configuration is in force."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tidegate._core import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.rules.source import Source

__all__ = ["ConfigurationState", "ServiceState"]


class ConfigurationState(NamedTuple):
    name: str
    """What it is: ``rules`` or ``descriptors``."""
    since: float
    """The Unix time at which the version in force began."""
    problem: str | None
    """Why the newest version is not in force or cannot be read; None if it is in force."""


class ServiceState:
    """The state of a service that follows `sources`, by name. Thread-safe."""

    def __init__(
        self,
        sources: Mapping[str, Source[Any]],
        started: float | None = None,
        problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.version = __version__
        self.started = time.time() if started is None else started
        self._sources = dict(sources)
        self.problem = problem
        """Returns what an operator has to know about the machine, or None."""

    def configurations(self) -> list[ConfigurationState]:
        return [
            ConfigurationState(
                name,
                source.since,
                None if source.last_error is None else f"{source.last_error!s:.500}",
            )
            for name, source in self._sources.items()
        ]
