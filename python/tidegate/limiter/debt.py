"""What is logged of charges that would have made a key owe too much."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate._core import Decision

__all__ = ["WriteOffs"]


class WriteOffs:
    """Logs the 1st, 2nd, 4th, 8th, ... charge of a limiter of which a part was written off."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def seen(self, decision: Decision, cost: int) -> Decision:
        """Returns `decision`, that of a charge of `cost`, and logs what was written off of it."""
        charged = decision.charged
        # Without an answer of the store nothing was charged.
        # By rules a unit of cost may be several units.
        if charged is None or charged >= cost or decision._charged_in == "nowhere":
            return decision
        self.count += 1
        if self.count & (self.count - 1) == 0:
            import logging  # few programs need it, and it takes long to import

            logging.getLogger("tidegate").warning(
                "of %d units for the limit %s, %d were charged and the rest written off, as the key"
                " owes its max_debt (charge %d of this kind)",
                cost,
                decision.rule,
                charged,
                self.count,
            )
        return decision
