"""The limiter of a rule set."""

from __future__ import annotations

import weakref
from functools import partial

from tidegate import _core
from tidegate.limiter.base import Absent, BaseLimiter
from tidegate.limiter.clock import extender_by
from tidegate.limiter.debt import WriteOffs
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.limiter.explanation import ConsideredRule, Explanation, RuleStats
from tidegate.limiter.leasing import leasing_of
from tidegate.limiter.reservation import Reserves, Reserving
from tidegate.limiter.reservation_token import identity
from tidegate.limiter.reserved_request import Reserved, units_by_rules
from tidegate.limiter.slips import Slips
from tidegate.limiter.storage.arguments import explains_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Protocol, Union

    from typing_extensions import Unpack

    from tidegate._core import Decision
    from tidegate.limiter.clock import ClockLike
    from tidegate.limiter.quotas.status import QuotaStatus
    from tidegate.limiter.reservation import Reservation
    from tidegate.limiter.reservation_expiry import OnExit, OnExpiry
    from tidegate.limiter.storage.options import StorageLike, StorageOptions
    from tidegate.limiter.usage_cost import UsageCost
    from tidegate.rules.rule_set import RuleSet
    from tidegate.rules.source import RuleSource

    Attribute = Union[str, bytes, None]

    class Violations(Protocol):
        """An object that records refusals, such as tidegate.rules.violations.ViolationLog."""

        def record(self, decision: Decision, attributes: Mapping[str, Attribute]) -> None: ...

    class TierLookup(Protocol):
        """An object that finds tiers, such as tidegate.rules.Tiers."""

        def of(self, attributes: Mapping[str, Attribute]) -> str | None: ...

    class LoadSource(Protocol):
        """An object that makes limiters charge by load, such as tidegate.load.LoadShedding."""

        def attach(self, limiter: RuleLimiter) -> None: ...


__all__ = ["RuleLimiter", "compiled"]


class RuleLimiter(_core.RuleLimiter, Reserves, BaseLimiter):
    """Decides about requests by a set of rules: what ``Limiter(rules=...)`` makes.

        limiter = Limiter(rules=RuleSet.load("rules.yaml"), storage="redis://localhost")
        decision = limiter.check(user="42", tier="premium", endpoint="/api/posts", method="POST")

    All rules that apply to a request are one plan: it is charged all of their limits or none.
    The decision's `rule` is the id of the rule that binds, None where no rule applies; its
    `outcomes` are the decisions of all limits. Attributes are str, bytes or None, which is as if
    it were not given; those that no rule looks at change nothing. Names and values that are slips
    of what rules name are logged, once for each: `usr`, the tier `Premium`, the endpoint `login`.
    `tiers` finds the tier of requests that come without one. `rules` may be a RuleSource too: then
    they change as it does.
    Refusals are handed to `violations`, such as a ViolationLog. With `load`, a LoadShedding,
    requests cost more while the service is under load. Other arguments are those of Limiter.

    Thread-safe, and safe to use after `fork()`.
    """

    @explains_arguments("RuleLimiter")
    def __init__(
        self,
        rules: RuleSet | RuleSource,
        *,
        tiers: TierLookup | None = None,
        violations: Violations | None = None,
        load: LoadSource | None = None,
        storage: StorageLike = "memory://",
        prefix: str = "tg",
        clock: ClockLike = None,
        **options: Unpack[StorageOptions],
    ) -> None:
        for name, given, method, expected in (
            ("tiers are", tiers, "of", "tidegate.rules.Tiers(...)"),
            ("violations are", violations, "record", "tidegate.rules.violations.ViolationLog(...)"),
            ("load is", load, "attach", "tidegate.load.LoadShedding(...)"),
        ):
            if given is not None and not hasattr(given, method):
                raise ArgumentTypeError(
                    f"the {name} {given!r:.80} of type {type(given).__name__}; expected {expected}"
                )
        source: Any = rules if hasattr(rules, "attach") else None
        now: Any = rules if source is None else source.current
        core = compiled(now)
        scope = self._open(storage, prefix, clock, options)
        self._rules: RuleSet = now
        self._watchers: list[weakref.WeakMethod[Callable[[RuleSet], None]]] = []
        self._tiers = tiers
        self._violations = violations
        self._write_offs = WriteOffs()
        super().__init__(core, self._storage, clock, scope, now.hidden, now._usage_costs)
        self._bound.slips = Slips(now)
        self._extender = extender_by(clock)
        # Each check() then calls _check_in_python().
        self._in_python = tiers is not None or violations is not None
        if source is not None:
            source.attach(self)
        if load is not None:
            load.attach(self)

    @property
    def rules(self) -> RuleSet:
        """The rules that decide now."""
        return self._rules

    @property
    def violations(self) -> Violations | None:
        """The object that refusals are handed to."""
        return self._violations

    def use(self, rules: RuleSet) -> None:
        """Decides by other rules from now on. Calls in flight end by those that they began with.

        What a rule has counted stays where it keeps its id, what it counts by and the periods of
        its limits, whatever their numbers: a raised limit helps at once, a lowered one binds at
        once. Raises ConfigurationError where the storage cannot count for a limit; then the rules
        stay as they are.
        """
        core = compiled(rules)
        of_web = self._bound.slips.of_web
        self._use(core, rules.hidden, rules._usage_costs)
        self._bound.slips = Slips(rules, of_web=of_web)
        self._rules = rules
        for watcher in self._watchers:
            watch = watcher()
            if watch is not None:
                watch(rules)

    def _watch(self, callback: Callable[[RuleSet], None]) -> None:
        """Calls a method with the rules of each later use(), for as long as its object lives."""
        self._watchers.append(weakref.WeakMethod(callback))

    async def check_async(self, *, cost: int = 1, **attributes: Attribute) -> Decision:
        """Like check(), without blocking the event loop."""
        if not self._storage.blocks:
            return self.check(cost=cost, **attributes)
        complete = self._with_tier(attributes)
        decision: Decision = await self._await(_core.HIT, cost, complete)
        self._record(decision, complete)
        return decision

    async def peek_async(self, *, cost: int = 1, **attributes: Attribute) -> Decision:
        """Like peek(), without blocking the event loop."""
        if not self._storage.blocks:
            return self.peek(cost=cost, **attributes)
        decision: Decision = await self._await(_core.PEEK, cost, self._with_tier(attributes))
        return decision

    def charge(
        self,
        *,
        cost: int | None = None,
        usage: Mapping[str, int] | None = None,
        **attributes: Attribute,
    ) -> Decision:
        """Charges all of `cost` for such a request, and refuses nothing; see Limiter.charge().

        Or what `usage` costs by the rules. It is for a request that passed and then used more than
        the cost of its check, so rules that count requests are not charged. The decision is that of
        the limit that binds.
        """
        complete = self._with_tier(attributes)
        units = self._units_used(cost, usage, complete)
        if units == 0 and usage is not None:
            return self.peek(**complete)
        return self._write_offs.seen(self._charge({"cost": units, **complete}), units)

    async def charge_async(
        self,
        *,
        cost: int | None = None,
        usage: Mapping[str, int] | None = None,
        **attributes: Attribute,
    ) -> Decision:
        """Like charge(), without blocking the event loop."""
        if not self._storage.blocks:
            return self.charge(cost=cost, usage=usage, **attributes)
        complete = self._with_tier(attributes)
        units = self._units_used(cost, usage, complete)
        if units == 0 and usage is not None:
            return await self.peek_async(**complete)
        decision: Decision = await self._await(_core.CHARGE, units, complete)
        return self._write_offs.seen(decision, units)

    def _units_used(
        self, cost: int | None, usage: Mapping[str, int] | None, attributes: dict[str, Any]
    ) -> int:
        if (cost is None) == (usage is None):
            given = "nothing was given" if cost is None else f"{cost!r:.80} was given and a usage"
            raise ArgumentTypeError(f"{given}; expected a cost, or a usage")
        if usage is None:
            assert cost is not None
            return cost
        return units_by_rules(self._usage_cost(attributes, None), usage)

    def _units_of_usage(self, reservation: Reservation, usage: Mapping[str, int]) -> int:
        return units_by_rules(self._usage_cost_of(reservation), usage)

    def _usage_cost_of(self, reservation: Reservation) -> tuple[UsageCost | None, int, bool]:
        """What _usage_cost() returns, by the rules that made the reservation; asked once."""
        whose: Reserved = reservation._whose
        known = whose.usage_cost
        if known is None:
            known = reservation._usage_cost() or self._usage_cost(whose.attributes, whose.decision)
            whose.usage_cost = known
        return known

    def reserve(
        self,
        *,
        cost: int = 1,
        ttl: float = 60.0,
        on_exit: OnExit = "release",
        on_expiry: OnExpiry = "keep",
        **attributes: Attribute,
    ) -> Reservation:
        """Charges the estimate `cost` for such a request like check(); see Limiter.reserve().

        As that of check(), it multiplies what the rules say that the request costs. Rules that
        count requests count it, whatever is committed, unless it is released. Load does not make it
        cost more. It is settled by the rules that it was made by, but a token only while the rules
        are as they were.
        """
        return self._reserve(Reserved(self._with_tier(attributes)), cost, ttl, on_exit, on_expiry)

    def reserve_async(
        self,
        *,
        cost: int = 1,
        ttl: float = 60.0,
        on_exit: OnExit = "release",
        on_expiry: OnExpiry = "keep",
        **attributes: Attribute,
    ) -> Reserving:
        """Like reserve(), without blocking the event loop: for ``await``, or ``async with``."""
        whose = Reserved(self._with_tier(attributes))
        return self._reserving(whose, cost, ttl, on_exit, on_expiry)

    def refund(
        self,
        *,
        cost: int = 1,
        decision: Decision | None = None,
        keep_request: bool = False,
        **attributes: Attribute,
    ) -> None:
        """Gives back what check() with the same arguments charged.

        With the `decision` of that call, exactly where it was charged and by the rules that it
        was made by; see Limiter.refund(). With `keep_request`, `cost` is a part of what a request
        cost that remains: rules that count requests give nothing back, as charge() charges them
        nothing. Raises ConfigurationError for both at once.
        """
        self._check_kept(keep_request, decision)
        asked = {"cost": cost, **self._with_tier(attributes)}
        if keep_request:
            self._refund_cost(asked)
        else:
            self._refund(asked, decision)

    @staticmethod
    def _check_kept(keep_request: object, decision: Decision | None) -> None:
        if not isinstance(keep_request, bool):
            raise ArgumentTypeError(f"keep_request is {keep_request!r}; expected True or False")
        if keep_request and decision is not None:
            raise ConfigurationError(
                "keep_request is given beside a decision, by which all that it charged is given "
                "back; expected one of them"
            )

    async def refund_async(
        self,
        *,
        cost: int = 1,
        decision: Decision | None = None,
        keep_request: bool = False,
        **attributes: Attribute,
    ) -> None:
        """Like refund(), without blocking the event loop."""
        if keep_request or not self._storage.blocks:
            call = partial(
                self.refund, cost=cost, decision=decision, keep_request=keep_request, **attributes
            )
            return await self._call_async(call)
        await self._await(_core.REFUND, cost, self._with_tier(attributes), decision)
        return None

    def release(  # type: ignore[override]  # also takes a decision
        self, decision: Decision | str, *, cost: int = 1, **attributes: Attribute
    ) -> Decision | None:
        """Gives back the places of concurrency limits that check() with the same arguments took.

        Or, with a token alone, what the reservation of that token has charged: then it returns the
        decision of the limits afterwards, as commit() does.

        `decision` is that of the check; the request is over, and what it was charged by other
        limits stays. Without a release a place is free when its lease ends, which is the limit's
        period. Possible too after close(). Middleware calls it at the end of each response.
        """
        if isinstance(decision, str):
            return super().release(decision)
        self._release({"cost": cost, **self._with_tier(attributes)}, decision)
        return None

    async def release_async(  # type: ignore[override]
        self, decision: Decision | str, *, cost: int = 1, **attributes: Attribute
    ) -> Decision | None:
        """Like release(), without blocking the event loop."""
        if isinstance(decision, str):
            return await super().release_async(decision)
        if not self._storage.blocks:
            return self.release(decision, cost=cost, **attributes)
        await self._await(_core.RELEASE, cost, self._with_tier(attributes), decision)
        return None

    def reset(self, *, rules: Iterable[str] | None = None, **attributes: Attribute) -> None:
        """Forgets what the caller of such a request has used of the limits that apply.

        Counts that the caller shares with others stay: with a user, an API key or another attribute
        of the service's own, those by the address, by the endpoint and of all requests; with an
        address, the latter two; and so on. `rules` names the ids of the rules to reset in place of
        that, shared or not; ConfigurationError names an id that no rule has. The top-ups and the
        carried units that are left of quotas stay, and while Redis does not answer, only the
        fallback forgets; see Limiter.reset().
        """
        self._reset(self._with_tier(attributes), _core.RESET, self._named(rules))

    async def reset_async(
        self, *, rules: Iterable[str] | None = None, **attributes: Attribute
    ) -> None:
        """Like reset(), without blocking the event loop."""
        await self._reset_async(self.reset, _core.RESET, rules, attributes)

    def forget(self, *, rules: Iterable[str] | None = None, **attributes: Attribute) -> None:
        """Makes the keys that reset() is about new keys. Unlike reset(), deletes top-ups too."""
        self._reset(self._with_tier(attributes), _core.FORGET, self._named(rules))

    async def forget_async(
        self, *, rules: Iterable[str] | None = None, **attributes: Attribute
    ) -> None:
        """Like forget(), without blocking the event loop."""
        await self._reset_async(self.forget, _core.FORGET, rules, attributes)

    async def _reset_async(
        self,
        blocking: Callable[..., None],
        op: int,
        rules: Iterable[str] | None,
        attributes: dict[str, Attribute],
    ) -> None:
        """Calls `blocking`, or in its place `op` where the event loop can wait for the storage."""
        if rules is not None or not self._storage.blocks:
            await self._call_async(partial(blocking, rules=rules, **attributes))
        else:
            await self._await(op, 1, self._with_tier(attributes))

    def _named(self, rules: Iterable[str] | None) -> list[str] | None:
        """Returns the ids, all of which rules have. Raises ConfigurationError for others."""
        if rules is None:
            return None
        if isinstance(rules, (str, bytes)) or not hasattr(rules, "__iter__"):
            raise ArgumentTypeError(f"the rules are {rules!r:.80}; expected a list of ids")
        named = list(rules)
        known = compiled(self._rules)._rule_ids
        for id in named:
            if id not in known:
                raise ConfigurationError(
                    f"there is no rule {id!r:.120}; expected one of {', '.join(known):.400}"
                )
        return named

    async def _call_async(self, call: Callable[[], None]) -> None:
        """Calls where the event loop does not wait for the storage."""
        if not self._storage.blocks:
            return call()
        import asyncio

        return await asyncio.to_thread(call)

    def explain(self, *, cost: int = 1, **attributes: Attribute) -> Explanation:
        """Returns why each rule applies to such a request or not, and the state of those that do.

        The list of ConsideredRule also has the request's cost and priority, and says which
        limits are leased. Charges nothing. Asks the store as peek() does.
        """
        attributes = self._with_tier(attributes)
        outcomes: dict[str | None, list[Decision]] = {}
        for outcome in self._peek(cost=cost, **attributes).outcomes:
            outcomes.setdefault(outcome.rule, []).append(outcome)
        considered = []
        explained = self._explain(attributes)
        # The limits of all rules that apply are one plan.
        leasing = iter(leasing_of(self._storage, [limit for *_, all in explained for limit in all]))
        for rule, applies, why, key, limits in explained:
            states = [*outcomes.get(rule, []), *[None] * len(limits)][: len(limits)]
            shown = None if key is None else key.decode("utf-8", "backslashreplace")
            leased = tuple(next(leasing) for _ in limits)
            considered.append(
                ConsideredRule(rule, applies, why, shown, tuple(limits), states, leased)
            )
        listed, _, units, priority = self._match(attributes)
        usage: UsageCost | None = self._usage_cost(attributes, None)[0]
        return Explanation(
            considered,
            0 if listed is not None else cost * units,
            priority,
            None if usage is None or listed is not None else usage.weights,
        )

    def quota_status(self, **attributes: Attribute) -> dict[str, QuotaStatus]:
        """Returns what such a request's keys have of the quotas that apply, by the quotas' names.

        A quota's name is its rule's id, and where the rule has several limits its text too:
        ``monthly:quota 10000/month``. With Redis it is one round trip for each quota.
        """
        from tidegate.limiter.quotas.status import status_from

        quotas = self._quotas(self._with_tier(attributes))
        return {name: status_from(count, values) for name, count, values in quotas}

    def bring_forward(self, **attributes: Attribute) -> None:
        """Records what the keys of such a request have of its quotas at this instant.

        Charges nothing. It is for a change of a tier: call it with the tier before, at the instant
        of the change, and then with the new tier. Otherwise the change counts from the next
        request that passes. Raises StorageError if Redis does not answer.
        """
        self._bring_forward(self._with_tier(attributes))

    def top_up(
        self,
        attributes: Mapping[str, Attribute],
        units: int,
        *,
        expires_at: dt.datetime | float | None = None,
        priority: int = 0,
        quota: str | None = None,
    ) -> None:
        """Adds units to what the key of such a request has of a quota; see Limiter.top_up().

        `quota` is its name, as in quota_status(), if several apply.
        """
        from tidegate.limiter.quotas.status import expiry_of

        self._top_up(
            self._with_tier(attributes), quota or "", units, expiry_of(expires_at), priority
        )

    def rule_stats(self) -> dict[str, RuleStats]:
        """Returns the counters of each rule, by its id. They continue when the rules change."""
        return {rule: RuleStats(*counts) for rule, *counts in self._rule_stats()}

    def __repr__(self) -> str:
        return f"RuleLimiter({self._rules!r})"

    def _with_tier(self, attributes: Mapping[str, Attribute]) -> dict[str, Any]:
        """Returns the attributes, with the tier that `tiers` finds if the request has none."""
        if self._tiers is None or attributes.get("tier") is not None:
            return dict(attributes)
        return {**attributes, "tier": self._tiers.of(attributes)}

    def _record(self, decision: Decision, attributes: Mapping[str, Attribute]) -> None:
        if not decision.allowed and self._violations is not None:
            self._violations.record(decision, attributes)

    # The core calls these two in place of its own if `_in_python` is set.

    def _check_in_python(self, *, cost: int = 1, **attributes: Attribute) -> Decision:
        if self._tiers is not None and attributes.get("tier") is None:
            attributes["tier"] = self._tiers.of(attributes)
        decision = self._check(cost=cost, **attributes)
        if self._violations is not None and not decision.allowed:
            self._violations.record(decision, attributes)
        return decision

    def _peek_in_python(self, *, cost: int = 1, **attributes: Attribute) -> Decision:
        return self._peek(cost=cost, **self._with_tier(attributes))

    def _reserved(
        self,
        op: int,
        whose: Reserved,
        units: int | None,
        reservation: _core.Reservation,
        loop: Any = None,
        channel: Any = None,
    ) -> Any:
        return self._call_reserved(
            op, whose.attributes, units, reservation, whose.decision, loop, channel
        )

    def _has_reserved(self, whose: Reserved, decision: Decision) -> None:
        whose.decision = decision
        self._record(decision, whose.attributes)

    def _reserve_at_once(self, kind: type[Any], whose: Reserved, units: int, ttl_ns: int) -> Any:
        reserved = super()._reserve_at_once(kind, whose, units, ttl_ns)
        if reserved is not None:
            self._has_reserved(whose, reserved.decision)
        return reserved

    def _keys_of(self, whose: Reserved) -> list[str | bytes]:
        given = {name: value for name, value in whose.attributes.items() if value is not None}
        return [each for item in given.items() for each in item]

    def _whose_of(self, keys: list[bytes]) -> Reserved:
        names = [name.decode("utf-8", "surrogatepass") for name in keys[::2]]
        return Reserved(dict(zip(names, keys[1::2])))

    def _correct(
        self,
        whose: Reserved,
        units: int,
        actual: int | None,
        decision: Decision,
        until: list[int],
    ) -> None:
        if actual is None and self._now_ns() < until[0]:
            self.refund(cost=units, decision=decision, **whose.attributes)
        elif actual is not None:
            # `actual` is in units where the rules have an estimate, and `units` multiplies that.
            _, estimate, _ = self._usage_cost(whose.attributes, whose.decision)
            charged = units * estimate if estimate else units
            if actual > charged:
                self.charge(cost=actual - charged, **whose.attributes)

    def _count_until(self, whose: Reserved, decision: Decision) -> list[int]:
        return [self._now_ns() + round(decision.reset_after * 1e9)]

    def _units_of_release(self) -> None:
        return None

    def _identity(self) -> bytes:
        return identity("rules", [self._prefix, self._rules.digest])

    def _after_settling(self, whose: Reserved, units: int | None, decision: Decision) -> None:
        self._write_offs.seen(decision, units or 0)

    async def _await(
        self,
        op: int,
        cost: int,
        attributes: Mapping[str, Attribute],
        decision: Decision | None = None,
    ) -> Any:
        from tidegate.limiter.loops import run_rules

        return await run_rules(self, op, {"cost": cost, **attributes}, decision)


# What is asked of a limiter without rules. Type checkers are to find these names missing.
if not TYPE_CHECKING:
    _A_CHECK = "expected check(), such as check(user='42', endpoint='/api/posts')"
    _NO_WAIT = "expected check(), and release() of its decision, since rules have no queue"
    for _name, _advice in {
        **dict.fromkeys(("hit", "allow", "hit_many"), _A_CHECK),
        **dict.fromkeys(("hit_async", "allow_async", "hit_many_async"), "expected check_async()"),
        **dict.fromkeys(("acquire", "acquire_async", "acquired", "slot"), _NO_WAIT),
        **dict.fromkeys(("charge_up_to", "charge_up_to_async"), "expected charge() or reserve()"),
        **dict.fromkeys(("charge_many", "charge_many_async"), "expected charge() for each request"),
    }.items():
        setattr(RuleLimiter, _name, Absent(_name, _advice))

# Inherited, they would take a detour with each call.
RuleLimiter._add_fast_methods(RuleLimiter)


def compiled(rules: RuleSet) -> _core.RuleSet:
    """Returns the core's form of `rules`. Raises ArgumentTypeError for anything else."""
    core = getattr(rules, "_compiled", None)
    if not isinstance(core, _core.RuleSet):
        raise ArgumentTypeError(
            f"the rules are {rules!r:.80} of type {type(rules).__name__}; expected a RuleSet, such "
            "as tidegate.RuleSet.load('rules.yaml')"
        )
    return core
