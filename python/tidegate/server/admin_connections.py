"""Bounds how many connections the admin port has, and how long each may keep it waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import socket
    import ssl

__all__ = ["Bounds", "Connections", "Loop"]


class Bounds(NamedTuple):
    """The bounds of clients of the admin port. All but the first are seconds."""

    connections: int = 512
    head: float = 10.0
    """The time for the handshake of TLS, and for the head of a request."""
    request: float = 30.0
    """The time for a request with its body, from its first byte on."""
    answer: float = 20.0
    """The time that a client may go without reading what was sent."""


# Seconds that a client has to read the answer that it was too slow.
_LINGER = 1.0
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connections:
    """The connections of one server; uvicorn creates them from the class `protocol`.

    When there are too many, the connection that has kept the server waiting longest is closed, so
    slow clients harm only each other. A connection whose request is being answered is never
    closed for another, unless its client does not read the answer, or has got an answer and sent
    further requests with it.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        # Both dictionaries begin with the connection that has waited longest.
        self._handshakes: OrderedDict[Any, None] = OrderedDict()
        self._waiting: OrderedDict[_Connection, None] = OrderedDict()
        self._open: set[_Connection] = set()
        connections = self

        class Protocol(_Connection):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(connections, *args, **options)

        self.protocol = Protocol

    def has_room(self) -> bool:
        """Returns whether one more connection may open. May close a waiting one for it."""
        if len(self._open) + len(self._handshakes) < self.bounds.connections:
            return True
        if self._handshakes:
            self._handshakes.popitem(last=False)[0].cancel()
        elif self._waiting:
            self._waiting.popitem(last=False)[0].cut()
        else:
            return False
        return True

    def arrived(self, handshake: asyncio.Task[None]) -> None:
        """Adds a connection whose handshake is done by that task, and ends with it."""
        self._handshakes[handshake] = None
        handshake.add_done_callback(lambda task: self._handshakes.pop(task, None))

    def end_handshakes(self) -> None:
        """Closes the connections whose handshake is not done yet."""
        for handshake in list(self._handshakes):
            handshake.cancel()

    def opened(self, connection: _Connection, handshake: Any) -> None:
        """Records that the handshake of a connection is done."""
        self._handshakes.pop(handshake, None)
        self._open.add(connection)

    def closed(self, connection: _Connection) -> None:
        """Forgets a connection that was closed."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def waits(self, connection: _Connection, is_waiting: bool) -> None:
        """Records whether the next step is the client's, or the client has had its turn."""
        if is_waiting:
            self._waiting.setdefault(connection, None)
        else:
            self._waiting.pop(connection, None)


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers accept only the connections that have room."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    async def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        """Creates a server as asyncio does, from the options `sock` and `ssl`."""
        return _Listener(
            self, self._connections, protocol_factory, options["sock"], options.get("ssl")
        )


@dataclass(eq=False)
class _Listener:
    """A server that refuses connections before the handshake, which asyncio's own cannot do."""

    loop: asyncio.AbstractEventLoop
    connections: Connections
    protocol_factory: Any
    listener: socket.socket
    context: ssl.SSLContext | None

    def __post_init__(self) -> None:
        self.listener.setblocking(False)
        self._accepting = self.loop.create_task(self._accept())

    def close(self) -> None:
        """Stops accepting connections."""
        self._accepting.cancel()
        self.connections.end_handshakes()

    async def wait_closed(self) -> None:
        """Returns at once. Callers of asyncio's servers expect this method."""

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self.loop.sock_accept(self.listener)
            except OSError:  # for example, too many files are open
                await asyncio.sleep(0.1)
                continue
            if not self.connections.has_room():
                connection.close()
            elif self.context is None:
                await self._shake(connection, None)
            else:
                handshake = self.loop.create_task(self._shake(connection, self.context))
                # The callback also runs if the task is cancelled before it has begun.
                handshake.add_done_callback(partial(_close_if_cancelled, connection))
                self.connections.arrived(handshake)

    async def _shake(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        seconds = None if context is None else self.connections.bounds.head
        with contextlib.suppress(OSError):  # the client made a mistake, or its time is over
            await self.loop.connect_accepted_socket(
                self.protocol_factory,
                connection,
                ssl=context,
                ssl_handshake_timeout=seconds,
            )


def _close_if_cancelled(connection: socket.socket, handshake: asyncio.Task[None]) -> None:
    if handshake.cancelled():
        connection.close()


class _Answer:
    """The transport that an answer is written to. To close it is left to `close`."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Connection(H11Protocol):
    """A connection that is closed if its client leaves a request unfinished or an answer unread."""

    def __init__(self, connections: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._begun: float | None = None
        self._has_answered = False
        self._is_ending = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._handshake = asyncio.current_task()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connections.opened(self, self._handshake)
        self._handshake = None
        self._begun = self.loop.time()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._connections.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is h11.CLOSED:
            self._drop(data)
        else:
            super().data_received(data)
        self._follow()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None:  # its task has not begun
            answer: Any = _Answer(self.transport, self._close_after_request)
            self.cycle.transport = answer

    def _close_after_request(self) -> None:
        """Closes the connection after the last answer, once the client has sent its request.

        Who sends a whole body before the answer is read would else find the connection reset.
        """
        if self.conn.their_state is not h11.SEND_BODY or self._is_ending:
            self.transport.close()

    def _drop(self, data: bytes) -> None:
        """Reads on in a request that has its answer. Closes the connection at its end."""
        self._unset_keepalive_if_required()
        self.conn.receive_data(data)
        with contextlib.suppress(h11.RemoteProtocolError):
            while isinstance(event := self.conn.next_event(), h11.Data):
                pass
            if event is h11.NEED_DATA:
                return
        self.transport.close()

    def shutdown(self) -> None:
        self._is_ending = True
        super().shutdown()

    def on_response_complete(self) -> None:
        self._has_answered = True
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_timer is None:
            seconds = self._connections.bounds.answer
            self._answer_timer = self.loop.call_later(seconds, self.cut)
        self._follow()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
        self._follow()

    def cut(self) -> None:
        """Closes the connection at once, and drops what is still to be sent."""
        self._stop_timers()
        self._connections.closed(self)
        self.transport.abort()

    def _follow(self) -> None:
        """Decides, after each event, whose turn it is, and until when."""
        bounds, now = self._connections.bounds, self.loop.time()
        client = self.conn.their_state
        is_closing = self.transport.is_closing()
        is_waiting = is_closing or client in (h11.IDLE, h11.SEND_BODY)
        ahead = self.conn.trailing_data[0]  # requests after the one that is being answered
        had_turn = self._answer_timer is not None or bool(ahead and self._has_answered)
        self._connections.waits(self, is_waiting or had_turn)
        if is_closing:  # once the client has read the answer
            self._set_timer(now + bounds.answer)
            return
        is_idle = client is h11.IDLE and not ahead
        if not is_waiting or (is_idle and self.cycle is not None):
            # Between two requests, uvicorn's own timer runs.
            self._begun = None
            self._set_timer(None)
            return
        if self._begun is None:
            self._begun = now
        self._set_timer(self._begun + (bounds.request if client is h11.SEND_BODY else bounds.head))

    def _set_timer(self, due: float | None) -> None:
        timer = self._request_timer
        if timer is not None and timer.when() != due:
            timer.cancel()
            timer = None
        if timer is None and due is not None:
            timer = self.loop.call_at(due, self._time_out)
        self._request_timer = timer

    def _time_out(self) -> None:
        self._request_timer = None
        if self.transport.is_closing():
            self.cut()
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_TIMED_OUT)
        self.transport.close()
        self._set_timer(self.loop.time() + _LINGER)

    def _stop_timers(self) -> None:
        self._set_timer(None)
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
