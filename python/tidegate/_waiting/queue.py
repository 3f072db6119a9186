"""Whose turn it is: first come, first served for each key.

The queue knows nothing of threads or event loops. A ticket is woken through a function
that its owner supplies, so that threads and tasks can stand in one line.
"""

from __future__ import annotations

import os
import threading
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Union

    Key = Union[str, bytes]

__all__ = ["Ticket", "WaitingRoom"]


class Ticket:
    """A place in the line for one key. `wake` tells its owner to look again; `pause` is how
    long its owner slept before the last look for a lease, in seconds."""

    __slots__ = ("__weakref__", "cost", "key", "pause", "wake")

    def __init__(self, key: Key, cost: int, wake: Callable[[], None]) -> None:
        self.key = key
        self.cost = cost
        self.pause = 0.0
        self.wake = wake


class WaitingRoom:
    """The lines of one limiter. Thread-safe; wakes are called without its lock held.

    A child of `fork()` finds it empty: who stood in line there waits in the parent alone.
    """

    def __init__(self) -> None:
        self.forget_all()
        _rooms.add(self)

    def forget_all(self) -> None:
        # Reentrant: a handler of signals or a finalizer may give something back while the
        # very thread that it interrupts is in here.
        self._lock = threading.RLock()
        # Dictionaries keep their order and give up any ticket at once.
        self._lines: dict[bytes, dict[Ticket, None]] = {}

    def enter(self, key: Key, cost: int, wake: Callable[[], None]) -> Ticket:
        """Joins the end of the line for `key`."""
        ticket = Ticket(key, cost, wake)
        with self._lock:
            self._lines.setdefault(_line(key), {})[ticket] = None
        return ticket

    def is_first(self, ticket: Ticket) -> bool:
        with self._lock:
            line = self._lines.get(_line(ticket.key))
            return not line or _first(line) is ticket

    def cost_ahead(self, ticket: Ticket) -> int:
        """What those who came before it wait for."""
        cost = 0
        with self._lock:
            for each in self._lines.get(_line(ticket.key), ()):
                if each is ticket:
                    break
                cost += each.cost
        return cost

    def leave(self, ticket: Ticket) -> None:
        """Leaves the line; who is first then is woken."""
        name = _line(ticket.key)
        with self._lock:
            line = self._lines.get(name)
            if line is None or ticket not in line:
                return
            was_first = _first(line) is ticket
            del line[ticket]
            if not line:
                del self._lines[name]
                return
            first = _first(line)
        if was_first:
            first.wake()

    def wake_first(self, key: Key) -> None:
        """Something was given back to `key`."""
        with self._lock:
            line = self._lines.get(_line(key))
            first = _first(line) if line else None
        if first is not None:
            first.wake()

    def wake_all(self) -> None:
        """The clock was moved, or the limiter closed."""
        with self._lock:
            tickets = [ticket for line in self._lines.values() for ticket in line]
        for ticket in tickets:
            ticket.wake()


_rooms: weakref.WeakSet[WaitingRoom] = weakref.WeakSet()


def _after_fork() -> None:
    for room in list(_rooms):
        room.forget_all()


# Another thread of the parent may have held a lock, and the lines are of the parent's threads.
os.register_at_fork(after_in_child=_after_fork)


def _first(line: dict[Ticket, None]) -> Ticket:
    return next(iter(line))


def _line(key: Key) -> bytes:
    """One name for a key, however it is given: a str and its bytes are one key."""
    return key if isinstance(key, bytes) else str.encode(key, "utf-8", "surrogatepass")
