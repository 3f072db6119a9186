"""The fault proxy of the Redis tests, with more faults and a listener that can be closed."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import threading
import time

from proxy import Proxy

_ABORT = struct.pack("ii", 1, 0)


class FaultProxy(Proxy):
    """As Proxy, with these modes besides:

    lag (each piece of a reply after `seconds`), spikes (one piece in ten after `seconds`), choke
    (both ways at 2,000 bytes a second), split (requests a byte at a time), forge (`forged` instead
    of each reply), extra (`forged` after each reply), twice (each reply two times), swallow (one
    reply in ten is lost), swap (each second reply before the one that came first), truncate (half
    of a reply and an end), abort (half of a request and an RST), flip (one bit of each reply).
    """

    def __init__(self, port: int) -> None:
        self.seconds = 0.03
        self.forged = b""
        self._numbers = itertools.count()
        self._held = b""
        super().__init__(port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def refuse(self) -> None:
        """Stops listening, and ends all connections."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.drop()

    def listen(self) -> None:
        """Listens again, on the same port."""
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.threads.append(threading.Thread(target=self._accept, daemon=True))
        self.threads[-1].start()

    def heal(self) -> None:
        self.mode = "pass"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets += [client, server]
            self._join(client, server)

    def _trickle(self, sink: socket.socket, data: bytes) -> None:
        for start in range(0, len(data), 20):
            sink.sendall(data[start : start + 20])
            if self.mode == "choke":
                time.sleep(0.01)

    def _request(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        if self.mode == "split":
            for byte in data:
                server.sendall(bytes([byte]))
        elif self.mode == "choke":
            self._trickle(server, data)
        elif self.mode == "abort":
            server.sendall(data[: len(data) // 2])
            for each in (client, server):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            other = client.dup()
            client.close()
            # The thread that waits for replies keeps the connection open until it is woken.
            server.shutdown(socket.SHUT_RD)
            other.close()
            raise OSError
        else:
            server.sendall(data)

    def _reply(self, client: socket.socket, data: bytes) -> None:
        number = next(self._numbers)
        if self.mode == "lag":
            time.sleep(self.seconds)
            client.sendall(data)
        elif self.mode == "spikes":
            if number % 10 == 0:
                time.sleep(self.seconds)
            client.sendall(data)
        elif self.mode == "choke":
            self._trickle(client, data)
        elif self.mode == "forge":
            client.sendall(self.forged)
        elif self.mode == "extra":
            client.sendall(data + self.forged)
        elif self.mode == "twice":
            client.sendall(data + data)
        elif self.mode == "swallow":
            if number % 10:
                client.sendall(data)
        elif self.mode == "swap":
            if self._held:
                client.sendall(data + self._held)
                self._held = b""
            else:
                self._held = data
        elif self.mode == "truncate":
            client.sendall(data[: len(data) // 2])
            raise OSError
        elif self.mode == "flip":
            flipped = bytearray(data)
            flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
            client.sendall(flipped)
        else:
            super()._reply(client, data)
