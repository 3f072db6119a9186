"""What this system knows of the TCP sockets of tests."""

from __future__ import annotations

from pathlib import Path

from polling import eventually

_ESTABLISHED = "01"


def states(port: int, server: int) -> list[str]:
    """The states of sockets of that local port that are connected to the port of a server, in
    hexadecimal as /proc/net/tcp has them. Connections to several servers may share a local port."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, *ends, state = line.split()[:4]
            if [int(end.rpartition(":")[2], 16) for end in ends] == [port, server]:
                found.append(state)
    return found


def wait_for_end(port: int, server: int) -> None:
    """Waits until the end of the connection to a server's port has come to its local port."""
    eventually(lambda: _ESTABLISHED not in states(port, server), interval=0.001)
