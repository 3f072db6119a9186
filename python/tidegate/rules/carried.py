"""Whose usage starts anew where one document of rules follows another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from tidegate import _core
from tidegate.rules.advice.patterns import may_share
from tidegate.rules.advice.tiers import named_tiers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules import model

    AnyRule = Union[model.Rule, model.Default]
    # The names under which counts are kept, and the limits that count.
    Counts = dict[tuple[Any, ...], str]

__all__ = ["starts_anew", "starts_anew_of_key"]

# The tier of a request without one, or with one that neither document has.
_NO_TIER = None


def starts_anew(
    before: model.Rules, after: model.Rules, old: AnyRule, new: AnyRule
) -> Iterator[str]:
    """Lines that name the limits of a rule whose usage starts anew, and for which tiers."""
    tiers = [*sorted(named_tiers(before) | named_tiers(after)), _NO_TIER]
    own = {count for tier in tiers for count in _counts(before, old, tier)}
    anew: dict[tuple[str, bool], list[str | None]] = {}
    for tier in tiers:
        was, now = _counts(before, old, tier), _counts(after, new, tier)
        for count, text in now.items():
            if count not in (was or own):
                joins = count not in own and _is_of_another(before, old, count)
                anew.setdefault((text, joins), []).append(tier)
    limited = [tier for tier in tiers if _counts(after, new, tier)]
    by_whom: dict[tuple[str, bool], list[str]] = {}
    for (text, joins), of in sorted(anew.items()):
        by_whom.setdefault(("" if of == limited else _shown(of), joins), []).append(text)
    for (whom, joins), texts in by_whom.items():
        how = "goes on from another rule's" if joins else "starts anew"
        yield f"usage {how}{whom}: {', '.join(sorted(texts))}"
    if not anew and "endpoint" in new.by:
        changed = _changed_names(getattr(old, "endpoints", []), getattr(new, "endpoints", []))
        if changed:
            yield f"usage starts anew at the endpoints of {', '.join(changed)}"


def starts_anew_of_key(
    before: model.Rules,
    after: model.Rules,
    rules: tuple[AnyRule | None, AnyRule | None],
    overrides: tuple[model.Override | None, model.Override | None],
) -> Iterator[str]:
    """The same of one key, which has an override in one document or in both."""
    old, new = rules
    if old is None or new is None:
        return
    tiers = [*sorted(named_tiers(before) | named_tiers(after)), _NO_TIER]
    anew: set[str] = set()
    for tier in tiers:
        was = _counts_of_key(before, old, overrides[0], tier)
        now = _counts_of_key(after, new, overrides[1], tier)
        if was or old.by != new.by:  # under other names all keys are new
            anew.update(text for count, text in now.items() if count not in was)
    if anew:
        yield f"usage starts anew: {', '.join(sorted(anew))}"


def _shown(tiers: list[str | None]) -> str:
    named = [tier for tier in tiers if tier is not _NO_TIER]
    parts = [f"for the tier{'s' * (len(named) > 1)} {', '.join(named)}"] if named else []
    parts += ["without a tier"] if _NO_TIER in tiers else []
    return " " + " and ".join(parts)


def _counts(rules: model.Rules, rule: AnyRule, tier: str | None) -> Counts:
    """The counts of requests of a tier by the rule; none where it is not for them."""
    known = tier if tier in named_tiers(rules) else rules.default_tier
    tiers: list[str] = getattr(rule, "tiers", [])
    if tiers and known not in tiers:
        return {}
    limits: Any = rule.limits
    if isinstance(limits, dict):
        limits = limits.get(known, limits.get("*", []))
    return _counts_of(rules, rule, limits, rule.algorithm or rules.algorithm)


def _counts_of_key(
    rules: model.Rules, rule: AnyRule, override: model.Override | None, tier: str | None
) -> Counts:
    counts = _counts(rules, rule, tier)
    if override is None:
        return counts
    if not counts and not _is_for(rules, rule, tier):
        return {}  # an override makes no rule apply that is not for the tier
    algorithm = override.algorithm or rule.algorithm or rules.algorithm
    return _counts_of(rules, rule, override.limits, algorithm)


def _is_for(rules: model.Rules, rule: AnyRule, tier: str | None) -> bool:
    known = tier if tier in named_tiers(rules) else rules.default_tier
    tiers: list[str] = getattr(rule, "tiers", [])
    if tiers:
        return known in tiers
    return not isinstance(rule.limits, dict) or known in rule.limits or "*" in rule.limits


def _counts_of(rules: model.Rules, rule: AnyRule, limits: Any, algorithm: Any) -> Counts:
    counts = {}
    for text in [limits] if isinstance(limits, str) else limits:
        if text == "unlimited":
            continue
        for limit in _core.parse_many(text, algorithm=algorithm):
            known_by = (
                rule.counter or rule.id,
                tuple(rule.by),
                limit.algorithm,
                rule.carry_over,
                _all_limits(rules, rule) if rule.carry_over == "reset" else "",
            )
            counts[(*known_by, limit.period_ns)] = str(limit)
    return counts


def _all_limits(rules: model.Rules, rule: AnyRule) -> str:
    """The limits of all rules of its counter: where one changes, all counts of `reset` do."""
    default: list[Any] = [rules.default] if rules.default else []
    texts = []
    for each in (*(one for one in rules.rules if one.enabled), *default):
        if (each.counter or each.id) != (rule.counter or rule.id):
            continue
        by_tier = each.limits.values() if isinstance(each.limits, dict) else [each.limits]
        for limits in by_tier:
            for text in [limits] if isinstance(limits, str) else limits:
                if text != "unlimited":
                    texts += [str(limit) for limit in _core.parse_many(text)]
    return ";".join(texts)


def _is_of_another(rules: model.Rules, rule: AnyRule, count: tuple[Any, ...]) -> bool:
    default: list[Any] = [rules.default] if rules.default else []
    others: list[Any] = [each for each in (*rules.rules, *default) if each.id != rule.id]
    tiers = [*named_tiers(rules), _NO_TIER]
    return any(count in _counts(rules, each, tier) for each in others for tier in tiers)


def _changed_names(old: list[str], new: list[str]) -> list[str]:
    """Patterns with names that only one side has, where the other side has patterns too."""
    sides = ((old, new), (new, old))
    return [
        pattern
        for own, others in sides
        for pattern in own
        if "{" in pattern and pattern not in others
        if not others or any(may_share(pattern, other) for other in others)
    ]
