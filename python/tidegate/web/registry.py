"""Registers the limiters that decide on requests in this process, for metrics to read."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tidegate.limiter.limiter import Limiter
    from tidegate.limiter.rule_limiter import RuleLimiter

__all__ = ["register", "register_rules", "registered_limiters", "registered_rule_limiters"]

log = logging.getLogger("tidegate")

T = TypeVar("T")

_logged: set[tuple[str, str]] = set()
_limiters: weakref.WeakSet[Limiter] = weakref.WeakSet()
_rule_limiters: weakref.WeakSet[RuleLimiter] = weakref.WeakSet()


def register(limiters: Iterable[Limiter]) -> None:
    """Adds limiters of a middleware, decorator or dependency, for as long as they exist.

    For each shared server, logs once where its counts are: another service there with the same
    prefix would share the counts of equal limits.
    """
    for limiter in limiters:
        _limiters.add(limiter)
        _say_where(limiter)


def register_rules(limiter: RuleLimiter) -> None:
    """Does what register() does, for a limiter with rules."""
    _rule_limiters.add(limiter)
    _say_where(limiter)


def _say_where(limiter: Limiter | RuleLimiter) -> None:
    if not limiter.storage.blocks:
        return
    # Decorators have scopes below the prefix of their service.
    where = limiter._prefix.partition(":")[0], limiter.storage.name
    if where not in _logged:
        _logged.add(where)
        default = "" if where[0] != "tg" else ", the default, which other services have too"
        log.info("rate limiting: counts are in %s under the prefix %r%s", *where[::-1], default)


def registered_limiters() -> list[Limiter]:
    """Returns the limiters of all middleware, decorators and dependencies of this process."""
    return _members(_limiters)


def registered_rule_limiters() -> list[RuleLimiter]:
    """Returns those of these limiters that have rules."""
    return _members(_rule_limiters)


def _members(limiters: weakref.WeakSet[T]) -> list[T]:
    while True:
        try:
            return list(limiters)
        except RuntimeError:  # another thread has just added one
            continue
