"""A front with services that echo, and clients that control every byte."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import Any, Protocol

import h2.config
import h2.connection
import h2.events
from service_testing import EchoService, LaterService
from tidegate.server import _native

ECHO = "/tidegate.test.Echo/Echo"
LATER = "/tidegate.test.Later/Later"


@dataclass
class Served:
    front: _native.Front
    health: _native.Health
    later: LaterService
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, name: str) -> int:
        """Returns a counter of the front."""
        return self.front.stats()[name]

    def connect(self) -> RawClient:
        return RawClient(socket.create_connection(("127.0.0.1", self.port), timeout=30))


class MakeFront(Protocol):
    def __call__(self, **options: object) -> Served: ...


def new_front(
    *, holds: bool = False, **options: object
) -> tuple[_native.Front, _native.Health, LaterService]:
    """Returns a front that does not listen yet."""
    front = _native.Front(options)
    later = LaterService(holds=holds)
    front.route(EchoService())
    front.route(later)
    return front, _native.Health(front), later


def start_front(**options: Any) -> Served:
    front, health, later = new_front(**options)
    port = front.listen("127.0.0.1", 0)
    front.start()
    return Served(front, health, later, port)


class RawClient:
    """A connection with time-outs."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.left = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read_to_end(self) -> bytes:
        """Returns all bytes until the server closes."""
        data = self.left
        while True:
            try:
                more = self.sock.recv(65536)
            except ConnectionResetError:
                return data
            if not more:
                return data
            data += more

    def read_response(self) -> tuple[int, dict[str, str], bytes]:
        """Reads one response of HTTP/1.1 with a content-length: status, headers, body."""
        while b"\r\n\r\n" not in self.left:
            self._more()
        head, self.left = self.left.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        size = int(headers.get("content-length", 0))
        while len(self.left) < size:
            self._more()
        body, self.left = self.left[:size], self.left[size:]
        return int(first.split()[1]), headers, body

    def _more(self) -> None:
        more = self.sock.recv(65536)
        assert more, f"the server closed after {self.left!r}"
        self.left += more


class Http2Client(RawClient):
    """A client of HTTP/2 with the library h2, one event at a time."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        config = h2.config.H2Configuration(
            client_side=True, validate_outbound_headers=False, header_encoding="utf-8"
        )
        self.h2 = h2.connection.H2Connection(config=config)
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.send(self.h2.data_to_send())

    def request(
        self,
        path: str = "/echo",
        body: bytes | None = b"",
        *,
        method: str = "POST",
        headers: tuple[tuple[str, str], ...] = (),
        end: bool = True,
    ) -> int:
        """Sends a request, or its beginning, and returns its stream."""
        stream = self.h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "test")]
        self.h2.send_headers(stream, [*pseudo, *headers], end_stream=body is None and end)
        if body is not None:
            self.h2.send_data(stream, body, end_stream=end)
        self.flush()
        return stream

    def events(self) -> list[Any]:
        """Returns the next events; empty at the end."""
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        events: list[Any] = list(self.h2.receive_data(data)) if data else []
        self.flush_quietly()
        return events

    def flush_quietly(self) -> None:
        with contextlib.suppress(OSError):  # the server closed
            self.flush()

    def answer(self, stream: int) -> tuple[dict[str, str], bytes]:
        """Returns the headers with the trailers, and the body."""
        headers: dict[str, str] = {}
        body = b""
        while True:
            events = self.events()
            assert events, "the server closed"
            for event in events:
                if getattr(event, "stream_id", None) != stream:
                    continue
                if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                    headers.update(dict(event.headers))
                elif isinstance(event, h2.events.DataReceived):
                    body += event.data
                    self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
                    self.flush()
                elif isinstance(event, h2.events.StreamEnded):
                    return headers, body

    def goaway(self) -> int:
        """Returns the error code of the GOAWAY before the end."""
        code: int | None = None
        while True:
            events = self.events()
            for event in events:
                if isinstance(event, h2.events.ConnectionTerminated):
                    code = int(event.error_code)
            if not events:
                assert code is not None, "the server closed without a GOAWAY"
                return code


def http2_client(served: Served) -> Http2Client:
    return Http2Client(socket.create_connection(("127.0.0.1", served.port), timeout=30))
