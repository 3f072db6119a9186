"""Reservations: an estimate is charged at once, and corrected when the cost is known."""

from __future__ import annotations

import os
from functools import partial

from tidegate import _core
from tidegate.limiter.errors import (
    ArgumentTypeError,
    ConfigurationError,
    RateLimitExceeded,
    ReservationError,
)
from tidegate.limiter.reservation_errors import (
    INHERITED,
    NOT_KNOWN,
    NOT_OPEN,
    log_left,
    settled_before,
)
from tidegate.limiter.reservation_expiry import KEPT_NS, Expiring, gives_back, life_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator, Mapping, Sequence
    from typing import Any, Callable, Union

    from tidegate._core import Decision
    from tidegate.limiter.reservation_expiry import OnExit, OnExpiry

    Key = Union[str, bytes]
    Units = Union[int, Sequence[int]]


__all__ = ["Reservation", "Reserves", "Reserving"]

# Tries of a call whose reservation another process raises meanwhile.
_MOST_TRIES = 8


class Reservation(_core.LiveReservation):
    """Units that were charged for a call whose cost is not known yet; see Limiter.reserve().

    Truthy if the estimate was charged. As a context manager it raises RateLimitExceeded on entry if
    it was not, and on exit gives the estimate back unless it was committed, or leaves it open with
    ``on_exit="keep"``. `commit()` may be called again after a failure: the difference is charged
    or given back once. Thread-safe.
    """

    # The core settles what was reserved in memory, as long as only this object knows of it
    # (_is_live). All others are settled here, by records of their storage.
    _owner: Reserves
    _whose: Any
    _id = b""
    _on_exit: OnExit = "release"
    _ttl_ns = 0
    _gives_back = False
    _is_expired = False
    _admitted_ns = 0
    _parts: tuple[tuple[int, int], ...] = ()
    # What it was to be settled at, by a call without an answer.
    _wanted: Any = None
    _is_wanted = False
    # It was sent by commit_soon().
    _is_sent = False
    # Charged without the storage, which has no record of it.
    _is_local = False
    _units: Any = None
    _local_until: list[int]
    # A list with the units that it is settled at, where it has no record.
    _claim: list[Any]
    # Charged by a hit of this process, which alone settles it.
    _is_of_hit = False

    def __init__(
        self,
        owner: Reserves,
        whose: Any,
        ident: bytes,
        *,
        on_exit: OnExit = "release",
        ttl_ns: int = 0,
        gives_back: bool = False,
    ) -> None:
        self._owner = owner
        self._whose = whose
        self._id = ident
        self._on_exit = on_exit
        self._ttl_ns = ttl_ns
        self._gives_back = gives_back

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
        if self._is_live:
            self._record(os.urandom(16))
        self._read_record()
        from tidegate.limiter import reservation_token  # few programs need it

        return reservation_token.encode(
            self._owner._identity(),
            self._id,
            self._admitted_ns,
            self._parts,
            self._owner._keys_of(self._whose),
        )

    async def commit_async(
        self, actual: Units | None = None, *, usage: Mapping[str, int] | None = None
    ) -> Decision:
        """Like commit(), without blocking the event loop."""
        units = self._units_of(actual, usage)
        return self.commit(units) if self._is_live else await self._settle_async(units)

    async def release_async(self) -> Decision:
        """Like release(), without blocking the event loop."""
        if self._is_live:
            return self.release()
        return await self._settle_async(self._owner._units_of_release())

    def commit_soon(
        self, actual: Units | None = None, *, usage: Mapping[str, int] | None = None
    ) -> None:
        """Sends a commit(), and does not wait for the answer of the storage.

        Until it has come, which a later call in this thread finds, the reservation counts as open;
        leaving the ``with`` block changes nothing more. What it would have raised is logged. If no
        answer comes, as when the connection breaks, the commit was made or not, and commit() may be
        called. A storage that answers at once, such as memory, is as with commit().
        """
        units = self._units_of(actual, usage)
        if self._is_live or not self._owner._may_wait or self._is_local:
            self.commit(units)
            return
        from tidegate.limiter.unawaited import send  # few programs need it

        self._owner._give_back_due()
        self._expect_open()
        self._is_sent = True
        send(self, units)

    # What commit(), release() and extend() of the core call.

    def _commit(self, actual: Units) -> Decision:
        return self._settle(_checked(actual))

    def _commit_usage(self, usage: Mapping[str, int]) -> Decision:
        return self.commit(self._units_of(None, usage))

    def _units_of(self, actual: Units | None, usage: Mapping[str, int] | None) -> Units:
        if usage is None:
            return _checked(actual)
        if actual is not None:
            raise ConfigurationError(
                f"the actual cost is {actual!r:.80}, beside a usage; expected one of them"
            )
        return self._owner._units_of_usage(self, usage)

    def _release(self) -> Decision:
        return self._settle(self._owner._units_of_release())

    def _refuse_commit(self, actual: int) -> Decision:
        """Raises for a commit of what is not open."""
        self._expect_open()
        if not self._is_settled:
            raise ReservationError(NOT_KNOWN)
        raise settled_before(self._settled_at, actual)

    def _refuse_extend(self) -> Decision:
        self._expect_open()
        raise ReservationError(NOT_OPEN, settled=self._is_settled)

    def _settle(self, actual: Any) -> Decision:
        self._owner._give_back_due()
        return self._settle_now(actual)

    def _expire(self) -> None:
        """Gives it back at the end of its life. Raises ReservationError if it is settled."""
        self._settle_now(self._owner._units_of_release())
        self._is_expired = True

    def _settle_now(self, actual: Any) -> Decision:
        self._expect_open()
        if self._has_no_record():
            return self._settle_once(actual)
        for _ in range(_MOST_TRIES):
            call = self._call()
            decision: Decision = self._owner._reserved(_core.SETTLE, self._whose, actual, call)
            if self._has_settled(call, decision, actual):
                break
        return decision

    async def _settle_async(self, actual: Any) -> Decision:
        self._owner._give_back_due()
        self._expect_open()
        if self._is_local:
            import asyncio

            return await asyncio.to_thread(self._settle_once, actual)
        if self._has_no_record():
            return self._settle_once(actual)
        for _ in range(_MOST_TRIES):
            call = self._call()
            decision: Decision = await self._await(_core.SETTLE, actual, call)
            if self._has_settled(call, decision, actual):
                break
        return decision

    def _has_no_record(self) -> bool:
        """Whether nothing but this object knows that it is settled."""
        return self._is_local or (self._is_of_hit and not self._owner._may_wait)

    def _settle_once(self, actual: Any) -> Decision:
        """Settles what has no record."""
        mine = [actual]
        claim = self.__dict__.setdefault("_claim", mine)  # of several threads one has it
        if claim is not mine:
            if claim != mine:
                raise settled_before(claim[0], actual)
            return self.decision
        try:
            decision = self._correct_once(actual)
        except BaseException:  # such as that the limiter is closed: it was not settled
            del self._claim
            raise
        self._is_settled = True
        return decision

    def _correct_once(self, actual: Any) -> Decision:
        if self._is_local:  # the fallback of the storage has charged it
            until = self._local_until
            self._owner._correct(self._whose, self._units, actual, self.decision, until)
            return self.decision
        call = self._call()
        decision: Decision = self._owner._reserved(_core.SETTLE, self._whose, actual, call)
        self._has_settled(call, decision, actual)
        return decision

    def _extend(self, more: Units) -> Decision:
        self._owner._give_back_due()
        self._expect_open()
        call = self._call()
        decision = self._owner._reserved(_core.RAISE, self._whose, more, call)
        return self._raised(call, decision)

    async def extend_async(self, more: Units) -> Decision:
        """Like extend(), without blocking the event loop."""
        if self._is_live:
            return self.extend(more)
        self._owner._give_back_due()
        self._expect_open()
        call = self._call()
        return self._raised(call, await self._await(_core.RAISE, more, call))

    def __enter__(self) -> Reservation:
        if self._is_refused:
            raise RateLimitExceeded(self.decision)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._is_left():
            return
        try:
            self.commit(self._wanted) if self._is_wanted else self.release()
        except ReservationError as error:
            log_left(error)

    async def __aenter__(self) -> Reservation:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        if not self._is_left():
            return
        try:
            await (self.commit_async(self._wanted) if self._is_wanted else self.release_async())
        except ReservationError as error:
            log_left(error)

    def _is_left(self) -> bool:
        """Whether leaving the block settles it. A commit without an answer is made again."""
        if self._is_settled or self._is_sent or self._is_refused or self._is_inherited():
            return False
        return self._is_wanted or self._on_exit == "release"

    def _expect_open(self) -> None:
        if self._is_refused:
            raise ReservationError(
                "the reservation was refused, and has charged nothing; expected one that passed"
            )
        if self._is_expired:
            raise ReservationError(NOT_KNOWN)
        if not self._is_settled and self._is_inherited():
            raise ReservationError(INHERITED)

    def _is_inherited(self) -> bool:
        """Whether a process that this one was forked from settles it, and it alone: there is no
        record that tells the one of the other, but they share the counts."""
        return (
            self._is_of_another_process
            and (self._is_live or self._is_of_hit)
            and self._owner._spans_processes
        )

    def _read_record(self) -> None:
        """Reads what the record has that the core has made, here or in another thread."""
        if not self._id:
            ident, self._admitted_ns, self._parts = self._recorded
            self._id = ident  # at the end: other threads use the rest once there is an id

    def _call(self) -> _core.Reservation:
        """What the core needs for one call."""
        self._read_record()
        # In memory the record outlives the reservation, for whoever gives it back.
        is_kept = self._gives_back and not self._owner._may_wait
        return _core.Reservation(
            self._id,
            self._ttl_ns + (KEPT_NS if is_kept else 0),
            self._admitted_ns,
            self._parts,
            self._gives_back,
            self._is_of_hit,
        )

    def _take_over_hit(
        self, decision: Decision, charged: tuple[int, list[tuple[int, int]]], units: int
    ) -> None:
        """Takes over what the hit of `decision` has charged, and when."""
        self.decision = decision
        self._is_of_hit = True
        self._admitted_ns = charged[0]
        self._parts = tuple(charged[1])
        if self.decision._charged_in != "store":
            self._is_local = True
            self._units = units
            self._local_until = self._owner._count_until(self._whose, self.decision)

    async def _await(
        self, op: int, units: Any, call: _core.Reservation, begun: Callable[..., Any] | None = None
    ) -> Any:
        if not self._owner._may_wait:
            return self._owner._reserved(op, self._whose, units, call)
        from tidegate.limiter.loops import run_reserved

        return await run_reserved(self._owner, op, self._whose, units, call, begun)

    def _started(self, units: Any) -> Reservation:
        """Charges the estimate."""
        call = self._call()
        decision = self._owner._reserved(_core.RESERVE, self._whose, units, call)
        return self._begun(call, decision, units)

    async def _started_async(self, units: Any) -> Reservation:
        call = self._call()
        begun = partial(self._begun, call, units=units)
        return begun(await self._await(_core.RESERVE, units, call, begun))

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
            self._local_until = self._owner._count_until(self._whose, decision)
        elif self._gives_back and decision.allowed and not self._owner._may_wait:
            self._owner._expires(self, self._admitted_ns + self._ttl_ns)
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
            raise ReservationError(NOT_KNOWN)
        if _core.FOUND_SETTLED in found:
            units = [part[3] for part in call.parts if part[2] == _core.FOUND_SETTLED]
            self._is_settled = True
            raise settled_before(units[0], actual)
        is_first = not self._is_settled and _core.FOUND_OPEN in found
        self._is_settled = True
        if self._gives_back and self._owner._expiring is not None:
            self._owner._expiring.remove(self._id)
        if is_first:
            self._owner._after_settling(self._whose, actual, decision)
        return True

    def _raised(self, call: _core.Reservation, decision: Decision) -> Decision:
        found = {part[2] for part in call.parts if part[0] >= 0}
        if _core.FOUND_NO_ANSWER in found:
            return decision
        if found - {_core.FOUND_OPEN}:
            raise ReservationError(NOT_OPEN, settled=_core.FOUND_SETTLED in found)
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


# Inherited, they would take a detour with each call.
_core.add_live_methods(Reservation)


class Reserving:
    """What reserve_async() returns: for ``await``, a Reservation; or for ``async with``."""

    __slots__ = ("_begin", "_reservation")

    def __init__(self, begin: Callable[[], Reservation | Coroutine[Any, Any, Reservation]]) -> None:
        self._begin = begin
        self._reservation: Reservation | None = None

    def __await__(self) -> Generator[Any, None, Reservation]:
        return self._reserve().__await__()

    async def __aenter__(self) -> Reservation:
        self._reservation = reservation = await self._reserve()
        return await reservation.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        assert self._reservation is not None
        await self._reservation.__aexit__(*exc_info)

    async def _reserve(self) -> Reservation:
        begun = self._begin()
        return begun if isinstance(begun, Reservation) else await begun


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
        def _count_until(self, whose: Any, decision: Decision) -> list[int]: ...
        def _correct(
            self, whose: Any, units: Any, actual: Any, decision: Decision, until: list[int]
        ) -> None: ...
        def _units_of_release(self) -> Any: ...
        def _identity(self) -> bytes: ...
        def _after_settling(self, whose: Any, units: Any, decision: Decision) -> None: ...
        def _now_ns(self) -> int: ...
        @property
        def _may_wait(self) -> bool: ...
        @property
        def _spans_processes(self) -> bool: ...

    _expiring: Expiring | None = None
    # The core gives back what is due, before it settles another, only if this is set.
    _is_expiring = False

    def commit(
        self,
        token: str,
        actual: Units | None = None,
        *,
        usage: Mapping[str, int] | None = None,
    ) -> Decision:
        """Makes `actual` what the reservation of `token` has charged; see Reservation.commit().

        By rules with a `usage` it may be what that costs. Raises ConfigurationError for a text that
        is no token of such a limiter, and ReservationError if its reservation is not open; then
        nothing is changed.
        """
        reservation = self._of_token(token)
        return reservation.commit(reservation._units_of(actual, usage))

    async def commit_async(
        self,
        token: str,
        actual: Units | None = None,
        *,
        usage: Mapping[str, int] | None = None,
    ) -> Decision:
        """Like commit(), without blocking the event loop."""
        return await self._of_token(token).commit_async(actual, usage=usage)

    def release(self, token: str) -> Decision:
        """Gives back what the reservation of `token` has charged: commit() of 0."""
        return self._of_token(token).release()

    async def release_async(self, token: str) -> Decision:
        """Like release(), without blocking the event loop."""
        return await self._of_token(token).release_async()

    def _units_of_usage(self, reservation: Reservation, usage: Mapping[str, int]) -> int:
        raise ConfigurationError(
            "a usage was given for limits without rules, which do not say what it costs; expected "
            "units, such as tidegate.UsageCost({...}).units(usage)"
        )

    def _has_reserved(self, whose: Any, decision: Decision) -> None:
        """Called with the decision on an estimate."""

    def _of_token(self, token: str) -> Reservation:
        from tidegate.limiter import reservation_token

        ident, admitted_ns, parts, keys = reservation_token.decode(self._identity(), token)
        reservation = Reservation(self, self._whose_of(keys), ident)
        reservation._admitted_ns = admitted_ns
        reservation._parts = parts
        return reservation

    def _expires(self, reservation: Reservation, ends_ns: int) -> None:
        if self._expiring is None:
            self._expiring = Expiring()
            self._is_expiring = True
        self._expiring.add(reservation._id, ends_ns, reservation)

    def _give_back_due(self) -> None:
        if self._expiring is not None:
            self._expiring.give_back(self._now_ns())

    def _opened(self, whose: Any, ttl: float, on_exit: OnExit, on_expiry: OnExpiry) -> Reservation:
        """A reservation with a new id, which has not been charged yet."""
        ttl_ns = life_ns(ttl, on_exit)
        is_given_back = gives_back(on_expiry)
        self._give_back_due()
        return Reservation(
            self,
            whose,
            os.urandom(16),
            on_exit=on_exit,
            ttl_ns=ttl_ns,
            gives_back=is_given_back,
        )

    def _reserving(
        self, whose: Any, units: Any, ttl: float, on_exit: OnExit, on_expiry: OnExpiry
    ) -> Reserving:
        if self._may_wait or on_expiry != "keep":
            opened = self._opened(whose, ttl, on_exit, on_expiry)
            return Reserving(partial(opened._started_async, units))
        life_ns(ttl, on_exit)  # raises for invalid ones
        return Reserving(partial(self._reserve, whose, units, ttl, on_exit, on_expiry))

    def _reserve(
        self, whose: Any, units: Any, ttl: float, on_exit: OnExit, on_expiry: OnExpiry
    ) -> Reservation:
        if on_expiry == "keep":
            ttl_ns = life_ns(ttl, on_exit)
            if self._expiring is not None:
                self._give_back_due()
            owner: Any = self  # this is a base class of limiters and plans
            # None if a record must be kept, or the storage waited for.
            reserved = _core.reserve_at_once(Reservation, owner, whose, units, ttl_ns)
            if reserved is not None:
                if on_exit != "release":
                    reserved._on_exit = on_exit
                return reserved
        return self._opened(whose, ttl, on_exit, on_expiry)._started(units)


def _checked(actual: Units | None) -> Units:
    if actual is None:
        raise ArgumentTypeError(
            "the actual cost is None of type NoneType; expected an int from 0 up"
        )
    return actual
