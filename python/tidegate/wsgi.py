"""Rate limiting for every WSGI application.

    app = RateLimitMiddleware(app, limit="100/minute")
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limit="100/minute")  # Flask

Nothing but the interface of WSGI is used: the application may be of any framework, under any
server. Workers are processes: with ``storage="shm://NAME"`` all those of a host share a limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Callable

from tidegate._frameworks import titled
from tidegate._guard import Guard, Verdict, finished, limiter_from, method_set, ready
from tidegate._headers import FAMILIES, ONCE, PROBLEM_TYPE
from tidegate.keys import peer_key

if TYPE_CHECKING:
    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._limiter import Limiter
    from tidegate._storage import StorageLike

__all__ = ["RateLimitMiddleware"]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]


class RateLimitMiddleware:
    """Answers 429 to requests above `limit`, and tells all clients where they stand.

    All arguments are those of tidegate.asgi.RateLimitMiddleware, of which it is the twin;
    functions are of the environ, and are not async. `on_refused` is one of environ and
    decision that returns the WSGI application to answer with.

    The decision is left in ``environ["tidegate.decision"]`` for the application. Raises
    ConfigurationError at construction. Thread-safe, and safe to use after `fork()`.
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
        **options: Any,
    ) -> None:
        limiter = limiter_from(limiter, limit, storage, algorithm, prefix, clock, options)
        self.app = app
        self.limiter = limiter
        self._exempt_methods = method_set(exempt_methods)
        self._guard = Guard(
            limiter,
            address=_address,
            key=key,
            cost=cost,
            exempt_when=exempt_when,
            on_no_key=on_no_key,
            on_refused=on_refused,
            headers=headers,
        )

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in self._exempt_methods:
            return self.app(environ, start_response)
        verdict = finished(self._guard.judge(environ, blocking=True))
        if verdict is None:
            return self.app(environ, start_response)
        environ["tidegate.decision"] = verdict.decision
        start = _with_fields(start_response, verdict)
        if verdict.decision.allowed:
            return self.app(environ, start)
        replacement = finished(self._replacement(environ, verdict))
        if replacement is not None:
            return replacement(environ, start)
        body = verdict.problem()
        start(
            "429 Too Many Requests",
            [("Content-Type", PROBLEM_TYPE.decode()), ("Content-Length", str(len(body)))],
        )
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    async def _replacement(self, environ: Environ, verdict: Verdict) -> WSGIApp | None:
        """What the service wants to answer a refusal with; None for the usual body."""
        guard = self._guard
        if guard.on_refused is None:
            return None
        try:
            response = await ready(guard.on_refused(environ, verdict.decision), True)
        except Exception as exc:
            guard.complain("on_refused raised; the usual body is sent", exc=exc)
            return None
        if not callable(response):
            guard.complain(
                "on_refused gave a %s, accepted is a WSGI application; the usual body is sent",
                type(response).__name__,
            )
            return None
        application: WSGIApp = response
        return application


def _with_fields(start_response: StartResponse, verdict: Verdict) -> StartResponse:
    """`start_response`, with the fields of the verdict that the application left open."""

    def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        given = {name.lower() for name, _ in headers}
        added = [
            (titled(name), value.decode())
            for name, value in verdict.fields()
            if name not in ONCE or name.decode() not in given
        ]
        return start_response(status, headers + added, *exc_info)

    return start


def _address(environ: Environ) -> str | None:
    return peer_key(environ.get("REMOTE_ADDR"))
