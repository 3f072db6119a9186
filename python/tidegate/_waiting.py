"""Whose turn it is: first come, first served for each key.

The queue knows nothing of threads or event loops. A ticket is woken through a function
that its owner supplies, so that threads and tasks can stand in one line.
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Union

    Key = Union[str, bytes]

__all__ = ["Ticket", "WaitingRoom"]


class Ticket:
    """A place in the line for one key. `wake` tells its owner to look again."""

    __slots__ = ("__weakref__", "key", "wake")

    def __init__(self, key: Key, wake: Callable[[], None]) -> None:
        self.key = key
        self.wake = wake


class WaitingRoom:
    """The lines of one limiter. Thread-safe; wakes are called without its lock held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Dictionaries keep their order and give up any ticket at once.
        self._lines: dict[Key, dict[Ticket, None]] = {}

    def enter(self, key: Key, wake: Callable[[], None]) -> Ticket:
        """Joins the end of the line for `key`."""
        ticket = Ticket(key, wake)
        with self._lock:
            self._lines.setdefault(key, {})[ticket] = None
        return ticket

    def is_first(self, ticket: Ticket) -> bool:
        with self._lock:
            return _first(self._lines[ticket.key]) is ticket

    def leave(self, ticket: Ticket) -> None:
        """Leaves the line; who is first then is woken."""
        with self._lock:
            line = self._lines[ticket.key]
            was_first = _first(line) is ticket
            del line[ticket]
            if not line:
                del self._lines[ticket.key]
                return
            first = _first(line)
        if was_first:
            first.wake()

    def wake_first(self, key: Key) -> None:
        """Something was given back to `key`."""
        with self._lock:
            line = self._lines.get(key)
            first = _first(line) if line else None
        if first is not None:
            first.wake()

    def wake_all(self) -> None:
        """The clock was moved, or the limiter closed."""
        with self._lock:
            tickets = [ticket for line in self._lines.values() for ticket in line]
        for ticket in tickets:
            ticket.wake()


def _first(line: dict[Ticket, None]) -> Ticket:
    return next(iter(line))
