"""The limits that a request may meet, with what is told of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from tidegate._core import Limit
from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._headers import Problems, fields_for
from tidegate._limiter import Limiter
from tidegate._observe import guarding

__all__ = ["ChosenLimit", "Terms"]


class Terms:
    """Limiters that one request may meet together, and what responses say of them.

    Raises ConfigurationError for limits that are none on a rate, and for unknown families of
    headers. Immutable.
    """

    __slots__ = ("_refuser", "_singles", "fields", "limiter", "problems")

    def __init__(self, limiters: Sequence[Limiter], headers: Iterable[str]) -> None:
        # Equal names are of equal limits, or of those that their owner tells as one.
        limits = list({each.name: each for one in limiters for each in one.limits}.values())
        for limit in limits:
            if limit.algorithm == "concurrency":
                raise ConfigurationError(
                    f"the limit {limit} counts what is in flight; accepted are limits on a rate "
                    "(hold a Limiter.slot() in the route for this one)"
                )
        self.limiter = limiters[0]
        self.fields = fields_for(self.limiter, limits, headers)
        self.problems = Problems(limits)
        self._singles: tuple[Limiter, ...] | None = None
        self._refuser: Limiter | None = None
        guarding(limiters)

    @property
    def singles(self) -> tuple[Limiter, ...]:
        """A limiter for each limit of the first limiter, which count in the same place."""
        if self._singles is None:
            whole = self.limiter
            self._singles = (
                (whole,)
                if len(whole.limits) == 1
                else tuple(
                    Limiter(each, storage=whole.storage, prefix=whole._prefix, clock=whole._clock)
                    for each in whole.limits
                )
            )
        return self._singles

    @property
    def refuser(self) -> Limiter:
        """A limiter of the same limits that asks nobody, for refusals that need no count."""
        if self._refuser is None:
            limiter = self.limiter
            storage = "memory://?capacity=4096"
            clock = limiter._clock
            self._refuser = Limiter(limiter.limits, storage=storage, clock=clock)
        return self._refuser


class ChosenLimit:
    """A limit that a function chooses for each request; see `limit` of tidegate.rate_limit.

    `terms` makes those of what it chose. The latest are kept, and nothing is lost with
    those that are not: what was counted is in the store. Thread-safe.
    """

    # More than a service has plans for its users.
    _MOST = 256

    def __init__(self, function: Callable[..., Any], terms: Callable[[Any], Terms]) -> None:
        self.function = function
        self._terms = terms
        self._known: dict[Any, Terms] = {}
        self._takes_request = any(
            each.default is each.empty or each.kind is each.VAR_POSITIONAL
            for each in inspect.signature(function).parameters.values()
        )

    def ask(self, request: Any) -> Any:
        """What the function says of a request, or an awaitable of it."""
        return self.function(request) if self._takes_request else self.function()

    def terms(self, limit: Any) -> Terms:
        """The terms of what it said. Raises ConfigurationError where that is no limit."""
        if not isinstance(limit, (str, Limit, list, tuple)):
            raise ArgumentTypeError(
                f"the limit is {limit!r} of type {type(limit).__name__}; accepted is a text such "
                "as '100/minute', a Limit, a list of them, or None for no limit"
            )
        known = tuple(limit) if isinstance(limit, list) else limit
        terms = self._known.get(known)
        if terms is None:
            terms = self._terms(limit)
            if len(self._known) >= self._MOST:
                self._known.clear()
            self._known[known] = terms
        return terms
