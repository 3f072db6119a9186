"""Two ways to run the calls of a request: blocking, and awaiting on an event loop.

What a request needs is written once, as coroutines over an Execution. Under BLOCKING they never
suspend, and run() returns their result.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Union

from tidegate.limiter.errors import ArgumentTypeError
from tidegate.limiter.limiter import Limiter

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.limiter.plan import Plan
    from tidegate.limiter.reservation import Reservation
    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.limiter.waiting.turn import Turn

__all__ = ["AWAITING", "BLOCKING", "Awaiting", "Blocking", "Execution"]

Key = Union[str, bytes]
T = TypeVar("T")

# Keeps tasks that nobody awaits from being collected.
_under_way: set[asyncio.Task[Any]] = set()


class Blocking:
    """For synchronous code: calls wait for stores, and awaitables are not accepted."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Returns the result of a coroutine over this execution."""
        try:
            coroutine.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        coroutine.close()
        raise RuntimeError("a coroutine that must not suspend did")

    async def to_the_end(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits the coroutine."""
        return await coroutine

    async def resolve(self, value: Any) -> Any:
        """Returns `value`, which a function of the service returned; raises if it is awaitable."""
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise ArgumentTypeError(
                "an async function was given for a route that is not async; expected one that is "
                "not async either"
            )
        return value

    def start_hit(self, limiter: Limiter, key: Key, cost: int) -> Decision | Awaitable[Decision]:
        """Hits, and returns the decision or an awaitable of it."""
        return limiter.hit(key, cost)

    async def hit_plan(
        self, plan: Plan, keys: Sequence[Key], costs: Sequence[int], outcomes: bool = False
    ) -> Decision:
        return plan.hit(keys, costs, outcomes)

    async def take(self, turn: Turn) -> Decision:
        """Waits for a turn; returns its decision."""
        return turn.wait()

    async def check_rules(self, limiter: RuleLimiter, attributes: Mapping[str, Any]) -> Decision:
        return limiter.check(**attributes)

    async def peek_rules(self, limiter: RuleLimiter, attributes: Mapping[str, Any]) -> Decision:
        return limiter.peek(**attributes)

    async def refund_rules(
        self, limiter: RuleLimiter, attributes: Mapping[str, Any], admitted: Decision
    ) -> None:
        limiter.refund(decision=admitted, **attributes)

    async def release_rules(
        self, limiter: RuleLimiter, attributes: Mapping[str, Any], admitted: Decision
    ) -> None:
        limiter.release(admitted, **attributes)

    async def release(self, limiter: Limiter, key: Key, cost: int, admitted: Decision) -> None:
        """Gives back the places that the hit of `admitted` took."""
        limiter._release(key, cost, admitted)
        limiter._room.wake_first(key)

    async def peek(self, limiter: Limiter, key: Key, cost: int = 1) -> Decision:
        return limiter.peek(key, cost)

    async def commit(self, reservation: Reservation, units: int) -> Decision:
        return reservation.commit(units)

    async def charge_up_to(self, limiter: Limiter, key: Key, cost: int) -> Decision:
        return limiter.charge_up_to(key, cost)

    async def refund(
        self, limiter: Limiter, key: Key, cost: int, admitted: Decision | None
    ) -> None:
        """Gives units back where the hit of `admitted` charged them."""
        limiter.refund(key, cost, decision=admitted)


class Awaiting:
    """For async code: neither stores nor functions of the service block the event loop."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Returns the coroutine itself, for the caller to await."""
        return coroutine

    async def to_the_end(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits the coroutine, which continues even if the caller is cancelled."""
        try:
            task = asyncio.get_running_loop().create_task(coroutine)
        except RuntimeError:  # the event loop is trio's
            return await coroutine
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
        return await asyncio.shield(task)

    async def resolve(self, value: Any) -> Any:
        """Returns `value`, or its result if it is awaitable."""
        return await value if inspect.isawaitable(value) else value

    def start_hit(self, limiter: Limiter, key: Key, cost: int) -> Decision | Awaitable[Decision]:
        """Hits, and returns the decision if nothing must be awaited, else an awaitable of it."""
        if type(limiter).hit_async is not Limiter.hit_async:
            return limiter.hit_async(key, cost)  # a subclass overrides it
        loops = limiter._loops
        if loops is None:
            return limiter.hit(key, cost)
        started: Any = loops.begin(limiter, loops.HIT, key, cost)
        answer: Decision | Awaitable[Decision] = started
        return answer

    async def hit_plan(
        self, plan: Plan, keys: Sequence[Key], costs: Sequence[int], outcomes: bool = False
    ) -> Decision:
        return await plan.hit_async(keys, costs, outcomes)

    async def take(self, turn: Turn) -> Decision:
        """Waits for a turn; returns its decision."""
        return await turn.wait_async()

    async def check_rules(self, limiter: RuleLimiter, attributes: Mapping[str, Any]) -> Decision:
        return await limiter.check_async(**attributes)

    async def peek_rules(self, limiter: RuleLimiter, attributes: Mapping[str, Any]) -> Decision:
        return await limiter.peek_async(**attributes)

    async def refund_rules(
        self, limiter: RuleLimiter, attributes: Mapping[str, Any], admitted: Decision
    ) -> None:
        await limiter.refund_async(decision=admitted, **attributes)

    async def release_rules(
        self, limiter: RuleLimiter, attributes: Mapping[str, Any], admitted: Decision
    ) -> None:
        await limiter.release_async(admitted, **attributes)

    async def release(self, limiter: Limiter, key: Key, cost: int, admitted: Decision) -> None:
        """Gives back the places that the hit of `admitted` took."""
        loops = limiter._loops
        if loops is None:
            limiter._release(key, cost, admitted)
        else:
            await loops.run(limiter, loops.RELEASE, key, cost, admitted)
        limiter._room.wake_first(key)

    async def peek(self, limiter: Limiter, key: Key, cost: int = 1) -> Decision:
        return await limiter.peek_async(key, cost)

    async def commit(self, reservation: Reservation, units: int) -> Decision:
        return await reservation.commit_async(units)

    async def charge_up_to(self, limiter: Limiter, key: Key, cost: int) -> Decision:
        return await limiter.charge_up_to_async(key, cost)

    async def refund(
        self, limiter: Limiter, key: Key, cost: int, admitted: Decision | None
    ) -> None:
        """Gives units back where the hit of `admitted` charged them."""
        await limiter.refund_async(key, cost, decision=admitted)


Execution = Union[Blocking, Awaiting]
BLOCKING = Blocking()
AWAITING = Awaiting()
