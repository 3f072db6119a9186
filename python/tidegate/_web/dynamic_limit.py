"""A limit that a function of the request chooses."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable

from tidegate._core import Limit
from tidegate._errors import ArgumentTypeError

if TYPE_CHECKING:
    from tidegate._web.active_limits import ActiveLimits

__all__ = ["DynamicLimit"]


class DynamicLimit:
    """A limit that a function chooses for each request; see `limit` of tidegate.rate_limit.

    `activate` makes the ActiveLimits of a chosen limit. The latest are kept; nothing is lost
    with the others, since counts are in the store. Thread-safe.
    """

    # More than a service has tiers of users.
    _MAX_KNOWN = 256

    def __init__(
        self, function: Callable[..., Any], activate: Callable[[Any], ActiveLimits]
    ) -> None:
        self.function = function
        self._activate = activate
        self._known: dict[Any, ActiveLimits] = {}
        self._takes_request = any(
            each.default is each.empty or each.kind is each.VAR_POSITIONAL
            for each in inspect.signature(function).parameters.values()
        )

    def ask(self, request: Any) -> Any:
        """What the function says of a request, or an awaitable of it."""
        return self.function(request) if self._takes_request else self.function()

    def active(self, limit: Any) -> ActiveLimits:
        """The limits of a value that the function returned.

        Raises ConfigurationError for values that are not accepted as a limit.
        """
        if not isinstance(limit, (str, Limit, list, tuple)):
            raise ArgumentTypeError(
                f"the limit is {limit!r} of type {type(limit).__name__}; expected a text such "
                "as '100/minute', a Limit, a list of them, or None for no limit"
            )
        known = tuple(limit) if isinstance(limit, list) else limit
        limits = self._known.get(known)
        if limits is None:
            limits = self._activate(limit)
            if len(self._known) >= self._MAX_KNOWN:
                self._known.clear()
            self._known[known] = limits
        return limits
