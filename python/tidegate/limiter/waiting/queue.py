"""Queues of callers that wait for a key: first come, first served.

The queue knows nothing of threads or event loops. A ticket is woken through a function
that its owner supplies, so that threads and tasks can wait in one queue.
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
    """A place in the queue of one key. `wake` has its owner try again; `pause` is how long, in
    seconds, its owner slept before the last try for a lease."""

    __slots__ = ("__weakref__", "cost", "key", "pause", "wake")

    def __init__(self, key: Key, cost: int, wake: Callable[[], None]) -> None:
        self.key = key
        self.cost = cost
        self.pause = 0.0
        self.wake = wake


class WaitingRoom:
    """The queues of one limiter. Thread-safe; wakes are called without its lock held.

    A child of `fork()` finds it empty: the callers wait only in the parent.
    """

    def __init__(self) -> None:
        self.forget_all()
        _rooms.add(self)

    def forget_all(self) -> None:
        # Reentrant: a signal handler or a finalizer may give a place back while the thread that it
        # interrupts is in here.
        self._lock = threading.RLock()
        # Dictionaries keep their order and remove any ticket in constant time.
        self._lines: dict[bytes, dict[Ticket, None]] = {}

    def enter(self, key: Key, cost: int, wake: Callable[[], None]) -> Ticket:
        """Joins the end of the queue for `key`."""
        ticket = Ticket(key, cost, wake)
        with self._lock:
            self._lines.setdefault(_line(key), {})[ticket] = None
        return ticket

    def is_first(self, ticket: Ticket) -> bool:
        with self._lock:
            line = self._lines.get(_line(ticket.key))
            return not line or _first(line) is ticket

    def cost_ahead(self, ticket: Ticket) -> int:
        """The units that earlier tickets wait for."""
        cost = 0
        with self._lock:
            for each in self._lines.get(_line(ticket.key), ()):
                if each is ticket:
                    break
                cost += each.cost
        return cost

    def leave(self, ticket: Ticket) -> None:
        """Leaves the queue, and wakes the ticket that is first then."""
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
        """Wakes the first ticket of `key`, to which units were given back."""
        with self._lock:
            line = self._lines.get(_line(key))
            first = _first(line) if line else None
        if first is not None:
            first.wake()

    def wake_all(self) -> None:
        """Wakes all tickets: the clock was moved, or the limiter closed."""
        with self._lock:
            tickets = [ticket for line in self._lines.values() for ticket in line]
        for ticket in tickets:
            ticket.wake()


_rooms: weakref.WeakSet[WaitingRoom] = weakref.WeakSet()


def _after_fork() -> None:
    for room in list(_rooms):
        room.forget_all()


# Another thread of the parent may have held a lock, and the tickets are of the parent's threads.
os.register_at_fork(after_in_child=_after_fork)


def _first(line: dict[Ticket, None]) -> Ticket:
    return next(iter(line))


def _line(key: Key) -> bytes:
    """The name of a key's queue: a str and its bytes are one key."""
    return key if isinstance(key, bytes) else str.encode(key, "utf-8", "surrogatepass")
