"""A process of `tidegate serve` that takes the place of this one, at the same sockets."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Callable

from tidegate.server.inherited import HANDED_OVER
from tidegate.server.predecessor import ASKS, PREDECESSOR, READY

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Successor"]

log = logging.getLogger("tidegate")


class Successor:
    """Starts this command anew, with the sockets of (purpose, descriptor) `sockets`.

    Both processes accept at them until this one drains. Raises OSError if no process can start.
    """

    def __init__(self, sockets: Iterable[tuple[str, int]]) -> None:
        ours, its = socket.socketpair()
        with contextlib.ExitStack() as here, contextlib.ExitStack() as on_error:
            on_error.callback(ours.close)
            here.callback(its.close)
            # The front keeps its own descriptors from children that are made by fork().
            copies: list[tuple[str, int]] = []
            for purpose, number in sockets:
                copies.append((purpose, os.dup(number)))
                here.callback(os.close, copies[-1][1])
            self.process = subprocess.Popen(
                _command(),
                env={
                    **os.environ,
                    HANDED_OVER: ",".join(f"{purpose}={number}" for purpose, number in copies),
                    PREDECESSOR: str(its.fileno()),
                },
                pass_fds=[its.fileno(), *(number for _, number in copies)],
            )
            on_error.pop_all()
        self._channel = ours

    def becomes_ready(self, hand_on: Callable[[Callable[[bytes], object]], object]) -> bool:
        """Waits until the process answers checks, or has ended. Returns whether it answers.

        When the process asks for what this one has learned, calls `hand_on` with a function that
        sends it a message, now or later: a line. It raises OSError if the process is gone.
        """
        while True:
            try:
                said = self._channel.recv(1)
            except OSError:  # it ended with unread messages
                said = b""
            if said != ASKS:
                return said == READY
            try:
                hand_on(self._channel.sendall)
            except Exception as error:  # the process goes on without, or has ended
                log.warning("nothing was handed on to the process that takes over: %s", error)

    def close(self) -> None:
        """Closes the channel to a process that has ended."""
        self._channel.close()


def _command() -> list[str]:
    given: list[str] | None = getattr(sys, "orig_argv", None)  # since Python 3.10
    return [sys.executable, *(given[1:] if given else ["-m", "tidegate", *sys.argv[1:]])]
