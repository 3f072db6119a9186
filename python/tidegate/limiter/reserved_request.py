"""The request that a limiter with rules makes a reservation for."""

from __future__ import annotations

from tidegate.limiter.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tidegate._core import Decision
    from tidegate.limiter.usage_cost import UsageCost

__all__ = ["Reserved", "units_by_rules"]


class Reserved:
    """A request whose cost is reserved, and the decision of the rules on it."""

    __slots__ = ("attributes", "decision", "usage_cost")

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.decision: Decision | None = None
        # What the rules say that a usage costs, once that was asked.
        self.usage_cost: tuple[UsageCost | None, int, bool] | None = None

    def __repr__(self) -> str:
        return repr(self.attributes)


def units_by_rules(usage_cost: tuple[UsageCost | None, int, bool], usage: Mapping[str, int]) -> int:
    """Returns what `usage` costs, where RuleLimiter._usage_cost() said what it may cost.

    A request on a list costs nothing. Raises ConfigurationError where the rules do not say.
    """
    costs, _, is_listed = usage_cost
    if is_listed:
        return 0
    if costs is None:
        raise ConfigurationError(
            "a usage was given for a request whose cost in the rules has no `usage`; expected "
            "a number of units, or `costs` with `cost: {usage: {...}}` for such requests"
        )
    return costs.units(usage)
