"""Rate limiting as a dependency of FastAPI.

@app.get("/posts", dependencies=[Depends(RateLimit("5/minute"))])
async def posts(): ...

app = FastAPI(dependencies=[Depends(RateLimit("1000/hour"))])

async def report(decision: Annotated[Decision, Depends(RateLimit("5/minute"))]): ...
"""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Iterable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Callable

from fastapi import Request, Response, WebSocketException, routing
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from tidegate._answers import TELLS, remember
from tidegate._core import Decision
from tidegate._frameworks import VERDICTS, binding
from tidegate._guard import Verdict, ready
from tidegate._headers import FAMILIES, PROBLEM_TYPE
from tidegate._middleware import charged_methods
from tidegate._openapi import describe_refusals
from tidegate._scopes import check_scope, guard_in_scope, shared_store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._limiter import Limiter
    from tidegate._storage import StorageLike, StorageOptions

__all__ = ["RateLimit", "RateLimited"]

_numbers = itertools.count(1)
# The parameter by which a function that asks for no request is given it.
_REQUEST = "tidegate_request"
# What a server offers that can answer a WebSocket by a response.
_DENIAL = "websocket.http.response"
# Where newer FastAPI keeps what a route of a router is in the place where that is included, which
# has a dependant of its own.
_EFFECTIVE = getattr(routing, "_FASTAPI_EFFECTIVE_ROUTE_CONTEXT_KEY", None)

describe_refusals()


class RateLimited(HTTPException):
    """What a refused dependency raises: a 429 with `decision`.

    It is answered with a problem+json body, unless the application has a handler for it,
    for 429 or for HTTPException.
    """

    def __init__(self, verdict: Verdict) -> None:
        fields = {name.decode(): value.decode() for name, value in verdict.fields()}
        super().__init__(429, "Too Many Requests", fields)
        self.decision = verdict.decision
        self.problem = verdict.problem()


class RateLimit:
    """A dependency that refuses with 429 above `limit`; its value is the Decision.

    The arguments are those of tidegate.rate_limit, but for `cost_after`. It may stand on
    routes, routers and the application. Each object counts for itself, for all routes that
    it stands on; those with one `scope` and equal limits count together. Where several
    stand on one route and a later one refuses, the earlier ones are given back what they
    charged.

    All responses carry the fields of the limits: those that are made from what the route
    returns, responses that it returns, and what handlers answer to exceptions of the route
    and of dependencies that come after this one. `on_refused` is a function of request and
    decision that returns the exception to raise instead. Raises ConfigurationError at
    construction.

    A WebSocket is one request, a GET, charged when it connects. It is refused by a 429 where
    the server can send one, else by closing it with code 1013. Functions of the request are
    given the WebSocket.
    """

    # What _openapi.py knows it by.
    __tidegate_rate_limit__ = None

    def __init__(
        self,
        limit: LimitLike | Callable[..., Any],
        *,
        key: Callable[[Request], Any] | None = None,
        cost: int | Callable[[Request], Any] = 1,
        exempt_when: Callable[[Request], Any] | None = None,
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
    ) -> None:
        check_scope(scope)
        # The last of those that it was called for, whose function tells the fields.
        self._route: Callable[[], Any] = lambda: None
        self._guard = guard_in_scope(
            limit,
            # Made in the same order, they have the same number in every worker.
            scope=scope or f"dependency#{next(_numbers)}",
            store=shared_store(storage, options),
            algorithm=algorithm,
            prefix=prefix,
            clock=clock,
            key=key,
            cost=cost,
            exempt_when=exempt_when,
            methods=charged_methods(methods),
            on_no_key=on_no_key,
            on_refused=on_refused,
            headers=headers,
            retry_jitter=retry_jitter,
        )

    @property
    def limiter(self) -> Limiter | None:
        """Its limiter; None where a function chooses the limit."""
        return self._guard.limiter

    # No generator: FastAPI enters and leaves one at four times the cost of a call.
    async def __call__(self, request: HTTPConnection, response: Response) -> Decision | None:
        scope = request.scope
        is_websocket = scope["type"] == "websocket"
        verdict = self._guard.judge(request)
        if isinstance(verdict, CoroutineType):
            verdict = await verdict
        if verdict is None:
            return None
        if not verdict.decision.allowed:
            for earlier in scope.pop(VERDICTS, ()):
                await earlier.undo()
            raise await self._refusal(request, verdict)
        if is_websocket:
            scope[VERDICTS] = (*scope.get(VERDICTS, ()), verdict)
            return verdict.decision
        verdicts = remember(scope, verdict)
        route = scope.get("route")
        if _EFFECTIVE is not None and "fastapi" in scope:
            route = scope["fastapi"].get(_EFFECTIVE) or route
        if route is not self._route():
            _tell_responses(route)
            self._route = (lambda: None) if route is None else weakref.ref(route)
        binding(verdicts).put(response.raw_headers)
        return verdict.decision

    async def _refusal(self, request: HTTPConnection, verdict: Verdict) -> BaseException:
        guard = self._guard
        if guard.on_refused is not None:
            try:
                instead = await ready(guard.on_refused(request, verdict.decision), False)
                if isinstance(instead, BaseException):
                    return instead
                guard.complain(
                    "on_refused gave a %s, accepted is an exception; the usual one is raised",
                    type(instead).__name__,
                )
            except Exception as exc:
                guard.complain("on_refused raised; the usual body is sent", exc=exc)
        return refused(request, verdict)


# Older FastAPI evaluates annotations that are text among the globals of the object, which
# has none.
RateLimit.__call__.__annotations__.update(request=HTTPConnection, response=Response)


def refused(request: HTTPConnection, verdict: Verdict) -> HTTPException | WebSocketException:
    """What to raise, which is answered as usual."""
    scope = request.scope
    if scope["type"] == "websocket" and _DENIAL not in (scope.get("extensions") or ()):
        return WebSocketException(1013, "rate limit exceeded")
    handlers, _ = request.scope.get("starlette.exception_handlers", ({}, {}))
    general = handlers.get(HTTPException)
    # FastAPI's own handler for HTTPException would make another body of it.
    if getattr(general, TELLS, general) in (None, http_exception_handler):
        handlers.setdefault(RateLimited, _answer)
    return RateLimited(verdict)


async def _answer(request: HTTPConnection, exc: RateLimited) -> Response:
    return Response(exc.problem, 429, exc.headers, PROBLEM_TYPE.decode())


def _tell_responses(route: Any) -> None:
    """Has the fields put into responses that the function of `route` returns.

    FastAPI gives those to nobody but who sends them; the function itself is what it calls
    for each request.
    """
    dependant: Any = getattr(route, "dependant", None)
    call = getattr(dependant, "call", None)
    if call is None or hasattr(call, TELLS):
        return

    own: str | None = dependant.request_param_name

    def tell(result: Any, request: Any) -> None:
        # Of a response; what a service calls so itself is a value.
        raw = result.raw_headers
        verdicts = None if request is None else request.scope.get(VERDICTS)
        if verdicts and isinstance(raw, list):
            binding(verdicts).put(raw)

    @functools.wraps(call)
    async def telling_async(*args: Any, **kwargs: Any) -> Any:
        request = kwargs.pop(_REQUEST, None) if own is None else kwargs.get(own)
        result = await call(*args, **kwargs)
        if hasattr(result, "raw_headers"):
            tell(result, request)
        return result

    @functools.wraps(call)
    def telling(*args: Any, **kwargs: Any) -> Any:
        request = kwargs.pop(_REQUEST, None) if own is None else kwargs.get(own)
        result = call(*args, **kwargs)
        if hasattr(result, "raw_headers"):
            tell(result, request)
        return result

    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        return
    chosen: Any = telling_async if inspect.iscoroutinefunction(call) else telling
    setattr(chosen, TELLS, call)
    dependant.call = chosen
    # FastAPI looks for it once the dependencies have run, for this request too. Not a context
    # variable: a task may inherit that of another request.
    dependant.request_param_name = own or _REQUEST
