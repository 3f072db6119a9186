"""A process of `tidegate serve` that takes the place of this one, at the same sockets."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tidegate.server.inherited import HANDED_OVER

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

__all__ = ["Successor", "notify_predecessor"]

_READY = "TIDEGATE_HANDED_OVER_READY"


class Successor:
    """Starts this command anew, with the sockets of (purpose, descriptor) `sockets`.

    Both processes accept at them until this one drains. Raises OSError if no process can start.
    """

    def __init__(self, sockets: Iterable[tuple[str, int]]) -> None:
        reader, writer = os.pipe()
        with contextlib.ExitStack() as here, contextlib.ExitStack() as on_error:
            on_error.callback(os.close, reader)
            here.callback(os.close, writer)
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
                    _READY: str(writer),
                },
                pass_fds=[writer, *(number for _, number in copies)],
            )
            on_error.pop_all()
        self._reader = reader

    def becomes_ready(self) -> bool:
        """Waits until the process answers checks, or has ended. Returns whether it answers."""
        with os.fdopen(self._reader, "rb") as reader:
            return bool(reader.read(1))


def _command() -> list[str]:
    given: list[str] | None = getattr(sys, "orig_argv", None)  # since Python 3.10
    return [sys.executable, *(given[1:] if given else ["-m", "tidegate", *sys.argv[1:]])]


def notify_predecessor(environment: MutableMapping[str, str]) -> None:
    """Notifies the process that started this one, if one did, that this one answers checks."""
    number = environment.pop(_READY, None)
    if number is None:
        return
    with contextlib.suppress(OSError), os.fdopen(int(number), "wb") as writer:
        writer.write(b"1")
