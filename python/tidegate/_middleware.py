"""What the middleware of both interfaces reads from its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable

from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._guard import Verdict, ready
from tidegate._limiter import Limiter

if TYPE_CHECKING:
    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._storage import StorageLike

__all__ = ["charged_methods", "limiter_of", "methods_of", "replacement"]


def limiter_of(
    limiter: Limiter | None,
    limit: LimitLike | None,
    storage: StorageLike,
    algorithm: str,
    prefix: str,
    clock: ClockLike,
    options: Mapping[str, Any],
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


async def replacement(
    verdict: Verdict,
    request: Any,
    accepted: str,
    accepts: Callable[[Any], bool] = callable,
    *,
    blocking: bool,
) -> Any:
    """What the service wants to answer a refusal with; None for the usual body."""
    guard = verdict.guard
    if guard.on_refused is None:
        return None
    try:
        answer = await ready(guard.on_refused(request, verdict.decision), blocking)
    except Exception as exc:
        guard.complain("on_refused raised; the usual body is sent", exc=exc)
        return None
    if not accepts(answer):
        guard.complain(
            "on_refused gave a %s, accepted is %s; the usual body is sent",
            type(answer).__name__,
            accepted,
        )
        return None
    return answer


def charged_methods(methods: Iterable[str] | None) -> frozenset[str] | None:
    """Those that `methods` says are charged, where GET stands for HEAD too; None: all."""
    if methods is None:
        return None
    charged = methods_of(methods, "methods")
    return charged | {"HEAD"} if "GET" in charged else charged
