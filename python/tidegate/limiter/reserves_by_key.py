"""Reservations of a limiter, which have one key; those of plans have several."""

from __future__ import annotations

import os

from tidegate import _core
from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.reservation import Reservation, Reserves, Reserving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    from tidegate._core import Decision, Limit
    from tidegate.limiter.debt import WriteOffs
    from tidegate.limiter.reservation_expiry import OnExit, OnExpiry
    from tidegate.limiter.waiting.queue import WaitingRoom

    Key = Union[str, bytes]

__all__ = ["ReservesByKey", "outstanding"]


class ReservesByKey(Reserves):
    """The calls of a limiter on reservations, each of which has one key."""

    if TYPE_CHECKING:
        _limits: tuple[Limit, ...]
        _prefix: str
        _storage: _core.Store
        _clock: Any
        _room: WaitingRoom
        _write_offs: WriteOffs

        def charge(self, key: Key, cost: int) -> Decision: ...
        def refund(self, key: Key, cost: int = 1, *, decision: Decision | None = None) -> None: ...
        def _peek_fallback(self, key: Key) -> tuple[Limit, int]: ...

        # The class Limiter itself.
        _plain: Any

    def reserve(
        self,
        key: Key,
        estimate: int,
        ttl: float = 60.0,
        on_exit: OnExit = "release",
        on_expiry: OnExpiry = "keep",
    ) -> Reservation:
        """Charges `estimate` to `key` like hit(), for a call whose cost is known afterwards.

        ::

            with limiter.reserve("user:42", 500) as reservation:
                answer = generate()
                reservation.commit(answer.usage.total_tokens)

        The Reservation is truthy if the estimate was charged; ``with`` raises RateLimitExceeded if
        it was not. `commit()` charges the difference in full or gives it back, exactly once.
        Leaving the block without it gives the estimate back, or with ``on_exit="keep"`` leaves the
        reservation open for another process, which settles it by `Reservation.token`. After `ttl`
        seconds a reservation that nobody has settled stays at its estimate, or with
        ``on_expiry="release"`` is given back, with the next reservation of the key. Raises
        ConfigurationError for invalid arguments and for concurrency limits, before anything is
        charged.
        """
        return self._reserve(key, estimate, ttl, on_exit, on_expiry)

    def reserve_async(
        self,
        key: Key,
        estimate: int,
        ttl: float = 60.0,
        on_exit: OnExit = "release",
        on_expiry: OnExpiry = "keep",
    ) -> Reserving:
        """Like reserve(), without blocking the event loop: for ``await``, or ``async with``."""
        return self._reserving(key, estimate, ttl, on_exit, on_expiry)

    def _reservation_of_hit(
        self, key: Key, units: int, decision: Decision, first: int = 0
    ) -> Reservation:
        """Returns what the hit of `decision` has charged as a reservation, for its caller to settle
        once. If that hit had more than one limit, `decision` has their outcomes; those of this
        limiter begin at `first`."""
        limiter: Any = self  # this is a base class of limiters
        live = _core.reservation_of_hit(Reservation, limiter, key, units, decision, first)
        if live is not None:
            return live
        reservation = Reservation(self, key, os.urandom(16), on_exit="keep")
        charged = _core.charged_by(decision, first, len(self._limits), units)
        reservation._take_over_hit(decision._from_limit(first), charged, units)
        return reservation

    def _reserved(
        self,
        op: int,
        whose: Any,
        units: Any,
        reservation: _core.Reservation,
        loop: Any = None,
        channel: Any = None,
    ) -> Any:
        limiter: Any = self  # this is a base class of limiters
        return _core.call_reserved(limiter, op, whose, units, reservation, loop, channel)

    def _keys_of(self, whose: Key) -> list[Key]:
        return [whose]

    def _whose_of(self, keys: list[bytes]) -> bytes:
        if len(keys) != 1:
            raise ConfigurationError("the token is of a plan; expected one of this limiter")
        return keys[0]

    def _count_until(self, whose: Key, decision: Decision) -> list[int]:
        """When each limit, as the fallback grants it, is full again if nobody charges it."""
        now_ns = self._now_ns()
        if decision._charged_in != "fallback":
            return [now_ns] * len(self._limits)
        return [now_ns + one._peek_fallback(whose)[1] for one in self._of_each_limit()]

    def _correct(
        self, whose: Key, units: int, actual: int, decision: Decision, until: list[int]
    ) -> None:
        """Corrects what the fallback has charged, and still counts of it."""
        if actual > units:
            self.charge(whose, actual - units)
            return
        now_ns = self._now_ns()
        for number, one in enumerate(self._of_each_limit()):
            share, left_ns = one._peek_fallback(whose)[0], until[number] - now_ns
            back = outstanding(share, left_ns, units - actual)
            if back > 0:
                one.refund(whose, back, decision=decision._from_limit(number))

    def _units_of_release(self) -> int:
        return 0

    def _identity(self) -> bytes:
        from tidegate.limiter.reservation_token import identity

        return identity("limiter", self._names())

    def _names(self) -> list[str]:
        # Limits with an id keep their counts when their numbers change.
        limits = [f"{limit.algorithm}:{limit.id or limit}" for limit in self._limits]
        return [self._prefix, *limits]

    def _after_settling(self, whose: Any, units: Any, decision: Decision) -> None:
        self._write_offs.seen(decision, units)
        self._room.wake_first(whose)

    def _of_each_limit(self) -> list[Any]:
        """A limiter for each limit, with the same counts."""
        if len(self._limits) == 1:
            return [self]
        return [
            self._plain(each, storage=self._storage, prefix=self._prefix, clock=self._clock)
            for each in self._limits
        ]


def outstanding(limit: Limit, left_ns: int, units: int) -> int:
    """Returns how many of the `units` charged can be given back without granting extra ones.

    `left_ns` is the time from now until the key, as the charge left it, is full again. Units that
    have run out are no longer part of its state; giving them back would give back units that other
    requests may have charged since.
    """
    if limit.algorithm == "sliding-window":
        left_ns -= limit.period_ns
    if left_ns <= 0:
        return 0
    from tidegate.types import BUCKETS

    if limit.algorithm in BUCKETS:
        return min(units, left_ns * limit.count // limit.period_ns)
    return units
