"""What this process knows of its TCP connections."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from polling import eventually

_ESTABLISHED = 1


def is_connected(port: int, server: int) -> bool:
    """Whether a connection of this process from that port to the port of a server has not ended.

    Asks the sockets themselves: /proc/net/tcp has those of all tests, thousands of which wait.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it is no socket, not connected, or was closed
            found = socket.socket(fileno=int(name))
            try:
                if found.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if (found.getsockname()[1], found.getpeername()[1]) != (port, server):
                    continue
                if found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED:
                    return True
            finally:
                found.detach()
    return False


def wait_for_end(port: int, server: int) -> None:
    """Waits until the end of the connection to a server's port has come to its local port.

    The connection is idle then: it was not used in the last millisecond.
    """
    begun = time.monotonic()
    eventually(
        lambda: time.monotonic() > begun + 0.001 and not is_connected(port, server), interval=0.001
    )
