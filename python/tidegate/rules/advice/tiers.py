"""Tiers that nobody has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tidegate.rules.advice.near import is_spelling_of, meant_by
from tidegate.rules.advice.places import Finding, conditions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.advice.places import Where
    from tidegate.rules.model import Rules

__all__ = ["find", "named_tiers"]

_EVERY = frozenset(
    ("all", "any", "default", "else", "every", "everyone", "other", "others", "rest")
)


def find(rules: Rules) -> Iterator[Finding]:
    """Names of tiers that are slips of others."""
    yield from _declared(rules)
    places = list(_places(rules))
    uses = Counter(tier for _, tier, _ in places)
    uses[rules.default_tier or ""] += 1
    for where, tier, has_others in places:
        if tier == "*":
            if where[-2] == "tiers":
                yield Finding(
                    where,
                    "'*' is a tier of this name here, which nobody has; expected no `tiers`, for "
                    "every tier",
                )
            continue
        if not rules.tiers:
            yield from _odd(where, tier)
        if rules.tiers or tier == rules.default_tier:
            continue
        rarely = [other for other, times in uses.items() if other and times > uses[tier]]
        first = [other for other in uses if other and uses[other] == uses[tier]]
        meant = meant_by(tier, rarely) or meant_by(tier, first[: first.index(tier)])
        if meant is None and tier in _EVERY and where[-2] == "limits" and not has_others:
            meant = "*"
        if meant is not None:
            yield Finding(
                where, f"nobody is known to have the tier {tier!r}; did you mean {meant!r}?"
            )


def named_tiers(rules: Rules) -> set[str]:
    """The tiers that there are: those of `tiers`, else those that are named anywhere."""
    if rules.tiers:
        return set(rules.tiers)
    named = {tier for _, tier, _ in _places(rules)} - {"*"}
    return named | ({rules.default_tier} if rules.default_tier else set())


def _declared(rules: Rules) -> Iterator[Finding]:
    for i, tier in enumerate(rules.tiers):
        yield from _odd(("tiers", i), tier)
        if tier == "*":
            yield Finding(
                ("tiers", i), "'*' is a tier of this name here, which nobody has; expected names"
            )
        for other in rules.tiers[:i]:
            if is_spelling_of(tier, other):
                yield Finding(
                    ("tiers", i), f"the tier {tier!r} is spelled {other!r} too; expected one"
                )


def _odd(where: Where, tier: str) -> Iterator[Finding]:
    if tier != tier.strip():
        yield Finding(
            where, f"the tier is {tier!r}, white space and all; expected {tier.strip()!r}"
        )
    elif "," in tier:
        yield Finding(where, f"the tier is {tier!r}, as one name; expected a list of tiers")


def _places(rules: Rules) -> Iterator[tuple[Where, str, bool]]:
    """Each use of a tier: its place, its name, and whether it is beside limits of `*`."""
    for where, what in conditions(rules):
        for i, tier in enumerate(what.tiers):
            yield (*where, "tiers", i), tier, False
        yield from _of_limits(where, getattr(what, "limits", None))
    if rules.default is not None:
        yield from _of_limits(("default",), rules.default.limits)


def _of_limits(where: Where, limits: Any) -> Iterator[tuple[Where, str, bool]]:
    if isinstance(limits, dict):
        for tier in limits:
            yield (*where, "limits", tier), tier, "*" in limits
