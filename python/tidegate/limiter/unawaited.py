"""Calls without an event loop whose answers come later; and commits that nobody waits for."""

from __future__ import annotations

import threading

from tidegate import _core
from tidegate.limiter.errors import ReservationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from typing_extensions import Protocol

    from tidegate._core import Decision

    class Reservation(Protocol):
        """What this module uses of one."""

        _owner: Any
        _whose: Any

        def _call(self) -> _core.Reservation: ...
        def _has_settled(
            self, call: _core.Reservation, decision: Decision, actual: Any
        ) -> bool: ...
        def commit(self, actual: Any) -> Decision: ...


__all__ = ["Loop", "send"]


class _Answers(threading.local):
    """Where the answers of a thread's commits arrive."""

    channel: _core.Channel | None = None


class _Future:
    """Stands for the future of an event loop, which hears the answer."""

    __slots__ = ("set_result",)

    def __init__(self, hear: Callable[[Decision], None]) -> None:
        self.set_result = hear

    def done(self) -> bool:
        return False


class Loop:
    """Stands for an event loop, for one call whose answer `hear` gets."""

    __slots__ = ("_hear",)

    def __init__(self, hear: Callable[[Decision], None]) -> None:
        self._hear = hear

    def create_future(self) -> _Future:
        return _Future(self._hear)

    def call_soon(self, flush: Callable[[], None]) -> None:
        """Does nothing: whoever made the channel flushes it."""


_answers = _Answers()


def send(reservation: Reservation, units: Any) -> None:
    """Sends a commit of `reservation`, whose storage answers later, and reads the answers that have
    come since the last one."""
    channel = _answers.channel
    if channel is None:
        try:
            channel = _answers.channel = _core.Channel()
        except OSError:  # the process has no descriptor left
            reservation.commit(units)
            return
    channel.drain()
    _begin(channel, reservation, units)
    channel._kick()


def _begin(channel: _core.Channel, reservation: Reservation, units: Any) -> None:
    call = reservation._call()

    def hear(decision: Decision) -> None:
        try:
            if not reservation._has_settled(call, decision, units):
                _begin(channel, reservation, units)  # it was raised meanwhile
        except ReservationError as error:
            import logging  # few programs need it, and it takes long to import

            log = logging.getLogger("tidegate")
            log.warning("a commit that nobody waited for was not made: %s", error)

    owner, whose = reservation._owner, reservation._whose
    answer = owner._reserved(_core.SETTLE, whose, units, call, Loop(hear), channel)
    if type(answer) is _core.Decision:  # such as that of a circuit breaker
        hear(answer)
