"""Wraps the handlers of FastAPI's routes, to decide where they begin and add the fields at the end.

FastAPI calls a route's function last. So its function that makes the handler of a route is wrapped:
a limited route is decided before its body and dependencies are read, and its function finds the
decision. The responses of all routes get the fields of limited functions and dependencies here, and
a RateLimitExceeded that leaves a route is answered.
"""

from __future__ import annotations

import copy
import functools
import inspect
from types import CoroutineType
from typing import Any, Callable

from tidegate.limiter.errors import RateLimitExceeded
from tidegate.web.callables import is_async
from tidegate.web.decisions import DECISIONS, GRANTED, add_decision, binding, take_granted
from tidegate.web.execution import AWAITING, BLOCKING
from tidegate.web.frameworks.fastapi_openapi import EXEMPT, MARK, UNMARKED, calls_of, mark_of
from tidegate.web.frameworks.starlette_exceptions import add_fields, watch_handlers, with_fields
from tidegate.web.hooks import HeldLogs, log
from tidegate.web.refusal import USUAL, plain_body
from tidegate.web.request_limiter import NOT_READY

__all__ = ["HANDLED", "HELD", "SETTLED", "take_decision", "undo_granted", "wrap_handlers"]

# The key that a scope has if the handler of its route adds the fields of its decisions.
HANDLED = "tidegate.handled"
# The key under which a scope holds the decisions of dependencies that took places.
HELD = "tidegate.held"

# The key under which a scope holds the mark of a limited function and its decision.
_DECIDED = "tidegate.decided"
# The key under which the function leaves the decision that shows the state after its cost is known.
SETTLED = "tidegate.settled"


def wrap_handlers() -> None:
    """Wraps the handlers of routes that FastAPI makes from now on, if it is installed."""
    try:
        import fastapi.routing as routing
    except ImportError:
        return
    make = getattr(routing, "get_request_handler", None)
    if make is not None and not hasattr(make, MARK):
        routing.get_request_handler = _wrapping(make)


def take_decision(scope: Any, mark: Any) -> tuple[Any, ...]:
    """Returns the decision that was made before the function of `mark` was called, in a tuple, and
    removes it from the scope. It is None if the request is not limited; the tuple is empty if
    nothing was decided."""
    decided: tuple[Any, ...] | None = scope.get(_DECIDED)
    if decided is None or decided[0] is not mark:
        return ()
    del scope[_DECIDED]
    known = scope.get(DECISIONS)
    if known is not None:
        if len(known) == 1 and known[0] is decided[1]:
            del scope[DECISIONS]
        else:
            scope[DECISIONS] = tuple(each for each in known if each is not decided[1])
    return decided[1:]


class _Handler:
    """The handler of a route whose function is not limited."""

    def __init__(self, handler: Any, dependant: Any) -> None:
        self._handler = handler
        self._dependant = dependant
        self._is_first = True

    async def answer(self, request: Any) -> Any:
        scope = request.scope
        scope[HANDLED] = True
        if self._is_first:
            self._begin(scope)
        try:
            response = await self._handler(request)
        except Exception as exc:
            if DECISIONS in scope:
                watch_handlers(scope)
            error = _answered(request, exc)
            if error is exc:
                raise
            raise error from exc
        if DECISIONS in scope:
            add_fields(request, response)
        if HELD in scope:
            _leave_after(response, scope)
        return response

    def _begin(self, scope: Any) -> None:
        """Prepares for requests, of which that of `scope` is the first."""
        self._is_first = False
        calls = (getattr(self._dependant, "call", None), *calls_of(self._dependant))
        if any(mark_of(call) is not UNMARKED for call in calls):
            watch_handlers(scope)
        _note_vain_exemption(scope, self._dependant)


def _leave_after(response: Any, scope: Any) -> None:
    from tidegate.web.frameworks.fastapi_costs import leave_after

    leave_after(response, scope.pop(HELD))


def _answered(request: Any, exc: Exception) -> Exception:
    """Returns what a route raises in place of `exc`: a 429 for a limit that was found exceeded."""
    if not isinstance(exc, RateLimitExceeded):
        return exc
    from tidegate.web.frameworks.fastapi_errors import exceeded_error

    return exceeded_error(request, exc)


def _note_vain_exemption(scope: Any, dependant: Any) -> None:
    """Warns of a route under @exempt that no dependency limits, and middleware does."""
    endpoint = scope.get("endpoint")
    if not getattr(endpoint, EXEMPT, False) or GRANTED not in scope:
        return
    if any(mark_of(call) is not UNMARKED for call in calls_of(dependant) if call is not endpoint):
        return
    path = getattr(scope.get("route"), "path", scope["path"])
    log.warning(
        "rate limiting: %s is under @exempt, which is for RateLimit and DefaultRateLimit, and "
        "middleware charged its request; expected exempt_paths=[%r] of the middleware",
        getattr(endpoint, "__qualname__", endpoint), path,
    )  # fmt: skip


def _wrapping(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        dependant = kwargs.get("dependant", args[0] if args else None)
        mark = _mark_of_route(getattr(dependant, "call", None))
        if mark is None:
            return _Handler(make(*args, **kwargs), dependant).answer
        direct = _past_the_limit(dependant, mark)
        if direct is None:
            handler = make(*args, **kwargs)
        elif "dependant" in kwargs:
            handler = make(*args, **{**kwargs, "dependant": direct})
        else:
            handler = make(direct, *args[1:], **kwargs)
        kind = getattr(kwargs.get("response_class"), "value", kwargs.get("response_class"))
        return _First(handler, dependant, mark, kind, is_direct=direct is not None).answer

    setattr(made, MARK, None)
    return made


def _mark_of_route(call: Any) -> Any:
    """Returns the mark of the limited function that a call of the route's function is; None if
    another decorator stands above the limit, which may answer without it."""
    mark = mark_of(call)
    while isinstance(call, functools.partial):
        call = call.func
    limited = getattr(mark, "is_of", lambda: None)()
    if limited is None:
        return None
    found = (call, getattr(call, "__func__", None), type(call).__call__)
    return mark if any(each is limited for each in found) else None


def _past_the_limit(dependant: Any, mark: Any) -> Any:
    """Returns a dependant that calls the function below the limit, for a handler that does all that
    the limited function would do; None if the function itself has something to do."""
    added = ("request_param_name", "response_param_name")
    if (
        getattr(dependant, "dependencies", True)
        or dependant.call is not mark.is_of()
        or not all(hasattr(dependant, name) for name in added)
        or mark.asks_functions
        or mark.holds
        or mark.injection is None
        or not inspect.iscoroutinefunction(mark.view)
    ):
        return None
    direct = copy.copy(dependant)
    direct.call = mark.view
    for name in added:
        if getattr(direct, name) in mark.injection.added:
            setattr(direct, name, None)
    return direct


class _First(_Handler):
    """The handler of a route whose function is limited, which decides first."""

    def __init__(
        self, handler: Any, dependant: Any, mark: Any, response_class: Any, *, is_direct: bool
    ) -> None:
        super().__init__(handler, dependant)
        self._is_direct = is_direct
        self._mark = mark
        self._response_class = response_class

    async def answer(self, request: Any) -> Any:
        scope = request.scope
        if self._is_first:
            self._begin(scope)
        mark = self._mark
        try:
            if mark.asks_functions:
                outcome = await self._decide(request)
            else:
                outcome = mark.checks.check(request)
                if isinstance(outcome, CoroutineType):
                    outcome = await outcome
        except Exception:
            await undo_granted(scope)
            raise
        if outcome is NOT_READY:
            outcome = None
            scope[HANDLED] = True
        elif outcome is not None and not outcome.decision.allowed:
            return await self._refuse(request, outcome)
        elif not self._is_direct:
            scope[HANDLED] = True
            scope[_DECIDED] = (mark, outcome)
            if outcome is not None:
                add_decision(scope, outcome)
                if mark.holds:
                    outcome.hold()
        try:
            response = await self._handler(request)
        except Exception as exc:
            error = _answered(request, exc)
            watch_handlers(scope)
            if outcome is not None:
                if mark.holds:
                    await AWAITING.to_the_end(outcome.leave(AWAITING))
                stands = any(each is outcome for each in scope.get(DECISIONS, ()))
                if take_decision(scope, mark):  # the function was not reached
                    if stands:  # no dependency has refused
                        add_decision(scope, await outcome.settle(request, exc, AWAITING))
                else:
                    outcomes = add_decision(scope, scope.pop(SETTLED, outcome))
                    if error is exc:
                        error = with_fields(scope, exc, binding(outcomes))
            if error is exc:
                raise
            raise error from error.__cause__ or exc
        finally:
            # A function that was reached gives its places back itself.
            if _DECIDED in scope and take_decision(scope, mark) and outcome is not None:
                await AWAITING.to_the_end(outcome.leave(AWAITING))
        if outcome is not None:
            outcome = scope.pop(SETTLED, outcome) if mark.holds else outcome
            if DECISIONS in scope:  # of dependencies
                outcome = binding(add_decision(scope, outcome))
            else:  # the usual case, without a call
                scope[DECISIONS] = (outcome,)
            raw = getattr(response, "raw_headers", None)
            if isinstance(raw, list):
                outcome.put(raw)
        elif DECISIONS in scope:
            add_fields(request, response)
        if HELD in scope:
            _leave_after(response, scope)
        return response

    async def _decide(self, request: Any) -> Any:
        """Decides by functions of the service, or returns NOT_READY."""
        mark = self._mark
        with _Asked(request) as asked, HeldLogs() as logs:
            try:
                if mark.is_async:
                    outcome = await mark.checks.check_when(request, AWAITING, asked.was_complete)
                else:
                    from starlette.concurrency import run_in_threadpool

                    outcome = await run_in_threadpool(
                        mark.checks.check_when, request, BLOCKING, asked.was_complete
                    )
            except Exception:
                if asked.was_complete():
                    raise
                outcome = NOT_READY
            if outcome is NOT_READY:
                logs.drop()
        return outcome

    async def _refuse(self, request: Any, outcome: Any) -> Any:
        from tidegate.web.frameworks.fastapi_errors import refusal_error

        await undo_granted(request.scope)
        answer: Any = USUAL
        function = outcome.limiter.hooks.on_refused
        if function is not None:
            options: Any = {
                "accepts": _is_any,
                "expected": "a return value of the route",
                "convert": self._response_of,
            }
            if is_async(function) or self._mark.is_async:
                answer = await outcome.service_answer(request, AWAITING, **options)
            else:
                from starlette.concurrency import run_in_threadpool

                asking = outcome.service_answer(request, BLOCKING, **options)
                answer = await run_in_threadpool(BLOCKING.run, asking)
        if answer is USUAL:
            raise refusal_error(request, outcome)
        if isinstance(answer, Exception):
            add_decision(request.scope, outcome)
            raise with_fields(request.scope, _answered(request, answer), outcome)
        outcome.put(answer.raw_headers)
        return answer

    def _response_of(self, answer: Any) -> Any:
        """Returns the response for an answer of `on_refused`; raises if it cannot be encoded."""
        from fastapi.encoders import jsonable_encoder
        from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

        if isinstance(answer, Response):
            return answer
        kind = self._response_class
        if isinstance(answer, (dict, list)):
            try:
                body, text = plain_body(answer)
                return Response(body, 429, media_type=text)
            except (TypeError, ValueError):  # FastAPI encodes more types than JSON has
                return JSONResponse(jsonable_encoder(answer), 429)
        if isinstance(kind, type) and issubclass(kind, (HTMLResponse, PlainTextResponse)):
            return kind(answer, 429)
        return JSONResponse(jsonable_encoder(answer), 429)


def _is_any(answer: Any) -> bool:
    return True


async def undo_granted(scope: Any) -> None:
    """Gives back what earlier decisions charged for a request that does not reach the route."""
    for granted in take_granted(scope):
        await granted.undo(AWAITING)


class _Asked:
    """Watches for what functions of the service ask of `request.state` before it is there.

    Dependencies put there what they find, such as the user. A limit whose functions ask for that
    is decided after the dependencies.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._given: dict[str, Any] = request.scope.setdefault("state", {})
        self._watched = _Watched(self._given)

    def was_complete(self) -> bool:
        return not self._watched.lacks

    def __enter__(self) -> _Asked:
        self._set(self._watched)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._given.update(self._watched)
        self._set(self._given)

    def _set(self, state: dict[str, Any]) -> None:
        self._request.scope["state"] = state
        # Starlette's request keeps an object of the state.
        self._request.__dict__.pop("_state", None)


class _Watched(dict[str, Any]):
    """A state that notes questions for what it does not have."""

    lacks = False

    def __missing__(self, name: str) -> Any:
        self.lacks = True
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        self.lacks = self.lacks or not found
        return found

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, default) if name in self else default
