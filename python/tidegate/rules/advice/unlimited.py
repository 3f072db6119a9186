"""Requests that no rule limits, since rules are for some tiers alone, or none is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.rules.advice.patterns import covers
from tidegate.rules.advice.places import Finding, rules_in_force

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.model import Rules

__all__ = ["find"]


def find(rules: Rules) -> Iterator[Finding]:
    """Rules of which none is enabled, and those by tier that leave requests without one to none."""
    in_force: list[tuple[Any, Any]] = list(rules_in_force(rules))
    if not in_force and rules.default is None:
        if rules.rules or not (rules.allow or rules.block):
            yield Finding((), "no rule is enabled, so nothing is limited")
        return
    if rules.default_tier is not None:
        return
    everyones = [rule for _, rule in in_force if not (rule.shadow or _is_for_some_tiers(rule))]
    if rules.default is not None:
        if _is_for_some_tiers(rules.default):
            in_force.append((("default",), rules.default))
        else:
            everyones.append(rules.default)
    for where, rule in in_force:
        if rule.shadow or not _is_for_some_tiers(rule):
            continue
        if any(_counts_in_its_place(other, rule) for other in everyones):
            continue
        yield Finding(
            (*where, "tiers" if getattr(rule, "tiers", []) else "limits"),
            f"the rule {rule.id!r} is not for requests without a tier, or with an unknown one; "
            "expected a default_tier, or limits of the tier '*'",
        )


def _is_for_some_tiers(rule: Any) -> bool:
    by_tier = isinstance(rule.limits, dict) and "*" not in rule.limits
    return bool(getattr(rule, "tiers", [])) or by_tier


def _counts_in_its_place(other: Any, rule: Any) -> bool:
    """Whether a rule for every tier counts, by the same attributes, all requests of the other."""
    if getattr(other, "networks", []) or set(other.by) != set(rule.by):
        return False
    methods = set(getattr(other, "methods", []))
    if methods and not (set(getattr(rule, "methods", [])) or {None}) <= methods:
        return False
    if not getattr(other, "when", {}).items() <= getattr(rule, "when", {}).items():
        return False
    outer: list[Any] = getattr(other, "endpoints", []) or [None]
    inner: list[Any] = getattr(rule, "endpoints", []) or [None]
    return all(any(covers(a, b) for a in outer) for b in inner)
