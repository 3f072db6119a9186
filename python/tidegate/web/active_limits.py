"""The limits that a request meets, with the templates of their headers and refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate._core import Limit
from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.plan import Plan
from tidegate.web.headers import OPENAI, Problems, fields_for
from tidegate.web.registry import register

__all__ = ["ActiveLimits", "refuse_places"]


def refuse_places(limits: Iterable[Limit], where: str) -> None:
    """Raises ConfigurationError for concurrency limits, which nothing at `where` gives back."""
    for limit in limits:
        if limit.algorithm == "concurrency":
            raise ConfigurationError(
                f"the limit {limit.name} counts requests in flight, and was given for {where}; "
                "expected limits on a rate"
            )


class ActiveLimits:
    """Limiters that decide on one request together, with the templates of their header fields.

    Raises ConfigurationError for unknown families of headers. Immutable.
    """

    __slots__ = (
        "_offline_limiter",
        "_plan",
        "fields",
        "lease_ns",
        "limiter",
        "problems",
        "shows_all",
    )

    def __init__(self, limiters: Sequence[Limiter], headers: Iterable[str]) -> None:
        # Limits of equal names are equal, or their owner treats them as one.
        limits = list({each.name: each for one in limiters for each in one.limits}.values())
        self.limiter = limiters[0]
        # The shortest lease of the places that requests take; 0 if they take none.
        self.lease_ns = min((one._lease_ns for one in limiters if one._has_leases), default=0)
        headers = tuple(headers)
        self.fields = fields_for(self.limiter, limits, headers)
        # Whether the fields are of more limits than the one that binds.
        self.shows_all = OPENAI in headers and len(limits) > 1
        self.problems = Problems(limits)
        self._plan: Plan | None = None
        self._offline_limiter: Limiter | None = None
        register(limiters)

    @property
    def plan(self) -> Plan:
        """Returns a plan of the first limiter alone, whose decisions have each limit's outcome."""
        if self._plan is None:
            self._plan = Plan([self.limiter])
        return self._plan

    @property
    def offline_limiter(self) -> Limiter:
        """Returns a limiter of the same limits in local memory, for refusals that need no count."""
        if self._offline_limiter is None:
            limiter = self.limiter
            storage = "memory://?capacity=4096"
            clock = limiter._clock
            self._offline_limiter = Limiter(limiter.limits, storage=storage, clock=clock)
        return self._offline_limiter
