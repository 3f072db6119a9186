"""A clock that stands still until it is moved."""

from __future__ import annotations

import weakref

from tidegate import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Protocol, Union

    from tidegate.limiter.waiting.leases import Extender
    from tidegate.limiter.waiting.queue import WaitingRoom

    class HasNowNs(Protocol):
        def now_ns(self) -> int: ...

    ClockLike = Union[None, HasNowNs, Callable[[], Union[int, float]]]

__all__ = ["ClockLike", "ManualClock", "extender_by"]


class ManualClock(_core.ManualClock):
    """Time under the control of a test or a replay.

    Instants are integer nanoseconds since the epoch, clamped to [0, 2**62]. Moving the
    clock wakes callers that wait in `Limiter.acquire`, and extends the leases of slots that are
    held. Thread-safe.
    """

    def __init__(self, start_ns: int = 0) -> None:
        super().__init__(start_ns)
        # A WeakSet would not do: nothing may be added to one during an iteration.
        self._rooms: set[weakref.ref[WaitingRoom]] = set()
        self._extenders: set[weakref.ref[Extender]] = set()

    def advance(self, seconds: float) -> None:
        """Moves the clock by `seconds`, rounded to the nanosecond; back if negative."""
        super().advance(seconds)
        self._moved()

    def advance_ns(self, ns: int) -> None:
        """Moves the clock by `ns` nanoseconds; back if negative."""
        super().advance_ns(ns)
        self._moved()

    def set_ns(self, ns: int) -> None:
        """Sets the clock to `ns` nanoseconds since the epoch."""
        super().set_ns(ns)
        self._moved()

    def __repr__(self) -> str:
        return f"ManualClock(start_ns={self.now_ns()})"

    def _wakes(self, room: WaitingRoom) -> None:
        self._rooms.add(weakref.ref(room, self._rooms.discard))

    def _extends(self, extender: Extender) -> None:
        self._extenders.add(weakref.ref(extender, self._extenders.discard))

    def _moved(self) -> None:
        # First, before a waiting caller finds that the lease of a holder has ended.
        for each in list(self._extenders):
            extender = each()
            if extender is not None:
                extender.extend_due()
        for reference in list(self._rooms):
            room = reference()
            if room is not None:
                room.wake_all()


def extender_by(clock: ClockLike) -> Extender:
    """Returns what extends leases by `clock`: by a ManualClock when it is moved."""
    from tidegate.limiter.waiting.leases import Extender, of_process

    if not isinstance(clock, ManualClock):
        return of_process
    extender = Extender(clock.now_ns)
    clock._extends(extender)
    return extender
