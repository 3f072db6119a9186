"""@rate_limit, for one route."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._frameworks import StarletteCall, limited_class, opened
from tidegate._functions import is_async
from tidegate._guard import Guard, Verdict, finished, ready
from tidegate._headers import FAMILIES
from tidegate._injection import inject, injection
from tidegate._middleware import charged_methods
from tidegate._openapi import MARK, describe_refusals
from tidegate._registered import check_view, reference_count, refuse_registered, registration
from tidegate._scopes import check_scope, guard_in_scope, own_scope, shared_store
from tidegate._stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Unpack

    from tidegate._clock import ClockLike
    from tidegate._frameworks import Call
    from tidegate._injection import Injection
    from tidegate._limit import LimitLike
    from tidegate._storage import StorageLike, StorageOptions

__all__ = ["rate_limit"]

View = TypeVar("View", bound=Callable[..., Any])


def rate_limit(
    limit: LimitLike | Callable[..., Any],
    *,
    key: Callable[[Any], Any] | None = None,
    cost: int | Callable[[Any], Any] = 1,
    cost_after: Callable[[Any, Any], Any] | None = None,
    exempt_when: Callable[[Any], Any] | None = None,
    methods: Iterable[str] | None = None,
    scope: str | None = None,
    storage: StorageLike = "memory://",
    algorithm: str = "token-bucket",
    prefix: str = "tg",
    clock: ClockLike = None,
    on_no_key: str = "address",
    on_refused: Callable[..., Any] | None = None,
    headers: Iterable[str] = FAMILIES,
    retry_jitter: float | Callable[[float], Any] = 0.0,
    **options: Unpack[StorageOptions],
) -> Callable[[View], View]:
    """Limits one route of FastAPI, Starlette, Flask or Django, async or not.

        @app.get("/posts")
        @rate_limit("5/minute")
        async def posts(): ...

    The decorator stands below the one that registers the route: above it, it would guard
    what nobody calls, and raises ConfigurationError. The route needs no `request`
    parameter and keeps its signature, and its OpenAPI schema gains the 429 alone. Refusals are
    answered with 429 before the route runs; all responses carry the fields of the limit, those
    that are made from what the route returns, and what handlers answer to exceptions that it
    raises. It may stand on Flask's `View` and Starlette's `HTTPEndpoint` classes, and on their
    methods.

    Several may stand on one route, each with a limit, key and cost of its own, and are one
    plan then: a request that one of them refuses is charged by none. They stand directly
    above each other.

    `key`, `cost` and `exempt_when` may be functions of the request (the framework's own),
    `on_refused` is one of the request and the decision and returns what the route could
    return, a 429 unless it says otherwise; async functions are for async routes. `limit` may be
    a function of the request too, that returns what is accepted as a limit, or None for none;
    where it fails, that is logged and the request passes. `methods` are those of requests that
    are charged (GET stands for HEAD too), all by default. `on_no_key`, `headers` and
    `retry_jitter` are those of tidegate.asgi.RateLimitMiddleware, the rest is that of
    tidegate.Limiter.

    `cost_after` is a function of the request and of what the route returned, and tells what
    the request did cost: the difference to `cost`, which was charged before, is charged, as far
    as there is room, or given back, as far as it still counts. What it fails to tell, or a
    route that raises, leaves what was charged. The fields of the response do not tell of it
    yet.

    Each route counts for itself, whatever it is called; those with one `scope` and equal
    limits count together. Decorators with one storage URI share one store.
    """
    _check_limit(limit)
    check_scope(scope)
    charged = charged_methods(methods)
    store = shared_store(storage, options)

    def guard(view: Any) -> Guard:
        return guard_in_scope(
            limit,
            scope=scope or own_scope(view),
            store=store,
            algorithm=algorithm,
            prefix=prefix,
            clock=clock,
            key=key,
            cost=cost,
            cost_after=cost_after,
            exempt_when=exempt_when,
            methods=charged,
            on_no_key=on_no_key,
            on_refused=on_refused,
            headers=headers,
            retry_jitter=retry_jitter,
        )

    functions = {
        "limit": limit,
        "key": key,
        "cost": cost,
        "cost_after": cost_after,
        "exempt_when": exempt_when,
        "on_refused": on_refused,
    }
    decorator = _Decorator if not callable(limit) else _DecoratorOfChosenLimit
    return cast("Callable[[View], View]", decorator(guard, functions))


class _Decorator:
    def __init__(self, guard: Callable[[Any], Guard], functions: dict[str, Any]) -> None:
        self._guard = guard
        self._functions = functions
        self._of_django: Callable[[Any], Any] | None = None

    def __call__(self, view: Any) -> Any:
        references = reference_count(view)
        if "django.views" in sys.modules:
            from tidegate._django import ViewDecorator, is_of_django

            if is_of_django(view):
                if self._of_django is None:
                    self._of_django = ViewDecorator(self)
                return self._of_django(view)
        if inspect.isclass(view):
            return limited_class(view, lambda: self.together(view))
        return self.together(view)(view, references)

    def together(self, owner: Any) -> Callable[..., Any]:
        """What limits functions, all of them by one guard."""
        guard: Guard | None = None

        def limited(view: Any, references: int = 0) -> Callable[..., Any]:
            nonlocal guard
            self._check(view, references)
            below: _Limited | None = getattr(view, MARK, None)
            if guard is None:
                guard = self._guard(owner)
            if below is None:
                return _wrapped(view, [guard])
            return _wrapped(below.view, [guard, *below.guards])

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
                    "accepted is a function that is not async, or an async route"
                )


class _DecoratorOfChosenLimit(_Decorator):
    """What `@rate_limit` without parentheses makes of a view, were that a limit's function.

    It must not be registered as a view: who asks for what a view has is told.
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
            f"@rate_limit was given {self._functions['limit']!r} and no view; accepted is a "
            'limit: @rate_limit("5/minute"), or a function of the request that returns one'
        )


class _Limited:
    """What is left on a function that is limited."""

    def __init__(
        self, function: Any, view: Any, guards: Sequence[Guard], way: Injection | None
    ) -> None:
        # Decorators above copy what a function has; theirs are not limited by us.
        self.is_of = weakref.ref(function)
        self.view = view
        self.guards = guards
        # What FastAPI is to hand over.
        self.way = way


def _wrapped(view: Callable[..., Any], guards: Sequence[Guard]) -> Callable[..., Any]:
    way = injection(view)
    judge = guards[0].judge if len(guards) == 1 else Stack(guards).judge
    settles = any(guard.cost_after is not None for guard in guards)

    @functools.wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        call = opened(way, args, kwargs)
        verdict: Any = judge(call.request, blocking=True)
        if verdict is None:
            return view(*args, **kwargs)
        if not verdict.decision.allowed:
            for earlier in call.earlier():
                finished(earlier.undo(True))
            call.check_answers(chosen, verdict)
            return call.answered(finished(_refusal(call, verdict, True)), verdict)
        try:
            result = view(*args, **kwargs)
        except Exception as exc:
            told = call.raised(exc, verdict)
            if told is exc:
                raise
            raise told from exc
        if settles:
            finished(verdict.settle(call.request, result, True))
        return call.answered(result, verdict)

    called = view if inspect.iscoroutinefunction(view) else _awaiting(view)

    @functools.wraps(view)
    async def limited_async(*args: Any, **kwargs: Any) -> Any:
        if way is not None and kwargs.get(way.request) is not None:
            call: Call = StarletteCall(way, kwargs)  # the way of FastAPI, in one step
        else:
            call = opened(way, args, kwargs)
        verdict: Any = judge(call.request)
        if isinstance(verdict, CoroutineType):
            verdict = await verdict
        if verdict is None:
            return await called(*args, **kwargs)
        if not verdict.decision.allowed:
            for earlier in call.earlier():
                await earlier.undo()
            call.check_answers(chosen, verdict)
            return call.answered(await _refusal(call, verdict, False), verdict)
        try:
            result = await called(*args, **kwargs)
        except Exception as exc:
            told = call.raised(exc, verdict)
            if told is exc:
                raise
            raise told from exc
        if settles:
            await verdict.settle(call.request, result, False)
        return call.answered(result, verdict)

    # FastAPI awaits what is async underneath, and so what wraps it.
    awaited = is_async(view) or (way is not None and is_async(inspect.unwrap(view)))
    chosen: Any = limited_async if awaited else limited
    setattr(chosen, MARK, _Limited(chosen, view, guards, way))
    if way is not None:
        inject(chosen, way)
        describe_refusals()
    return cast("Callable[..., Any]", chosen)


def _awaiting(view: Callable[..., Any]) -> Callable[..., Any]:
    """`view`, which may return an awaitable or not, as a coroutine function."""

    async def called(*args: Any, **kwargs: Any) -> Any:
        return await ready(view(*args, **kwargs), False)

    return called


async def _refusal(call: Call, verdict: Verdict, blocking: bool) -> Any:
    guard = verdict.guard
    if guard.on_refused is not None:
        try:
            answer = await ready(guard.on_refused(call.request, verdict.decision), blocking)
            return call.instead(answer)
        except Exception as exc:
            guard.complain("on_refused raised; the usual body is sent", exc=exc)
    return call.refusal(verdict)


def _check_limit(limit: Any) -> None:
    """Tells a function that chooses a limit from a view that was decorated with no limit."""
    if not inspect.isclass(limit):
        if not inspect.isroutine(limit) or getattr(limit, "__name__", None) == "<lambda>":
            return
        with contextlib.suppress(ValueError):  # it has no signature
            parameters = inspect.signature(limit).parameters.values()
            required = [each for each in parameters if each.default is each.empty]
            # What is registered already is a view.
            if len(required) == 1 and registration(limit, sys.maxsize) is None:
                return
    raise ArgumentTypeError(
        f'@rate_limit was given {limit!r}; accepted is a limit: @rate_limit("5/minute"), or a '
        "function of the request that returns one"
    )


def _check_view(view: Any) -> None:
    check_view(view)
    below: _Limited | None = getattr(view, MARK, None)
    if below is not None and below.is_of() is not view:
        raise ConfigurationError(
            f"{view!r} is under @rate_limit already, with another decorator in between: they "
            "are no plan then, and one would charge what the other refuses; accepted are "
            "@rate_limit decorators directly above each other"
        )
