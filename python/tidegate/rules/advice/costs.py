"""Costs that no limit has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate import _core
from tidegate.rules.advice.patterns import covers
from tidegate.rules.advice.places import Finding, rules_in_force

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.model import Cost, Rule, Rules

__all__ = ["find"]


def find(rules: Rules) -> Iterator[Finding]:
    """A request of such a cost is refused for ever, in every tier that the rule is for.

    Only where it is certain that the rule applies to what the cost is for.
    """
    highest = max((cost.units for cost in rules.costs), default=1)
    if highest == 1:
        return
    replaced = {id for rule in rules.rules for id in rule.replaces}
    for rule in _never_hidden(rules):
        if rule.counts != "cost" or rule.shadow or rule.id in replaced or _narrow(rule):
            continue
        units = _most_units(rules, rule)
        if not units or highest <= min(units.values()):
            continue
        for i, cost in enumerate(rules.costs):
            most = _of_tiers(units, cost.tiers)
            if most is None or cost.units <= most or not _applies(rule, cost):
                continue
            yield Finding(
                ("costs", i, "cost"),
                f"a request that costs {cost.units} never passes the rule {rule.id!r}, which has "
                f"room for {most}; expected a lower cost or a higher limit",
            )


def _narrow(what: Any) -> bool:
    return bool(what.when or what.networks)


def _most_units(rules: Rules, rule: Rule) -> dict[str, int]:
    """By tier, the most that one request may cost; nothing where a tier has no limit."""
    by_tier: Any = rule.limits if isinstance(rule.limits, dict) else {"*": rule.limits}
    found = {}
    for tier, given in by_tier.items():
        texts = [given] if isinstance(given, str) else given
        if any(text == "unlimited" or "quota" in text for text in texts):
            return {}
        found[tier] = min(
            limit.capacity
            for text in texts
            for limit in _core.parse_many(text, algorithm=rule.algorithm or rules.algorithm)
        )
    return found


def _of_tiers(units: dict[str, int], tiers: list[str]) -> int | None:
    """The highest of these tiers' most units; None where one has no limit here."""
    if not tiers:
        return max(units.values())
    found = [units.get(tier, units.get("*")) for tier in tiers]
    known = [each for each in found if each is not None]
    return max(known) if len(known) == len(found) else None


def _never_hidden(rules: Rules) -> list[Rule]:
    """Rules that no other can be more specific than: few, however many rules there are."""
    groups: dict[frozenset[str], list[Rule]] = {}
    found = []
    for _, rule in rules_in_force(rules):
        if rule.also:
            found.append(rule)
        else:
            groups.setdefault(frozenset(rule.by), []).append(rule)
    for group in groups.values():
        with_endpoints = [rule for rule in group if rule.endpoints]
        found += (
            with_endpoints[:1] if len(with_endpoints) == 1 else group if len(group) == 1 else []
        )
    return found


def _applies(rule: Rule, cost: Cost) -> bool:
    """Whether the rule applies to requests of the cost."""
    if _narrow(cost) or not _have_common(rule.tiers, cost.tiers):
        return False
    if not _have_common(rule.methods, cost.methods):
        return False
    if rule.endpoints and cost.endpoints:
        return any(covers(own, each) for each in cost.endpoints for own in rule.endpoints)
    return True


def _have_common(some: list[str], others: list[str]) -> bool:
    return not some or not others or bool(set(some) & set(others))
