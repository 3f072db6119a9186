"""Paths whose requests are not charged: `exempt_paths` of limits on whole applications."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.web.request_access import path_of
from tidegate.web.router_paths import PathReader

__all__ = ["ExemptPaths", "exempt_paths_of"]

_ANY = re.compile(r"\*|\{\w+\}")


class ExemptPaths:
    """Says whether a request is for one of some paths, written as endpoints of rules are.

    A path with a part that is empty, ``.`` or ``..`` is not one of them: another layer might read
    it as a different path. Thread-safe.
    """

    def __init__(self, patterns: Iterable[str], reads_path: PathReader = path_of) -> None:
        self._reads_path = reads_path
        self._paths: set[tuple[str, ...]] = set()
        # The parts of a pattern, None for any, and whether more parts may follow.
        self._patterns: list[tuple[list[str | None], bool]] = []
        for pattern in patterns:
            *parts, last = _parts(pattern)
            goes_on = last == "**"
            parts = parts if goes_on else [*parts, last]
            if goes_on or any(map(_ANY.fullmatch, parts)):
                read = [None if _ANY.fullmatch(part) else part for part in parts]
                self._patterns.append((read, goes_on))
            else:
                self._paths.add(tuple(parts))

    def __call__(self, request: Any) -> bool:
        path = self._reads_path(request)
        if isinstance(path, bytes):
            path = path.decode("utf-8", "replace")
        parts = tuple(_stripped(path or "").split("/"))
        if parts in self._paths:
            return True
        if not self._patterns or (len(parts) > 1 and "" in parts) or {".", ".."} & set(parts):
            return False
        return any(_fits(parts, *pattern) for pattern in self._patterns)


def exempt_paths_of(
    paths: Any, name: str = "exempt_paths", reads_path: PathReader | None = None
) -> ExemptPaths | None:
    """Returns the paths of the option `name`; None if there are none. Raises ConfigurationError for
    invalid ones."""
    if paths is None or isinstance(paths, ExemptPaths):
        return paths
    if isinstance(paths, (str, bytes)) or not isinstance(paths, Iterable):
        raise ArgumentTypeError(
            f"{name} is {paths!r}; expected a list of paths such as ['/health', '/static/**']"
        )
    patterns = list(paths)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern.startswith("/") or not _is_valid(pattern):
            raise ConfigurationError(
                f"{name} has {pattern!r}; expected paths such as '/health', '/users/*/avatar' and "
                "'/static/**'"
            )
    return ExemptPaths(patterns, reads_path or path_of) if patterns else None


def _is_valid(pattern: str) -> bool:
    *parts, last = _parts(pattern)
    parts += [last] if last != "**" else []
    return (
        pattern != "/**"
        and all(
            _ANY.fullmatch(part) or (not re.search(r"[*{}?#]", part) and part not in (".", ".."))
            for part in parts
        )
        and ("" not in parts or parts == [""])
    )


def _parts(path: str) -> list[str]:
    return _stripped(path).split("/")


def _stripped(path: str) -> str:
    """Returns a path without its first slash and its last ones: a trailing slash makes no other
    path."""
    return path[1:].rstrip("/") if path.startswith("/") else path


def _fits(parts: tuple[str, ...], pattern: list[str | None], goes_on: bool) -> bool:
    if len(parts) < len(pattern) or (len(parts) > len(pattern) and not goes_on):
        return False
    return all(wanted in (None, part) for wanted, part in zip(pattern, parts))
