"""The charge of one request limiter for a request, and how it is given back or corrected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from tidegate.limiter.waiting.leases import Lease
from tidegate.web.observers import Refusal, observers

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.limiter.reservation import Reservation
    from tidegate.web.active_limits import ActiveLimits
    from tidegate.web.execution import Execution
    from tidegate.web.hooks import Hooks

__all__ = ["Charge", "Key"]

Key = Union[str, bytes]


class Charge:
    """Units to charge to a key of `limits`; without a key the request is refused.

    `admitted` is the decision that let the request pass, with this charge's limits first.
    """

    __slots__ = (
        "_lease",
        "_reservation",
        "admitted",
        "cost",
        "hooks",
        "is_undone",
        "key",
        "limits",
    )

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
        self._reservation: Reservation | None = None

    def notify_refusal(self, request: Any, decision: Decision) -> None:
        """Passes the refusal of `request` to the observers."""
        if observers.refusals:
            name = self.limits.limiter._prefix
            refusal = Refusal(name, self.key, decision, cost=self.cost, request=request)
            observers.notify(refusal, self.hooks)

    def reserve(self, decision: Decision, first: int = 0) -> None:
        """Makes what `decision` has charged a reservation, if its cost is known after the response.

        The decision has the outcomes of its limits, if it has several; this charge's begin at
        `first`.
        """
        if self.hooks.cost_after is not None:
            assert self.key is not None
            limiter = self.limits.limiter
            self._reservation = limiter._reservation_of_hit(self.key, self.cost, decision, first)

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

    async def settle(self, request: Any, response: Any, execution: Execution) -> Decision | None:
        """Corrects the charge to the cost that `cost_after` computes from the response.

        Returns the state of the limits afterwards; None if nothing was corrected.
        """
        if self.hooks.cost_after is None or self.is_undone:
            return None
        cost = await self.hooks.actual_cost(request, response, execution)
        reservation, self._reservation = self._reservation, None
        if cost is None or reservation is None or cost == self.cost:
            return None
        return await execution.commit(reservation, cost)

    async def standing(self, execution: Execution) -> Decision:
        """Returns the present state of the limits, as a decision that lets the request pass."""
        assert self.key is not None
        found = await execution.peek(self.limits.limiter, self.key)
        return found._as_allowed()
