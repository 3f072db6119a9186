"""Tiers and endpoints that callers of the service give and no rule matches, as slips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.limiter.slips import Slips
from tidegate.rules.advice.attributes import meant_by_caller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.rules.rule_set import RuleSet
    from tidegate.server.recording import Recorded

__all__ = ["SlipLog", "slips_of_headers"]

# The most texts that are looked at of one version of the rules.
_MOST_TEXTS = 1000


class SlipLog:
    """A listener of decisions that logs slips, once for each, by the rules in force.

    Endpoints that are paths are not looked at: behind a gateway, clients write them. `counts` has
    the number of decisions with a slip by attribute, ``tier`` or ``endpoint``; slips beyond the
    first 1000 texts of one version of the rules are not counted. Any thread may read it; one
    thread calls the listener.
    """

    def __init__(self, limiter: RuleLimiter, *, endpoints: bool = True) -> None:
        self._limiter = limiter
        self._looks_at_endpoints = endpoints
        self._rules: RuleSet | None = None
        self._slips: Slips | None = None
        self._seen: dict[tuple[str, str], bool] = {}  # whether each is a slip
        self.counts = {"endpoint": 0, "tier": 0}

    def __call__(self, recorded: Recorded) -> None:
        rules = self._limiter.rules
        if self._slips is None or rules is not self._rules:
            self._rules, self._slips = rules, Slips(rules)
            self._seen.clear()
        for row in recorded.rows:
            if row.is_rest:
                continue
            if row.tier and row.tier not in rules.named_tiers:
                self._look_at(self._slips, "tier", row.tier, row.allowed + row.refused)
            if row.endpoint and row.endpoint[0] != "/" and self._looks_at_endpoints:
                self._look_at(self._slips, "endpoint", row.endpoint, row.allowed + row.refused)

    def _look_at(self, slips: Slips, name: str, value: str, decisions: int) -> None:
        is_slip = self._seen.get((name, value))
        if is_slip is None:
            if len(self._seen) >= _MOST_TEXTS:
                return
            is_slip = slips.value(name, value.encode("utf-8", "replace"))
            self._seen[name, value] = is_slip
        if is_slip:
            self.counts[name] += decisions


def slips_of_headers(rules: RuleSet, headers: Mapping[str, str] | None) -> list[str]:
    """Warnings of attributes in `checks.auth_headers` that no rule reads, as ``usr``."""
    found = []
    read = rules._compiled._attributes
    for header, attribute in (headers or {}).items():
        meant = meant_by_caller(attribute, read)
        if meant is not None and attribute not in {*read, *rules.model.attributes}:
            found.append(
                f"checks.auth_headers has the attribute {attribute!r} of {header}, which no rule "
                f"reads; did you mean {meant!r}?"
            )
    return found
