"""Defines @rate_limit, which limits one route."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from tidegate.limiter.errors import ConfigurationError
from tidegate.web.callables import is_async
from tidegate.web.combined import combined
from tidegate.web.configuration import following_limiter
from tidegate.web.execution import AWAITING, BLOCKING
from tidegate.web.frameworks.calls import StarletteCall, adapt_call, limited_class
from tidegate.web.frameworks.fastapi_handlers import take_decision, wrap_handlers
from tidegate.web.frameworks.fastapi_injection import inject, injection_for
from tidegate.web.frameworks.fastapi_openapi import MARK, describe_refusals
from tidegate.web.frameworks.order_check import (
    check_limit,
    check_view,
    reference_count,
    refuse_registered,
    without_limit,
)
from tidegate.web.frameworks.other_frameworks import refuse_other_frameworks
from tidegate.web.frameworks.rest_framework import refuse_api_view
from tidegate.web.options import OptionReader, RouteOptions, of_requests
from tidegate.web.refusal import USUAL
from tidegate.web.request_limiter import RequestDecision, RequestLimiter
from tidegate.web.shared_counters import check_scope, shared_store, unique_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from tidegate.limiter.limit import LimitLike
    from tidegate.web.execution import Execution
    from tidegate.web.frameworks.calls import Call
    from tidegate.web.frameworks.fastapi_injection import Injection
    from tidegate.web.frameworks.streams import Settle
    from tidegate.web.request_limiter import Checks

__all__ = ["rate_limit"]

_OPTIONS = OptionReader(RouteOptions)

View = TypeVar("View", bound=Callable[..., Any])


@_OPTIONS.shown
def rate_limit(
    limit: LimitLike | Callable[..., Any], **options: Unpack[RouteOptions]
) -> Callable[[View], View]:
    """Limits one route of FastAPI, Starlette, Flask or Django, async or not.

    ::

        @app.get("/posts")
        @rate_limit("5/minute")
        async def posts(): ...

    The decorator must stand below the one that registers the route. Above it, it would guard a
    function that nobody calls, so the decorator raises ConfigurationError. The route needs no
    `request` parameter and keeps its signature; its OpenAPI schema only gains the 429. Refusals are
    answered with 429 before the route runs, in FastAPI before the body
    is read and dependencies run. All responses carry the fields of the limit, including
    those of handlers that answer exceptions of the route. The decorator also works on Flask's
    `View` and Starlette's `HTTPEndpoint` classes, and on their methods.

    Several decorators may stand directly above each other on one route, each with its own limit,
    key and cost. They form one plan: if one of them refuses a request, none charges it.

    `key`, `cost` and `exempt_when` may be functions of the request (the framework's own).
    `on_refused` is a function of the request and the decision; it returns what the route could
    return, sent as a 429 unless it has another status, or an exception to raise. Async functions
    are for async routes.
    `limit` may be a function of the request too, which returns a limit, or None for no limit. If it
    raises or returns anything else, `on_limit_error` decides: ``"raise"`` (the default),
    ``"closed"``, ``"open"`` or a limit to apply instead. `methods` are the methods of requests that
    are charged (GET includes HEAD), all by default. `on_no_key`, `headers` and `retry_jitter` are
    those of tidegate.asgi.RateLimitMiddleware, the other options those of tidegate.Limiter.

    A request above the limit waits up to `wait` seconds for its turn, in the order in which the
    requests of its key came, and is refused if that does not come in time; it is refused at once if
    no wait up to then helps. Several limits of one route wait together, up to the longest `wait`.

    `cost_after` is a function of the request and of the route's return value, or of the exception
    that the route raised, and returns the actual cost. If that is more than `cost`, which was
    charged before, the difference is charged in full, and what finds no room is owed; if it is
    less, the difference is given back as far as it still counts. If the function fails, the charge
    stays. The header fields show the corrected state. For a streaming response the function is
    called when the stream has ended, even if the client has disconnected.

    Each route has counts of its own; decorators with the same `scope` and equal limits share
    counts. Decorators with one storage URI share one store.
    """
    check_limit(limit, "@rate_limit")
    given, storage_options = _OPTIONS.read(options)
    check_scope(given.scope)
    for_requests = of_requests(given)
    shared_store(given.storage, storage_options)

    def make_limiter(view: Any) -> RequestLimiter:
        scope = given.scope or unique_scope(view)
        name = f"@rate_limit on {getattr(view, '__qualname__', view)}"
        return following_limiter(limit, name, scope, given, options, storage_options)

    names = ("key", "cost", "cost_after", "exempt_when", "on_refused")
    functions = {"limit": limit, **{name: for_requests[name] for name in names}}
    decorator = _Decorator if not callable(limit) else _DecoratorOfChosenLimit
    return cast("Callable[[View], View]", decorator(make_limiter, functions))


class _Decorator:
    def __init__(
        self, make_limiter: Callable[[Any], RequestLimiter], functions: dict[str, Any]
    ) -> None:
        self._make_limiter = make_limiter
        self._functions = functions
        self._of_django: Callable[[Any], Any] | None = None

    @property
    def __signature__(self) -> Any:
        # Only Depends() reads this attribute.
        raise ConfigurationError(
            "@rate_limit(...) was given to Depends(); expected as a dependency "
            "Depends(tidegate.fastapi.RateLimit(...)), and @rate_limit(...) above a route"
        )

    @property
    def __name__(self) -> str:
        # A route reads it, for its endpoint: the decorator stands there without a limit. Django's
        # method_decorator() copies it if there is one.
        raise without_limit("@rate_limit", self._functions["limit"])

    def __call__(self, view: Any) -> Any:
        references = reference_count(view)
        if "django.views" in sys.modules:
            from tidegate.web.frameworks.django_views import ViewDecorator, is_of_django

            if is_of_django(view):
                if self._of_django is None:
                    self._of_django = ViewDecorator(self)
                return self._of_django(view)
        if inspect.isclass(view):
            return limited_class(view, lambda: self.make_decorator(view))
        return self.make_decorator(view)(view, references)

    def make_decorator(self, owner: Any) -> Callable[..., Any]:
        """Returns a decorator that limits all decorated functions by one request limiter."""
        limiter: RequestLimiter | None = None

        def limited(view: Any, references: int = 0) -> Callable[..., Any]:
            nonlocal limiter
            self._check(view, references)
            inner: _Limited | None = getattr(view, MARK, None)
            if limiter is None:
                limiter = self._make_limiter(owner)
            if inner is None:
                return _wrapped(view, [limiter])
            return _wrapped(inner.view, [limiter, *inner.limiters])

        return limited

    def _check(self, view: Any, references: int) -> None:
        _check_view(view)
        refuse_registered(view, references)
        if is_async(view) or is_async(inspect.unwrap(view)):
            return
        for name, function in self._functions.items():
            if is_async(function):
                raise ConfigurationError(
                    f"{name} is the async function {function!r} and {view!r} is not async; "
                    "expected a function that is not async, or an async route"
                )


class _DecoratorOfChosenLimit(_Decorator):
    """The result of `@rate_limit` without parentheses, which takes the view for a limit function.

    It must not be registered as a view: reading an attribute of a view raises.
    """

    @property
    def __signature__(self) -> Any:
        raise self._mistaken()

    @property
    def __name__(self) -> str:
        raise self._mistaken()

    @property
    def methods(self) -> Any:
        raise self._mistaken()

    def _mistaken(self) -> ConfigurationError:
        return ConfigurationError(
            f"@rate_limit was given {self._functions['limit']!r} and no view; expected a "
            'limit: @rate_limit("5/minute"), or a function of the request that returns one; and as '
            "a dependency of FastAPI Depends(tidegate.fastapi.RateLimit(...))"
        )


class _Limited:
    """The mark on a limited function."""

    def __init__(
        self,
        function: Any,
        view: Any,
        limiters: Sequence[RequestLimiter],
        injection: Injection | None,
        checks: Checks,
        *,
        is_async: bool,
    ) -> None:
        # Decorators above copy the function's attributes, so the mark says which function is
        # limited.
        self.is_of = weakref.ref(function)
        self.view = view
        self.limiters = limiters
        # The parameters that FastAPI passes.
        self.injection = injection
        self.checks = checks
        self.asks_functions = checks.asks_functions
        self.is_async = is_async
        self.has_places = any(
            one.limiter is not None and one.limiter._has_leases for one in limiters
        )
        self.cost_after = _cost_after_of(limiters)
        # Whether a decision has something to hold; a limit that a function chooses may have places.
        self.holds = (
            self.has_places
            or self.cost_after is not None
            or any(one.limiter is None for one in limiters)
        )

    async def end(
        self, call: Call, outcome: RequestDecision, result: Any, execution: Execution
    ) -> RequestDecision:
        """Settles the cost of a call that returned `result` and gives its places back, unless that
        is done when the response ends; returns the outcome then."""
        leaves_now = self.has_places and not call.settle_at_end(result, outcome.leave, None)
        try:
            if self.cost_after is not None:
                settle = _settling(outcome, call.request, result)
                if not call.settle_at_end(result, settle, self.cost_after):
                    outcome = await settle(execution)
        finally:
            if leaves_now:
                await execution.to_the_end(outcome.leave(execution))
        return outcome

    async def fail(
        self, call: Call, outcome: RequestDecision, exc: BaseException, execution: Execution
    ) -> BaseException:
        """Does so for a call that raised `exc`; returns what is to be raised instead."""
        if self.has_places:
            await execution.to_the_end(outcome.leave(execution))
        if not isinstance(exc, Exception):
            return exc
        if self.cost_after is not None:
            outcome = await outcome.settle(call.request, exc, execution)
        return call.annotate(exc, outcome)


def _cost_after_of(limiters: Sequence[RequestLimiter]) -> Any:
    costs_after = [one.hooks.cost_after for one in limiters if one.hooks.cost_after is not None]
    # If one of them is async, all are awaited.
    return next(filter(is_async, costs_after), costs_after[0] if costs_after else None)


def _wrapped(view: Callable[..., Any], limiters: Sequence[RequestLimiter]) -> Callable[..., Any]:
    injection = injection_for(view)
    checks = combined(limiters)
    check = checks.check

    @functools.wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        call = adapt_call(injection, args, kwargs)
        if call is None:
            return view(*args, **kwargs)
        try:
            decided = call.decided(mark)
            outcome = decided[0] if decided else check(call.request, BLOCKING)
        except Exception:
            BLOCKING.run(_undo_prior(call, BLOCKING))
            raise
        if outcome is None:
            return view(*args, **kwargs)
        if not outcome.decision.allowed:
            return BLOCKING.run(_refuse(call, outcome, chosen, BLOCKING))
        if has_places:
            outcome.hold()
        try:
            result = view(*args, **kwargs)
        except BaseException as exc:
            error = BLOCKING.run(mark.fail(call, outcome, exc, BLOCKING))
            if error is exc:
                raise
            raise error from error.__cause__ or exc
        if mark.holds:
            outcome = BLOCKING.run(mark.end(call, outcome, result, BLOCKING))
        return call.with_headers(result, outcome)

    called = view if inspect.iscoroutinefunction(view) else _awaiting(view)

    @functools.wraps(view)
    async def limited_async(*args: Any, **kwargs: Any) -> Any:
        request = None if injection is None else kwargs.get(injection.request)
        if injection is not None and request is not None:  # FastAPI's call, in few steps
            decided = take_decision(request.scope, mark)
            if decided and not mark.holds:
                # All else is done where it was decided.
                for name in injection.added:
                    kwargs.pop(name, None)
                return await called(*args, **kwargs)
            call: Call = StarletteCall(injection, kwargs, request, decided)
        else:
            found = adapt_call(injection, args, kwargs)
            if found is None:
                return await called(*args, **kwargs)
            call = found
            decided = call.decided(mark)
        try:
            checked: Any = decided[0] if decided else check(call.request)
            outcome = await checked if isinstance(checked, CoroutineType) else checked
        except Exception:
            await _undo_prior(call, AWAITING)
            raise
        if outcome is None:
            return await called(*args, **kwargs)
        if not outcome.decision.allowed:
            return await _refuse(call, outcome, chosen, AWAITING)
        if has_places:
            outcome.hold()
        try:
            result = await called(*args, **kwargs)
        except BaseException as exc:
            error = await mark.fail(call, outcome, exc, AWAITING)
            if error is exc:
                raise
            raise error from error.__cause__ or exc
        if mark.holds:
            outcome = await mark.end(call, outcome, result, AWAITING)
        return call.with_headers(result, outcome)

    # FastAPI awaits a wrapper if the wrapped function is async.
    awaited = is_async(view) or (injection is not None and is_async(inspect.unwrap(view)))
    chosen: Any = limited_async if awaited else limited
    mark = _Limited(chosen, view, limiters, injection, checks, is_async=awaited)
    has_places = mark.has_places
    setattr(chosen, MARK, mark)
    if injection is not None:
        inject(chosen, injection)
        wrap_handlers()
        describe_refusals()
    return cast("Callable[..., Any]", chosen)


def _settling(outcome: RequestDecision, request: Any, result: Any) -> Settle:
    return lambda execution: outcome.settle(request, result, execution)


def _awaiting(view: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `view`, which may return an awaitable or not, as a coroutine function."""

    async def called(*args: Any, **kwargs: Any) -> Any:
        return await AWAITING.resolve(view(*args, **kwargs))

    return called


async def _undo_prior(call: Call, execution: Execution) -> None:
    """Gives back what earlier decisions charged for a request that does not reach the view."""
    for granted in call.prior_grants():
        await granted.undo(execution)


async def _refuse(call: Call, outcome: RequestDecision, function: Any, execution: Execution) -> Any:
    """Returns what the decorated `function` returns for a refused request."""
    await _undo_prior(call, execution)
    call.ensure_can_answer(function, outcome)
    answer = await outcome.service_answer(
        call.request,
        execution,
        accepts=call.accepts,
        expected="a return value of the route",
        convert=call.custom_refusal,
    )
    if isinstance(answer, Exception):
        raise call.annotate(answer, outcome)
    return call.with_headers(call.refusal(outcome) if answer is USUAL else answer, outcome)


def _check_view(view: Any) -> None:
    check_view(view)
    refuse_other_frameworks(view)
    refuse_api_view(view)
    inner: _Limited | None = getattr(view, MARK, None)
    if inner is not None and inner.is_of() is not view:
        raise ConfigurationError(
            f"{view!r} is under @rate_limit already, with another decorator in between: they "
            "form no plan then, and one would charge what the other refuses; expected "
            "@rate_limit decorators directly above each other"
        )
