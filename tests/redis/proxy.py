"""A TCP proxy that does to a connection what networks do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

from polling import eventually


class Proxy:
    """Stands between a client and `port`. `mode` may be changed at any time.

    pass, hole (takes everything, answers nothing), drip (replies a byte at a time), stall
    (half of each reply, then nothing), garbage (rubbish instead of each reply), reset (an RST
    instead of each reply), close (an end instead of each reply), half-close (the same, and
    requests go on), huge-bulk, huge-array (a header that promises two thousand millions),
    endless (such a bulk, of which all comes that is taken), shift (instead of each reply the one
    before it on that connection, for as long as it lives; at first +PONG).

    What is assigned to `extra` is sent once, before the next reply and together with it. With
    `loses_one` the next reply is lost. The server sees connections from `source`.
    """

    def __init__(
        self, port: int, source: str = "", address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self.target = port
        self.source = source
        self.mode = "pass"
        self.extra = b""
        self.loses_one = False
        self.held: dict[socket.socket, bytes] = {}  # the replies that are to be sent next
        self.requests = 0  # chunks that came from clients
        self.listener = socket.create_server(address)
        self.port: int = self.listener.getsockname()[1]
        self.sockets: list[socket.socket] = []
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def close(self) -> None:
        # A thread in accept() keeps a closed listener alive.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.mode = "pass"
        self.threads[0].join()
        self.drop()
        for thread in self.threads:
            thread.join()
        for each in [self.listener, *self.sockets]:
            each.close()

    def drop(self) -> None:
        """Ends all connections."""
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.sockets.append(client)
                server = self._connected()
                if server is None:
                    client.close()
                else:
                    self._join(client, server)

    def _connected(self) -> socket.socket | None:
        """Returns a connection to the server, or None while it takes none."""
        try:
            server = socket.create_connection(
                ("127.0.0.1", self.target), source_address=(self.source, 0)
            )
        except OSError:
            return None
        self.sockets.append(server)
        return server

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        for source, sink, replies in ((client, server, False), (server, client, True)):
            thread = threading.Thread(target=self._carry, args=(source, sink, replies), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        lost = False
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.mode == "hole":
                    lost = True
                    continue
                if lost:  # no connection goes on without a part of its bytes
                    break
                if replies:
                    self._reply(sink, data)
                else:
                    self.requests += 1
                    self._request(source, sink, data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _request(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        if self.mode == "swallow-scripts" and b"\r\nEVAL" in data:
            raise OSError
        server.sendall(data)

    def _reply(self, client: socket.socket, data: bytes) -> None:
        if self.loses_one:
            self.loses_one = False
        elif self.mode == "drip":
            for byte in data:
                client.sendall(bytes([byte]))
                time.sleep(0.0002)
        elif self.mode == "stall":
            client.sendall(data[: len(data) // 2])
            eventually(lambda: self.mode != "stall", 300)
            raise OSError
        elif self.mode == "garbage":
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif self.mode == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # The thread that waits for requests keeps the connection open until it is woken.
            with client.dup() as other:
                client.close()
                other.shutdown(socket.SHUT_RD)
            raise OSError
        elif self.mode == "close":
            raise OSError
        elif self.mode == "half-close":
            client.shutdown(socket.SHUT_WR)
            eventually(lambda: self.mode != "half-close", 300)
            raise OSError
        elif self.mode == "huge-bulk":
            client.sendall(b"$2000000000\r\n")
        elif self.mode == "huge-array":
            client.sendall(b"*2000000000\r\n")
        elif self.mode == "endless":
            client.sendall(b"$2000000000\r\n")
            while self.mode == "endless":
                client.sendall(b"x" * (1 << 20))
        elif self.mode == "shift" or client in self.held:
            client.sendall(self.held.get(client, b"+PONG\r\n"))
            self.held[client] = data
        else:
            extra, self.extra = self.extra, b""
            client.sendall(extra + data)
