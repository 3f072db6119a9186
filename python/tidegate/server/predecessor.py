"""The process whose place this one takes: it hands on what it has learned, and ends when told."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

__all__ = ["ASKS", "PREDECESSOR", "READY", "Predecessor", "predecessor_of"]

PREDECESSOR = "TIDEGATE_PREDECESSOR"
"""The variable with the descriptor of the channel between the two processes."""
ASKS = b"?"
"""What this process sends for what the other one has learned."""
READY = b"!"
"""What this process sends once it answers checks."""

_PATIENCE = 60.0


class Predecessor:
    """This process's end of the channel. Each line from the other one is a message.

    A process that is gone hands nothing on, which is no error. Not thread-safe.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lines = channel.makefile("rb")

    def ask(self) -> bytes:
        """Returns the first message, with what the process has learned; empty if it is gone."""
        self._channel.settimeout(_PATIENCE)
        try:
            self._channel.sendall(ASKS)
            return self._lines.readline()
        except OSError:
            return b""
        finally:
            self._channel.settimeout(None)

    def notify(self) -> None:
        """Says that this process answers checks, so that the other one ends."""
        with contextlib.suppress(OSError):
            self._channel.sendall(READY)

    def further(self) -> Iterator[bytes]:
        """Waits for further messages, until the process has ended, and closes the channel."""
        try:
            with contextlib.suppress(OSError):
                yield from self._lines
        finally:
            self.close()

    def close(self) -> None:
        """Closes the channel."""
        self._lines.close()
        self._channel.close()


def predecessor_of(environment: MutableMapping[str, str]) -> Predecessor | None:
    """Returns the process whose place this one takes, if there is one, and removes the variable."""
    number = environment.pop(PREDECESSOR, None)
    return None if number is None else Predecessor(socket.socket(fileno=int(number)))
