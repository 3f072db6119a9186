"""The request that a limiter with rules makes a reservation for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidegate._core import Decision

__all__ = ["Reserved"]


class Reserved:
    """A request whose cost is reserved, and the decision of the rules on it."""

    __slots__ = ("attributes", "decision")

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.decision: Decision | None = None

    def __repr__(self) -> str:
        return repr(self.attributes)
