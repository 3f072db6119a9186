"""Rules that never apply, since others always do in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.rules.advice.patterns import covers
from tidegate.rules.advice.places import Finding, limit_texts, rules_in_force
from tidegate.rules.advice.tiers import named_tiers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.model import Rule, Rules

__all__ = ["find", "hints"]

# A dimension with more rules was made by a program.
_MOST_COMPARED = 200
_HINT = "`also: true` on {0!r} makes both apply"


def find(rules: Rules) -> Iterator[Finding]:
    """Rules that are replaced wherever they apply, or hidden in each of their tiers."""
    everyone = [rule for _, rule in rules_in_force(rules)]
    groups: dict[Any, list[Rule]] = {}
    for rule in everyone:
        groups.setdefault(_dimension(rule), []).append(rule)
    by_id = {rule.id: rule for rule in everyone}
    places = {rule.id: where for where, rule in rules_in_force(rules)}
    for rule in everyone:
        if not rule.replaces or len(groups[_dimension(rule)]) > 1:
            continue  # where another of its dimension applies, it replaces none
        for id in rule.replaces:
            other = by_id.get(id)
            if other is not None and other.shadow == rule.shadow and _covers(rule, other):
                yield Finding(
                    places[id],
                    f"the rule {id!r} never applies, since {rule.id!r} replaces it wherever it "
                    f"would; expected one of them, or no `replaces`",
                )
    if rules.default_tier is not None:
        yield from _by_tiers(rules, groups, places)
    if rules.default is not None:
        whole = next((rule for rule in everyone if _is_for_all(rule)), None)
        if whole is not None:
            yield Finding(
                ("default",),
                f"the default never applies, since {whole.id!r} is for all requests; "
                f"{_HINT.format(whole.id)}",
            )


def hints(rules: Rules) -> Iterator[Finding]:
    """Rules that more specific ones take the place of, which is often meant, and often not."""
    groups: dict[Any, list[Rule]] = {}
    for _, rule in rules_in_force(rules):
        groups.setdefault(_dimension(rule), []).append(rule)
    for where, rule in rules_in_force(rules):
        alike = groups[_dimension(rule)]
        if rule.shadow or len(alike) > _MOST_COMPARED:
            continue
        narrower = [each for each in alike if _covers(rule, each) and not _covers(each, rule)]
        if narrower:
            named = ", ".join(repr(each.id) for each in narrower[:3])
            more = f" and {len(narrower) - 3} more" if len(narrower) > 3 else ""
            yield Finding(
                where,
                f"{rule.id!r} does not count where a more specific rule does: {named}{more}; "
                "`also: true` on that one makes both apply",
            )


def _dimension(rule: Rule) -> Any:
    if rule.also:
        return rule.id
    has_quota = any("quota" in text for text in limit_texts(rule.limits))
    return (frozenset(rule.by), rule.counts, rule.shadow, has_quota)


def _by_tiers(
    rules: Rules, groups: dict[Any, list[Rule]], places: dict[str, Any]
) -> Iterator[Finding]:
    """A rule for every tier, beside rules of the same conditions for each tier that there is."""
    all_tiers = named_tiers(rules)
    for of_dimension in groups.values():
        alike: dict[Any, list[Rule]] = {}
        for rule in of_dimension if len(of_dimension) > 1 else ():
            alike.setdefault(_conditions(rule), []).append(rule)
        for same in alike.values():
            narrow = [rule for rule in same if _tiers_of(rule) and not rule.methods]
            hiding = set().union(*(_tiers_of(rule) for rule in narrow))
            for rule in same:
                if not _tiers_of(rule) and hiding >= all_tiers:
                    named = ", ".join(repr(each.id) for each in narrow)
                    yield Finding(
                        places[rule.id],
                        f"the rule {rule.id!r} never applies, since rules for each tier do in its "
                        f"place: {named}; {_HINT.format(rule.id)}",
                    )


def _tiers_of(rule: Any) -> set[str]:
    """The tiers that a rule is for; none where it is for all."""
    tiers: list[str] = getattr(rule, "tiers", [])
    if tiers:
        return set(tiers)
    return set(rule.limits) if isinstance(rule.limits, dict) and "*" not in rule.limits else set()


def _conditions(rule: Rule) -> Any:
    return (
        frozenset(rule.endpoints),
        frozenset(rule.networks),
        frozenset(rule.when.items()),
    )


def _covers(rule: Rule, other: Rule) -> bool:
    """Whether `rule` applies to each request that `other` is for."""
    return (
        set(rule.by) <= set(other.by)
        and not rule.networks
        and (
            not _tiers_of(rule) or (bool(_tiers_of(other)) and _tiers_of(other) <= _tiers_of(rule))
        )
        and (not rule.methods or (bool(other.methods) and set(other.methods) <= set(rule.methods)))
        and rule.when.items() <= other.when.items()
        and all(any(covers(own, each) for own in _patterns(rule)) for each in _patterns(other))
    )


def _patterns(rule: Rule) -> list[str | None]:
    return [*rule.endpoints] or [None]


def _is_for_all(rule: Rule) -> bool:
    """Whether it applies to every request, and so leaves none for the default."""
    is_enforced = not (rule.shadow or rule.also)
    return is_enforced and not (
        rule.by or _tiers_of(rule) or rule.methods or any(_conditions(rule))
    )
