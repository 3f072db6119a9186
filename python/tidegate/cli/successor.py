"""A process of `tidegate serve` that takes the place of this one, at the same sockets."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Callable

from tidegate.server.inherited import HANDED_OVER
from tidegate.server.predecessor import ASKS, PREDECESSOR, READY

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Outbox", "Successor"]

log = logging.getLogger("tidegate")

# The most bytes of messages that wait for a process that does not read.
_MOST_WAITING = 2**26


class Outbox:
    """Sends messages in order, on a thread of its own: the other end may have ceased to read.

    At most `most` bytes of further messages wait behind the first one. Thread-safe.
    """

    def __init__(self, channel: socket.socket, *, most: int = _MOST_WAITING) -> None:
        self._channel = channel
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._error: OSError | None = None
        self._changed = threading.Condition()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def put(self, message: bytes) -> None:
        """Adds a message. Does not wait. Raises OSError if the other end is gone, or reads none."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._bytes and self._bytes + len(message) > self._most:
                # What follows a message that is left out would be misunderstood.
                self._error = BlockingIOError("the process that takes over does not read")
                raise self._error
            self._waiting.append(message)
            self._bytes += len(message)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tidegate handing on", daemon=True
                )
                self._thread.start()

    def close(self, patience: float) -> bool:
        """Waits for what was put, at most `patience` seconds. Returns whether all was sent."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._error is not None, patience)
            self._is_over = True
            self._changed.notify_all()
            return not self._bytes

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if self._is_over:
                    return
                message = self._waiting.popleft()
            try:
                self._channel.sendall(message)
            except OSError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._bytes -= len(message)
                self._changed.notify_all()


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
        self._outbox = Outbox(ours)

    def becomes_ready(self, hand_on: Callable[[Callable[[bytes], object]], object]) -> bool:
        """Waits until the process answers checks, or has ended. Returns whether it answers.

        When the process asks for what this one has learned, calls `hand_on` with a function that
        sends it a message, now or later: a line. It does not wait. It raises OSError if the process
        is gone or has ceased to read.
        """
        while True:
            try:
                said = self._channel.recv(1)
            except OSError:  # it ended with unread messages
                said = b""
            if said != ASKS:
                return said == READY
            try:
                hand_on(self._outbox.put)
            except Exception as error:  # the process goes on without, or has ended
                log.warning("nothing was handed on to the process that takes over: %s", error)

    def finish(self, patience: float) -> None:
        """Waits until the process has what was sent to it, at most `patience` seconds."""
        if not self._outbox.close(patience):
            log.warning("the process that takes over did not read all that was handed on")

    def close(self) -> None:
        """Closes the channel to a process that has ended."""
        self._outbox.close(0)
        self._channel.close()


def _command() -> list[str]:
    given: list[str] | None = getattr(sys, "orig_argv", None)  # since Python 3.10
    return [sys.executable, *(given[1:] if given else ["-m", "tidegate", *sys.argv[1:]])]
