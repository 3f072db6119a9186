"""A limit on refusals: a client that is refused too often is refused everything for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.web.active_limits import refuse_places

if TYPE_CHECKING:
    from tidegate.web.execution import Execution
    from tidegate.web.request_limiter import RequestDecision, RequestLimiter

__all__ = ["MetaLimit"]


class MetaLimit:
    """Counts the refusals of each client by a request limiter of cost 1.

    Clients without a key are not counted if the policy lets them pass or refuses them.
    """

    def __init__(self, limiter: RequestLimiter) -> None:
        if limiter.limiter is not None:
            refuse_places(limiter.limiter.limits, "refusals")
        self._limiter = limiter

    async def refusal(self, request: Any, execution: Execution) -> RequestDecision | None:
        """Returns a refusal if the request's client was refused too often, else None."""
        charge = await self._limiter.charge(request, execution)
        if charge is None or charge.key is None:
            return None
        found = await execution.peek(charge.limits.limiter, charge.key)
        if found.allowed:
            return None
        charge.notify_refusal(request, found)
        return self._limiter.decide(charge.limits, found, None, ())

    async def count(self, request: Any, execution: Execution) -> None:
        """Counts a refused request."""
        charge = await self._limiter.charge(request, execution)
        if charge is not None and charge.key is not None:
            await execution.charge_up_to(charge.limits.limiter, charge.key, 1)
