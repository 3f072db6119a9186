"""Queues of callers that wait for a key: first come, first served.

The queue knows nothing of threads or event loops. A ticket is woken through a function
that its owner supplies, so that threads and tasks can wait in one queue.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref

from tidegate.limiter.background import renew_after_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Callable, Union

    Key = Union[str, bytes]

__all__ = ["PATIENCE", "Bell", "Ticket", "WaitingRoom", "enter_together"]

PATIENCE = 0.25
"""Seconds that a caller whose turn it is has for an answer, before later ones pass."""


class Bell:
    """Wakes a thread that waits for it. Each method is one operation on a lock, so that a signal
    handler or a finalizer may ring it at any instruction; one inside an Event would wait for
    itself."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was rung already
            self._silent.release()

    def silence(self) -> None:
        self._silent.acquire(blocking=False)

    def wait(self, seconds: float | None) -> None:
        """Waits until it is rung, and silences it."""
        self._silent.acquire(timeout=-1 if seconds is None else seconds)


class Ticket:
    """A place in the queue of one key. `wake` has its owner try again; tickets of one `runner`, a
    thread or an event loop, answer or do not answer together. While the owner `yields`, for it
    waits for another key too, or is `absent`, for its runner does not run, later tickets go before
    it.

    It is in the queue no longer than it exists: an exception of a signal handler may end its
    owner at any instruction, also before the owner has the ticket, or while it leaves.
    """

    __slots__ = (
        "__weakref__", "absent", "called_at", "cost", "key", "place", "runner", "wake",
        "wakes_next", "yields",
    )  # fmt: skip

    def __init__(self, key: Key, cost: int, wake: Callable[[], None], runner: object) -> None:
        self.key = key
        self.cost = cost
        self.wake = wake
        self.runner = runner
        self.called_at: float | None = None
        self.absent = False
        self.wakes_next = False
        self.yields = False
        self.place: _Place | None = None

    def is_first(self) -> bool:
        """Returns whether no earlier ticket of the queue waits for its key."""
        return self.place is None or self.place.room.is_first(self)

    def answer(self) -> None:
        """Says that the owner runs."""
        self.called_at = None
        self.absent = False

    def call_ahead(self) -> bool:
        """Calls the ticket that is first, since there is room for it. Returns whether this one is
        first then, for those before it have not answered in time."""
        return self.place is None or self.place.room.call_ahead(self)

    def cost_ahead(self) -> int:
        """The units that earlier tickets wait for."""
        return 0 if self.place is None else self.place.room.cost_ahead(self)

    def yield_to_later(self, yields: bool) -> None:
        """Lets later tickets go first, or no longer."""
        if self.yields != yields and self.place is not None:
            self.place.room.yield_to_later(self, yields)

    def leave(self) -> None:
        """Leaves the queue. A second call does what an interrupted one left undone."""
        if self.place is not None:
            self.place.room.leave(self)


class _Place(weakref.ref[Ticket]):
    """What the queue holds of a ticket, which leaves the queue when it ceases to exist."""

    __slots__ = ("line", "room")

    line: bytes
    room: WaitingRoom

    def __init__(self, ticket: Ticket, room: WaitingRoom) -> None:
        self.line = _line(ticket.key)
        self.room = room

    def __new__(cls, ticket: Ticket, room: WaitingRoom) -> _Place:
        return super().__new__(cls, ticket, _leave)


class WaitingRoom:
    """The queues of one limiter. Thread-safe; wakes are called without its lock held.

    A child of `fork()` finds it empty: the callers wait only in the parent.
    """

    def __init__(self) -> None:
        # Dictionaries keep their order and remove any ticket in constant time.
        self.lines: dict[bytes, dict[_Place, None]] = {}
        self.forget_all()
        renew_after_fork(self)

    def forget_all(self) -> None:
        # Reentrant: a signal handler or a finalizer may give a place back while the thread that it
        # interrupts is in here.
        self._lock = threading.RLock()
        self.lines.clear()
        self._runner: int | None = None  # of all who entered, unless there are several
        self._has_runners = False

    # Another thread of the parent may have held the lock, and the tickets are of its threads.
    _after_fork = forget_all

    def enter(self, key: Key, cost: int, wake: Callable[[], None], runner: object = None) -> Ticket:
        """Joins the end of the queue for `key`, which the ticket leaves when it is dropped."""
        ticket = Ticket(key, cost, wake, runner)
        ticket.place = place = _Place(ticket, self)
        with self._lock:
            if self._runner is None:
                self._runner = id(runner)
            self._has_runners |= self._runner != id(runner)
            line = self.lines.get(place.line)
            if line is not None:
                line[place] = None
            else:
                self.lines[place.line] = {place: None}
        return ticket

    def is_first(self, ticket: Ticket) -> bool:
        with self._lock:
            first = _first(self.lines.get(_line(ticket.key)), ticket)
            return first is None or first is ticket

    def cost_ahead(self, ticket: Ticket) -> int:
        """The units that earlier tickets wait for."""
        with self._lock:
            return sum(each.cost for each in self._ahead(ticket))

    def call_ahead(self, ticket: Ticket) -> bool:
        """Wakes the first ticket before `ticket`, and passes over those whose runner was called
        long ago. Returns whether none is left."""
        now = time.monotonic()
        woken: list[Ticket] = []
        with self._lock:
            line = self.lines.get(_line(ticket.key))
            first = _first(line, ticket)
            while first is not None and first is not ticket:
                called_at = first.called_at  # its owner may answer at any time
                if called_at is None:
                    first.called_at = now
                    woken.append(first)
                if called_at is None or now - called_at < PATIENCE:
                    break
                gone = [each for each in self._ahead(ticket) if not _run_apart(each, first)]
                for each in gone:
                    each.absent = True
                woken += gone  # each answers once its runner runs again
                first = _first(line, ticket)
        for each in woken:
            each.wake()
        return first is None or first is ticket

    def _ahead(self, ticket: Ticket) -> list[Ticket]:
        """Returns the tickets that go before `ticket`, in order."""
        ahead = []
        for place in list(self.lines.get(_line(ticket.key), ())):
            each = place()
            if each is ticket:
                break
            if each is not None and not (each.yields or each.absent):
                ahead.append(each)
        return ahead

    def yield_to_later(self, ticket: Ticket, yields: bool) -> None:
        """Sets whether later tickets go before `ticket`, and wakes the first of them."""
        with self._lock:
            line = self.lines.get(_line(ticket.key))
            was_first = _first(line) is ticket
            ticket.yields = yields
            first = _first(line)
        if was_first and first is not None:
            first.wake()

    def leave(self, ticket: Ticket) -> None:
        """Leaves the queue, and wakes the ticket that is first then. An exception of a signal
        handler may interrupt it; a second call then does the rest."""
        place = ticket.place
        if place is None:
            return
        with self._lock:
            line = self.lines.get(place.line)
            if line is not None and place in line:
                ticket.wakes_next = _first(line) is ticket
            first = self._remove(place)
        if ticket.wakes_next and first is not None:
            first.wake()
        ticket.place = None

    def _remove(self, place: _Place) -> Ticket | None:
        """Removes a place; returns the ticket that is first in its queue then."""
        line = self.lines.get(place.line)
        if line is None:
            return None
        line.pop(place, None)
        first = _first(line)
        if not line:
            self.lines.pop(place.line, None)
        return first

    def wake_first(self, key: Key) -> None:
        """Wakes the first ticket of `key`, to which units were given back, and the first one that
        passes it should its runner not run."""
        with self._lock:
            line = self.lines.get(_line(key))
            first = _first(line)
            other = None if first is None or not self._has_runners else _first_beside(line, first)
        for each in (first, other):
            if each is not None:
                each.wake()

    def wake_all(self) -> None:
        """Wakes all tickets: the clock was moved, or the limiter closed."""
        with self._lock:
            places = [place for line in self.lines.values() for place in line]
        for place in places:
            ticket = place()
            if ticket is not None:
                ticket.wake()


def _leave(place: _Place) -> None:
    """Takes the place of a ticket that is no more out of its queue."""
    room = place.room
    with room._lock:
        first = room._remove(place)
    if first is not None:
        first.wake()


def _first(line: dict[_Place, None] | None, asking: Ticket | None = None) -> Ticket | None:
    """Returns the first ticket that is `asking`, or neither yields nor is absent."""
    while line:
        place = next(iter(line))
        ticket = place()
        if ticket is None:
            line.pop(place, None)
        elif ticket is asking or not (ticket.yields or ticket.absent):
            return ticket
        else:
            break
    # A copy, since a collection of garbage may remove tickets meanwhile.
    for place in list(line or ()):
        ticket = place()
        if ticket is not None and (ticket is asking or not (ticket.yields or ticket.absent)):
            return ticket
    return None


def _first_beside(line: dict[_Place, None] | None, first: Ticket) -> Ticket | None:
    """Returns the next ticket after `first` that may run while that one does not."""
    for place in list(line or ()):
        ticket = place()
        if ticket is None or ticket.yields or ticket.absent:
            continue
        if _run_apart(ticket, first):
            return ticket
    return None


def _run_apart(one: Ticket, other: Ticket) -> bool:
    """Whether `one` may run while `other` does not."""
    return one is not other and (one.runner is None or one.runner is not other.runner)


_entering = threading.RLock()


def _renew_entering() -> None:
    global _entering
    _entering = threading.RLock()


os.register_at_fork(after_in_child=_renew_entering)


def enter_together(
    rooms: Sequence[WaitingRoom],
    keys: Sequence[Key],
    costs: Sequence[int],
    wake: Callable[[], None],
    runner: object,
) -> tuple[list[Ticket], list[int]]:
    """Joins several queues at once: of two callers that do, one is before the other in all queues
    that they share, so they never wait for each other.

    Returns the tickets, one for each queue, and for each room the number of its ticket.
    """
    numbers: list[int] = []
    queues: dict[tuple[int, bytes], int] = {}
    together: list[tuple[WaitingRoom, Key, int]] = []
    for room, key, cost in zip(rooms, keys, costs):
        number = queues.setdefault((id(room), _line(key)), len(together))
        if number == len(together):
            together.append((room, key, cost))
        else:
            together[number] = (room, key, together[number][2] + cost)
        numbers.append(number)
    with _entering:
        return [room.enter(key, cost, wake, runner) for room, key, cost in together], numbers


def _line(key: Key) -> bytes:
    """The name of a key's queue: a str and its bytes are one key."""
    return key if isinstance(key, bytes) else str.encode(key, "utf-8", "surrogatepass")
