"""@rate_limit, for one route."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from tidegate._core import Store
from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate._frameworks import injection, opened
from tidegate._guard import Guard, Verdict, finished, ready
from tidegate._headers import FAMILIES
from tidegate._limiter import Limiter
from tidegate._registered import reference_count, registration
from tidegate._storage import open_store
from tidegate.keys import peer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate._clock import ClockLike
    from tidegate._frameworks import Call
    from tidegate._limit import LimitLike
    from tidegate._storage import StorageLike

__all__ = ["rate_limit", "shared_store"]

View = TypeVar("View", bound=Callable[..., Any])

_MARK = "__tidegate_rate_limit__"


def rate_limit(
    limit: LimitLike,
    *,
    key: Callable[[Any], Any] | None = None,
    cost: int | Callable[[Any], Any] = 1,
    exempt_when: Callable[[Any], Any] | None = None,
    scope: str | None = None,
    storage: StorageLike = "memory://",
    algorithm: str = "token-bucket",
    prefix: str = "tg",
    clock: ClockLike = None,
    on_no_key: str = "address",
    on_refused: Callable[..., Any] | None = None,
    headers: Iterable[str] = FAMILIES,
    **options: Any,
) -> Callable[[View], View]:
    """Limits one route of FastAPI, Starlette or Flask, async or not.

        @app.get("/posts")
        @rate_limit("5/minute")
        async def posts(): ...

    The decorator stands below the one that registers the route: above it, it would guard
    what nobody calls, and raises ConfigurationError. The route needs no `request`
    parameter, and its OpenAPI schema is unchanged. Refusals are answered with 429 before the
    route runs; all responses carry the fields of the limit, those that are made from what
    the route returns or from an HTTP error that it raises.

    `key`, `cost` and `exempt_when` may be functions of the request (the framework's own),
    `on_refused` is one of the request and the decision and returns what the route could
    return; async functions are for async routes. `on_no_key` and `headers` are those of
    tidegate.asgi.RateLimitMiddleware, the rest is that of tidegate.Limiter.

    Each route counts for itself, whatever it is called; those with one `scope` and equal
    limits count together. Decorators with one storage URI share one store. Several limits
    go into one decorator, `@rate_limit(["10/second", "1000/hour"])`, and are then one plan.
    """
    if inspect.isroutine(limit) or inspect.isclass(limit):
        raise ArgumentTypeError(
            f'@rate_limit was given {limit!r}; accepted is a limit: @rate_limit("5/minute")'
        )
    if scope is not None and (not isinstance(scope, str) or not scope):
        raise ConfigurationError(f"the scope is {scope!r}; accepted is a non-empty str, or None")
    store = shared_store(storage, options)

    def guard(view: Callable[..., Any]) -> Guard:
        limiter = Limiter(
            limit,
            storage=store,
            algorithm=algorithm,
            prefix=f"{prefix}:{scope or _own_scope(view)}",
            clock=clock,
        )
        return Guard(
            limiter,
            address=peer,
            key=key,
            cost=cost,
            exempt_when=exempt_when,
            on_no_key=on_no_key,
            on_refused=on_refused,
            headers=headers,
        )

    functions = {"key": key, "cost": cost, "exempt_when": exempt_when, "on_refused": on_refused}
    return cast("Callable[[View], View]", _Decorator(guard, functions))


class _Decorator:
    def __init__(
        self, guard: Callable[[Callable[..., Any]], Guard], functions: dict[str, Any]
    ) -> None:
        self._guard = guard
        self._functions = functions

    def __call__(self, view: Callable[..., Any]) -> Callable[..., Any]:
        references = reference_count(view)
        _check_view(view)
        registered = registration(view, references)
        if registered is not None:
            raise ConfigurationError(
                f"{view.__qualname__} is registered with a {registered} already, which calls it "
                "without @rate_limit; accepted is @rate_limit below the decorator that "
                "registers the route"
            )
        is_async = inspect.iscoroutinefunction(view)
        for name, function in self._functions.items():
            if not is_async and inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"{name} is the async function {function!r} and {view!r} is not async; "
                    "accepted is a function that is not async, or an async route"
                )
        wrap = _wrapped_async if is_async else _wrapped
        return wrap(view, self._guard(view))


def _wrapped(view: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    way = injection(view)

    @functools.wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        call = opened(way, args, kwargs)
        verdict = finished(guard.judge(call.request, blocking=True))
        if verdict is None:
            return view(*args, **kwargs)
        if not verdict.decision.allowed:
            return call.answered(finished(_refusal(guard, call, verdict, True)), verdict)
        try:
            result = view(*args, **kwargs)
        except Exception as exc:
            told = call.raised(exc, verdict)
            if told is exc:
                raise
            raise told from exc
        return call.answered(result, verdict)

    return _marked(limited, way)


def _wrapped_async(view: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    way = injection(view)

    @functools.wraps(view)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        call = opened(way, args, kwargs)
        verdict = await guard.judge(call.request)
        if verdict is None:
            return await view(*args, **kwargs)
        if not verdict.decision.allowed:
            return call.answered(await _refusal(guard, call, verdict, False), verdict)
        try:
            result = await view(*args, **kwargs)
        except Exception as exc:
            told = call.raised(exc, verdict)
            if told is exc:
                raise
            raise told from exc
        return call.answered(result, verdict)

    return _marked(limited, way)


async def _refusal(guard: Guard, call: Call, verdict: Verdict, blocking: bool) -> Any:
    if guard.on_refused is not None:
        try:
            return await ready(guard.on_refused(call.request, verdict.decision), blocking)
        except Exception as exc:
            guard.complain("on_refused raised; the usual body is sent", exc=exc)
    return call.refusal(verdict)


def _marked(limited: Callable[..., Any], way: Any) -> Callable[..., Any]:
    setattr(limited, _MARK, True)
    if way is not None:
        limited.__signature__ = way.signature  # type: ignore[attr-defined]
    return limited


def _check_view(view: Any) -> None:
    accepted = "accepted by @rate_limit is a function that answers requests"
    if inspect.isclass(view) or isinstance(view, (staticmethod, classmethod)) or not callable(view):
        raise ArgumentTypeError(f"{view!r} is a {type(view).__name__}; {accepted}")
    if inspect.isgeneratorfunction(view) or inspect.isasyncgenfunction(view):
        raise ConfigurationError(
            f"{view!r} is a generator, which begins only after the response has begun; "
            f"{accepted}, and which may return a streaming response"
        )
    if hasattr(view, _MARK):
        raise ConfigurationError(
            f"{view!r} is under @rate_limit already, and limits that are checked one after the "
            "other charge those that pass when a later one refuses; accepted is one decorator "
            'with all of them: @rate_limit(["10/second", "1000/hour"])'
        )


_lock = threading.Lock()
_stores: dict[tuple[str, str], Store] = {}
_names: Counter[str] = Counter()


def shared_store(storage: StorageLike, options: dict[str, Any]) -> Store:
    """One store for all decorators with one URI, so that a `scope` spans them."""
    if not isinstance(storage, str):
        return open_store(storage, options)
    known = (storage, repr(sorted(options.items())))
    with _lock:
        if known not in _stores:
            _stores[known] = open_store(storage, options)
        return _stores[known]


def _own_scope(view: Callable[..., Any]) -> str:
    """A name that no other function has in this process, and the same in every worker."""
    name = f"{view.__module__}.{getattr(view, '__qualname__', type(view).__qualname__)}"
    with _lock:
        _names[name] += 1
        number = _names[name]
    return name if number == 1 else f"{name}#{number}"
