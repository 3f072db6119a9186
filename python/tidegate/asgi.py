"""Rate limiting for every ASGI application.

    app = RateLimitMiddleware(app, limit="100/minute")

and where the framework has a place for it, as FastAPI and Starlette do:

    app.add_middleware(RateLimitMiddleware, limit="100/minute")

Nothing but the interface of ASGI is used: the application may be of any framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, Callable

from tidegate._guard import Guard, Verdict
from tidegate._headers import FAMILIES, PROBLEM_TYPE, merged
from tidegate._middleware import limiter_of, methods_of, replacement
from tidegate.keys import peer

if TYPE_CHECKING:
    from tidegate._clock import ClockLike
    from tidegate._limit import LimitLike
    from tidegate._limiter import Limiter
    from tidegate._storage import StorageLike

__all__ = ["RateLimitMiddleware"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimitMiddleware:
    """Answers 429 to requests above `limit`, and tells all clients where they stand.

    `limit`, `storage`, `algorithm`, `prefix`, `clock` and any further options are those of
    tidegate.Limiter; or `limiter` is one, instead of them.

    `key` is a function of the scope, async or not, whose str or bytes tells clients apart.
    By default it is the address of the connection (`scope["client"]`, IPv6 by its /64), and
    never a header, which anybody can send: behind a proxy, use tidegate.keys.client_ip(), or
    let the server set the client (uvicorn: ``--forwarded-allow-ips``). Where a key function
    raises or gives no key, that is logged and `on_no_key` decides: ``"address"`` charges the
    client's address, and clients without one (on a Unix socket) share one limit; ``"open"``
    lets the request through uncharged; ``"closed"`` refuses it.

    `cost` is an int, or a function of the scope. `exempt_methods` are not charged, nor are
    requests for which the function `exempt_when` of the scope is true. `headers` are the
    families of fields to send, of ``"x-ratelimit"`` and ``"ietf"``. `on_refused` is a
    function of scope and decision, async or not, that returns the ASGI application to
    answer with (such as a Starlette response) in place of the problem+json body; the fields
    are added to it.

    The decision is left in ``scope["tidegate.decision"]`` for the application. A
    leaky bucket's `delay` is not waited for. A WebSocket is charged once, when it connects, and
    refused by a 429 where the server can send one, else by closing it with code 1013 (403 to
    the client); `on_refused` is not asked. With `websockets` false they pass untouched.
    Raises ConfigurationError at construction; safe to use from several event loops.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: LimitLike | None = None,
        *,
        key: Callable[[Scope], Any] | None = None,
        storage: StorageLike = "memory://",
        algorithm: str = "token-bucket",
        prefix: str = "tg",
        clock: ClockLike = None,
        limiter: Limiter | None = None,
        cost: int | Callable[[Scope], Any] = 1,
        exempt_methods: Iterable[str] = ("OPTIONS",),
        exempt_when: Callable[[Scope], Any] | None = None,
        on_no_key: str = "address",
        on_refused: Callable[..., Any] | None = None,
        headers: Iterable[str] = FAMILIES,
        websockets: bool = True,
        **options: Any,
    ) -> None:
        self.app = app
        self.limiter = limiter_of(limiter, limit, storage, algorithm, prefix, clock, options)
        self._websockets = websockets
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
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http":
            # A WebSocket is one request, that to connect.
            if kind != "websocket" or not self._websockets:
                await self.app(scope, receive, send)
                return
        elif scope["method"] in self._exempt_methods:
            await self.app(scope, receive, send)
            return
        verdict = await self._guard.judge(scope)
        if verdict is None:
            await self.app(scope, receive, send)
            return
        scope["tidegate.decision"] = verdict.decision
        if not verdict.decision.allowed:
            if kind == "websocket":
                await _deny(verdict, scope, receive, send)
            else:
                await self._refuse(verdict, scope, receive, send)
            return

        await self.app(scope, receive, _with_fields(send, verdict))

    async def _refuse(self, verdict: Verdict, scope: Scope, receive: Receive, send: Send) -> None:
        response = await replacement(verdict, scope, "an ASGI application", blocking=False)
        if response is not None:
            await response(scope, receive, _with_fields(send, verdict))
            return
        body = verdict.problem()
        await send(
            {
                "type": "http.response.start",
                "status": 429,
                "headers": [
                    (b"content-type", PROBLEM_TYPE),
                    (b"content-length", b"%d" % len(body)),
                    *verdict.fields(),
                ],
            }
        )
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )


_WITH_HEADERS = frozenset(
    ("http.response.start", "websocket.accept", "websocket.http.response.start")
)


async def _deny(verdict: Verdict, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses a WebSocket: by a 429 where the server can send one, else by closing it."""
    await receive()  # what asks to connect, which must come before an answer
    if "websocket.http.response" not in (scope.get("extensions") or ()):
        await send({"type": "websocket.close", "code": 1013, "reason": "rate limit exceeded"})
        return
    body = verdict.problem()
    headers = [
        (b"content-type", PROBLEM_TYPE),
        (b"content-length", b"%d" % len(body)),
        *verdict.fields(),
    ]
    await send({"type": "websocket.http.response.start", "status": 429, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def _with_fields(send: Send, verdict: Verdict) -> Send:
    """`send`, with the fields of the verdict added to the one message that has headers."""

    async def send_with_fields(message: Message) -> None:
        if message["type"] in _WITH_HEADERS:
            headers = merged(message.get("headers", ()), verdict.fields())
            message = {**message, "headers": headers}
        await send(message)

    return send_with_fields
