"""Rate limiting for every WSGI application.

::

    app = RateLimitMiddleware(app, limit="100/minute")

and for Flask, which keeps its application object::

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limit="100/minute")
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Callable

from tidegate._core import HeaderStart
from tidegate.limiter.errors import missing
from tidegate.web.answers import answer_wsgi
from tidegate.web.callables import check_application, check_synchronous
from tidegate.web.configuration import follow, note_storage, with_configured
from tidegate.web.decisions import grant
from tidegate.web.execution import BLOCKING
from tidegate.web.exempt_paths import exempt_paths_of
from tidegate.web.headers import PROBLEM_TYPE
from tidegate.web.options import (
    MiddlewareOptions,
    OptionReader,
    methods_of,
)
from tidegate.web.refusal import USUAL, is_application_or_plain, with_plain_body
from tidegate.web.request_limiter import RequestDecision
from tidegate.web.rule_requests import RuleRequests, attributes_by_option
from tidegate.web.shared_counters import middleware_limiters

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate.limiter.limit import LimitLike
    from tidegate.limiter.limiter import Limiter
    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.web.request_limiter import RequestLimiter

__all__ = ["RateLimitMiddleware"]

_OPTIONS = OptionReader(MiddlewareOptions)
_STORED = ("storage", "limiter")
_PROBLEM = PROBLEM_TYPE.decode()

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]


class RateLimitMiddleware:
    """Answers 429 to requests above `limit`, and adds the state of the limit to all responses.

    The options are those of tidegate.asgi.RateLimitMiddleware, with the environ instead of the
    scope: `key`, `cost`, `cost_after` and `exempt_when` are functions that are not async, and
    `on_refused` is a function of environ and decision that returns the WSGI application to answer
    with, or the body of a 429. The address of the connection is ``REMOTE_ADDR``. The application
    finds the decision in ``environ["tidegate.decision"]``.

    Raises ConfigurationError at construction; safe to use from many threads and greenlets,
    and in workers that were forked after it was made.
    """

    @_OPTIONS.shown
    def __init__(
        self,
        app: WSGIApp,
        limit: LimitLike | Callable[..., Any] | None = None,
        **options: Unpack[MiddlewareOptions],
    ) -> None:
        given, storage_options = _OPTIONS.read(options)
        check_synchronous(given, limit=limit, **attributes_by_option(given.attributes))
        takes = ("environ", "start_response")
        check_application(app, "WSGI", takes, "tidegate.asgi.RateLimitMiddleware")
        self.app = app
        self._settles = given.cost_after is not None
        self._exempt_methods = methods_of(given.exempt_methods)
        self._exempt_paths = exempt_paths_of(given.exempt_paths)

        def opened() -> tuple[Limiter | RuleLimiter, RequestLimiter | RuleRequests]:
            merged, of_storage = with_configured(given, options, storage_options)
            check_synchronous(key=merged.key, on_refused=merged.on_refused)
            found = middleware_limiters(limit, merged, of_storage, app)
            was_chosen = bool(storage_options) or not options.keys().isdisjoint(_STORED)
            note_storage(
                found[0].storage, "tidegate.wsgi.RateLimitMiddleware", was_chosen=was_chosen
            )
            return found

        self.limiter, self._request_limiter = opened()
        follow(self, _reopen(opened))

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        limiter = self._request_limiter
        if method in self._exempt_methods and limiter.exempts(environ, method):
            return self.app(environ, start_response)
        exempt_paths = self._exempt_paths
        if exempt_paths is not None and exempt_paths(environ) and limiter.exempts(environ):
            return self.app(environ, start_response)
        outcome = limiter.check(environ, BLOCKING)
        if outcome is None:
            return self.app(environ, start_response)
        environ["tidegate.decision"] = outcome.decision
        if not outcome.decision.allowed:
            return self._refuse(outcome, environ, start_response)
        grant(environ, outcome)
        adding = HeaderStart(start_response, (outcome,))
        if self._settles or outcome.limits.lease_ns:
            return answer_wsgi(self.app, environ, adding, outcome)
        return self.app(environ, adding)

    def _refuse(
        self, outcome: RequestDecision, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        response: Any = USUAL
        # Refusals are many, and most services have no answer of their own.
        if outcome.limiter.hooks.on_refused is not None:
            response = BLOCKING.run(
                outcome.service_answer(
                    environ,
                    BLOCKING,
                    accepts=is_application_or_plain,
                    expected="a WSGI application, a dict, list, str or bytes",
                    convert=with_plain_body,
                )
            )
        kind = _PROBLEM
        if isinstance(response, tuple):
            body, kind = response
        elif response is not USUAL:
            application: WSGIApp = response
            return application(environ, HeaderStart(start_response, (outcome,)))
        else:
            body = outcome.problem()
        start_response(
            "429 Too Many Requests",
            [
                ("Content-Type", kind),
                ("Content-Length", str(len(body))),
                *outcome.text_fields(),
            ],
        )
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def _reopen(opened: Callable[[], Any]) -> Callable[[RateLimitMiddleware], None]:
    def reopen(middleware: RateLimitMiddleware) -> None:
        middleware.limiter, middleware._request_limiter = opened()

    return reopen


# Type checkers are to find names that do not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing(__name__, name, {"rate_limit": "from tidegate import rate_limit"})
