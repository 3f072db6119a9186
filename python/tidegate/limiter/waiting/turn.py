"""One caller's wait for its turn, as a thread or as a task.

A turn looks whether its charge would pass, and sleeps until that may have changed. It charges only
if it is the first of its queues, so that callers of one key are served in order.
"""

from __future__ import annotations

import abc
import math

from tidegate._core import Decision
from tidegate.limiter.waiting.queue import PATIENCE, Bell, enter_together

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from typing import Callable, Protocol, Union

    from tidegate._core import Limit
    from tidegate.limiter.loops import AsyncBridge
    from tidegate.limiter.waiting.queue import Ticket, WaitingRoom

    Key = Union[str, bytes]
    Costs = Sequence[int]

    class Limiter(Protocol):
        """The methods of a limiter that this module calls."""

        _has_leases: bool
        _loops: type[AsyncBridge] | None
        _room: WaitingRoom
        _timed: bool

        @property
        def limits(self) -> tuple[Limit, ...]: ...
        def hit(self, key: Key, cost: int = 1) -> Decision: ...
        async def hit_async(self, key: Key, cost: int = 1) -> Decision: ...
        def peek(self, key: Key, cost: int = 1) -> Decision: ...
        async def peek_async(self, key: Key, cost: int = 1) -> Decision: ...
        def _now_ns(self) -> int: ...
        def _waits_ns(self) -> int: ...
        def _give_back(self, key: Key, cost: int, decision: Decision) -> None: ...

    class Plan(Protocol):
        """The methods of a plan that this module calls."""

        @property
        def limiters(self) -> Sequence[Limiter]: ...
        def hit(self, keys: Sequence[Key], costs: Costs, outcomes: bool) -> Decision: ...
        async def hit_async(
            self, keys: Sequence[Key], costs: Costs, outcomes: bool
        ) -> Decision: ...
        def peek(self, keys: Sequence[Key], costs: Costs, outcomes: bool) -> Decision: ...
        async def peek_async(
            self, keys: Sequence[Key], costs: Costs, outcomes: bool
        ) -> Decision: ...
        def _each(
            self, keys: Sequence[Key], costs: Costs, decision: Decision
        ) -> Sequence[tuple[Limiter, Key, int, Decision | None]]: ...


__all__ = ["KeyTurn", "PlanTurn", "Turn"]

# Longer than any wait that a timer of the platform accepts.
_LONGEST_SLEEP = 3600.0
# The most seconds for which a plan keeps a free place until its other limits have room.
_LONGEST_IDLE = 1.0
# Seconds between two looks for a place that another limiter of the storage, perhaps in another
# process, gave back: nothing wakes callers here then.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25


class Turn(abc.ABC):
    """The wait of one caller, until `deadline_ns` of the clock of `limiter`, None for no bound."""

    tickets: Sequence[Ticket] = ()
    charged_ns = 0
    """The limiter's time right before the call that decided."""

    def __init__(self, limiter: Limiter, deadline_ns: int | None, *, has_leases: bool) -> None:
        self._limiter = limiter
        self._deadline_ns = deadline_ns
        self._has_leases = has_leases
        # A wait without a timer needs a clock that reports its moves, and units that come back only
        # by its time.
        self._timed = limiter._timed or has_leases
        self._pause = 0.0
        self._seen_ns = limiter._waits_ns()

    def wait(self) -> Decision:
        """Returns the decision: an allowed one, or the refusal when waiting is of no use."""
        bell = Bell()
        self.tickets = self._enter(bell.ring, bell)
        try:
            while True:
                bell.silence()
                answer = self._look()
                if isinstance(answer, Decision):
                    return answer
                bell.wait(answer if self._timed else None)
        finally:
            try:
                self._leave()
            finally:  # again: an exception of a signal handler may have interrupted it
                self._leave()

    async def wait_async(self) -> Decision:
        """Like wait(), without blocking the event loop. A cancelled task leaves the queues."""
        import asyncio
        import contextlib

        from tidegate.limiter.loops import running_loop

        loop = running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # a closed loop has no task left to wake
                loop.call_soon_threadsafe(woken.set)

        self.tickets = self._enter(wake, loop)
        try:
            while True:
                woken.clear()
                answer = await self._look_async()
                if isinstance(answer, Decision):
                    return answer
                timer = loop.call_later(answer, woken.set) if self._timed else None
                try:
                    await woken.wait()
                finally:
                    if timer is not None:
                        timer.cancel()
        finally:
            try:
                self._leave()
            finally:
                self._leave()

    def _leave(self) -> None:
        for ticket in self.tickets:
            ticket.leave()

    def _look(self) -> Decision | float:
        """Tries once: returns the decision, or how long to sleep at most."""
        first = self._is_first()
        forecast = self._peek()
        first = first or (forecast.allowed and self._passes_absent())
        if first and (forecast.allowed or forecast._behind):
            decision = self._hit()
            if decision.allowed:
                return decision
            forecast = decision
        sleep = self._sleep(forecast, first)
        if sleep:
            return sleep
        if forecast.allowed:
            forecast = self._peek(in_turn=True)
            if not forecast.allowed:
                return forecast
        return self._hit()

    async def _look_async(self) -> Decision | float:
        """Like _look(), without blocking the event loop."""
        if self._limiter._loops is None:
            return self._look()
        first = self._is_first()
        forecast = await self._peek_async()
        first = first or (forecast.allowed and self._passes_absent())
        if first and (forecast.allowed or forecast._behind):
            decision = await self._hit_or_leave()
            if decision.allowed:
                return decision
            forecast = decision
        sleep = self._sleep(forecast, first)
        if sleep:
            return sleep
        if forecast.allowed:
            forecast = await self._peek_async(in_turn=True)
            if not forecast.allowed:
                return forecast
        return await self._hit_or_leave()

    async def _hit_or_leave(self) -> Decision:
        """Hits, and gives places back if the task is cancelled meanwhile."""
        self.charged_ns = self._limiter._now_ns()
        if not self._has_leases:
            return await self._hit_async()
        import asyncio

        hit = asyncio.ensure_future(self._hit_async())
        try:
            return await asyncio.shield(hit)
        except asyncio.CancelledError:
            hit.add_done_callback(self._give_back_late)
            raise

    def _give_back_late(self, done: asyncio.Future[Decision]) -> None:
        if not done.cancelled() and not done.exception() and done.result().allowed:
            self._give_back(done.result())

    def _is_first(self) -> bool:
        for ticket in self.tickets:
            ticket.answer()
        return all(ticket.is_first() for ticket in self.tickets)

    def _passes_absent(self) -> bool:
        """Calls those who could go now; returns whether this turn is first, for none of them has
        answered."""
        if not self._timed:
            return False
        passed = [ticket.call_ahead() for ticket in self.tickets]
        return all(passed)

    def _left(self) -> float:
        """Seconds until the deadline. A clock that is set back does not put it off."""
        now_ns = self._limiter._waits_ns()
        if self._deadline_ns is None:
            return math.inf
        self._deadline_ns -= max(0, self._seen_ns - now_ns)
        self._seen_ns = now_ns
        return (self._deadline_ns - now_ns) / 1e9

    def _sleep(self, forecast: Decision, first: bool) -> float:
        """Seconds until the next try, 0.0 if waiting longer is of no use."""
        wait = forecast.retry_after
        left = self._left()
        if wait == math.inf or self._longest_sure_wait(forecast) > left:
            return 0.0
        most = PATIENCE if forecast.allowed else _LONGEST_SLEEP
        if self._has_leases and first:
            most = self._pause = min(2 * self._pause or _FIRST_PAUSE, _LONGEST_PAUSE)
        return max(0.0, min(wait or left, left, most))

    @abc.abstractmethod
    def _enter(self, wake: Callable[[], None], runner: object) -> Sequence[Ticket]:
        """Joins the queues, as a ticket of the thread or event loop `runner`."""

    @abc.abstractmethod
    def _peek(self, *, in_turn: bool = False) -> Decision:
        """Returns what a hit would be decided; `in_turn`, with what earlier callers wait for."""

    @abc.abstractmethod
    async def _peek_async(self, *, in_turn: bool = False) -> Decision: ...

    @abc.abstractmethod
    def _hit(self) -> Decision: ...

    @abc.abstractmethod
    async def _hit_async(self) -> Decision: ...

    @abc.abstractmethod
    def _give_back(self, decision: Decision) -> None:
        """Gives places back without waiting for the store."""

    @abc.abstractmethod
    def _longest_sure_wait(self, forecast: Decision) -> float:
        """Returns the part of the forecast's wait that nobody can shorten. A holder may leave at
        any time, so the end of its lease bounds no wait."""


class KeyTurn(Turn):
    """A wait for one limiter."""

    def __init__(self, limiter: Limiter, key: Key, cost: int, deadline_ns: int | None) -> None:
        super().__init__(limiter, deadline_ns, has_leases=limiter._has_leases)
        self._key = key
        self._cost = cost

    def _enter(self, wake: Callable[[], None], runner: object) -> Sequence[Ticket]:
        return (self._limiter._room.enter(self._key, self._cost, wake, runner),)

    def _peek(self, *, in_turn: bool = False) -> Decision:
        return self._limiter.peek(self._key, self._cost_in_turn() if in_turn else self._cost)

    async def _peek_async(self, *, in_turn: bool = False) -> Decision:
        cost = self._cost_in_turn() if in_turn else self._cost
        return await self._limiter.peek_async(self._key, cost)

    def _hit(self) -> Decision:
        self.charged_ns = self._limiter._now_ns()
        return self._limiter.hit(self._key, self._cost)

    async def _hit_async(self) -> Decision:
        return await self._limiter.hit_async(self._key, self._cost)

    def _give_back(self, decision: Decision) -> None:
        self._limiter._give_back(self._key, self._cost, decision)

    def _longest_sure_wait(self, forecast: Decision) -> float:
        return 0.0 if self._has_leases else forecast.retry_after

    def _cost_in_turn(self) -> int:
        (ticket,) = self.tickets
        return _cost_in_turn(self._limiter, ticket, self._cost)


class PlanTurn(Turn):
    """A wait for all limiters of a plan.

    It joins a queue for each key, all at once, so that no two turns wait for each other. While one
    of its keys has no room, it lets later callers pass at those that have.
    """

    def __init__(
        self, plan: Plan, keys: Sequence[Key], costs: Sequence[int], deadline_ns: int | None
    ) -> None:
        limiters = plan.limiters
        leases = any(limiter._has_leases for limiter in limiters)
        super().__init__(limiters[0], deadline_ns, has_leases=leases)
        self._plan = plan
        self._keys = keys
        self._costs = costs
        self._ticket_of: list[int] = []
        self._kept_since: dict[int, float] = {}

    def _enter(self, wake: Callable[[], None], runner: object) -> Sequence[Ticket]:
        rooms = [limiter._room for limiter in self._plan.limiters]
        tickets, self._ticket_of = enter_together(rooms, self._keys, self._costs, wake, runner)
        return tickets

    def _is_first(self) -> bool:
        for ticket in self.tickets:
            ticket.yield_to_later(False)
        return super()._is_first()

    def _peek(self, *, in_turn: bool = False) -> Decision:
        return self._plan.peek(self._keys, self._asked(in_turn), outcomes=True)

    async def _peek_async(self, *, in_turn: bool = False) -> Decision:
        return await self._plan.peek_async(self._keys, self._asked(in_turn), outcomes=True)

    def _hit(self) -> Decision:
        self.charged_ns = self._limiter._now_ns()
        return self._plan.hit(self._keys, self._costs, outcomes=True)

    async def _hit_async(self) -> Decision:
        return await self._plan.hit_async(self._keys, self._costs, outcomes=True)

    def _give_back(self, decision: Decision) -> None:
        for limiter, key, cost, part in self._plan._each(self._keys, self._costs, decision):
            if limiter._has_leases and part is not None:
                limiter._give_back(key, cost, part)

    def _sleep(self, forecast: Decision, first: bool) -> float:
        sleep = super()._sleep(forecast, first)
        if sleep and not forecast.allowed:
            self._let_others_pass(forecast)
        return sleep

    def _longest_sure_wait(self, forecast: Decision) -> float:
        waits = [
            each.retry_after
            for each in forecast.outcomes
            if not (each.allowed or each._limit.shadow or each._limit.algorithm == "concurrency")
        ]
        return max(waits, default=0.0)

    def _let_others_pass(self, refusal: Decision) -> None:
        """Yields in the queues of keys that have room, except for a time that costs others no more
        than the units of this turn, which would else never find all keys free at once."""
        lacking = set()
        longest = 0.0
        holdable = dict.fromkeys(range(len(self.tickets)), 0.0)
        outcomes = iter(refusal.outcomes)
        for limiter, number, cost in zip(self._plan.limiters, self._ticket_of, self._costs):
            for limit, outcome in zip(limiter.limits, outcomes):
                if limit.shadow:
                    continue
                is_place = limit.algorithm == "concurrency"
                if not outcome.allowed:
                    lacking.add(number)
                    longest = max(longest, math.inf if is_place else outcome.retry_after)
                elif is_place:
                    holdable[number] = max(holdable[number], _LONGEST_IDLE)
                elif limit.algorithm != "quota":
                    holdable[number] = max(holdable[number], limit.period / limit.count * cost)
        now = self._limiter._waits_ns() / 1e9
        for number, ticket in enumerate(self.tickets):
            most = holdable[number]
            since = self._kept_since.get(number, -math.inf)
            if longest <= most and not since <= now < since + 2 * most:
                since = self._kept_since[number] = now  # then others have as long a time
            is_kept = longest <= since + most - now
            ticket.yield_to_later(number not in lacking and not is_kept)

    def _asked(self, in_turn: bool) -> Sequence[int]:
        if not in_turn:
            return self._costs
        asked = list(self._costs)
        for number, ticket in enumerate(self.tickets):
            first = self._ticket_of.index(number)  # a key may stand there again
            limiter = self._plan.limiters[first]
            asked[first] += _cost_in_turn(limiter, ticket, ticket.cost) - ticket.cost
        return asked


def _cost_in_turn(limiter: Limiter, ticket: Ticket, cost: int) -> int:
    """The units that must be left for a caller whose time is up not to take them from earlier
    callers; with its own at most the capacity."""
    capacity = min((each.capacity for each in limiter.limits if not each.shadow), default=cost)
    return max(cost, min(ticket.cost_ahead() + cost, capacity))
