"""What explain() and rule_stats() of a rule limiter tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from decimal import Decimal

    from tidegate._core import Decision, Limit
    from tidegate.limiter.leasing import Leasing

__all__ = ["ConsideredRule", "Explanation", "RuleStats"]


class RuleStats(NamedTuple):
    """The counters of one rule."""

    allowed: int
    """Requests that it applied to and that passed."""
    refused: int
    """Requests that it refused."""
    refused_in_shadow: int
    """Requests that it would have refused, were it not in shadow."""


class Explanation(list["ConsideredRule"]):
    """Every rule, as explain() saw it, and what the request is to them."""

    __slots__ = ("cost", "priority", "usage")

    def __init__(
        self,
        rules: Iterable[ConsideredRule],
        cost: int,
        priority: str,
        usage: Mapping[str, Decimal] | None = None,
    ) -> None:
        super().__init__(rules)
        self.cost = cost
        """The cost without load; 0 if an entry of `allow` or `block` decides. Rules that
        count requests are charged 1."""
        self.priority = priority
        """``critical``, ``normal`` or ``background``; ``normal`` if such an entry decides."""
        self.usage = usage
        """The weights of what it has used, of which `cost` is the estimate; None without any."""

    def __repr__(self) -> str:
        return f"<cost {self.cost}, {self.priority}: {super().__repr__()}>"


class ConsideredRule(NamedTuple):
    """One rule, as explain() saw it."""

    rule: str
    """The id of the rule."""
    applies: bool
    why: str
    """Why it does not apply; for one that applies, a remark, such as an override of the key."""
    key: str | None
    """The text under which the rule counts the request; None if the rule does not apply."""
    limits: tuple[Limit, ...]
    """The rule's limits for the request; none if it does not apply or is unlimited."""
    states: list[Decision | None]
    """The decision that each of `limits` would make now."""
    leasing: tuple[Leasing, ...]
    """How each of `limits` is leased, beside the other limits of the request."""

    def __repr__(self) -> str:
        verdict = "applies" if self.applies else "does not apply"
        why = f": {self.why}" if self.why else ""
        return f"<{self.rule} {verdict}{why}>"
