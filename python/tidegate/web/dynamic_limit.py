"""A limit that a function of the request chooses."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable

from tidegate._core import Limit
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import as_limits
from tidegate.web.active_limits import refuse_places
from tidegate.web.callables import check_function

if TYPE_CHECKING:
    from tidegate.types import Algorithm
    from tidegate.web.active_limits import ActiveLimits
    from tidegate.web.execution import Execution
    from tidegate.web.hooks import Hooks

__all__ = ["LIMIT_ERROR_POLICIES", "DynamicLimit", "check_limit_error_policy"]

LIMIT_ERROR_POLICIES = ("raise", "closed", "open")


class DynamicLimit:
    """A limit that a function chooses for each request; see `limit` of tidegate.rate_limit.

    `activate` makes the ActiveLimits of a chosen limit. The latest are kept; nothing is lost with
    the others, since counts are in the store. `on_error` is the policy if the function raises or
    returns an invalid limit: ``"raise"`` raises the error, ``"closed"`` refuses the request,
    ``"open"`` lets it pass, and a limit takes the place of the function's. Thread-safe.
    """

    # No service has more tiers of users.
    _MOST_KNOWN = 256

    def __init__(
        self,
        function: Callable[..., Any],
        activate: Callable[[Any], ActiveLimits],
        on_error: Any = "raise",
        algorithm: Algorithm = "token-bucket",
    ) -> None:
        check_limit_error_policy(on_error, algorithm)
        parameters = inspect.signature(function).parameters
        self._takes_request = any(
            each.default is each.empty and each.kind is not each.VAR_KEYWORD
            for each in parameters.values()
        )
        check_function("the limit", function, ("the request",) if self._takes_request else ())
        if self._takes_request and next(iter(parameters)) == "key":
            # slowapi passes such functions the key.
            raise ArgumentTypeError(
                f"the limit is {function!r}, which takes (key); expected a function of the request"
            )
        self.function = function
        self._activate = activate
        self._on_error = on_error
        self._fallback = None
        if on_error == "closed":
            self._fallback = activate(Limit("0/second", name="closed"))
        elif on_error not in LIMIT_ERROR_POLICIES:
            self._fallback = activate(on_error)
            refuse_places(self._fallback.limiter.limits, "on_limit_error")
        self._known: dict[Any, ActiveLimits] = {}

    async def limits_of(
        self, request: Any, execution: Execution, hooks: Hooks
    ) -> ActiveLimits | None:
        """Returns the limits of a request, or None if it has none.

        If the policy is to raise, raises the function's exception, or ConfigurationError for an
        invalid limit.
        """
        try:
            asked = self.function(request) if self._takes_request else self.function()
            limit = await execution.resolve(asked)
            return None if limit is None else self._active(limit)
        except Exception as exc:
            if self._on_error == "raise":
                raise
            outcome = _OUTCOMES.get(self._on_error, "the limit of on_limit_error applies")
            hooks.log_throttled(f"the limit function failed; {outcome}", exc=exc)
            return self._fallback

    def _active(self, limit: Any) -> ActiveLimits:
        """Returns the limits of a value that the function returned.

        Raises ConfigurationError for an invalid limit.
        """
        if not isinstance(limit, (str, Limit, list, tuple)):
            raise ArgumentTypeError(
                f"the limit function {self.function!r} returned {limit!r} of type "
                f"{type(limit).__name__}; expected a text such as '100/minute', a Limit, a list of "
                "them, or None for no limit"
            )
        known = tuple(limit) if isinstance(limit, list) else limit
        limits = self._known.get(known)
        if limits is None:
            try:
                limits = self._activate(limit)
            except ConfigurationError as exc:
                kind = type(exc)
                raise kind(
                    f"the limit function {self.function!r} returned {limit!r}: {exc}"
                ) from exc
            refuse_places(limits.limiter.limits, "a function of the request to choose")
            if len(self._known) >= self._MOST_KNOWN:
                self._known.clear()
            self._known[known] = limits
        return limits


_OUTCOMES = {"closed": "the request is refused", "open": "the request passes without a limit"}


def check_limit_error_policy(policy: object, algorithm: Algorithm = "token-bucket") -> None:
    """Raises ConfigurationError for an invalid value of the option `on_limit_error`."""
    if policy in LIMIT_ERROR_POLICIES:
        return
    given: Any = policy
    try:
        as_limits(given, algorithm)
    except ConfigurationError as exc:
        kind = type(exc)
        raise kind(
            f"on_limit_error is {policy!r} ({exc}); expected 'raise', 'closed', 'open', or a limit "
            "such as '10/minute'"
        ) from exc
