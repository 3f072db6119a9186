"""The limiters that decide on requests in this process, for metrics to read."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate._limiter import Limiter

__all__ = ["register", "registered_limiters"]

log = logging.getLogger("tidegate")

_said: set[tuple[str, str]] = set()
_limiters: weakref.WeakSet[Limiter] = weakref.WeakSet()


def register(limiters: Iterable[Limiter]) -> None:
    """Adds limiters of a middleware, decorator or dependency, for as long as they exist.

    Says once of each where a shared server counts: another service that counts there under the
    same prefix would share the counts of equal limits.
    """
    for limiter in limiters:
        _limiters.add(limiter)
        if not limiter.storage.blocks:
            continue
        # Decorators have scopes below the prefix of their service.
        where = limiter._prefix.partition(":")[0], limiter.storage.name
        if where not in _said:
            _said.add(where)
            default = "" if where[0] != "tg" else ", the default, which other services have too"
            log.info("rate limiting: counts are in %s under the prefix %r%s", *where[::-1], default)


def registered_limiters() -> list[Limiter]:
    """Those of all middleware, decorators and dependencies of this process."""
    while True:
        try:
            return list(_limiters)
        except RuntimeError:  # another thread has just added one
            continue
