"""What this system knows of the TCP sockets of tests."""

from __future__ import annotations

from pathlib import Path

from polling import eventually

_ESTABLISHED = "01"


def states(port: int) -> list[str]:
    """The states of the sockets with that local port, in hexadecimal as /proc/net/tcp has them."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if int(local.rpartition(":")[2], 16) == port:
                found.append(state)
    return found


def wait_for_end(port: int) -> None:
    """Waits until the end of the connection has come to the socket with that local port."""
    eventually(lambda: _ESTABLISHED not in states(port), interval=0.001)
