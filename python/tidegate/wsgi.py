"""Rate limiting for every WSGI application.

    app = RateLimitMiddleware(app, limit="100/minute")

and for Flask, which keeps its application object:

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limit="100/minute")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable

from tidegate._functions import check_synchronous
from tidegate._guard import Guard, Verdict, finished
from tidegate._headers import FAMILIES, PROBLEM_TYPE
from tidegate._middleware import limiter_of, methods_of, replacement
from tidegate.keys import peer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._limiter import Limiter
    from tidegate._storage import StorageLike, StorageOptions

__all__ = ["RateLimitMiddleware"]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]


class RateLimitMiddleware:
    """Answers 429 to requests above `limit`, and tells all clients where they stand.

    The options are those of tidegate.asgi.RateLimitMiddleware, with the environ in place of
    the scope: `key`, `cost` and `exempt_when` are functions of it that are not async, and
    `on_refused` is one of environ and decision that returns the WSGI application to answer
    with. The address of the connection is ``REMOTE_ADDR``. The decision is left in
    ``environ["tidegate.decision"]`` for the application.

    Raises ConfigurationError at construction; safe to use from many threads and greenlets,
    and in workers that were forked after it was made.
    """

    def __init__(
        self,
        app: WSGIApp,
        limit: LimitLike | None = None,
        *,
        key: Callable[[Environ], Any] | None = None,
        storage: StorageLike = "memory://",
        algorithm: str = "token-bucket",
        prefix: str = "tg",
        clock: ClockLike = None,
        limiter: Limiter | None = None,
        cost: int | Callable[[Environ], Any] = 1,
        exempt_methods: Iterable[str] = ("OPTIONS",),
        exempt_when: Callable[[Environ], Any] | None = None,
        on_no_key: str = "address",
        on_refused: Callable[..., Any] | None = None,
        headers: Iterable[str] = FAMILIES,
        retry_jitter: float | Callable[[float], Any] = 0.0,
        **options: Unpack[StorageOptions],
    ) -> None:
        check_synchronous(key=key, cost=cost, exempt_when=exempt_when, on_refused=on_refused)
        self.app = app
        self.limiter = limiter_of(limiter, limit, storage, algorithm, prefix, clock, options)
        self._exempt_methods = methods_of(exempt_methods)
        self._guard = Guard(
            self.limiter,
            address=peer,
            key=key,
            cost=cost,
            exempt_when=exempt_when,
            on_no_key=on_no_key,
            on_refused=on_refused,
            headers=headers,
            retry_jitter=retry_jitter,
        )

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in self._exempt_methods:
            return self.app(environ, start_response)
        verdict = self._guard.judge(environ, blocking=True)
        if verdict is None:
            return self.app(environ, start_response)
        environ["tidegate.decision"] = verdict.decision
        if not verdict.decision.allowed:
            return self._refuse(verdict, environ, start_response)
        return self.app(environ, with_fields(start_response, (verdict,)))

    def _refuse(
        self, verdict: Verdict, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        response = finished(replacement(verdict, environ, "a WSGI application", blocking=True))
        if response is not None:
            application: WSGIApp = response
            return application(environ, with_fields(start_response, (verdict,)))
        body = verdict.problem()
        start_response(
            "429 Too Many Requests",
            [
                ("Content-Type", PROBLEM_TYPE.decode()),
                ("Content-Length", str(len(body))),
                *verdict.text_fields(),
            ],
        )
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def with_fields(start_response: StartResponse, verdicts: Sequence[Verdict]) -> StartResponse:
    """`start_response`, with the fields of the verdicts added to the headers, the last first."""

    def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        for verdict in reversed(verdicts):
            headers = verdict.merged_text(headers)
        return start_response(status, headers, *exc_info)

    return start
