"""The charge of a request by rules, and how it is given back or corrected."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tidegate.limiter.reservation import Reservation
from tidegate.limiter.reserved_request import Reserved
from tidegate.limiter.waiting.leases import RuleLease

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.web.execution import Execution
    from tidegate.web.hooks import Hooks

__all__ = ["RuleCharge"]


class RuleCharge:
    """The charge of a request by rules."""

    __slots__ = (
        "_attributes",
        "_decision",
        "_hooks",
        "_is_settled",
        "_lease",
        "_lease_ns",
        "_limiter",
        "is_undone",
        "key",
    )

    def __init__(
        self,
        hooks: Hooks,
        limiter: RuleLimiter,
        attributes: dict[str, Any],
        decision: Decision,
        lease_ns: int,
    ) -> None:
        self._hooks = hooks
        self._limiter = limiter
        self._attributes = attributes
        self._decision = decision
        self._lease: RuleLease | None = None
        self._lease_ns = lease_ns
        self._is_settled = False
        self.is_undone = False
        self.key = None

    def hold(self) -> None:
        """Extends the leases of the request's places until leave()."""
        if self.is_undone or self._lease is not None:
            return
        # The tier may change while the request is under way.
        attributes = self._limiter._with_tier(self._attributes)
        self._attributes = attributes
        if not self._lease_ns:
            return
        lease = RuleLease(self._limiter, attributes, self._decision, self._lease_ns)
        self._lease = lease
        self._limiter._extender.hold(lease)

    async def leave(self, execution: Execution) -> None:
        """Gives the places back that hold() keeps."""
        lease, self._lease = self._lease, None
        decision = None if lease is None else self._limiter._extender.leave(lease)
        if decision is not None:
            await execution.release_rules(self._limiter, self._attributes, decision)

    async def undo(self, execution: Execution) -> None:
        """Gives the charge back, once, before the request has had any effect."""
        if self.is_undone:
            return
        self.is_undone = True
        if self._lease is not None and self._lease.decision is not self._decision:
            await self.leave(execution)  # the refund does not find a place whose lease was extended
        if self._lease is not None:
            self._limiter._extender.leave(self._lease)
            self._lease = None
        await execution.refund_rules(self._limiter, self._attributes, self._decision)

    async def standing(self, execution: Execution) -> Decision:
        """Returns the present state of the limits, as a decision that lets the request pass."""
        found = await execution.peek_rules(self._limiter, self._attributes)
        # Other rules may have come into force, with limits that the response does not have.
        is_known = found._owner is self._decision._owner and found._plan_key(
            b""
        ) == self._decision._plan_key(b"")
        if not is_known:
            return self._decision
        return found if found.allowed else found._as_allowed()

    async def settle(self, request: Any, response: Any, execution: Execution) -> Decision | None:
        """Corrects the charge, once, to the cost that `cost_after` computes from the response, or
        to what the usage costs that it returns.

        Returns the state of the limits afterwards; None if nothing was corrected.
        """
        if self._hooks.cost_after is None or self.is_undone or self._is_settled:
            return None
        cost = await self._hooks.actual_cost(request, response, execution, takes_usage=True)
        if self._is_settled:  # meanwhile
            return None
        self._is_settled = True
        if cost is None:
            return None
        attributes, decision = self._attributes, self._decision
        reservation = _reservation_of_check(self._limiter, attributes, decision)
        if not isinstance(cost, int):
            try:
                cost = reservation._units_of(None, cost)
            except Exception as exc:  # of a mapping that the application wrote
                self._hooks.log_throttled(
                    "the usage that cost_after returned has no cost; the charge stays", exc=exc
                )
                return None
        estimate = self._limiter._usage_cost_of(reservation)[1]
        if cost == attributes["cost"] * (estimate or 1):
            return None
        return await execution.commit(reservation, cost)


def _reservation_of_check(
    limiter: RuleLimiter, attributes: dict[str, Any], decision: Decision
) -> Reservation:
    """Returns what the check of `decision` has charged as a reservation, for its caller to settle
    once. The attributes have the cost, and the tier that the check found."""
    whose = Reserved({name: value for name, value in attributes.items() if name != "cost"})
    whose.decision = decision
    live = limiter._reservation_of_check(Reservation, whose, attributes, decision)
    if live is not None:
        live._on_exit = "keep"
        return live
    reservation = Reservation(limiter, whose, os.urandom(16), on_exit="keep")
    charged = limiter._charged_by(attributes, decision)
    reservation._take_over_hit(decision, charged, attributes["cost"])
    return reservation
