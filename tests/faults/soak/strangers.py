"""Connections of clients that attack or fail."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Callable

Address = tuple[str, int]


def connect(address: Address, *, receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(20)
    sock.connect(address)
    return sock


def cut(sock: socket.socket) -> None:
    """Ends a connection with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Flood:
    """A connection that is written to for as long as the server accepts it."""

    def __init__(self, address: Address, opening: bytes) -> None:
        self.sock = connect(address)
        self.received = b""
        self.is_closed = False
        self.send(opening)

    def send(self, data: bytes) -> None:
        """Sends `data`, and reads what the server sends meanwhile."""
        view = memoryview(data)
        deadline = time.monotonic() + 20
        try:
            while view and not self.is_closed and time.monotonic() < deadline:
                readable, writable, _ = select.select([self.sock], [self.sock], [], 1)
                if readable:
                    self._read()
                elif writable:
                    view = view[self.sock.send(view[: 1 << 16]) :]
        except OSError:
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while not self.is_closed:
                self._read()
        self.is_closed = True

    def _read(self) -> None:
        data = self.sock.recv(1 << 16)
        self.received += data
        self.is_closed = not data

    def wait_for_end(self, seconds: float) -> bool:
        """Reads until the server closes. Returns whether it closed in time."""
        deadline = time.monotonic() + seconds
        try:
            while not self.is_closed and (left := deadline - time.monotonic()) > 0:
                if select.select([self.sock], [], [], left)[0]:
                    self._read()
        except OSError:
            self.is_closed = True
        return self.is_closed

    def close(self) -> None:
        self.sock.close()


@contextlib.contextmanager
def crowd(count: int, act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs `act` in `count` threads while the block runs, with an event that ends them."""
    over = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act(over)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    if errors:
        raise errors[0]
