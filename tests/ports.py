"""Ports for the servers that tests start, which no other process takes.

A port that the system chose and that was closed again may be given to somebody else before the
server binds it, and to a connection at any time. So ports come from blocks below those that the
system hands out, and a process, of which `pytest -n` starts several, holds a block until it ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import sys
from collections.abc import Iterator

_FIRST = 10_000
_LENGTH = 100
_BLOCKS = 100

_held: tuple[int, Iterator[int]] | None = None


def _block() -> Iterator[int]:
    """The ports of this process's block, over and over; a fork takes a block of its own."""
    global _held
    if _held is None or _held[0] != os.getpid():
        begin = _FIRST + _take() * _LENGTH
        _held = os.getpid(), itertools.cycle(range(begin, begin + _LENGTH))
    return _held[1]


def _take() -> int:
    """The number of a block, which this process holds by a name that ends with it."""
    for number in random.sample(range(_BLOCKS), _BLOCKS):
        if not sys.platform.startswith("linux"):  # has no such names
            return number
        holder = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            holder.bind(f"\0tidegate-tests-ports-{number}")
            holder.detach()  # stays open
            return number
        holder.close()
    raise RuntimeError(f"the test processes are too many; expected at most {_BLOCKS} at once")


def free_port(*, bus: bool = False) -> int:
    """A port of 127.0.0.1 that nobody listens at.

    With `bus` the port 10,000 above it is free as well: a Redis before 7.0 cannot be told to use
    another one for the bus of its cluster.
    """
    for port in itertools.islice(_block(), _LENGTH):
        with contextlib.suppress(OSError), contextlib.ExitStack() as bound:
            for number in (port, port + 10_000)[: 1 + bus]:
                bound.enter_context(socket.socket()).bind(("127.0.0.1", number))
            return port
    raise RuntimeError(f"no port is free; expected one among {_LENGTH}")
