"""The limiter."""

from __future__ import annotations

import functools
import time

from tidegate import _core
from tidegate._core import Decision, Limit
from tidegate.limiter.base import Absent, BaseLimiter
from tidegate.limiter.clock import ManualClock, extender_by
from tidegate.limiter.debt import WriteOffs
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.limit import as_limits, distinct
from tidegate.limiter.reserves_by_key import ReservesByKey
from tidegate.limiter.storage.arguments import OF_LIMITERS, explains_arguments
from tidegate.limiter.waiting.queue import WaitingRoom

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable
    from typing import Any, Callable, Union, overload

    from typing_extensions import Self, Unpack

    from tidegate.limiter.clock import ClockLike
    from tidegate.limiter.leasing import Leasing
    from tidegate.limiter.limit import LimitLike
    from tidegate.limiter.loops import AsyncBridge
    from tidegate.limiter.quotas.status import QuotaStatus
    from tidegate.limiter.rule_limiter import LoadSource, RuleLimiter, TierLookup, Violations
    from tidegate.limiter.storage.options import StorageLike, StorageOptions
    from tidegate.limiter.waiting.leases import Extender
    from tidegate.limiter.waiting.slot import Acquired, Slot
    from tidegate.limiter.waiting.turn import KeyTurn
    from tidegate.rules.rule_set import RuleSet
    from tidegate.rules.source import RuleSource
    from tidegate.types import Algorithm

    Key = Union[str, bytes]

__all__ = ["Limiter"]


class KeyLimiter(_core.Limiter, ReservesByKey, BaseLimiter):
    """What a Limiter does. It is a class apart for mypy, which reads __init__() of a class with a
    __new__() too, and so would take Limiter(rules=...) for a Limiter."""

    # For rules Limiter.__new__() makes a RuleLimiter; without them the limit is required.
    @explains_arguments("Limiter", OF_LIMITERS)
    def __init__(
        self,
        limit: LimitLike | RuleSet | RuleSource = ...,  # type: ignore[assignment]
        *,
        rules: RuleSet | RuleSource | None = None,
        tiers: TierLookup | None = None,
        violations: Violations | None = None,
        load: LoadSource | None = None,
        storage: StorageLike = "memory://",
        algorithm: Algorithm = "token-bucket",
        prefix: str = "tg",
        clock: ClockLike = None,
        **options: Unpack[StorageOptions],
    ) -> None:
        for name, given in (
            ("tiers were", tiers),
            ("violations were", violations),
            ("a load was", load),
            ("rules were", rules),
        ):
            if given is not None:
                raise ConfigurationError(f"{name} given without rules; expected rules= too")
        limits: Any = limit
        self._limits = distinct(as_limits(limits, algorithm))
        scope = self._open(storage, prefix, clock, options)
        self._loops = _loops_for(self._storage)
        self._clock = clock
        self._room = WaitingRoom()
        self._write_offs = WriteOffs()
        super().__init__(list(self._limits), self._storage, clock, scope)
        self._lines = self._room.lines
        leases = [limit.period_ns for limit in self._limits if limit.algorithm == "concurrency"]
        self._has_leases = bool(leases)
        self._lease_ns = min(leases, default=0)
        if leases:
            self._extender: Extender = extender_by(clock)
        # A wait without a timer needs a clock that reports its moves, and limits whose units come
        # back only by its time.
        self._timed = self._has_leases or not isinstance(clock, ManualClock)
        if isinstance(clock, ManualClock):
            clock._wakes(self._room)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of its plan."""
        return self._limits

    @property
    def leasing(self) -> tuple[Leasing, ...]:
        """How each of its limits is leased (``mode=leased``), and if it is not, why."""
        from tidegate.limiter.leasing import leasing_of

        return leasing_of(self._storage, self._limits)

    async def hit_async(self, key: Key, cost: int = 1) -> Decision:
        """Like hit(), without blocking the event loop.

        With a store in the process's or the host's own memory it never suspends.
        """
        loops = self._loops
        if loops is None:
            return self.hit(key, cost)
        answer: Any = loops.begin(self, loops.HIT, key, cost)
        return answer if type(answer) is Decision else await answer

    async def allow_async(self, key: Key, cost: int = 1) -> bool:
        """Like allow(), without blocking the event loop."""
        return (await self.hit_async(key, cost)).allowed

    async def peek_async(self, key: Key, cost: int = 1) -> Decision:
        """Like peek(), without blocking the event loop."""
        loops = self._loops
        return (
            self.peek(key, cost) if loops is None else await loops.run(self, loops.PEEK, key, cost)
        )

    def charge(self, key: Key, cost: int) -> Decision:
        """Charges all of `cost` to `key`, and refuses nothing: for a cost that is known afterwards.

        What finds no room is owed (Decision.debt), up to the limit's `max_debt`; the rest is
        written off (Stats.written_off). The decision is that of the limits after the charge, and
        its `charged` the units charged, the least of several limits.
        """
        return self._write_offs.seen(super().charge(key, cost), cost)

    async def charge_async(self, key: Key, cost: int) -> Decision:
        """Like charge(), without blocking the event loop."""
        if (loops := self._loops) is None:
            return self.charge(key, cost)
        return self._write_offs.seen(await loops.run(self, loops.CHARGE, key, cost), cost)

    def charge_many(self, keys: Iterable[Key], costs: Iterable[int]) -> list[Decision]:
        """Charges each key its cost, as charge() does, for reports of many costs at once.

        With Redis all requests are sent before the first answer is waited for. Raises
        ConfigurationError if a key or cost is invalid, before anything is charged. Returns the
        decisions, in order.
        """
        from tidegate.limiter.charge_many import charge_all, pairs_of  # few programs need it

        return charge_all(self, pairs_of(self, keys, costs))

    async def charge_many_async(self, keys: Iterable[Key], costs: Iterable[int]) -> list[Decision]:
        """Like charge_many(), without blocking the event loop."""
        from tidegate.limiter.charge_many import charge_all, pairs_of

        pairs = pairs_of(self, keys, costs)
        if self._loops is None:
            return charge_all(self, pairs)
        import asyncio

        return await asyncio.gather(*(self.charge_async(key, cost) for key, cost in pairs))

    async def charge_up_to_async(self, key: Key, cost: int) -> Decision:
        """Like charge_up_to(), without blocking the event loop."""
        loops = self._loops
        if loops is None:
            return self.charge_up_to(key, cost)
        decision: Decision = await loops.run(self, loops.CHARGE_UP_TO, key, cost)
        return decision

    async def refund_async(
        self, key: Key, cost: int = 1, *, decision: Decision | None = None
    ) -> None:
        """Like refund(), without blocking the event loop."""
        loops = self._loops
        if loops is None:
            self.refund(key, cost, decision=decision)
        else:
            await loops.run(self, loops.REFUND, key, cost, decision)
            self._room.wake_first(key)

    async def reset_async(self, key: Key) -> None:
        """Like reset(), without blocking the event loop."""
        loops = self._loops
        if loops is None:
            self.reset(key)
        else:
            await loops.run(self, loops.RESET, key, 1)
            self._room.wake_first(key)

    async def forget_async(self, key: Key) -> None:
        """Like forget(), without blocking the event loop."""
        loops = self._loops
        if loops is None:
            self.forget(key)
        else:
            await loops.run(self, loops.FORGET, key, 1)
            self._room.wake_first(key)

    async def hit_many_async(self, keys: Any, costs: Any = None) -> Any:
        """Like hit_many(), without blocking the event loop: in a thread if the store may wait."""
        if self._loops is None:
            return self.hit_many(keys, costs)
        import asyncio

        self._loops.running_loop()
        return await asyncio.to_thread(self.hit_many, keys, costs)

    def refund(self, key: Key, cost: int = 1, *, decision: Decision | None = None) -> None:
        """Gives `cost` units back to `key`, never beyond what a fresh key has.

        `decision` is the one of the hit that charged them. With it the units go back exactly
        where that hit was charged: to Redis, or to the fallback that decided without Redis, or
        nowhere if the decision was refused, came from a policy (`on_error="open"`) or from
        peek(). A sliding log or a concurrency limit forgets exactly the units of that hit.
        Without it, the units that the fallback counts for `key` are given back there first, and
        only the rest goes to Redis; a log forgets its newest units. Nothing is given back to Redis
        while the circuit breaker is open.
        """
        super().refund(key, cost, decision=decision)
        self._room.wake_first(key)

    def reset(self, key: Key) -> None:
        """Forgets what `key` has used.

        A quota's units of this period are whole again. What the key has beyond them stays: the
        top-ups and the carried units that are left. Raises nothing while Redis does not answer:
        then the fallback forgets, and Redis does not. ping() raises then.
        """
        super().reset(key)
        self._room.wake_first(key)

    def forget(self, key: Key) -> None:
        """Makes `key` a new key. Unlike reset(), deletes a quota's top-ups and carried units.

        While Redis does not answer, it is as with reset().
        """
        super().forget(key)
        self._room.wake_first(key)

    def acquire(self, key: Key, cost: int = 1, timeout: float | None = 5.0) -> Decision:
        """Waits until `cost` units can be charged to `key`, and charges them.

        Callers of one key, threads and tasks alike, are served in the order in which they
        came. `timeout` is in seconds of the limiter's clock, None for no bound. A decision
        that is refused is returned when the time is up, or at once if the wait would be longer than
        the timeout even with no caller before it, or if the cost can never pass.
        """
        return self._turn(key, cost, timeout).wait()

    def acquired(
        self, key: Key | Callable[..., Key], cost: int = 1, timeout: float | None = 5.0
    ) -> Acquired:
        """Like acquire(), for ``with``, ``async with`` or as a decorator; raises RateLimitExceeded
        instead of returning a refusal.

        `key` may be a function of the arguments of the decorated function. Raises
        ConfigurationError if the limiter has a concurrency limit, whose places only slot() gives
        back.
        """
        if self._has_leases:
            raise ConfigurationError(
                f"acquired() was called of {self!r}; expected slot(), which gives the places of "
                "calls in flight back"
            )
        from tidegate.limiter.waiting.slot import Acquired

        return Acquired(self, key, cost, timeout)

    async def acquire_async(self, key: Key, cost: int = 1, timeout: float | None = 5.0) -> Decision:
        """Like acquire(), without blocking the event loop. A cancelled task leaves the queue."""
        return await self._turn(key, cost, timeout).wait_async()

    def slot(self, key: Key, cost: int = 1, timeout: float | None = 0.0) -> Slot:
        """A place among the calls of `key` that are in flight, for ``with`` and ``async with``.

        Entering waits up to `timeout` seconds, as acquire() does, and raises
        RateLimitExceeded if it got no place. Leaving gives the place back. While the Slot exists,
        its lease (the limit's period) is extended each time half of it has passed; the place of a
        process that died is free when the lease ends. The `retry_after` of a refusal is when the
        leases that are in the way end unless they are extended: a place may be free much sooner,
        or later. Raises ConfigurationError if the limiter has no concurrency limit.
        """
        if not self._has_leases:
            raise ConfigurationError(
                f"a slot was requested of {', '.join(map(str, self._limits))}; expected a limiter "
                "with a limit such as '5 at once'"
            )
        self._check(key, cost)
        self._deadline_ns(timeout)
        from tidegate.limiter.waiting.slot import Slot

        return Slot(self, key, cost, timeout)

    def quota_status(self, key: Key, *, quota: str | None = None) -> QuotaStatus:
        """Returns what `key` has of the quota: base, carried, used and available units, and grants.

        `quota` is the name of the quota if the limiter has several. With Redis it is one round
        trip. Raises ConfigurationError if there is no such quota, StorageError if Redis does not
        answer.
        """
        from tidegate.limiter.quotas.status import status_of

        return status_of(self, key, quota)

    async def quota_status_async(self, key: Key, *, quota: str | None = None) -> QuotaStatus:
        """Like quota_status(), without blocking the event loop: in a thread if it may wait."""
        if self._loops is None:
            return self.quota_status(key, quota=quota)
        import asyncio

        return await asyncio.to_thread(self.quota_status, key, quota=quota)

    def bring_forward(self, key: Key) -> None:
        """Records what `key` has of its quotas at this instant, and charges nothing.

        It is for a key that changes to another quota of the same `id`: call it on the limiter of
        the quota before, at the instant of the change, and then on that of the new quota. Otherwise
        the change counts from the next call of the key that passes. Raises StorageError if Redis
        does not answer.
        """
        _core.quota_bring_forward(self, key)
        self._room.wake_first(key)

    async def bring_forward_async(self, key: Key) -> None:
        """Like bring_forward(), without blocking the event loop: in a thread if it may wait."""
        if self._loops is None:
            self.bring_forward(key)
            return
        import asyncio

        await asyncio.to_thread(self.bring_forward, key)

    def top_up(
        self,
        key: Key,
        units: int,
        *,
        expires_at: dt.datetime | float | None = None,
        priority: int = 0,
        quota: str | None = None,
    ) -> None:
        """Adds units to what `key` has of the quota, which belong to no period.

        `expires_at` is an aware datetime or seconds since the epoch, None for never. Grants of a
        lower `priority`, from -100 to 100, are spent first; the units of periods have 0. A key has
        at most 16 top-ups with units left at a time. Raises ConfigurationError if it cannot be
        added, StorageError if Redis does not answer: then it may have been added or not.
        """
        from tidegate.limiter.quotas.status import expiry_of, quota_index

        _core.quota_top_up(
            self, quota_index(self, quota), key, units, expiry_of(expires_at), priority
        )
        self._room.wake_first(key)

    async def top_up_async(
        self,
        key: Key,
        units: int,
        *,
        expires_at: dt.datetime | float | None = None,
        priority: int = 0,
        quota: str | None = None,
    ) -> None:
        """Like top_up(), without blocking the event loop: in a thread if the store may wait."""
        import asyncio
        import functools

        call = functools.partial(
            self.top_up, key, units, expires_at=expires_at, priority=priority, quota=quota
        )
        if self._loops is None:
            call()
        else:
            await asyncio.to_thread(call)

    def close(self) -> None:
        """Ends the limiter: later calls raise LimiterClosedError, waiting ones too.

        On ``mode=leased`` it gives back what this process holds, in at most half a second.
        """
        super().close()
        self._room.wake_all()
        if self._loops is not None:
            self._loops.forget_closed()

    def __repr__(self) -> str:
        return f"Limiter({', '.join(map(repr, self._limits))})"

    def _deadline_ns(self, timeout: float | None) -> int | None:
        if timeout is None:
            return None
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise ArgumentTypeError(
                f"the timeout is {timeout!r} of type {type(timeout).__name__}; expected "
                "seconds as int or float, or None"
            )
        if not timeout >= 0:
            raise ConfigurationError(
                f"the timeout is {timeout!r}; expected 0 or more seconds, or None"
            )
        if timeout > 1e9:
            return None
        return self._waits_ns() + round(timeout * 1e9)

    def _waits_ns(self) -> int:
        """The time by which callers wait. Not the limiter's if that follows the wall clock."""
        return time.monotonic_ns() if self._clock is None else self._now_ns()

    def _turn(self, key: Key, cost: int, timeout: float | None) -> KeyTurn:
        """A wait for `cost` units of `key`. Raises ConfigurationError for invalid arguments, which
        must not join the queue."""
        from tidegate.limiter.waiting.turn import KeyTurn  # many programs never wait

        self._check(key, cost)
        return KeyTurn(self, key, cost, self._deadline_ns(timeout))

    def _give_back(self, key: Key, cost: int, decision: Decision) -> None:
        """Gives places back without waiting for the store."""
        loops = self._loops
        if loops is not None:
            loops.begin(self, loops.RELEASE, key, cost, decision)
            self._room.wake_first(key)


class Limiter(KeyLimiter):
    """Decides whether calls may pass.

    `limit` is a text such as ``"100/minute"``, a Limit, or several of them, which are then one
    plan: a call passes all of them or is charged by none. `algorithm` applies to texts; a Limit has
    its own. `storage` is a URI (``memory://?capacity=1000000``), whose options may also be
    arguments, or the `storage` of another limiter; equal limits with equal prefixes then share
    counts. `clock` is None for the system's, a ManualClock, an object with ``now_ns()``, or a
    callable that returns int nanoseconds or float seconds; ints that are the time of now in another
    unit are refused.

    With a RuleSet in the place of limits, or as `rules`, it is a RuleLimiter, which makes keys from
    a request's attributes: see there.

    A key is a non-empty str or bytes, a cost an int from 1 up. Raises ConfigurationError
    for anything else, here and in each call, before anything is charged. Thread-safe, and
    safe to use after `fork()`.
    """

    if TYPE_CHECKING:

        @overload
        def __new__(
            cls,
            limit: LimitLike,
            *,
            storage: StorageLike = "memory://",
            algorithm: Algorithm = "token-bucket",
            prefix: str = "tg",
            clock: ClockLike = None,
            **options: Unpack[StorageOptions],
        ) -> Self: ...
        @overload
        def __new__(  # type: ignore[misc]  # returns another class
            cls,
            limit: RuleSet | RuleSource,
            *,
            tiers: TierLookup | None = None,
            violations: Violations | None = None,
            load: LoadSource | None = None,
            storage: StorageLike = "memory://",
            prefix: str = "tg",
            clock: ClockLike = None,
            **options: Unpack[StorageOptions],
        ) -> RuleLimiter: ...
        @overload
        def __new__(  # type: ignore[misc]  # returns another class
            cls,
            *,
            rules: RuleSet | RuleSource,
            tiers: TierLookup | None = None,
            violations: Violations | None = None,
            load: LoadSource | None = None,
            storage: StorageLike = "memory://",
            prefix: str = "tg",
            clock: ClockLike = None,
            **options: Unpack[StorageOptions],
        ) -> RuleLimiter: ...
        def __new__(cls, *args: Any, **kwargs: Any) -> Any: ...

    else:

        @functools.wraps(KeyLimiter.__init__)  # for inspect.signature()
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("rules", args[0] if args else kwargs.get("limit"))
            if "rules" in kwargs or hasattr(given, "_compiled") or hasattr(given, "attach"):
                return _with_rules(*args, **kwargs)
            return super().__new__(cls)


def _with_rules(*limits: Any, **kwargs: Any) -> RuleLimiter:
    """The result of Limiter(rules=...) and Limiter(rule_set)."""
    from tidegate.limiter.rule_limiter import RuleLimiter

    limits = (*limits, *([kwargs.pop("limit")] if "limit" in kwargs else []))
    if "rules" in kwargs and limits:
        raise ConfigurationError(
            f"the limit {limits[0]!r} was given with rules; expected one of them"
        )
    if "algorithm" in kwargs:
        raise ConfigurationError(
            f"algorithm={kwargs['algorithm']!r} was given with rules; expected it in the rules"
        )
    rules = kwargs.pop("rules") if "rules" in kwargs else limits[0]
    return RuleLimiter(rules, **kwargs)


# What is asked of a limiter with rules. Type checkers are to find these names missing.
if not TYPE_CHECKING:
    for _name in ("check", "check_async", "explain", "rule_stats"):
        _advice = "expected hit(), such as hit('42'), or a limiter of rules: Limiter(rules=...)"
        setattr(KeyLimiter, _name, Absent(_name, _advice))
    # The same calls in other limiters.
    for _name, _advice in {
        **dict.fromkeys(("clear", "unlock"), "expected reset(key)"),
        **dict.fromkeys(("take", "try_hit"), "expected hit(key)"),
        "allowed": "expected allow(key)",
        "remaining": "expected peek(key).remaining",
        "consume": "expected hit(key, cost)",
        "get_window_stats": "expected peek(key), which has remaining and reset_after",
        "exempt": "expected exempt_when= of @rate_limit, or `from tidegate.fastapi import exempt`",
        "get_remaining": "expected peek(key).remaining",
        "increment": "expected hit(key)",
        "init_app": "expected `from tidegate.flask import RateLimiter`",
        "is_allowed": "expected allow(key)",
        "limit": "expected @rate_limit(limit, storage=limiter.storage) of `from tidegate import "
        "rate_limit`, or hit(key)",
        "test": "expected peek(key)",
        "try_acquire": "expected hit(key), or acquire(key, timeout=...), which waits",
    }.items():
        setattr(KeyLimiter, _name, Absent(_name, _advice))

# Inherited methods would be slower with each call (ADR 4).
Limiter._add_fast_methods(Limiter)
KeyLimiter._plain = Limiter


def _loops_for(storage: _core.Store) -> type[AsyncBridge] | None:
    """The bridge that keeps event loops free while `storage` decides; None if it never waits."""
    if not storage.blocks:
        return None
    from tidegate.limiter.loops import AsyncBridge

    return AsyncBridge
