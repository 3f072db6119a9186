"""Reads and answers requests under @rate_limit, for each framework.

No framework is imported before a function is decorated.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, Protocol

from tidegate.limiter.errors import ArgumentTypeError, TidegateError
from tidegate.web.decisions import DECISIONS, GRANTED, add_decision, binding, take_granted
from tidegate.web.frameworks.fastapi_handlers import SETTLED, take_decision
from tidegate.web.frameworks.streams import (
    settle_after_django,
    settle_after_flask,
    settle_after_starlette,
)
from tidegate.web.headers import PROBLEM_TYPE, extend
from tidegate.web.refusal import PLAIN, plain_body
from tidegate.web.switch import switch

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from tidegate.web.frameworks.fastapi_injection import Injection
    from tidegate.web.frameworks.streams import Settle
    from tidegate.web.request_limiter import RequestDecision

__all__ = [
    "Call",
    "StarletteCall",
    "adapt_call",
    "flask_refusal",
    "limited_class",
]

# The methods of a class that answer requests, as Starlette's HTTPEndpoint names them.
_HANDLERS = ("get", "head", "post", "put", "patch", "delete", "options")


class Call(Protocol):
    """One call of a decorated function."""

    request: Any

    def decided(self, mark: Any) -> tuple[Any, ...]:
        """Returns, in a tuple, the decision that was made before the call; empty if none was."""

    def prior_grants(self) -> Sequence[RequestDecision]:
        """Returns the earlier outcomes that let the request pass; a refusal undoes them."""

    def ensure_can_answer(self, function: Any, outcome: RequestDecision) -> None:
        """Raises the refusal if the return value of `function` is not the answer to the request."""

    def refusal(self, outcome: RequestDecision) -> Any:
        """Returns a response with the usual body."""

    def accepts(self, answer: Any) -> bool:
        """Returns whether the service's own answer to a refusal is of a type that can be sent."""

    def custom_refusal(self, answer: Any) -> Any:
        """Returns such an answer as it is sent, a 429 unless it has another status; raises if its
        content cannot be sent."""

    def with_headers(self, result: Any, outcome: RequestDecision) -> Any:
        """Returns `result` for the function to return; the fields are added to its response."""

    def settle_at_end(self, result: Any, settle: Settle, cost_after: Any) -> bool:
        """Calls `settle` at the end of the stream `result`; returns False if it is not a stream."""

    def annotate(self, exc: Exception, outcome: RequestDecision) -> Exception:
        """Returns `exc` for the function to raise, with the fields if the framework allows it."""


def adapt_call(
    injection: Injection | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call | None:
    """Returns the framework's call of a function, and leaves the function's `kwargs`; None if the
    function is called without a request while limits are off, as in a unit test."""
    django = sys.modules.get("django.http") if args else None
    if django is not None:
        # Methods get the request after `self`. The request of Django REST framework wraps
        # Django's and has its attributes.
        for arg in args[:2]:
            if isinstance(getattr(arg, "_request", arg), django.HttpRequest):
                return _DjangoCall(django, arg)
    if injection is not None:
        request = kwargs.get(injection.request)
        if request is not None:
            return StarletteCall(injection, kwargs, request)
        # Starlette's own routes pass the request by position, after `self` for methods.
        connection = sys.modules["starlette.requests"].HTTPConnection
        request = next((arg for arg in args[:2] if isinstance(arg, connection)), None)
        if request is not None:
            if request.scope["type"] == "websocket":
                raise TidegateError(
                    "a WebSocket route is under @rate_limit; expected HTTP routes, and for "
                    "WebSockets tidegate.asgi.RateLimitMiddleware or a dependency"
                )
            return StarletteCall(injection, kwargs, request)
    flask = sys.modules.get("flask")
    if flask is not None and flask.has_request_context():
        return _FlaskCall(flask)
    if not switch.on:
        return None
    raise TidegateError(
        "a function under @rate_limit was called without a request; expected FastAPI, Starlette, "
        "Flask or Django, imported before it is decorated, to call it (in a unit test: "
        "`with tidegate.testing.limits_off()`, or its `__wrapped__`; for other frameworks: "
        "tidegate.asgi.RateLimitMiddleware and tidegate.wsgi.RateLimitMiddleware)"
    )


def limited_class(view: type[Any], decorator: Callable[[], Callable[..., Any]]) -> type[Any]:
    """Returns a class of views whose functions that answer requests are all under one decorator.

    These are the views of Flask's classes and the methods of Starlette's endpoints.
    """
    flask_view = getattr(sys.modules.get("flask.views"), "View", None)
    if flask_view is not None and issubclass(view, flask_view):
        # The decorator is not added to `decorators`, which a subclass may replace.
        setattr(view, "dispatch_request", decorator()(view.dispatch_request))  # noqa: B010
        return view
    endpoint = getattr(sys.modules.get("starlette.endpoints"), "HTTPEndpoint", None)
    if endpoint is not None and issubclass(view, endpoint):
        limit = decorator()
        for name in _HANDLERS:
            if hasattr(view, name):
                setattr(view, name, limit(getattr(view, name)))
        return view
    raise ArgumentTypeError(
        f"{view!r} is a class; expected functions that answer requests, "
        "classes of flask.views.View and of starlette.endpoints.HTTPEndpoint"
    )


def flask_refusal(answer: Any) -> Any:
    """Returns the response for a return value of a Flask view, a 429 unless it has another status.
    Raises what Flask raises if that is no such value."""
    if isinstance(answer, (str, bytes, bytearray, dict, list, Iterator)):
        answer = answer, 429
    elif isinstance(answer, tuple) and len(answer) == 2 and not isinstance(answer[1], (int, str)):
        answer = answer[0], 429, answer[1]
    return sys.modules["flask"].current_app.make_response(answer)


class StarletteCall:
    __slots__ = ("_decided", "_response", "request")

    def __init__(
        self,
        injection: Injection,
        kwargs: dict[str, Any],
        request: Any,
        decided: tuple[Any, ...] = (),
    ) -> None:
        self.request: Any = request
        self._decided = decided
        self._response = kwargs.get(injection.response)
        for name in injection.added:
            kwargs.pop(name, None)

    def decided(self, mark: Any) -> tuple[Any, ...]:
        self._decided = take_decision(self.request.scope, mark)
        return self._decided

    def prior_grants(self) -> Sequence[RequestDecision]:
        return take_granted(self.request.scope)

    def ensure_can_answer(self, function: Any, outcome: RequestDecision) -> None:
        # The return value of a FastAPI dependency is an argument of the route, not an answer.
        if "fastapi" in sys.modules and not _leads_to(self.request.scope.get("endpoint"), function):
            from tidegate.web.frameworks.fastapi_errors import refusal_error

            raise refusal_error(self.request, outcome)

    def refusal(self, outcome: RequestDecision) -> Any:
        from starlette.responses import Response

        return Response(outcome.problem(), 429, media_type=PROBLEM_TYPE.decode())

    def accepts(self, answer: Any) -> bool:
        if self._response is not None:  # routes of FastAPI return anything
            return True
        is_response = callable(answer) and not inspect.isclass(answer)
        return is_response or isinstance(answer, (Exception, *PLAIN))

    def custom_refusal(self, answer: Any) -> Any:
        if self._response is not None:
            # FastAPI sends responses with their own headers.
            self._response.status_code = 429
        # A model of FastAPI's route describes its own answers, and Starlette sends only responses.
        is_plain = isinstance(answer, PLAIN if self._response is None else (dict, list))
        if is_plain:
            from starlette.responses import Response

            try:
                body, kind = plain_body(answer)
            except (TypeError, ValueError):
                if self._response is None:
                    raise
                from fastapi.encoders import jsonable_encoder

                # FastAPI encodes more types than JSON has.
                body, kind = plain_body(jsonable_encoder(answer))
            return Response(body, 429, media_type=kind)
        return answer

    def with_headers(self, result: Any, outcome: RequestDecision) -> Any:
        if self._decided:
            self._leave(outcome)
            return result
        # FastAPI copies the headers of the injected response only if the result is not a response.
        raw = getattr(result, "raw_headers", None)
        if not isinstance(raw, list) and self._response is not None:
            raw = self._response.raw_headers
        if isinstance(raw, list):
            # These are the decisions of dependencies.
            if DECISIONS in self.request.scope:
                outcome = binding(add_decision(self.request.scope, outcome))
            outcome.put(raw)
        return result

    def settle_at_end(self, result: Any, settle: Settle, cost_after: Any) -> bool:
        return settle_after_starlette(result, settle)

    def annotate(self, exc: Exception, outcome: RequestDecision) -> Exception:
        from tidegate.web.frameworks.starlette_exceptions import with_fields

        if self._decided:
            self._leave(outcome)
            return exc
        outcomes = add_decision(self.request.scope, outcome)
        return with_fields(self.request.scope, exc, binding(outcomes))

    def _leave(self, outcome: RequestDecision) -> None:
        """Leaves the present state to the handler that decided first, which adds the fields."""
        if outcome is not self._decided[0]:
            self.request.scope[SETTLED] = outcome


class _ViewCall:
    """The call of a view of Flask or Django, which is decided where it begins."""

    __slots__ = ()

    # The WSGI environ, or what Django calls META.
    _state: MutableMapping[str, Any]

    def decided(self, mark: Any) -> tuple[Any, ...]:
        return ()

    def prior_grants(self) -> Sequence[RequestDecision]:
        found: tuple[RequestDecision, ...] = self._state.pop(GRANTED, ())
        return found

    def ensure_can_answer(self, function: Any, outcome: RequestDecision) -> None:
        pass


class _FlaskCall(_ViewCall):
    __slots__ = ("_flask", "_state", "request")

    def __init__(self, flask: Any) -> None:
        self._flask = flask
        self.request = flask.request._get_current_object()
        self._state = self.request.environ

    def refusal(self, outcome: RequestDecision) -> Any:
        return self._flask.Response(
            outcome.problem(), status=429, content_type=PROBLEM_TYPE.decode()
        )

    def accepts(self, answer: Any) -> bool:
        return answer is not None

    def custom_refusal(self, answer: Any) -> Any:
        return flask_refusal(answer)

    def with_headers(self, result: Any, outcome: RequestDecision) -> Any:
        self._add_headers(outcome)
        return result

    def settle_at_end(self, result: Any, settle: Settle, cost_after: Any) -> bool:
        return settle_after_flask(self._flask, result, settle, cost_after)

    def annotate(self, exc: Exception, outcome: RequestDecision) -> Exception:
        self._add_headers(outcome)
        return exc

    def _add_headers(self, outcome: RequestDecision) -> None:
        def add_headers(response: Any) -> Any:
            for name, value in outcome.text_fields():
                response.headers[name] = value
            return response

        self._flask.after_this_request(add_headers)


class _DjangoCall(_ViewCall):
    __slots__ = ("_django", "_state", "request")

    def __init__(self, django: Any, request: Any) -> None:
        self._django = django
        self.request = request
        self._state = request.META

    def refusal(self, outcome: RequestDecision) -> Any:
        return self._django.HttpResponse(
            outcome.problem(), status=429, content_type=PROBLEM_TYPE.decode()
        )

    def accepts(self, answer: Any) -> bool:
        return isinstance(answer, (self._django.response.HttpResponseBase, Exception, *PLAIN))

    def custom_refusal(self, answer: Any) -> Any:
        if isinstance(answer, PLAIN):
            body, kind = plain_body(answer)
            return self._django.HttpResponse(body, status=429, content_type=kind)
        return answer

    def with_headers(self, result: Any, outcome: RequestDecision) -> Any:
        if isinstance(result, Exception):
            # Raising inside the view lets the project's process_exception() see the exception.
            raise self.annotate(result, outcome)
        if isinstance(result, self._django.response.HttpResponseBase):
            extend(result.headers, outcome)
        return result

    def settle_at_end(self, result: Any, settle: Settle, cost_after: Any) -> bool:
        return settle_after_django(self.request, result, settle, cost_after)

    def annotate(self, exc: Exception, outcome: RequestDecision) -> Exception:
        # tidegate.django's middleware reads this attribute of Django's response to the exception.
        self._state.setdefault(DECISIONS, []).append(outcome)
        return exc


def _leads_to(endpoint: Any, function: Any) -> bool:
    """Returns whether a call of `endpoint` ends in `function`, as far as can be seen."""
    while endpoint is not None:
        endpoint = getattr(endpoint, "__func__", getattr(endpoint, "func", endpoint))
        if inspect.isclass(endpoint) or function in (endpoint, type(endpoint).__call__):
            return True
        endpoint = getattr(endpoint, "__wrapped__", None)
    return False
