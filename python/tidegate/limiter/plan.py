"""A plan of several limiters, for requests that are charged under several keys."""

from __future__ import annotations

from tidegate import _core
from tidegate.limiter.debt import WriteOffs
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.reservation import Reserves, Reserving
from tidegate.limiter.reservation_token import identity
from tidegate.limiter.waiting.slot import PlanSlot
from tidegate.limiter.waiting.turn import PlanTurn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Union

    from tidegate._core import Decision
    from tidegate.limiter.reservation import Reservation
    from tidegate.limiter.reservation_expiry import OnExit, OnExpiry

    Key = Union[str, bytes]

__all__ = ["Plan"]


class Plan(_core.Plan, Reserves):
    """Several limiters that one request must pass, each with a key and a cost of its own.

    ::

        requests = Limiter("60/minute", storage="redis://localhost")
        tokens = Limiter("100000/minute", storage=requests.storage)
        plan = Plan([requests, tokens])
        decision = plan.hit([user, tenant], costs=[1, 1500])

    A request passes all of them, or none is charged. The limiters share one storage and one clock.
    With Redis a hit is one command in one round trip. In a cluster, where keys lie in several
    slots, it is one command for each limit, all sent together; if one refuses, what the others
    charged is given back before the call returns. A limit that gets one key twice is charged both
    costs. Raises ConfigurationError for limiters of different storages or clocks. Thread-safe, and
    safe to use after `fork()`.
    """

    def __init__(self, limiters: Iterable[Limiter]) -> None:
        if isinstance(limiters, str) or not hasattr(limiters, "__iter__"):
            raise ArgumentTypeError(
                f"the limiters of a plan are {limiters!r} of type {type(limiters).__name__}; "
                "expected a list of Limiters"
            )
        self._limiters = tuple(limiters)
        for limiter in self._limiters:
            if not isinstance(limiter, Limiter):
                raise ArgumentTypeError(
                    f"the plan has {limiter!r} of type {type(limiter).__name__}; expected Limiters"
                )
        if len({id(limiter._clock) for limiter in self._limiters}) > 1:
            raise ConfigurationError(
                "the limiters of a plan have different clocks; expected one for all"
            )
        super().__init__(self._limiters)
        self._write_offs = WriteOffs()
        self._loops = self._limiters[0]._loops  # of the storage that they share

    @property
    def limiters(self) -> tuple[Limiter, ...]:
        """The limiters, in the order of the keys."""
        return self._limiters

    def hit(
        self, keys: Sequence[Key], costs: Sequence[int] | None = None, outcomes: bool = False
    ) -> Decision:
        """Charges each limiter its cost under its key, or none of them.

        `keys` and `costs` are lists with one for each limiter; without `costs` each is 1. The
        decision is that of the limit that binds, see binding(). An allowed request counts as
        allowed for all limiters, a refused one as denied for the limiter that refused. With
        `outcomes`, the decision's ``outcomes`` are the decisions of all limits, in the order of the
        limiters and of their limits. Raises ConfigurationError for invalid arguments, before
        anything is charged.
        """
        return super().hit(keys, costs, outcomes)

    async def hit_async(
        self, keys: Sequence[Key], costs: Sequence[int] | None = None, outcomes: bool = False
    ) -> Decision:
        """Like hit(), without blocking the event loop."""
        loops = self._loops
        if loops is None:
            return self.hit(keys, costs, outcomes)
        decision: Decision = await loops.run_plan(self, keys, costs, outcomes)
        return decision

    def peek(
        self, keys: Sequence[Key], costs: Sequence[int] | None = None, outcomes: bool = False
    ) -> Decision:
        """Returns the decision that hit() would make now; charges and counts nothing."""
        return super().peek(keys, costs, outcomes)

    async def peek_async(
        self, keys: Sequence[Key], costs: Sequence[int] | None = None, outcomes: bool = False
    ) -> Decision:
        """Like peek(), without blocking the event loop."""
        loops = self._loops
        if loops is None:
            return self.peek(keys, costs, outcomes)
        decision: Decision = await loops.run_plan(self, keys, costs, outcomes, loops.PEEK)
        return decision

    def acquire(
        self,
        keys: Sequence[Key],
        costs: Sequence[int] | None = None,
        timeout: float | None = 5.0,
    ) -> Decision:
        """Waits until all limiters can be charged together, and charges them; see
        Limiter.acquire().

        It waits in the queue of each of its keys. While one key has no room, it lets later callers
        pass at the others. A refusal is of the limit with the longest wait, see binding(). Places
        of concurrency limits are taken too: refund() with the decision gives them back, and slot()
        does it by itself.
        """
        return self._turn(keys, costs, timeout).wait()

    async def acquire_async(
        self,
        keys: Sequence[Key],
        costs: Sequence[int] | None = None,
        timeout: float | None = 5.0,
    ) -> Decision:
        """Like acquire(), without blocking the event loop. A cancelled task leaves the queues."""
        return await self._turn(keys, costs, timeout).wait_async()

    def slot(
        self,
        keys: Sequence[Key],
        costs: Sequence[int] | None = None,
        timeout: float | None = 0.0,
    ) -> PlanSlot:
        """Charges all limiters, and gives the places of concurrency limits back at the end; for
        ``with`` and ``async with``.

        ::

            with Plan([requests, tokens, in_flight]).slot([user, tenant, "model"], [1, 900, 1]):
                ...

        Entering waits up to `timeout` seconds, as acquire() does, and raises RateLimitExceeded if
        not all could be charged. Leases are extended as those of Limiter.slot(). Raises
        ConfigurationError if no limiter has a concurrency limit.
        """
        if not any(limiter._has_leases for limiter in self._limiters):
            raise ConfigurationError(
                f"a slot was requested of {self!r}; expected a limiter with a limit such as "
                "'5 at once'"
            )
        self._turn(keys, costs, timeout)  # raises for invalid arguments
        return PlanSlot(self, keys, costs, timeout)

    def charge(self, keys: Sequence[Key], costs: Sequence[int]) -> Decision:
        """Charges each limiter all of its cost under its key, and refuses nothing.

        See Limiter.charge(). The decision is that of the limit that binds, and its `charged` the
        smallest charge of all limits. With Redis it is one round trip.
        """
        return self._write_offs.seen(super().charge(keys, costs), min(costs))

    async def charge_async(self, keys: Sequence[Key], costs: Sequence[int]) -> Decision:
        """Like charge(), without blocking the event loop."""
        loops = self._loops
        if loops is None:
            return self.charge(keys, costs)
        decision = await loops.run_plan(self, keys, costs, False, loops.CHARGE)
        return self._write_offs.seen(decision, min(costs))

    def refund(
        self,
        keys: Sequence[Key],
        costs: Sequence[int] | None = None,
        *,
        decision: Decision | None = None,
    ) -> None:
        """Gives back what hit() with the same arguments charged.

        With the `decision` of that hit, each limiter's units go back exactly where they were
        charged: see Limiter.refund(). In a cluster that was down in part some limits of a plan may
        have been charged in Redis and others in the fallback.
        """
        for limiter, key, cost, part in self._each(keys, costs, decision):
            limiter.refund(key, cost, decision=part)

    async def refund_async(
        self,
        keys: Sequence[Key],
        costs: Sequence[int] | None = None,
        *,
        decision: Decision | None = None,
    ) -> None:
        """Like refund(), without blocking the event loop."""
        for limiter, key, cost, part in self._each(keys, costs, decision):
            await limiter.refund_async(key, cost, decision=part)

    def reserve(
        self,
        keys: Sequence[Key],
        estimates: Sequence[int],
        ttl: float = 60.0,
        on_exit: OnExit = "release",
        on_expiry: OnExpiry = "keep",
    ) -> Reservation:
        """Charges each limiter its estimate under its key, or none of them; see Limiter.reserve().

        The costs of `commit()` and `extend()` are then lists with one for each limiter.
        """
        return self._reserve(keys, estimates, ttl, on_exit, on_expiry)

    def reserve_async(
        self,
        keys: Sequence[Key],
        estimates: Sequence[int],
        ttl: float = 60.0,
        on_exit: OnExit = "release",
        on_expiry: OnExpiry = "keep",
    ) -> Reserving:
        """Like reserve(), without blocking the event loop: for ``await``, or ``async with``."""
        return self._reserving(keys, estimates, ttl, on_exit, on_expiry)

    def binding(self, decision: Decision) -> int:
        """Returns the index of the limiter whose limit binds in `decision`.

        Raises ConfigurationError if `decision` is not one of this plan.
        """
        _check_decision(decision)
        index = decision._index
        for number, limiter in enumerate(self._limiters):
            if index < len(limiter.limits):
                return number
            index -= len(limiter.limits)
        raise ConfigurationError("the decision is of another plan; expected one of this plan")

    def __repr__(self) -> str:
        return f"Plan({list(self._limiters)!r})"

    def _keys_of(self, whose: Sequence[Key]) -> Sequence[Key]:
        return whose

    def _whose_of(self, keys: list[bytes]) -> list[bytes]:
        return keys

    def _correct(
        self,
        whose: Sequence[Key],
        units: Sequence[int],
        actual: Sequence[int],
        decision: Decision,
        until: list[int],
    ) -> None:
        first = 0
        for limiter, key, before, after in zip(self._limiters, whose, units, actual):
            last = first + len(limiter.limits)
            limiter._correct(key, before, after, decision._from_limit(first), until[first:last])
            first = last

    def _count_until(self, whose: Sequence[Key], decision: Decision) -> list[int]:
        found: list[int] = []
        for limiter, key in zip(self._limiters, whose):
            found += limiter._count_until(key, decision._from_limit(len(found)))
        return found

    def _units_of_release(self) -> list[int]:
        return [0] * len(self._limiters)

    def _now_ns(self) -> int:
        return self._limiters[0]._now_ns()

    def _identity(self) -> bytes:
        names = ["\0".join(limiter._names()) for limiter in self._limiters]
        return identity("plan", names)

    def _after_settling(
        self, whose: Sequence[Key], units: Sequence[int], decision: Decision
    ) -> None:
        self._write_offs.seen(decision, min(units))
        for limiter, key in zip(self._limiters, whose):
            limiter._room.wake_first(key)

    @property
    def _spans_processes(self) -> bool:
        return self._limiters[0]._storage.spans_processes

    @property
    def _may_wait(self) -> bool:
        return self._loops is not None

    def _turn(
        self, keys: Sequence[Key], costs: Sequence[int] | None, timeout: float | None
    ) -> PlanTurn:
        """A wait for all limiters. Raises ConfigurationError for invalid arguments, which must not
        join the queues."""
        each = self._each(keys, costs, None)
        deadline_ns = self._limiters[0]._deadline_ns(timeout)
        return PlanTurn(self, tuple(keys), tuple(cost for _, _, cost, _ in each), deadline_ns)

    def _each(
        self, keys: Sequence[Key], costs: Sequence[int] | None, decision: Decision | None
    ) -> list[tuple[Limiter, Key, int, Decision | None]]:
        """Each limiter with its key and cost, and its part of the decision."""
        if decision is not None:
            _check_decision(decision)
        costs = [1] * len(self._limiters) if costs is None else costs
        for what, given in (("keys", keys), ("costs", costs)):
            if not isinstance(given, (list, tuple)):
                raise ArgumentTypeError(
                    f"the {what} are {given!r} of type {type(given).__name__}; expected a list "
                    "with one for each limiter"
                )
        if not len(keys) == len(costs) == len(self._limiters):
            raise ConfigurationError(
                f"{len(keys)} keys and {len(costs)} costs were given for {len(self._limiters)} "
                "limiters; expected one for each limiter"
            )
        each = []
        first = 0
        for limiter, key, cost in zip(self._limiters, keys, costs):
            limiter._check(key, cost)
            part = None if decision is None else decision._from_limit(first)
            each.append((limiter, key, cost, part))
            first += len(limiter.limits)
        return each


def _check_decision(decision: object) -> None:
    if not isinstance(decision, _core.Decision):
        raise ArgumentTypeError(
            f"the decision is {decision!r} of type {type(decision).__name__}; expected a "
            "Decision of this plan"
        )
