"""The proxy that stands before Redis in tests."""

from __future__ import annotations

import contextlib
import socket

from ports import free_port
from proxy import Proxy


def test_clients_are_connected_once_a_server_that_was_away_is_back() -> None:
    port = free_port()
    with contextlib.closing(Proxy(port)) as proxy:
        address = ("127.0.0.1", proxy.port)
        with socket.create_connection(address, timeout=60) as client:
            assert client.recv(1) == b""
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(address, timeout=60) as client,
        ):
            server.settimeout(60)
            with server.accept()[0] as accepted:
                client.sendall(b"PING")
                accepted.settimeout(60)
                assert accepted.recv(4) == b"PING"
