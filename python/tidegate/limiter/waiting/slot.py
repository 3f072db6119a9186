"""Context managers of a limiter: a slot among the calls in flight, and a call in its turn."""

from __future__ import annotations

from tidegate.limiter.errors import ArgumentTypeError, RateLimitExceeded
from tidegate.limiter.waiting.leases import Lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable, Optional, Protocol, TypeVar, Union

    from tidegate._core import Decision
    from tidegate.limiter.loops import AsyncBridge
    from tidegate.limiter.loops import Limiter as AsyncLimiter
    from tidegate.limiter.waiting.leases import Extender
    from tidegate.limiter.waiting.queue import WaitingRoom

    Key = Union[str, bytes]
    Function = TypeVar("Function", bound=Callable[..., Any])

    class Limiter(AsyncLimiter, Protocol):
        """The methods of a limiter that this module calls."""

        _loops: type[AsyncBridge] | None
        _room: WaitingRoom
        _extender: Extender
        _lease_ns: int

        def acquire(self, key: Key, cost: int, timeout: float | None) -> Decision: ...
        async def acquire_async(self, key: Key, cost: int, timeout: float | None) -> Decision: ...
        def _check(self, key: Key, cost: int) -> None: ...
        def _deadline_ns(self, timeout: float | None) -> int | None: ...
        def _extend(self, key: Key, cost: int, decision: Decision) -> Decision | None: ...
        def _release(self, key: Key, cost: int, decision: Decision) -> None: ...

    Costs = Optional[Sequence[int]]

    class Plan(Protocol):
        """The methods of a plan that this module calls."""

        _loops: type[AsyncBridge] | None

        def acquire(self, keys: Sequence[Key], costs: Costs, timeout: float | None) -> Decision: ...
        async def acquire_async(
            self, keys: Sequence[Key], costs: Costs, timeout: float | None
        ) -> Decision: ...
        def _each(
            self, keys: Sequence[Key], costs: Costs, decision: Decision
        ) -> Sequence[tuple[Any, Key, int, Decision | None]]: ...


__all__ = ["Acquired", "PlanSlot", "Slot"]


class Slot:
    """A place among the calls in flight; see Limiter.slot(). `decision` let the call in.

    It may be entered repeatedly, also by several threads or tasks at once: each entry takes a place
    of its own. A place is given back once, also after the limiter was closed. Its lease is extended
    until it is given back, or the Slot is dropped.
    """

    decision: Decision

    def __init__(self, limiter: Limiter, key: Key, cost: int, timeout: float | None) -> None:
        self._limiter = limiter
        self._key = key
        self._cost = cost
        self._timeout = timeout
        self._held: list[Lease] = []

    def __enter__(self) -> Slot:
        return self._entered(self._limiter.acquire(self._key, self._cost, self._timeout))

    def __exit__(self, *exc_info: object) -> None:
        decision = self._left()
        if decision is not None:
            self._limiter._release(self._key, self._cost, decision)
            self._limiter._room.wake_first(self._key)

    async def __aenter__(self) -> Slot:
        return self._entered(
            await self._limiter.acquire_async(self._key, self._cost, self._timeout)
        )

    async def __aexit__(self, *exc_info: object) -> None:
        loops = self._limiter._loops
        if loops is None:
            self.__exit__(*exc_info)
            return
        decision = self._left()
        if decision is not None:
            await loops.run(self._limiter, loops.RELEASE, self._key, self._cost, decision)
            self._limiter._room.wake_first(self._key)

    def _entered(self, decision: Decision) -> Slot:
        if not decision.allowed:
            raise RateLimitExceeded(decision)
        self.decision = decision
        limiter = self._limiter
        lease = Lease(limiter, self._key, self._cost, decision, limiter._lease_ns)
        self._held.append(lease)
        limiter._extender.hold(lease)
        return self

    def _left(self) -> Decision | None:
        """The decision to give back, of the first entry that was not left; None if there is none,
        or its lease is being extended, after which it is given back."""
        try:
            lease = self._held.pop(0)
        except IndexError:
            return None
        return self._limiter._extender.leave(lease)


class PlanSlot:
    """The places that a plan takes; see Plan.slot(). `decision` let the call in.

    It may be entered repeatedly, as a Slot.
    """

    decision: Decision

    def __init__(
        self,
        plan: Plan,
        keys: Sequence[Key],
        costs: Sequence[int] | None,
        timeout: float | None,
    ) -> None:
        self._plan = plan
        self._keys = keys
        self._costs = costs
        self._timeout = timeout
        self._held: list[list[tuple[Any, Lease]]] = []

    def __enter__(self) -> PlanSlot:
        return self._entered(self._plan.acquire(self._keys, self._costs, self._timeout))

    def __exit__(self, *exc_info: object) -> None:
        for _, lease in self._left():
            lease.give_back()

    async def __aenter__(self) -> PlanSlot:
        return self._entered(await self._plan.acquire_async(self._keys, self._costs, self._timeout))

    async def __aexit__(self, *exc_info: object) -> None:
        loops = self._plan._loops
        if loops is None:
            self.__exit__(*exc_info)
            return
        begun: list[tuple[Lease, Any]] = [
            (lease, loops.begin(limiter, loops.RELEASE, lease.key, lease.cost, lease.decision))
            for limiter, lease in self._left()
        ]
        # All have begun: if the task is cancelled now, all places are given back.
        for lease, released in begun:
            if released is not None:
                await released
            lease.limiter._room.wake_first(lease.key)

    def _entered(self, decision: Decision) -> PlanSlot:
        if not decision.allowed:
            raise RateLimitExceeded(decision)
        self.decision = decision
        leases: list[tuple[Any, Lease]] = []
        for limiter, key, cost, part in self._plan._each(self._keys, self._costs, decision):
            if limiter._has_leases:
                assert part is not None
                leases.append((limiter, Lease(limiter, key, cost, part, limiter._lease_ns)))
        self._held.append(leases)
        for owner, lease in leases:
            owner._extender.hold(lease)
        return self

    def _left(self) -> list[tuple[Any, Lease]]:
        """The leases to give back, of the first entry that was not left, and their limiters."""
        try:
            leases = self._held.pop(0)
        except IndexError:
            return []
        return [each for each in leases if each[0]._extender.leave(each[1]) is not None]


class Acquired:
    """What Limiter.acquired() returns: a context manager, async or not, and a decorator.

    On each entry, or each call of the decorated function, it waits for its turn, and raises
    RateLimitExceeded if that does not come in time: the guarded code runs only within the limit.
    """

    def __init__(
        self,
        limiter: Limiter,
        key: Key | Callable[..., Key],
        cost: int,
        timeout: float | None,
    ) -> None:
        limiter._check("a function's" if callable(key) else key, cost)
        limiter._deadline_ns(timeout)  # raises for an invalid timeout
        self._limiter = limiter
        self._key = key
        self._cost = cost
        self._timeout = timeout

    def __enter__(self) -> Decision:
        return self._acquire(self._key_of((), {}))

    def __exit__(self, *exc_info: object) -> None:
        pass

    async def __aenter__(self) -> Decision:
        return await self._acquire_async(self._key_of((), {}))

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    def __call__(self, function: Function) -> Function:
        """Wraps `function`, async or not, so that each call waits for its turn. A generator of
        either kind waits before its first item."""
        import functools
        import inspect

        if not callable(function) or inspect.isclass(function):
            raise ArgumentTypeError(
                f"acquired() was given {function!r} of type {type(function).__name__}; "
                "expected a function"
            )

        def waiting(*args: Any, **kwargs: Any) -> Any:
            self._acquire(self._key_of(args, kwargs))
            return function(*args, **kwargs)

        async def waiting_async(*args: Any, **kwargs: Any) -> Any:
            await self._acquire_async(self._key_of(args, kwargs))
            return await function(*args, **kwargs)

        def waiting_generator(*args: Any, **kwargs: Any) -> Any:
            self._acquire(self._key_of(args, kwargs))
            return (yield from function(*args, **kwargs))

        async def waiting_async_generator(*args: Any, **kwargs: Any) -> Any:
            await self._acquire_async(self._key_of(args, kwargs))
            items = function(*args, **kwargs)
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()

        # For a callable object, its __call__ decides.
        kinds = (function, getattr(type(function), "__call__", None))  # noqa: B004
        chosen: Any = waiting
        for is_kind, wrapper in (
            (inspect.iscoroutinefunction, waiting_async),
            (inspect.isasyncgenfunction, waiting_async_generator),
            (inspect.isgeneratorfunction, waiting_generator),
        ):
            if any(map(is_kind, kinds)):
                chosen = wrapper
        return functools.wraps(function)(chosen)  # type: ignore[return-value]

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        return self._key(*args, **kwargs) if callable(self._key) else self._key

    def _acquire(self, key: Key) -> Decision:
        return _passed(self._limiter.acquire(key, self._cost, self._timeout))

    async def _acquire_async(self, key: Key) -> Decision:
        return _passed(await self._limiter.acquire_async(key, self._cost, self._timeout))


def _passed(decision: Decision) -> Decision:
    if not decision:
        raise RateLimitExceeded(decision)
    return decision
