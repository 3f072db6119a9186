"""Settles the cost of a streaming response when its stream ends, whether all of it was sent or the
client has disconnected."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, Callable

from tidegate.web.answers import close_body
from tidegate.web.callables import is_async
from tidegate.web.execution import AWAITING, BLOCKING, Execution

__all__ = [
    "Parts",
    "Settle",
    "closing_then",
    "settle_after_django",
    "settle_after_flask",
    "settle_after_starlette",
]

# A function that settles a charge by an execution.
Settle = Callable[[Execution], Coroutine[Any, Any, Any]]

# A response that is to be settled has this attribute, and its class has the other.
_SETTLE = "__tidegate_settle__"
_KNOWN = "__tidegate_settles__"


def settle_after_starlette(response: Any, settle: Settle) -> bool:
    """Calls `settle` when `response` has ended; returns False if it is not a stream.

    Starlette calls a method of the response's class, so that class is replaced by a subclass.
    """
    if not hasattr(response, "body_iterator"):
        return False
    kind: Any = type(response)
    if not hasattr(kind, _KNOWN):
        try:
            response.__class__ = _settling(kind)
        except TypeError:  # the class has a layout of its own
            return False
    response.__dict__.setdefault(_SETTLE, []).append(settle)
    return True


async def _settle_all(settles: Sequence[Settle]) -> None:
    for settle in settles:
        await settle(AWAITING)


@functools.lru_cache(maxsize=64)
def _settling(kind: Any) -> Any:
    async def call(self: Any, scope: Any, receive: Any, send: Any) -> None:
        try:
            await kind.__call__(self, scope, receive, send)
        finally:
            try:
                # Starlette leaves closing the stream to the garbage collector.
                close = getattr(self.body_iterator, "aclose", None)
                if close is not None:
                    await close()
            finally:
                # A response that is returned again is not settled again.
                await AWAITING.to_the_end(_settle_all(self.__dict__.pop(_SETTLE, ())))

    return _subclass(kind, __call__=call)


def settle_after_flask(flask: Any, result: Any, settle: Settle, cost_after: Any) -> bool:
    """Calls `settle`, once, when the stream of Flask's response for `result` has ended or is
    closed, also in another response to which later code gives it; returns False if it is not a
    stream."""
    body = result[0] if isinstance(result, tuple) and result else result
    if not (hasattr(body, "__next__") or getattr(body, "is_streamed", False)):
        return False
    app = flask.current_app._get_current_object()

    async def awaiting() -> None:
        await settle(AWAITING)

    def settle_now() -> None:
        if is_async(cost_after):
            app.ensure_sync(awaiting)()
        else:
            BLOCKING.run(settle(BLOCKING))

    settling = _once(settle_now)

    def add(response: Any) -> Any:
        if response.is_streamed:
            response.response = Parts(response.response, settling)
        else:  # later code has read the stream, or answers an error in its place
            settling()
        return response

    flask.after_this_request(add)
    return True


class Parts:
    """The parts of a body. Calls `ended`, which may be called again, when they have ended or are
    closed."""

    def __init__(self, parts: Any, ended: Callable[[], None]) -> None:
        self._parts = parts
        self._ended = ended

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._parts
        finally:  # test clients need not close them
            self._ended()

    def close(self) -> None:
        try:
            close_body(self._parts)
        finally:
            self._ended()


def settle_after_django(request: Any, response: Any, settle: Settle, cost_after: Any) -> bool:
    """Calls `settle`, once, when Django has sent or closed `response` or closes `request`, with
    whatever response middleware has put in its place; returns False if it is not a stream.

    Under ASGI, Django closes no response whose stream has raised, and no stream. It iterates by a
    method of the response's class, so that class is replaced by a subclass.
    """
    if not getattr(response, "streaming", False):
        return False
    turn = threading.Lock()

    async def awaiting() -> None:
        if turn.acquire(blocking=False):
            await AWAITING.to_the_end(settle(AWAITING))

    def settling() -> None:
        if not turn.acquire(blocking=False):
            return
        if is_async(cost_after):
            from asgiref.sync import async_to_sync

            async_to_sync(settle)(AWAITING)
        else:
            BLOCKING.run(settle(BLOCKING))

    # The request of REST framework wraps that of Django.
    for closed in (response, getattr(request, "_request", request)):
        closed.close = closing_then(closed.close, settling)
    kind: Any = type(response)
    if hasattr(kind, "__aiter__") and not hasattr(kind, _KNOWN):
        with contextlib.suppress(TypeError):  # the class has a layout of its own
            response.__class__ = _settling_django(kind)
    response.__dict__.setdefault(_SETTLE, []).append(awaiting)
    return True


@functools.lru_cache(maxsize=64)
def _settling_django(kind: Any) -> Any:
    async def iterate(self: Any) -> AsyncIterator[bytes]:
        try:
            async for part in kind.__aiter__(self):
                yield part
        finally:
            try:
                close = getattr(getattr(self, "_iterator", None), "aclose", None)
                if close is not None:
                    await close()
            finally:
                for settle in self.__dict__.pop(_SETTLE, ()):
                    await settle()

    return _subclass(kind, __aiter__=iterate)


def _subclass(kind: Any, **methods: Any) -> Any:
    """Returns a subclass of a response's class that looks like it."""
    names = {_KNOWN: True, "__module__": kind.__module__, "__doc__": kind.__doc__, **methods}
    return type(kind.__name__, (kind,), {**names, "__qualname__": kind.__qualname__})


def closing_then(close: Callable[[], None], settle: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that calls `close` and then, whatever it raises, `settle`."""

    def close_and_settle() -> None:
        try:
            close()
        finally:
            settle()

    return close_and_settle


def _once(function: Callable[[], None]) -> Callable[[], None]:
    """Returns `function`, whose calls after the first do nothing."""
    lock = threading.Lock()

    def called() -> None:
        if lock.acquire(blocking=False):
            function()

    return called
