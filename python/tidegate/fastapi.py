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
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Callable

from fastapi import Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException

from tidegate._core import Decision
from tidegate._frameworks import put, with_fields
from tidegate._guard import Verdict, ready
from tidegate._headers import FAMILIES, PROBLEM_TYPE
from tidegate._openapi import describe_refusals
from tidegate._scopes import check_scope, guard_in_scope, shared_store

if TYPE_CHECKING:
    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._limiter import Limiter
    from tidegate._storage import StorageLike

__all__ = ["RateLimit", "RateLimited"]

# The verdicts on the request that a task is at, in the order in which they came.
_verdicts: ContextVar[tuple[Verdict, ...]] = ContextVar("tidegate_verdicts", default=())
_numbers = itertools.count(1)
_SEEN = "tidegate.verdicts"

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

    All arguments are those of tidegate.rate_limit. It may stand on routes, routers and the
    application. Each object counts for itself, for all routes that it stands on; those
    with one `scope` and equal limits count together. Where several stand on one route and
    a later one refuses, the earlier ones are given back what they charged.

    All responses carry the fields of the limits: those that are made from what the route
    returns, responses that it returns, and HTTPExceptions of the route and of dependencies
    that come after this one. `on_refused` is a function of request and decision that
    returns the exception to raise instead. Raises ConfigurationError at construction.
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
        scope: str | None = None,
        storage: StorageLike = "memory://",
        algorithm: str = "token-bucket",
        prefix: str = "tg",
        clock: ClockLike = None,
        on_no_key: str = "address",
        on_refused: Callable[..., Any] | None = None,
        headers: Iterable[str] = FAMILIES,
        **options: Any,
    ) -> None:
        check_scope(scope)
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
            on_no_key=on_no_key,
            on_refused=on_refused,
            headers=headers,
        )

    @property
    def limiter(self) -> Limiter | None:
        """Its limiter; None where a function chooses the limit."""
        return self._guard.limiter

    async def __call__(
        self, request: Request, response: Response
    ) -> AsyncIterator[Decision | None]:
        verdict = await self._guard.judge(request)
        if verdict is None:
            yield None
            return
        before: tuple[Verdict, ...] = request.scope.get(_SEEN, ())
        if not verdict.decision.allowed:
            for earlier in before:
                await earlier.undo()
            raise await self._refusal(request, verdict)
        verdicts = request.scope[_SEEN] = (*before, verdict)
        _verdicts.set(verdicts)
        if not before:
            _tell_responses(request.scope.get("route"))
        put(response.raw_headers, _binding(verdicts))
        try:
            yield verdict.decision
        except HTTPException as exc:
            # Nearest to the route, it is the first to see it; the others find theirs told.
            if request.scope.get(_SEEN) is not verdicts or isinstance(exc, RateLimited):
                raise
            raise with_fields(exc, _binding(verdicts)) from exc

    async def _refusal(self, request: Request, verdict: Verdict) -> BaseException:
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
        handlers, _ = request.scope.get("starlette.exception_handlers", ({}, {}))
        # FastAPI's own handler for HTTPException would make another body of it.
        if handlers.get(HTTPException) in (None, http_exception_handler):
            handlers.setdefault(RateLimited, _answer)
        return RateLimited(verdict)


async def _answer(request: Request, exc: RateLimited) -> Response:
    return Response(exc.problem, 429, exc.headers, PROBLEM_TYPE.decode())


def _binding(verdicts: tuple[Verdict, ...]) -> Verdict:
    """The one of several that all let the request pass which a response tells of."""
    return min(verdicts, key=lambda verdict: verdict.decision.remaining)


def _tell_responses(route: Any) -> None:
    """Has the fields put into responses that the function of `route` returns.

    FastAPI gives those to nobody but who sends them; the function itself is what it calls
    for each request.
    """
    dependant: Any = getattr(route, "dependant", None)
    call = getattr(dependant, "call", None)
    if call is None or hasattr(call, "__tidegate_tells__"):
        return

    def tell(result: Any) -> Any:
        verdicts = _verdicts.get()
        raw = getattr(result, "raw_headers", None)
        if verdicts and raw is not None:
            put(raw, _binding(verdicts))
        return result

    @functools.wraps(call)
    async def telling_async(*args: Any, **kwargs: Any) -> Any:
        return tell(await call(*args, **kwargs))

    @functools.wraps(call)
    def telling(*args: Any, **kwargs: Any) -> Any:
        return tell(call(*args, **kwargs))

    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        return
    chosen: Any = telling_async if inspect.iscoroutinefunction(call) else telling
    chosen.__tidegate_tells__ = True
    dependant.call = chosen
