"""How @rate_limit reads requests and answers them, in each framework that it knows.

Nothing here is imported from a framework before a function is decorated.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, Callable, Protocol

from tidegate._errors import ArgumentTypeError, TidegateError
from tidegate._headers import PROBLEM_TYPE, extend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate._guard import Verdict
    from tidegate._injection import Injection

__all__ = [
    "VERDICTS",
    "Call",
    "StarletteCall",
    "binding",
    "flask_refusal",
    "limited_class",
    "opened",
    "with_fields",
]

# Where a scope of Starlette, a WSGI environ, and what Django makes of a request keep those that
# are to be told of, in the order in which they came.
VERDICTS = "tidegate.verdicts"

# The methods of a class that answer requests, as Starlette's HTTPEndpoint names them.
_HANDLERS = ("get", "head", "post", "put", "patch", "delete", "options")


class Call(Protocol):
    """One call of a decorated function."""

    request: Any

    def earlier(self) -> Sequence[Verdict]:
        """The verdicts that let the request pass before, each once: a refusal gives them back."""

    def check_answers(self, function: Any, verdict: Verdict) -> None:
        """Raises a refusal where what `function` returns is not the answer to the request."""

    def refusal(self, verdict: Verdict) -> Any:
        """A response with the usual body."""

    def instead(self, answer: Any) -> Any:
        """What the service answers a refusal with, as a 429 where it tells of no status."""

    def answered(self, result: Any, verdict: Verdict) -> Any:
        """`result` as it is to be returned, with the fields on its way to the response."""

    def raised(self, exc: Exception, verdict: Verdict) -> Exception:
        """`exc` as it is to be raised, with the fields where the framework can carry them."""


def opened(way: Injection | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call that a decorated function got, whose own arguments are left in `kwargs`."""
    django = sys.modules.get("django.http") if args else None
    if django is not None:
        # Methods have it after `self`. That of Django REST framework is round Django's, for which
        # it answers.
        for arg in args[:2]:
            if isinstance(getattr(arg, "_request", arg), django.HttpRequest):
                return _DjangoCall(django, arg)
    if way is not None:
        if kwargs.get(way.request) is not None:
            return StarletteCall(way, kwargs)
        # Starlette's own routes give the request by position, methods after `self`.
        connection = sys.modules["starlette.requests"].HTTPConnection
        request = next((arg for arg in args[:2] if isinstance(arg, connection)), None)
        if request is not None:
            if request.scope["type"] == "websocket":
                raise TidegateError(
                    "a WebSocket route is under @rate_limit; accepted are HTTP routes, and for "
                    "WebSockets tidegate.asgi.RateLimitMiddleware or a dependency"
                )
            return StarletteCall(way, kwargs, request)
    flask = sys.modules.get("flask")
    if flask is not None and flask.has_request_context():
        return _FlaskCall(flask)
    raise TidegateError(
        "a function under @rate_limit was called without a request: FastAPI, Starlette, Flask or "
        "Django must call it (and be imported before it is decorated)"
    )


def limited_class(view: type[Any], decorator: Callable[[], Callable[..., Any]]) -> type[Any]:
    """A class of views with what answers requests under a decorator, which is one for all.

    Of Flask its views, of Starlette the methods of its endpoints.
    """
    flask_view = getattr(sys.modules.get("flask.views"), "View", None)
    if flask_view is not None and issubclass(view, flask_view):
        # Not one of its `decorators`, which a class that inherits it may replace.
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
        f"{view!r} is a class; accepted by @rate_limit are functions that answer requests, "
        "classes of flask.views.View and of starlette.endpoints.HTTPEndpoint"
    )


def binding(verdicts: Sequence[Verdict]) -> Verdict:
    """The one of several that all let the request pass which a response tells of."""
    if len(verdicts) == 1:
        return verdicts[0]
    return min(verdicts, key=lambda verdict: verdict.decision.remaining)


def flask_refusal(answer: Any) -> Any:
    """What a view of Flask could return, as a 429 where it tells of no status."""
    if isinstance(answer, (str, bytes, bytearray, dict, list)):
        return answer, 429
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], (dict, list)):
        return answer[0], 429, answer[1]
    return answer


def with_fields(exc: Any, verdict: Verdict) -> Exception:
    """Starlette's HTTPException `exc`, with the fields.

    A copy: some services raise one object for every request.
    """
    told: Any = BaseException.__new__(type(exc), *exc.args)
    told.__dict__.update(exc.__dict__)
    fields = {name.decode(): value.decode() for name, value in verdict.fields()}
    kept = {
        name: value for name, value in (exc.headers or {}).items() if name.lower() not in fields
    }
    told.headers = {**kept, **fields}
    result: Exception = told.with_traceback(exc.__traceback__)
    return result


class StarletteCall:
    __slots__ = ("_response", "request")

    def __init__(self, way: Injection, kwargs: dict[str, Any], request: Any = None) -> None:
        self.request: Any = kwargs.get(way.request) if request is None else request
        self._response = kwargs.get(way.response)
        for name in way.added:
            kwargs.pop(name, None)

    def earlier(self) -> Sequence[Verdict]:
        found: tuple[Verdict, ...] = self.request.scope.pop(VERDICTS, ())
        return found

    def check_answers(self, function: Any, verdict: Verdict) -> None:
        # What a dependency of FastAPI returns is a value for the route.
        if "fastapi" in sys.modules and not _leads_to(self.request.scope.get("endpoint"), function):
            from tidegate.fastapi import refused

            raise refused(self.request, verdict)

    def refusal(self, verdict: Verdict) -> Any:
        from starlette.responses import Response

        return Response(verdict.problem(), 429, media_type=PROBLEM_TYPE.decode())

    def instead(self, answer: Any) -> Any:
        if self._response is not None:
            # Of responses, FastAPI takes their own.
            self._response.status_code = 429
        return answer

    def answered(self, result: Any, verdict: Verdict) -> Any:
        # FastAPI copies the headers of the injected response only where the result is none.
        raw = getattr(result, "raw_headers", None)
        if not isinstance(raw, list) and self._response is not None:
            raw = self._response.raw_headers
        if isinstance(raw, list):
            # Those of dependencies.
            before = self.request.scope.get(VERDICTS)
            if before is not None:
                self.request.scope[VERDICTS] = (*before, verdict)
                verdict = binding((*before, verdict))
            verdict.put(raw)
        return result

    def raised(self, exc: Exception, verdict: Verdict) -> Exception:
        from starlette.exceptions import HTTPException

        from tidegate._answers import remember

        told = binding(remember(self.request.scope, verdict))
        return with_fields(exc, told) if isinstance(exc, HTTPException) else exc


class _FlaskCall:
    __slots__ = ("_flask", "request")

    def __init__(self, flask: Any) -> None:
        self._flask = flask
        self.request = flask.request._get_current_object()

    def earlier(self) -> Sequence[Verdict]:
        return ()

    def check_answers(self, function: Any, verdict: Verdict) -> None:
        pass

    def refusal(self, verdict: Verdict) -> Any:
        return self._flask.Response(
            verdict.problem(), status=429, content_type=PROBLEM_TYPE.decode()
        )

    def instead(self, answer: Any) -> Any:
        return flask_refusal(answer)

    def answered(self, result: Any, verdict: Verdict) -> Any:
        self._tell(verdict)
        return result

    def raised(self, exc: Exception, verdict: Verdict) -> Exception:
        self._tell(verdict)
        return exc

    def _tell(self, verdict: Verdict) -> None:
        def tell(response: Any) -> Any:
            for name, value in verdict.text_fields():
                response.headers[name] = value
            return response

        self._flask.after_this_request(tell)


class _DjangoCall:
    __slots__ = ("_django", "request")

    def __init__(self, django: Any, request: Any) -> None:
        self._django = django
        self.request = request

    def earlier(self) -> Sequence[Verdict]:
        return ()

    def check_answers(self, function: Any, verdict: Verdict) -> None:
        pass

    def refusal(self, verdict: Verdict) -> Any:
        return self._django.HttpResponse(
            verdict.problem(), status=429, content_type=PROBLEM_TYPE.decode()
        )

    def instead(self, answer: Any) -> Any:
        return answer

    def answered(self, result: Any, verdict: Verdict) -> Any:
        if isinstance(result, self._django.response.HttpResponseBase):
            extend(result.headers, verdict.text_fields())
        return result

    def raised(self, exc: Exception, verdict: Verdict) -> Exception:
        # For tidegate.django's middleware, which sees what Django makes of it.
        self.request.META.setdefault(VERDICTS, []).append(verdict)
        return exc


def _leads_to(endpoint: Any, function: Any) -> bool:
    """Whether a call of `endpoint` ends in `function`, as far as can be told."""
    while endpoint is not None:
        endpoint = getattr(endpoint, "__func__", getattr(endpoint, "func", endpoint))
        if inspect.isclass(endpoint) or function in (endpoint, type(endpoint).__call__):
            return True
        endpoint = getattr(endpoint, "__wrapped__", None)
    return False
