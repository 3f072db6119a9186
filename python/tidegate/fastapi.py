"""Rate limiting as a dependency of FastAPI.

::

    @app.get("/posts", dependencies=[Depends(RateLimit("5/minute"))])
    async def posts(): ...

    async def report(decision: Annotated[Decision, Depends(RateLimit("5/minute"))]): ...

    app = FastAPI(dependencies=[Depends(DefaultRateLimit("60/minute"))])  # all other routes

    @app.get("/health")
    @exempt
    async def health(): ...
"""

from __future__ import annotations

import functools
import itertools
import re
import weakref
from collections.abc import AsyncIterator, Awaitable
from types import CoroutineType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable

from tidegate.limiter.errors import missing, without_extra

try:
    from fastapi import Response
    from starlette.requests import HTTPConnection
except ImportError as error:
    raise without_extra("tidegate.fastapi", "fastapi", error) from None

from tidegate._core import Decision
from tidegate.limiter import errors
from tidegate.limiter.errors import ConfigurationError
from tidegate.web.callables import check_function, check_result
from tidegate.web.configuration import following_limiter
from tidegate.web.decisions import DECISIONS, add_decision, binding
from tidegate.web.execution import AWAITING
from tidegate.web.frameworks.fastapi_costs import PENDING, settle_by_results_of, settle_one
from tidegate.web.frameworks.fastapi_defaults import (
    PerRoute,
    exempt,
    has_own_limit,
    name_of,
    route_of,
)
from tidegate.web.frameworks.fastapi_errors import (
    RateLimitExceeded,
    answering_error,
    exceeded_error,
    refusal_error,
    response_of,
)
from tidegate.web.frameworks.fastapi_handlers import HANDLED, HELD, undo_granted, wrap_handlers
from tidegate.web.frameworks.fastapi_injection import watch_signatures
from tidegate.web.frameworks.fastapi_openapi import EXEMPT, describe_refusals
from tidegate.web.frameworks.order_check import check_limit
from tidegate.web.frameworks.starlette_exceptions import watch_handlers, with_fields
from tidegate.web.frameworks.starlette_routes import route_path
from tidegate.web.options import DependencyOptions, OptionReader
from tidegate.web.refusal import USUAL
from tidegate.web.shared_counters import check_scope

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate.limiter.limit import LimitLike
    from tidegate.limiter.limiter import Limiter
    from tidegate.web.request_limiter import RequestDecision, RequestLimiter

__all__ = ["DefaultRateLimit", "RateLimit", "RateLimitExceeded", "exempt", "route_path"]

_OPTIONS = OptionReader(DependencyOptions)
_DEFAULT_OPTIONS = OptionReader(DependencyOptions)
_numbers = itertools.count(1)

describe_refusals()
watch_signatures()
wrap_handlers()


class RateLimit:
    """A dependency that refuses with 429 above `limit`; its value is the Decision.

    The arguments are those of tidegate.rate_limit. The dependency may stand on routes, routers and
    the application. Each object has its own counts, which all of its routes share; objects with the
    same `scope` and equal limits share counts. If several stand on one route and a later one
    refuses, the earlier ones give back what they charged.

    All responses carry the fields of the limits, whether the route returns a value or a response,
    or a handler answers an exception of the route or of a later dependency. `on_refused` is a
    function of request and decision that returns what a route could return, sent as a 429 unless it
    is a response of its own, or an exception to raise. `cost_after` is a
    function of the request and of what the route returned, or of the exception that ended the
    request, also one of a later dependency; on a WebSocket that ends it gets None. Raises
    ConfigurationError at construction.

    A WebSocket counts as one request, a GET, charged when it connects. It is refused with a 429 if
    the server can send one, else by closing it with code 1013. Functions of the request get the
    WebSocket.
    """

    # web/frameworks/fastapi_openapi.py recognises the dependency by this attribute.
    __tidegate_rate_limit__: Any = None
    # Whether a route's own limit replaces this one.
    is_default = False

    @_OPTIONS.shown
    def __init__(
        self,
        limit: LimitLike | Callable[..., Any],
        **options: Unpack[DependencyOptions],
    ) -> None:
        given, storage_options = _OPTIONS.read(options)
        check_limit(limit, "RateLimit")
        check_scope(given.scope)
        if given.key is not None and "on_no_key" not in options:
            given.key = _with_dependencies(given.key)
        # The route of the last request, whose results settle costs.
        self._route: Callable[[], Any] = lambda: None
        name = f"Depends({type(self).__name__}({limit!r}))"

        def in_scope(scope: str) -> RequestLimiter:
            return following_limiter(limit, name, scope, given, options, storage_options)

        self._in_scope = in_scope
        self._scope = given.scope
        # Dependencies that are created in the same order have the same number in every worker.
        self._name = f"dependency#{next(_numbers)}"
        self._request_limiter = in_scope(given.scope or self._name)
        self.__tidegate_rate_limit__ = SimpleNamespace(limiters=[self._request_limiter])
        # FastAPI looks here to see whether it must await a call, which is the class's __call__.
        # Before Python 3.12, older versions of FastAPI do not see a mark on that method.
        own = self._request_limiter.limiter
        settles = given.cost_after is not None or (own is not None and own._has_leases)
        chosen: Any = self._charge_and_settle if settles else self._charge
        self.__dict__["__call__"] = self._chosen = chosen

    @property
    def limiter(self) -> Limiter | None:
        """The limiter, or None if a function chooses the limit."""
        return self._request_limiter.limiter

    # A generator would make a call of FastAPI four times slower, so only `cost_after` makes one.
    # The method is not async, so that a call by anything but FastAPI raises at once.
    def __call__(
        self,
        request: HTTPConnection,
        response: Response = None,  # type: ignore[assignment]
    ) -> Awaitable[Decision | None] | AsyncIterator[Decision | None]:
        if response is None:
            raise ConfigurationError(
                f"{type(self).__name__}(...) was called with {request!r}; expected "
                f"Depends({type(self).__name__}(...)) in the route's dependencies, and "
                "@tidegate.rate_limit(...) as a decorator"
            )
        chosen: Awaitable[Decision | None] = self._chosen(request, response)
        return chosen

    @property
    def dependency(self) -> Any:
        """Raises, since only Depends() reads this attribute."""
        raise ConfigurationError(
            f"{type(self).__name__}(...) was given as a dependency itself; expected "
            f"Depends({type(self).__name__}(...))"
        )

    def _of_route(self, scope: Any) -> RequestLimiter | None:
        """Returns what limits requests of the route, or None. Only a default asks for it."""
        return self._request_limiter

    async def _charge(self, request: HTTPConnection, response: Response) -> Decision | None:
        scope = request.scope
        is_websocket = scope["type"] == "websocket"
        if getattr(scope.get("endpoint"), EXEMPT, False):
            return None
        request_limiter = self._of_route(scope) if self.is_default else self._request_limiter
        if request_limiter is None:
            return None
        try:
            checked = request_limiter.check(request)
            outcome = await checked if isinstance(checked, CoroutineType) else checked
        except Exception:
            await undo_granted(scope)
            raise
        if outcome is None:
            return None
        if not outcome.decision.allowed:
            await undo_granted(scope)
            raise await self._refusal(request, outcome)
        outcomes = add_decision(scope, outcome)
        if HANDLED not in scope and not is_websocket:
            # An override limits a route that was made before, or the version of FastAPI is unknown.
            watch_handlers(scope)
            self._settle_by_results(scope)
            binding(outcomes).put(response.raw_headers)
        return outcome.decision

    async def _charge_and_settle(
        self, request: HTTPConnection, response: Response
    ) -> AsyncIterator[Decision | None]:
        """Does what _charge() does, and settles the cost where the route does not return."""
        scope = request.scope
        decision = await self._charge(request, response)
        if decision is None:
            yield None
            return
        outcome = scope[DECISIONS][-1]
        outcome.hold()
        if outcome.limits.lease_ns:
            scope.setdefault(HELD, []).append(outcome)
        if scope["type"] != "websocket":
            self._settle_by_results(scope)
        scope.setdefault(PENDING, []).append(outcome)
        answer: Any = None
        try:
            yield decision
        except Exception as exc:
            answer = exc
            raise
        finally:
            await AWAITING.to_the_end(_end(request, outcome, answer))

    def _settle_by_results(self, scope: Any) -> None:
        route = route_of(scope)
        if route is not self._route():
            settle_by_results_of(route)
            self._route = (lambda: None) if route is None else weakref.ref(route)

    async def _refusal(self, request: HTTPConnection, outcome: RequestDecision) -> BaseException:
        error = await outcome.service_answer(
            request,
            AWAITING,
            accepts=lambda answer: answer is not None,
            expected="what a route returns, or an exception",
            convert=response_of,
        )
        if isinstance(error, BaseException):
            if request.scope["type"] == "websocket":
                return error
            if isinstance(error, errors.RateLimitExceeded):
                error = exceeded_error(request, error)
            add_decision(request.scope, outcome)
            return with_fields(request.scope, error, outcome)
        if error is not USUAL:
            return answering_error(request, error, outcome)
        return refusal_error(request, outcome)


# Type checkers are to find names that do not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        elsewhere = {
            "FastAPILimiter": "from tidegate import configure",
            "Limiter": "from tidegate import Limiter",
            "RateLimited": "from tidegate.fastapi import RateLimitExceeded",
            "RateLimitMiddleware": "from tidegate.asgi import RateLimitMiddleware",
            "RateLimiter": "from tidegate.fastapi import RateLimit",
            "configure": "from tidegate import configure",
            "keys": "from tidegate import keys",
            "limit": "from tidegate import rate_limit",
            "rate_limit": "from tidegate import rate_limit",
        }
        raise missing(__name__, name, elsewhere)


# Older FastAPI evaluates annotations in text among the globals of the object, which has none.
RateLimit.__call__.__annotations__.update(request=HTTPConnection, response=Response)


class DefaultRateLimit(RateLimit):
    """A limit for all routes without a limit of their own; each route has its own counts.

        app = FastAPI(dependencies=[Depends(DefaultRateLimit("60/minute"))])

    It takes the arguments of RateLimit, and stands on the application. It does not apply to routes
    under @rate_limit, to routes with their own RateLimit or one of their routers, and to routes
    under @exempt. If the route's own limit is for some `methods`, the default applies to the
    others. A RateLimit on the application applies to all routes as well. With a `scope`, all
    routes share counts.
    """

    is_default = True

    @_DEFAULT_OPTIONS.shown
    def __init__(
        self,
        limit: LimitLike | Callable[..., Any],
        **options: Unpack[DependencyOptions],
    ) -> None:
        super().__init__(limit, **options)
        self._of_routes: PerRoute[RequestLimiter | None] = PerRoute()

    def _of_route(self, scope: Any) -> RequestLimiter | None:
        route = route_of(scope)

        def make() -> RequestLimiter | None:
            if has_own_limit(route, scope):
                return None
            if self._scope:
                return self._request_limiter
            return self._in_scope(f"{self._name}:{name_of(route, scope)}")

        return self._of_routes.get(route, scope.get("method", "GET"), make)


def _with_dependencies(key: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a key function whose error, for the log, says what sets the state that it reads."""
    check_function("key", key, ("the request",))
    check_result("key", key)

    @functools.wraps(key)
    def read(request: Any) -> Any:
        try:
            return key(request)
        except AttributeError as exc:
            unset = re.search(r"'State' object has no attribute '(\w+)'", str(exc))
            if unset is None:
                raise
            # It is no misuse: a dependency or middleware may set it for some requests only.
            raise AttributeError(
                f"key reads request.state.{unset[1]}, which no dependency has set before; "
                "expected that dependency first in `dependencies=[...]`, or @rate_limit, which "
                "decides after all of them, or on_no_key= for requests that have none"
            ) from exc

    return read


async def _end(request: HTTPConnection, outcome: RequestDecision, answer: Any) -> None:
    try:
        await settle_one(request, outcome, answer)
    finally:
        await outcome.leave(AWAITING)
