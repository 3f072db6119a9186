"""Reservations: an estimate is charged at once, and corrected when the cost is known."""

from __future__ import annotations

import logging
import os
import time

from tidegate import _core
from tidegate._errors import (
    ArgumentTypeError,
    ConfigurationError,
    RateLimitExceeded,
    ReservationError,
)
from tidegate.limiter import reservation_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType
    from typing import Any, Union

    from typing_extensions import Literal

    from tidegate._core import Decision, Limit
    from tidegate.limiter.debt import WriteOffs
    from tidegate.limiter.waiting.queue import WaitingRoom

    Key = Union[str, bytes]
    Units = Union[int, Sequence[int]]
    OnExit = Literal["release", "keep"]


__all__ = ["Reservation", "Reserves", "ReservesByKey", "Reserving"]

log = logging.getLogger("tidegate")

_LONGEST_TTL = 366 * 86_400.0
# Tries of a call whose reservation another process raises meanwhile.
_MOST_TRIES = 8


class Reservation:
    """Units that were charged for a call whose cost is not known yet; see Limiter.reserve().

    Truthy if the estimate was charged. As a context manager it raises RateLimitExceeded on entry if
    it was not, and on exit gives the estimate back unless it was committed, or leaves it open with
    ``on_exit="keep"``. `commit()` may be called again after a failure: the difference is charged
    or given back once. Thread-safe.
    """

    decision: Decision
    """The decision on the estimate."""

    def __init__(
        self,
        owner: Reserves,
        whose: Any,
        ident: bytes,
        *,
        on_exit: OnExit = "release",
        ttl_ns: int = 0,
    ) -> None:
        self._owner = owner
        self._whose = whose
        self._id = ident
        self._on_exit = on_exit
        self._ttl_ns = ttl_ns
        self._admitted_ns = 0
        self._parts: tuple[tuple[int, int], ...] = ()
        # What it was to be settled at, by a call without an answer.
        self._wanted: Any = None
        self._is_wanted = False
        self._is_settled = False
        self._is_refused = False
        # Charged without the storage, which has no record of it.
        self._is_local = False
        self._units: Any = None
        self._local_until = 0.0

    @property
    def token(self) -> str:
        """A text by which another process can settle it: ``limiter.commit(token, actual)``.

        It is for the service's own processes: whoever has it can give the estimate back. After
        extend() a new token is better: with an older one less may be given back. Raises
        ReservationError if it was refused, or reserved without Redis.
        """
        self._expect_open()
        if self._is_local:
            raise ReservationError(
                "the reservation was made while the storage did not answer, and is known to this "
                "process only; expected one made with the storage"
            )
        return reservation_token.encode(
            self._owner._identity(),
            self._id,
            self._admitted_ns,
            self._parts,
            self._owner._keys_of(self._whose),
        )

    def commit(self, actual: Units) -> Decision:
        """Makes `actual` what the reservation has charged: charges the difference in full, as
        charge() does, or gives it back as far as it still counts.

        Of a plan, `actual` is a list with one for each limiter. Returns the decision of the limits
        afterwards, whose `charged` is the least that a limit has charged in all; it is `degraded`
        if the storage did not answer: then call it again, as leaving the ``with`` block does. A
        second commit of the same number changes nothing. Raises ReservationError if the reservation
        was refused, was settled at another number, or is not known (any more): nothing is changed.
        """
        return self._settle(_checked(actual))

    async def commit_async(self, actual: Units) -> Decision:
        """Like commit(), without blocking the event loop."""
        return await self._settle_async(_checked(actual))

    def release(self) -> Decision:
        """Gives the estimate back, like a commit of 0; rules that count requests forget it too."""
        return self._settle(self._owner._units_of_release())

    async def release_async(self) -> Decision:
        """Like release(), without blocking the event loop."""
        return await self._settle_async(self._owner._units_of_release())

    def _settle(self, actual: Any) -> Decision:
        self._expect_open()
        if self._is_local:
            return self._settle_locally(actual)
        for _ in range(_MOST_TRIES):
            call = self._call()
            decision: Decision = self._owner._reserved(_core.SETTLE, self._whose, actual, call)
            if self._has_settled(call, decision, actual):
                break
        return decision

    async def _settle_async(self, actual: Any) -> Decision:
        self._expect_open()
        if self._is_local:
            import asyncio

            return await asyncio.to_thread(self._settle_locally, actual)
        for _ in range(_MOST_TRIES):
            call = self._call()
            decision: Decision = await self._await(_core.SETTLE, actual, call)
            if self._has_settled(call, decision, actual):
                break
        return decision

    def _settle_locally(self, actual: Any) -> Decision:
        """Settles what the fallback of the storage has charged, once."""
        if self._is_settled:
            if actual != self._wanted:
                raise ReservationError(
                    f"the reservation was settled before, at {self._wanted!r} units; expected "
                    "that, or no second commit",
                    settled=True,
                )
        else:
            self._is_settled = True
            self._wanted = actual
            # What has run out there since is no longer part of its state.
            counts = time.monotonic() < self._local_until
            self._owner._correct(self._whose, self._units, actual, self.decision, counts)
        return self.decision

    def extend(self, more: Units) -> Decision:
        """Reserves `more` units in addition, all or none.

        Returns the decision: refused if there is no room, so that a stream can stop; the
        reservation is then as it was. Raises ReservationError if it is not open, and
        ConfigurationError for a sliding log.
        """
        self._expect_open()
        call = self._call()
        decision = self._owner._reserved(_core.RAISE, self._whose, more, call)
        return self._raised(call, decision)

    async def extend_async(self, more: Units) -> Decision:
        """Like extend(), without blocking the event loop."""
        self._expect_open()
        call = self._call()
        return self._raised(call, await self._await(_core.RAISE, more, call))

    def __bool__(self) -> bool:
        return not self._is_refused

    def __enter__(self) -> Reservation:
        if self._is_refused:
            raise RateLimitExceeded(self.decision)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_left():
            return
        try:
            self._settle(self._units_on_exit())
        except ReservationError as error:
            _log_left(error)

    async def __aenter__(self) -> Reservation:
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_left():
            return
        try:
            await self._settle_async(self._units_on_exit())
        except ReservationError as error:
            _log_left(error)

    def _is_left(self) -> bool:
        """Whether leaving the block settles it. A commit without an answer is made again."""
        if self._is_settled or self._is_refused:
            return False
        return self._is_wanted or self._on_exit == "release"

    def _units_on_exit(self) -> Any:
        return self._wanted if self._is_wanted else self._owner._units_of_release()

    def _expect_open(self) -> None:
        if self._is_refused:
            raise ReservationError(
                "the reservation was refused, and has charged nothing; expected one that passed"
            )

    def _call(self) -> _core.Reservation:
        """What the core needs for one call."""
        return _core.Reservation(self._id, self._ttl_ns, self._admitted_ns, self._parts)

    async def _await(self, op: int, units: Any, call: _core.Reservation) -> Any:
        if not self._owner._may_wait:
            return self._owner._reserved(op, self._whose, units, call)
        from tidegate.limiter.loops import run_reserved

        return await run_reserved(self._owner, op, self._whose, units, call)

    def _begun(self, call: _core.Reservation, decision: Decision, units: Any) -> Reservation:
        """Takes over what the call that reserved the estimate has found."""
        self.decision = decision
        self._owner._has_reserved(self._whose, decision)
        self._is_refused = not decision.allowed
        self._admitted_ns = call.admitted_ns
        self._parts = tuple((units, until) for units, until, _, _ in call.parts)
        if decision.allowed and decision.degraded and all(part[0] < 0 for part in call.parts):
            self._is_local = True
            self._units = units
            self._local_until = time.monotonic() + decision.reset_after
        return self

    def _has_settled(self, call: _core.Reservation, decision: Decision, actual: Any) -> bool:
        """Whether the call is over; False if it must be made again with the units found."""
        found = {part[2] for part in call.parts if part[0] >= 0}
        if _core.FOUND_NO_ANSWER in found:
            self._wanted, self._is_wanted = actual, True
            return True
        if _core.FOUND_OTHER in found:
            self._take_over(call)
            return False
        if _core.FOUND_NOTHING in found:
            raise ReservationError(
                "the reservation is not known (any more): its ttl is over, or the storage has "
                "lost it, and it stays at its estimate, or it was settled a while ago; expected a "
                "commit within its ttl. charge() charges what was used beyond the estimate"
            )
        if _core.FOUND_SETTLED in found:
            units = [part[3] for part in call.parts if part[2] == _core.FOUND_SETTLED]
            self._is_settled = True
            raise ReservationError(
                f"the reservation was settled before, at {units[0]} units; expected {actual!r}, "
                "or no second commit",
                settled=True,
            )
        is_first = not self._is_settled and _core.FOUND_OPEN in found
        self._is_settled = True
        if is_first:
            self._owner._after_settling(self._whose, actual, decision)
        return True

    def _raised(self, call: _core.Reservation, decision: Decision) -> Decision:
        found = {part[2] for part in call.parts if part[0] >= 0}
        if _core.FOUND_NO_ANSWER in found:
            return decision
        if found - {_core.FOUND_OPEN}:
            raise ReservationError(
                "the reservation is not open, and was not raised; expected a call before it is "
                "settled and within its ttl",
                settled=_core.FOUND_SETTLED in found,
            )
        if decision.allowed:
            self._take_over(call)
        return decision

    def _take_over(self, call: _core.Reservation) -> None:
        """Takes over the units that are reserved, as the call found them."""
        self._parts = tuple(
            (found_units if units >= 0 else units, until)
            for units, until, _, found_units in call.parts
        )

    def __repr__(self) -> str:
        state = "refused" if self._is_refused else "settled" if self._is_settled else "open"
        return f"<Reservation of {self._whose!r}: {state}>"


class Reserving:
    """What reserve_async() returns: for ``await``, a Reservation; or for ``async with``."""

    __slots__ = ("_reservation", "_units")

    def __init__(self, reservation: Reservation, units: Any) -> None:
        self._reservation = reservation
        self._units = units

    def __await__(self) -> Generator[Any, None, Reservation]:
        return self._reserve().__await__()

    async def __aenter__(self) -> Reservation:
        return await (await self._reserve()).__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._reservation.__aexit__(*exc_info)

    async def _reserve(self) -> Reservation:
        reservation = self._reservation
        call = reservation._call()
        decision = await reservation._await(_core.RESERVE, self._units, call)
        return reservation._begun(call, decision, self._units)


class Reserves:
    """The calls of limiters and plans on reservations."""

    if TYPE_CHECKING:  # methods of each of them

        def _reserved(
            self,
            op: int,
            whose: Any,
            units: Any,
            reservation: _core.Reservation,
            loop: Any = None,
            channel: Any = None,
        ) -> Any: ...
        def _keys_of(self, whose: Any) -> Sequence[Key]: ...
        def _whose_of(self, keys: list[bytes]) -> Any: ...
        def _correct(
            self, whose: Any, units: Any, actual: Any, decision: Decision, counts: bool
        ) -> None: ...
        def _units_of_release(self) -> Any: ...
        def _identity(self) -> bytes: ...
        def _after_settling(self, whose: Any, units: Any, decision: Decision) -> None: ...
        @property
        def _may_wait(self) -> bool: ...

    def commit(self, token: str, actual: Units) -> Decision:
        """Makes `actual` what the reservation of `token` has charged; see Reservation.commit().

        Raises ConfigurationError for a text that is no token of such a limiter, and
        ReservationError if its reservation is not open; then nothing is changed.
        """
        return self._of_token(token).commit(actual)

    async def commit_async(self, token: str, actual: Units) -> Decision:
        """Like commit(), without blocking the event loop."""
        return await self._of_token(token).commit_async(actual)

    def release(self, token: str) -> Decision:
        """Gives back what the reservation of `token` has charged: commit() of 0."""
        return self._of_token(token).release()

    async def release_async(self, token: str) -> Decision:
        """Like release(), without blocking the event loop."""
        return await self._of_token(token).release_async()

    def _has_reserved(self, whose: Any, decision: Decision) -> None:
        """Called with the decision on an estimate."""

    def _of_token(self, token: str) -> Reservation:
        ident, admitted_ns, parts, keys = reservation_token.decode(self._identity(), token)
        reservation = Reservation(self, self._whose_of(keys), ident)
        reservation._admitted_ns = admitted_ns
        reservation._parts = parts
        return reservation

    def _opened(self, whose: Any, ttl: float, on_exit: OnExit) -> Reservation:
        """A reservation with a new id, which has not been charged yet."""
        if on_exit not in ("release", "keep"):
            raise ConfigurationError(f"on_exit is {on_exit!r}; expected 'release' or 'keep'")
        if isinstance(ttl, bool) or not isinstance(ttl, (int, float)):
            raise ArgumentTypeError(
                f"the ttl is {ttl!r} of type {type(ttl).__name__}; expected seconds as int or float"
            )
        if not 0.001 <= ttl <= _LONGEST_TTL:
            raise ConfigurationError(
                f"the ttl is {ttl!r}; expected 0.001 to {_LONGEST_TTL:.0f} seconds"
            )
        return Reservation(self, whose, os.urandom(16), on_exit=on_exit, ttl_ns=round(ttl * 1e9))

    def _reserve(self, whose: Any, units: Any, ttl: float, on_exit: OnExit) -> Reservation:
        reservation = self._opened(whose, ttl, on_exit)
        call = reservation._call()
        decision = self._reserved(_core.RESERVE, whose, units, call)
        return reservation._begun(call, decision, units)


class ReservesByKey(Reserves):
    """The same for a limiter, whose reservations have one key."""

    if TYPE_CHECKING:
        _limits: tuple[Limit, ...]
        _prefix: str
        _storage: _core.Store
        _room: WaitingRoom
        _write_offs: WriteOffs

        def charge(self, key: Key, cost: int) -> Decision: ...
        def refund(self, key: Key, cost: int = 1, *, decision: Decision | None = None) -> None: ...

    def reserve(
        self, key: Key, estimate: int, ttl: float = 60.0, on_exit: OnExit = "release"
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
        seconds a reservation that nobody has settled stays at its estimate. Raises
        ConfigurationError for invalid arguments and for concurrency limits, before anything is
        charged.
        """
        return self._reserve(key, estimate, ttl, on_exit)

    def reserve_async(
        self, key: Key, estimate: int, ttl: float = 60.0, on_exit: OnExit = "release"
    ) -> Reserving:
        """Like reserve(), without blocking the event loop: for ``await``, or ``async with``."""
        return Reserving(self._opened(key, ttl, on_exit), estimate)

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

    def _correct(
        self, whose: Key, units: int, actual: int, decision: Decision, counts: bool
    ) -> None:
        """Corrects what the fallback has charged, and, if `counts`, still counts."""
        if actual > units:
            self.charge(whose, actual - units)
        elif actual < units and counts:
            self.refund(whose, units - actual, decision=decision)

    def _units_of_release(self) -> int:
        return 0

    def _identity(self) -> bytes:
        return reservation_token.identity("limiter", self._names())

    def _names(self) -> list[str]:
        # Limits with an id keep their counts when their numbers change.
        limits = [f"{limit.algorithm}:{limit.id or limit}" for limit in self._limits]
        return [self._prefix, *limits]

    def _after_settling(self, whose: Any, units: Any, decision: Decision) -> None:
        self._write_offs.seen(decision, units)
        self._room.wake_first(whose)

    @property
    def _may_wait(self) -> bool:
        return self._storage.blocks


def _checked(actual: Units) -> Units:
    if actual is None:
        raise ArgumentTypeError(
            "the actual cost is None of type NoneType; expected an int from 0 up"
        )
    return actual


def _log_left(error: ReservationError) -> None:
    # Another process that had the token has settled it: that is what tokens are for.
    if not error.settled:
        log.warning("a reservation was left unsettled: %s", error)
