"""The charge of one request limiter for a request, and how it is given back or corrected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from tidegate.limiter.reserves_by_key import outstanding
from tidegate.limiter.waiting.leases import Lease
from tidegate.types import BUCKETS
from tidegate.web.observers import Refusal, observers

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.limiter.limiter import Limiter
    from tidegate.web.active_limits import ActiveLimits
    from tidegate.web.execution import Execution
    from tidegate.web.hooks import Hooks

__all__ = ["Charge", "Key", "outstanding"]

Key = Union[str, bytes]


class Charge:
    """Units to charge to a key of `limits`; without a key the request is refused.

    `admitted` is the decision that let the request pass, with this charge's limits first.
    """

    __slots__ = ("_lease", "_since", "admitted", "cost", "hooks", "is_undone", "key", "limits")

    def __init__(
        self,
        hooks: Hooks,
        limits: ActiveLimits,
        key: Key | None,
        cost: int,
        admitted: Decision | None = None,
    ) -> None:
        self.hooks = hooks
        self.limits = limits
        self.key = key
        self.cost = cost
        self.admitted = admitted
        self.is_undone = False
        self._lease: Lease | None = None
        self._since: tuple[_Charged, ...] = ()

    def notify_refusal(self, request: Any, decision: Decision) -> None:
        """Passes the refusal of `request` to the observers."""
        if observers.refusals:
            name = self.limits.limiter._prefix
            refusal = Refusal(name, self.key, decision, cost=self.cost, request=request)
            observers.notify(refusal, self.hooks)

    def hold(self) -> None:
        """Extends the leases of the request's places until leave()."""
        limiter = self.limits.limiter
        if limiter._has_leases and not self.is_undone and self._lease is None:
            assert self.key is not None
            assert self.admitted is not None
            self._lease = Lease(limiter, self.key, self.cost, self.admitted, limiter._lease_ns)
            limiter._extender.hold(self._lease)

    async def leave(self, execution: Execution) -> None:
        """Gives the places back that hold() keeps."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        decision = self.limits.limiter._extender.leave(lease)
        if decision is not None:
            assert self.key is not None
            await execution.release(self.limits.limiter, self.key, self.cost, decision)

    async def undo(self, execution: Execution) -> None:
        """Gives the whole charge back, once, before the request has had any effect."""
        assert self.key is not None
        if self.is_undone:
            return
        self.is_undone = True
        lease = self._lease
        if lease is not None and lease.decision is not self.admitted:
            await self.leave(execution)  # the refund does not find a place whose lease was extended
        elif lease is not None:
            self.limits.limiter._extender.leave(lease)
            self._lease = None
        await execution.refund(self.limits.limiter, self.key, self.cost, self.admitted)

    async def remember(self, decided_ns: int, execution: Execution, *, is_alone: bool) -> None:
        """Keeps what give_back() needs. The decision that let the request pass may cover several
        charges."""
        assert self.key is not None
        assert self.admitted is not None
        for number, limiter in enumerate(self.limits.per_limit):
            charged = _Charged(limiter, self.admitted._from_limit(number))
            # A decision describes the limit that binds, which is this one if it is the only one.
            is_only = is_alone and limiter is self.limits.limiter
            reset_after = await charged.reset_after_ns(
                self.key, execution, self.admitted if is_only else None
            )
            # If it is unknown, nothing is given back.
            charged.until_ns = decided_ns + (reset_after or 0)
            self._since += (charged,)

    async def give_back(self, cost: int, execution: Execution) -> None:
        """Gives back `cost` units of the charge, or as many of them as still count."""
        assert self.key is not None
        now_ns = self.limits.limiter._now_ns()
        for charged in self._since:
            limit, left_ns = charged.limit, charged.until_ns - now_ns
            units = cost if limit.algorithm == "sliding-log" else outstanding(limit, left_ns, cost)
            if units < cost and left_ns > 0 and limit.algorithm in BUCKETS:
                reset_after = await charged.reset_after_ns(self.key, execution)
                # If nothing was charged since, all of it can be given back: the key cannot become
                # more than full.
                if reset_after is not None and (
                    reset_after < left_ns + limit.period_ns / limit.count / 2
                ):
                    units = cost
            if units > 0:
                await execution.refund(charged.limiter, self.key, units, charged.admitted)

    async def settle(self, request: Any, response: Any, execution: Execution) -> Decision | None:
        """Corrects the charge to the cost that `cost_after` computes from the response.

        Returns the state of the limits afterwards; None if nothing was corrected.
        """
        hooks = self.hooks
        if hooks.cost_after is None or self.is_undone:
            return None
        try:
            cost = await execution.resolve(hooks.cost_after(request, response))
        except Exception as exc:
            hooks.log_throttled("cost_after raised; the charge stays", exc=exc)
            return None
        if not isinstance(cost, int) or isinstance(cost, bool) or cost < 0:
            hooks.log_throttled(
                "cost_after returned %.50r; expected an int from 0 up; the charge stays", cost
            )
            return None
        if cost < self.cost:
            await self.give_back(self.cost - cost, execution)
            return await self.standing(execution)
        if cost > self.cost:
            assert self.key is not None
            return await execution.charge(self.limits.limiter, self.key, cost - self.cost)
        return None

    async def standing(self, execution: Execution) -> Decision:
        """Returns the present state of the limits, as a decision that lets the request pass."""
        assert self.key is not None
        found = await execution.peek(self.limits.limiter, self.key)
        return found._as_allowed()


class _Charged:
    """One limit of a charge, in the store that charged it.

    `limit` is the limit in that store: in a fallback, its share. `until_ns` is the instant at which
    the key, as the charge left it, is full again.
    """

    __slots__ = ("admitted", "limit", "limiter", "until_ns")

    def __init__(self, limiter: Limiter, admitted: Decision) -> None:
        self.limiter = limiter
        self.admitted = admitted
        self.limit = limiter.limits[0]
        self.until_ns = 0

    async def reset_after_ns(
        self, key: Key, execution: Execution, known: Decision | None = None
    ) -> int | None:
        """Returns the nanoseconds until `key` is full again there, or None if that is unknown.

        `known` is a decision of the store that has this value.
        """
        if self.admitted._charged_in == "fallback":
            self.limit, reset_after_ns = self.limiter._peek_fallback(key)
            return reset_after_ns
        if self.admitted._charged_in == "nowhere":
            return None
        found = await execution.peek(self.limiter, key) if known is None else known
        return None if found.degraded else round(found.reset_after * 1e9)
