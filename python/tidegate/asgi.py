"""Rate limiting for every ASGI application.

::

    app = RateLimitMiddleware(app, limit="100/minute")

and where the framework has a place for it, as FastAPI and Starlette do::

    app.add_middleware(RateLimitMiddleware, limit="100/minute")

It uses only the interface of ASGI, so the application may be of any framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Callable

from tidegate._core import HeaderSend
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, StorageError, missing
from tidegate.limiter.limit import as_limits
from tidegate.limiter.limiter import Limiter
from tidegate.web.answers import answer_asgi
from tidegate.web.asgi_types import ASGIApp, Message, Receive, Scope, Send
from tidegate.web.callables import check_application
from tidegate.web.configuration import follow, note_storage, with_configured
from tidegate.web.decisions import GRANTED, grant
from tidegate.web.execution import AWAITING
from tidegate.web.exempt_paths import exempt_paths_of
from tidegate.web.headers import PROBLEM_TYPE
from tidegate.web.hooks import log
from tidegate.web.options import (
    ASGIOptions,
    OptionReader,
    methods_of,
)
from tidegate.web.refusal import USUAL, is_application_or_plain, with_plain_body
from tidegate.web.request_limiter import RequestDecision, RequestLimiter
from tidegate.web.router_paths import is_of_quart, root_reader_of
from tidegate.web.shadow import ShadowDecision
from tidegate.web.shared_counters import middleware_limiters
from tidegate.web.websocket_messages import MessageLimit

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate.limiter.limit import LimitLike
    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.web.rule_requests import RuleRequests

__all__ = ["RateLimitMiddleware"]

_OPTIONS = OptionReader(ASGIOptions)
_STORED = ("storage", "limiter")


class RateLimitMiddleware:
    """Answers 429 to requests above `limit`, and adds the state of the limit to all responses.

    `limit`, `storage`, `algorithm`, `prefix`, `clock` and any further options are those of
    tidegate.Limiter; a `limiter` may be given instead of them. `limit` may also be a function of
    the scope, async or not, that returns a limit, or None for no limit. If it raises or returns
    anything else, `on_limit_error` decides: ``"raise"`` (the default) raises the error, which the
    server answers with 500; ``"closed"`` refuses the request, and ``"open"`` lets it pass without
    a limit, and both log the error; a limit given there applies instead of the function's.
    ``"0/minute"`` is a limit that lets nothing through.

    `key` is a function of the scope, async or not, that returns the str or bytes by which clients
    are told apart. By default it is the address of the connection (`scope["client"]`, IPv6 by its
    /64), and never a header, which anybody can send: behind a proxy, use tidegate.keys.client_ip(),
    or let the server set the client (uvicorn: ``--forwarded-allow-ips``). If a key function raises
    or returns no key, the failure is logged and `on_no_key` decides: ``"address"`` charges the
    client's address, and clients without one (on a Unix socket) share one limit; ``"open"``
    lets the request through uncharged; ``"closed"`` refuses it. A key of another type, such as a
    tuple, raises, and so does a function that takes the scope for a request (``request.headers``).

    `rules`, a RuleSet or a RuleSource, replace `limit` and `key`. They count by `attributes`, a
    mapping from each attribute to the function of the scope that returns it; endpoint (the path),
    method and ip need no function. `tiers`, `violations` and `load` are those of tidegate.Limiter.

    `cost` is an int, or a function of the scope. Requests with one of `exempt_methods` are not
    charged, nor are those for `exempt_paths`, which are written as the endpoints of rules
    (``"/health"``, ``"/users/*/avatar"``, ``"/static/**"``; the path inside the application), nor
    those for which `exempt_when`, a function of the scope, returns true. `headers` are the families
    of fields to send, of ``"x-ratelimit"``, ``"ietf"`` and ``"openai"``; with rules also
    ``"shadow"``, which names the rules in shadow that would have refused the request. `on_refused`
    is a function of scope and decision, async or not. It returns the ASGI application to answer
    with (such as a Starlette response), or the body of a 429: a dict or list, sent as JSON, or a
    str or bytes. The fields are added to its response.

    `cost_after` is a function of the scope and the answer, async or not, that returns the actual
    cost; it is called when the application has ended. The answer has a `status` and `headers`, a
    mapping from names in lower case; it is the exception if the application raised, and None if
    nothing was sent, as on WebSockets. If `cost` was too low, the
    rest is charged in full, and owed where there is no room; if it was too high, the rest is given
    back. If the function fails, the
    charge stays. The fields of the answer show the charge made before. With rules the function may
    return a usage, such as ``{"input": 300, "output": 20}``, that they have weights for; what rules
    count by requests stays as it is.

    `retry_jitter` keeps clients that were refused together from returning together: for each
    refusal, a random time of up to that many seconds is added to Retry-After, to the `t` of
    RateLimit and to the body's `retry_after`. It may also be a function of the wait in seconds
    that returns the time to add. No client is asked to return too early.

    The application finds the decision in ``scope["tidegate.decision"]``. The middleware does not
    wait for a leaky bucket's `delay`. A WebSocket is charged once, when it connects, and refused
    with a 429 if the server can send one, else with close code 1013 (the client then gets 403);
    `on_refused` is not called. With `websockets` false they pass untouched.

    `messages` is a limit on the messages that a client sends over all its WebSockets, with the key
    of the connection; give a Limiter to count them outside the store of `limit`. The application
    does not see refused messages. `on_message_refused` decides what else happens: ``"close"``
    closes the WebSocket, with code 1008 and the wait as the reason, or with 1009 if no wait would
    help; ``"drop"`` does nothing; a function of scope and decision, async or not, returns a str or
    bytes to send to the client, or None. `message_cost` is an int, or a function of a message's str
    or bytes, such as `len`; at least 1 is charged. WebSockets that are exempt, or have no key under
    ``"open"``, have no such limit.

    Nothing is limited if `enabled` is false or the environment variable ``TIDEGATE_ENABLED`` is
    0.

    With Redis, the middleware connects when the application's lifespan begins and logs whether
    Redis answers; the application starts in either case. At the end of the lifespan it closes the
    connection, unless a `limiter` or an open store was given. Without a lifespan, as in a mounted
    application, the first request connects.

    Raises ConfigurationError at construction; safe to use from several event loops.
    """

    @_OPTIONS.shown
    def __init__(
        self,
        app: ASGIApp,
        limit: LimitLike | Callable[..., Any] | None = None,
        **options: Unpack[ASGIOptions],
    ) -> None:
        given, storage_options = _OPTIONS.read(options)
        takes = ("scope", "receive", "send")
        check_application(app, "ASGI", takes, "tidegate.wsgi.RateLimitMiddleware")
        self.app = app
        # A FastAPI application sets it too late for this middleware around it.
        root_path = "" if is_of_quart(app) else getattr(app, "root_path", "")
        self._root_path = root_path if isinstance(root_path, str) else ""
        self._websockets = given.websockets
        self._settles = given.cost_after is not None
        self._only_adds_fields = False
        self._exempt_methods = methods_of(given.exempt_methods)
        reads_path = root_reader_of(app)
        self._exempt_paths = exempt_paths_of(given.exempt_paths, reads_path=reads_path)
        if not isinstance(given.websockets, bool):
            raise ArgumentTypeError(f"websockets is {given.websockets!r}; expected True and False")
        of_messages = options.keys() & {"message_cost", "on_message_refused"}
        if given.messages is None and of_messages:
            raise ConfigurationError(
                f"{' and '.join(sorted(of_messages))} was given without messages, a limit on the "
                "messages of WebSockets; expected messages too"
            )
        if given.messages is not None and not given.websockets:
            raise ConfigurationError(
                "messages were given with websockets=False, which lets them pass untouched; "
                "expected one of them"
            )
        self._limiter: Limiter | RuleLimiter | None = None
        self._request_limiter: RequestLimiter | RuleRequests | None = None
        self._messages: MessageLimit | None = None
        # A store that was given open belongs to the caller.
        self._owns_store = False
        # Iterators are read here, since the limiter may be opened again with the same options.
        plan = limit
        if limit is not None and not callable(limit):
            plan = as_limits(limit, given.algorithm)
        if isinstance(given.headers, Iterator):
            given.headers = list(given.headers)

        def opened() -> RequestLimiter | RuleRequests:
            merged, of_storage = with_configured(given, options, storage_options)
            self._owns_store = given.limiter is None and isinstance(merged.storage, str)
            chosen, request_limiter = middleware_limiters(plan, merged, of_storage, app)
            was_chosen = bool(storage_options) or not options.keys().isdisjoint(_STORED)
            note_storage(chosen.storage, "tidegate.asgi.RateLimitMiddleware", was_chosen=was_chosen)
            if given.messages is not None:
                assert isinstance(chosen, Limiter)
                self._messages = MessageLimit(
                    given.messages,
                    chosen,
                    algorithm=given.algorithm,
                    prefix=merged.prefix,
                    cost=given.message_cost,
                    on_refused=given.on_message_refused,
                )
            # Rules may be in shadow, and like functions that choose a limit have places at times.
            fixed = request_limiter.limiter if isinstance(request_limiter, RequestLimiter) else None
            self._only_adds_fields = fixed is not None and not (fixed._has_leases or self._settles)
            self._limiter = chosen
            self._request_limiter = request_limiter
            return request_limiter

        self._opened = opened
        opened()
        follow(self, _reopen)

    @property
    def limiter(self) -> Limiter | RuleLimiter:
        """The limiter, opened again if the end of the application's lifespan closed it.

        If a function chooses the limit, this limiter has a limit of nothing, in the same storage.
        """
        if self._request_limiter is None:
            self._opened()
        assert self._limiter is not None
        return self._limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http":
            await self._connection(kind, scope, receive, send)
            return
        if self._root_path and not scope.get("root_path"):
            scope["root_path"] = self._root_path
        if scope["method"] in self._exempt_methods and self._is_exempt(scope, scope["method"]):
            await self.app(scope, receive, send)
            return
        exempt_paths = self._exempt_paths
        if exempt_paths is not None and exempt_paths(scope) and self._is_exempt(scope):
            await self.app(scope, receive, send)
            return
        checked = (self._request_limiter or self._opened()).check(scope)
        outcome = await checked if isinstance(checked, CoroutineType) else checked
        if outcome is not None:
            scope["tidegate.decision"] = decision = outcome.decision
            if not decision.allowed:
                await self._refuse(outcome, scope, receive, send)
                return
            if GRANTED in scope:
                grant(scope, outcome)
            else:  # the usual case, without a call
                scope[GRANTED] = (outcome,)
            if self._only_adds_fields:
                await self.app(scope, receive, HeaderSend(send, outcome))
            else:
                if type(outcome) is ShadowDecision:
                    send = outcome.sending(send)
                send = HeaderSend(send, outcome)
                if self._settles or outcome.limits.lease_ns:
                    await answer_asgi(self.app, scope, receive, send, outcome)
                else:
                    await self.app(scope, receive, send)
            # A server keeps a scope until the connection's next request; so many more objects are
            # work for the garbage collector.
            scope.pop(GRANTED, None)
            return
        await self.app(scope, receive, send)

    def _is_exempt(self, scope: Scope, method: str = "") -> bool:
        """Whether a request with an exempt method or path is not counted."""
        return (self._request_limiter or self._opened()).exempts(scope, method)

    async def _connection(self, kind: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles all but HTTP requests. A WebSocket counts as one request, when it connects."""
        if kind == "lifespan" and self.limiter.storage.blocks:
            await _ping_storage(self.limiter)
            send = self._closing(send)
        is_counted = kind == "websocket" and self._websockets
        if is_counted and self._exempt_paths is not None and self._exempt_paths(scope):
            is_counted = not self._is_exempt(scope)
        if not is_counted:
            await self.app(scope, receive, send)
            return
        request_limiter = self._request_limiter or self._opened()
        checked = request_limiter.check(scope)
        outcome = await checked if isinstance(checked, CoroutineType) else checked
        if outcome is not None:
            scope["tidegate.decision"] = outcome.decision
            if not outcome.decision.allowed:
                await _deny(outcome, scope, receive, send)
                return
            grant(scope, outcome)
            if type(outcome) is ShadowDecision:
                send = outcome.sending(send)
            send = HeaderSend(send, outcome)
            if self._messages is not None:
                key = outcome.charges[0].key
                assert key is not None
                receive, send = self._messages.between(
                    scope, key, request_limiter.hooks, receive, send
                )
            if self._settles or outcome.limits.lease_ns:
                await answer_asgi(self.app, scope, receive, send, outcome)
                return
        await self.app(scope, receive, send)

    def _closing(self, send: Send) -> Send:
        """Returns a `send` that drops the storage once the application has ended.

        Later requests open it again: a service may be started anew, as in tests.
        """

        async def send_and_close(message: Message) -> None:
            if message["type"] in _ENDS and self._owns_store:
                # The connection closes when the last request that uses it has ended.
                self._limiter = self._request_limiter = self._messages = None
            await send(message)

        return send_and_close

    async def _refuse(
        self, outcome: RequestDecision, scope: Scope, receive: Receive, send: Send
    ) -> None:
        response: Any = USUAL
        # Refusals are many, and most services have no answer of their own.
        if outcome.limiter.hooks.on_refused is not None:
            response = await outcome.service_answer(
                scope,
                AWAITING,
                accepts=is_application_or_plain,
                expected="an ASGI application, a dict, list, str or bytes",
                convert=with_plain_body,
            )
        kind = PROBLEM_TYPE
        if isinstance(response, tuple):
            body, text = response
            kind = text.encode()
        elif response is not USUAL:
            if type(outcome) is ShadowDecision:
                send = outcome.sending(send)
            await response(scope, receive, HeaderSend(send, outcome))
            return
        else:
            body = outcome.problem()
        await send(
            {
                "type": "http.response.start",
                "status": 429,
                "headers": [
                    (b"content-type", kind),
                    (b"content-length", b"%d" % len(body)),
                    *outcome.fields(),
                ],
            }
        )
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )


def _reopen(middleware: RateLimitMiddleware) -> None:
    middleware._opened()


_ENDS = frozenset(
    ("lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed")
)


async def _ping_storage(limiter: Limiter | RuleLimiter) -> None:
    """Connects the storage before the first request, and logs whether it answers."""
    try:
        await asyncio.get_running_loop().run_in_executor(None, limiter.ping)
    except StorageError as exc:
        log.warning("rate limiting: %s; requests are decided without it until it does", exc)
    else:
        log.info("rate limiting: the storage answers")


async def _deny(outcome: RequestDecision, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses a WebSocket with a 429 if the server can send one, else by closing it."""
    await receive()  # the server sends the request to connect first, and expects it to be read
    if "websocket.http.response" not in (scope.get("extensions") or ()):
        await send({"type": "websocket.close", "code": 1013, "reason": "rate limit exceeded"})
        return
    body = outcome.problem()
    headers = [
        (b"content-type", PROBLEM_TYPE),
        (b"content-length", b"%d" % len(body)),
        *outcome.fields(),
    ]
    await send({"type": "websocket.http.response.start", "status": 429, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


# Type checkers are to find names that do not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing(__name__, name, {"rate_limit": "from tidegate import rate_limit"})
