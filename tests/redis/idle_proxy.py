"""A TCP proxy that closes idle connections, as HAProxy and load balancers do."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

from polling import eventually
from sockets import wait_for_end


class IdleProxy:
    """Stands between a client and `port`, with one thread that carries all bytes.

    Ends all connections at end_connections(), and idle ones in wait_until_closed(). While it
    `is_deaf` it reads nothing from clients. In the mode "hole" it drops what they send.
    """

    def __init__(self, port: int) -> None:
        self.mode = "pass"
        self.is_deaf = False
        self.connections = 0  # that were made so far
        self._target = port
        self._idle_seconds: float | None = None  # after which a connection ends
        self._pairs: dict[socket.socket, socket.socket] = {}  # of clients and servers
        self._ports: dict[socket.socket, int] = {}  # of clients
        self._ended: list[int] = []  # ports of clients
        self._lock = threading.Lock()  # for all above
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        for each in (self._listener, *self._pairs, *self._pairs.values()):
            each.close()

    def end_connections(self, how: str) -> None:
        """Ends all connections, by an end or a reset, which has come to the client on return."""
        with self._lock:
            ports = list(self._ports.values())
            for client in list(self._pairs):
                self._end(client, how)
        for port in ports:
            wait_for_end(port, self.port)

    def wait_until_closed(self, idle_seconds: float) -> None:
        """Ends connections on which nothing came for so long, unless the server owes a reply.

        Waits until none is left, and the clients have the ends. Before this call no connection is
        idle: a client that is slow would be taken for one.
        """
        self._idle_seconds = idle_seconds
        eventually(lambda: not self._pairs, interval=0.001)
        self._idle_seconds = None
        for port in self._ended:
            wait_for_end(port, self.port)

    def wait_until_full(self) -> None:
        """Waits until the client can write no more to the deaf proxy."""
        last = [-1, 0]  # how much has come, and how often it was the same

        def is_full() -> bool:
            with self._lock:
                waiting = sum(
                    len(client.recv(1 << 26, socket.MSG_PEEK | socket.MSG_DONTWAIT))
                    for client in self._readable(0)
                )
            last[:] = [waiting, last[1] + 1 if waiting == last[0] else 0]
            return waiting > 0 and last[1] >= 20

        eventually(is_full, interval=0.02)

    def _readable(self, seconds: float) -> list[socket.socket]:
        return select.select(list(self._pairs), [], [], seconds)[0]

    def _end(self, client: socket.socket, how: str) -> None:
        server = self._pairs.pop(client)
        self._ended.append(self._ports.pop(client))
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        server.close()

    @contextlib.contextmanager
    def _ends_on_error(self, client: socket.socket) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._end(client, "end")

    def _run(self) -> None:
        tick = 0.005
        idle: dict[socket.socket, float] = {}
        asked: set[socket.socket] = set()  # of which the server owes a reply
        while not self._is_over:
            with self._lock:
                clients = [] if self.is_deaf else list(self._pairs)
                sources = [self._listener, *clients, *self._pairs.values()]
            try:
                ready = select.select(sources, [], [], tick)[0]
            except (OSError, ValueError):  # ended meanwhile
                continue
            with self._lock:
                if self._listener in ready:
                    self._accept()
                for client, server in list(self._pairs.items()):
                    came = client in ready or server in ready or client in asked
                    idle[client] = 0.0 if came else idle.get(client, 0.0) + tick
                    with self._ends_on_error(client):
                        if client in ready and not self.is_deaf:
                            self._carry(client, server)
                            if self.mode == "pass":
                                asked.add(client)
                        if server in ready:
                            self._carry(server, client)
                            asked.discard(client)
                        if self._idle_seconds is not None and idle[client] >= self._idle_seconds:
                            raise TimeoutError

    def _accept(self) -> None:
        client, (_, port) = self._listener.accept()
        self.connections += 1
        self._pairs[client] = socket.create_connection(("127.0.0.1", self._target))
        self._ports[client] = port

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        data = source.recv(1 << 16)
        if not data:
            raise OSError("it has ended")
        if self.mode == "pass":
            sink.sendall(data)
