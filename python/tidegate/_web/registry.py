"""The limiters that decide on requests in this process, for metrics to read."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate._limiter import Limiter

__all__ = ["register", "registered_limiters"]

_limiters: weakref.WeakSet[Limiter] = weakref.WeakSet()


def register(limiters: Iterable[Limiter]) -> None:
    """Adds limiters of a middleware, decorator or dependency, for as long as they exist."""
    _limiters.update(limiters)


def registered_limiters() -> list[Limiter]:
    """Those of all middleware, decorators and dependencies of this process."""
    while True:
        try:
            return list(_limiters)
        except RuntimeError:  # another thread has just added one
            continue
