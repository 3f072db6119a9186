"""The exception that a refusal raises in FastAPI, and its handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Response, WebSocketException
from fastapi.encoders import jsonable_encoder
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.websockets import WebSocket

from tidegate.limiter import errors
from tidegate.limiter.errors import TidegateError
from tidegate.web.frameworks.starlette_exceptions import ADDS_FIELDS, OUTCOME, watch_handlers
from tidegate.web.headers import PROBLEM_TYPE, Problems, retry_seconds

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from tidegate._core import Decision
    from tidegate.web.request_limiter import RequestDecision

__all__ = ["RateLimitExceeded", "answering_error", "exceeded_error", "refusal_error", "response_of"]

# Servers with this extension can refuse a WebSocket with a response. Starlette uses it since
# version 0.37.
_DENIAL = "websocket.http.response"
_SENDS_DENIALS = hasattr(WebSocket, "send_denial_response")


class RateLimitExceeded(HTTPException, errors.RateLimitExceeded):
    """The exception of a refused request: a tidegate.RateLimitExceeded that is a 429.

    The answer is a problem+json body, unless the application has a handler for this exception, for
    tidegate.RateLimitExceeded, for 429 or for HTTPException of FastAPI or Starlette. The fields are
    added to that handler's answer.
    """

    def __init__(self, outcome: RequestDecision) -> None:
        fields = {name.decode(): value.decode() for name, value in outcome.fields()}
        errors.RateLimitExceeded.__init__(self, outcome.decision)
        HTTPException.__init__(self, 429, "Too Many Requests", fields)
        self.problem = outcome.problem()
        setattr(self, OUTCOME, outcome)


RateLimitExceeded.__module__ = "tidegate.fastapi"  # where it is public


def refusal_error(
    request: HTTPConnection, outcome: RequestDecision
) -> HTTPException | WebSocketException:
    """Returns the exception to raise for a refusal, which the usual handlers answer."""
    scope = request.scope
    if scope["type"] == "websocket":
        offers_denial = _DENIAL in (scope.get("extensions") or ())
        if not (_SENDS_DENIALS and offers_denial):
            return WebSocketException(1013, "rate limit exceeded")
    handlers, _ = scope.get("starlette.exception_handlers", ({}, {}))
    _answer_usually(handlers)
    watch_handlers(scope)
    return RateLimitExceeded(outcome)


class _Exceeded(RateLimitExceeded):
    """The 429 for a RateLimitExceeded that left a route or a dependency."""

    def __init__(self, decision: Decision) -> None:
        wait = retry_seconds(decision)
        fields = {} if wait is None else {"Retry-After": str(wait)}
        errors.RateLimitExceeded.__init__(self, decision)
        HTTPException.__init__(self, 429, "Too Many Requests", fields)
        self.problem = Problems([decision._limit]).encode(decision, wait)


def exceeded_error(request: HTTPConnection, exc: errors.RateLimitExceeded) -> Exception:
    """Returns the exception that answers for `exc`: itself if the service has a handler for it."""
    if isinstance(exc, RateLimitExceeded):
        return exc
    handlers, _ = request.scope.get("starlette.exception_handlers", ({}, {}))
    if any(kind in handlers for kind in type(exc).__mro__ if issubclass(kind, TidegateError)):
        return exc
    _answer_usually(handlers)
    return _Exceeded(exc.decision)


def _answer_usually(handlers: Any) -> None:
    """Answers a RateLimitExceeded with its problem, unless the service has a handler for it.

    FastAPI's own handler for HTTPException would send another body.
    """
    kinds = (HTTPException, AnyHTTPException, errors.RateLimitExceeded, TidegateError)
    general = [handlers.get(each) for each in kinds]
    usual = (None, http_exception_handler)
    if all(getattr(handler, ADDS_FIELDS, handler) in usual for handler in general):
        handlers.setdefault(RateLimitExceeded, _answer)


class _Answered(Exception):
    """The exception of a refusal that the service's own function has answered.

    It is no HTTPException, for which the service may have a handler.
    """

    def __init__(self, answer: Any, outcome: RequestDecision) -> None:
        super().__init__("rate limit exceeded")
        self.answer = answer
        self.outcome = outcome


def response_of(answer: Any) -> Any:
    """Returns the response for what a route could return; raises if it cannot be encoded."""
    return answer if isinstance(answer, Response) else JSONResponse(jsonable_encoder(answer), 429)


def answering_error(request: HTTPConnection, answer: Any, outcome: RequestDecision) -> Exception:
    """Returns the exception to raise for a refusal that is answered with the response `answer`."""
    found = request.scope.get("starlette.exception_handlers")
    if found is None or request.scope["type"] == "websocket":
        return refusal_error(request, outcome)
    found[0].setdefault(_Answered, _send_answer)
    return _Answered(answer, outcome)


async def _send_answer(request: HTTPConnection, exc: _Answered) -> Response:
    answer: Response = exc.answer
    exc.outcome.put(answer.raw_headers)
    return answer


async def _answer(request: HTTPConnection, exc: RateLimitExceeded) -> Response:
    return Response(exc.problem, 429, exc.headers, PROBLEM_TYPE.decode())


# The fields are those of the refusal, not of the limits that let the request pass.
for _function in (_send_answer, _answer):
    setattr(_function, ADDS_FIELDS, _function)
