"""What the middleware of both interfaces reads from its options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._limiter import Limiter

if TYPE_CHECKING:
    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._storage import StorageLike

__all__ = ["limiter_of", "methods_of"]


def limiter_of(
    limiter: Limiter | None,
    limit: LimitLike | None,
    storage: StorageLike,
    algorithm: str,
    prefix: str,
    clock: ClockLike,
    options: dict[str, Any],
) -> Limiter:
    """The limiter that was given, or one of the limit that was."""
    if limiter is None:
        if limit is None:
            raise ConfigurationError("no limit was given; accepted is limit= or limiter=")
        return Limiter(
            limit, storage=storage, algorithm=algorithm, prefix=prefix, clock=clock, **options
        )
    if not isinstance(limiter, Limiter):
        raise ArgumentTypeError(
            f"the limiter is {limiter!r} of type {type(limiter).__name__}; "
            "accepted is a tidegate.Limiter"
        )
    if (
        limit is not None
        or (storage, algorithm, prefix, clock) != ("memory://", "token-bucket", "tg", None)
        or options
    ):
        raise ConfigurationError(
            "a limiter was given with options of its own; accepted is limiter= without "
            "limit=, storage=, algorithm=, prefix=, clock= and storage options"
        )
    return limiter


def methods_of(methods: Iterable[str], name: str = "exempt_methods") -> frozenset[str]:
    """`methods` in upper case; `name` is what they were given as."""
    if isinstance(methods, (str, bytes)) or not isinstance(methods, Iterable):
        raise ArgumentTypeError(
            f"{name} is {methods!r}; accepted is a list of methods such as ['OPTIONS']"
        )
    result = []
    for method in methods:
        if not isinstance(method, str) or not method.isalpha():
            raise ConfigurationError(f"{name} has {method!r}; accepted are names such as 'OPTIONS'")
        result.append(method.upper())
    return frozenset(result)
