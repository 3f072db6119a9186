"""Settles the cost of a request, and gives its places back, when an application of ASGI or WSGI has
answered it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tidegate.web.execution import AWAITING, BLOCKING

if TYPE_CHECKING:
    from tidegate.web.asgi_types import ASGIApp, Message, Receive, Scope, Send
    from tidegate.web.execution import Execution
    from tidegate.web.request_limiter import RequestDecision

__all__ = ["Answer", "answer_asgi", "answer_wsgi", "close_body"]


class Answer:
    """The answer of an application, as `cost_after` of a middleware gets it.

    `status` is an int; `headers` maps names in lower case to values, for repeated fields to the
    last one.
    """

    __slots__ = ("headers", "status")

    def __init__(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.status = status
        self.headers: Mapping[str, str] = MappingProxyType(
            {name.lower(): value for name, value in headers}
        )

    def __repr__(self) -> str:
        return f"<answer with status {self.status}>"


async def answer_asgi(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, outcome: RequestDecision
) -> None:
    """Calls `app`; settles the cost when it has ended, whatever ends it, and gives places back when
    the response has."""
    answer: Any = None
    has_places = outcome.limits.lease_ns
    outcome.hold()

    async def send_and_note(message: Message) -> None:
        nonlocal answer
        if message["type"] == "http.response.start":
            pairs = message.get("headers", ())
            fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
            answer = Answer(message["status"], fields)
        await send(message)
        # Background tasks of the response may run for long after that.
        if has_places and message["type"] == "http.response.body" and not message.get("more_body"):
            await AWAITING.to_the_end(outcome.leave(AWAITING))

    try:
        await app(scope, receive, send_and_note)
    except Exception as exc:
        answer = exc
        raise
    finally:
        await AWAITING.to_the_end(_end(outcome, scope, answer, AWAITING))


async def _end(outcome: RequestDecision, request: Any, answer: Any, execution: Execution) -> None:
    try:
        if outcome.limiter.hooks.cost_after is not None:
            await outcome.settle(request, answer, execution)
    finally:
        await outcome.leave(execution)


def answer_wsgi(
    app: Any, environ: dict[str, Any], start_response: Any, outcome: RequestDecision
) -> Iterable[bytes]:
    """Calls `app`; settles the cost and gives places back when it raises, or its answer has ended
    or is closed."""
    outcome.hold()
    settling = _Settling(environ, outcome)

    def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        settling.answer = Answer(int(status[:3]), headers)
        return start_response(status, headers, *exc_info)

    with settling.noting():
        settling.body = app(environ, start)
        settling.chunks = iter(settling.body)
    return settling


def close_body(body: Any) -> None:
    """Closes the body of an answer, if it is one that is to be closed."""
    close = getattr(body, "close", None)
    if close is not None:
        close()


class _Settling:
    """The body of an answer of a WSGI application."""

    def __init__(self, environ: dict[str, Any], outcome: RequestDecision) -> None:
        self._environ = environ
        self._outcome: RequestDecision | None = outcome
        self.answer: Any = None
        self.body: Iterable[bytes] = ()
        self.chunks: Iterator[bytes] = iter(())

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            if isinstance(exc, Exception):
                self.answer = exc
            self._settle()
            raise

    def __iter__(self) -> Iterator[bytes]:
        with self.noting():
            yield from self.chunks
        self._settle()  # test clients need not close it

    def close(self) -> None:
        try:
            close_body(self.body)
        finally:
            self._settle()

    def _settle(self) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            BLOCKING.run(_end(outcome, self._environ, self.answer, BLOCKING))
