"""Whose usage starts anew where one document of rules follows another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from tidegate import _core
from tidegate.rules.advice.patterns import may_share
from tidegate.rules.advice.places import limit_texts
from tidegate.rules.advice.tiers import named_tiers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules import model

    AnyRule = Union[model.Rule, model.Default]
    # The names under which counts are kept, and the limits that count.
    Counts = dict[tuple[Any, ...], str]

__all__ = ["Carried"]

# The tier of a request without one, or with one that neither document has.
_NO_TIER = None


class Carried:
    """Says whose usage starts anew where the document `after` follows `before`."""

    def __init__(self, before: model.Rules, after: model.Rules) -> None:
        self._before = _Counting(before)
        self._after = _Counting(after)
        self._tiers = [*sorted(self._before.named | self._after.named), _NO_TIER]

    def of_rule(self, old: AnyRule, new: AnyRule) -> Iterator[str]:
        """Lines that name the limits of a rule whose usage starts anew, and for which tiers."""
        before = {tier: self._before.counts(old, tier) for tier in self._tiers}
        after = {tier: self._after.counts(new, tier) for tier in self._tiers}
        own = {count for counts in before.values() for count in counts}
        anew: dict[tuple[str, bool], list[str | None]] = {}
        for tier, counts in after.items():
            for count, text in counts.items():
                if count not in (before[tier] or own):
                    joins = count not in own and self._before.has_of_another(old, count)
                    anew.setdefault((text, joins), []).append(tier)
        limited = [tier for tier, counts in after.items() if counts]
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

    def of_key(
        self,
        rules: tuple[AnyRule | None, AnyRule | None],
        overrides: tuple[model.Override | None, model.Override | None],
    ) -> Iterator[str]:
        """The same of one key, which has an override in one document or in both."""
        old, new = rules
        if old is None or new is None:
            return
        anew: set[str] = set()
        for tier in self._tiers:
            was = self._before.counts_of_key(old, overrides[0], tier)
            now = self._after.counts_of_key(new, overrides[1], tier)
            if was or old.by != new.by:  # under other names all keys are new
                anew.update(text for count, text in now.items() if count not in was)
        if anew:
            yield f"usage starts anew: {', '.join(sorted(anew))}"


def _shown(tiers: list[str | None]) -> str:
    named = [tier for tier in tiers if tier is not _NO_TIER]
    parts = [f"for the tier{'s' * (len(named) > 1)} {', '.join(named)}"] if named else []
    parts += ["without a tier"] if _NO_TIER in tiers else []
    return " " + " and ".join(parts)


class _Counting:
    """By which counts a document counts requests. What many rules need is found once."""

    def __init__(self, rules: model.Rules) -> None:
        self._rules = rules
        self.named = named_tiers(rules)
        self._parsed: dict[tuple[str, Any], list[_core.Limit]] = {}
        self._of_counter: dict[str, str] = {}

    def counts(self, rule: AnyRule, tier: str | None) -> Counts:
        """The counts of requests of a tier by the rule; none where it is not for them."""
        known = self._known(tier)
        tiers: list[str] = getattr(rule, "tiers", [])
        if tiers and known not in tiers:
            return {}
        limits: Any = rule.limits
        if isinstance(limits, dict):
            limits = limits.get(known, limits.get("*", []))
        return self._counts_of(rule, limits, rule.algorithm or self._rules.algorithm)

    def counts_of_key(
        self, rule: AnyRule, override: model.Override | None, tier: str | None
    ) -> Counts:
        """The same of a key that may have an override."""
        counts = self.counts(rule, tier)
        if override is None:
            return counts
        if not counts and not self._is_for(rule, tier):
            return {}  # an override makes no rule apply that is not for the tier
        algorithm = override.algorithm or rule.algorithm or self._rules.algorithm
        return self._counts_of(rule, override.limits, algorithm)

    def has_of_another(self, rule: AnyRule, count: tuple[Any, ...]) -> bool:
        """Whether another rule counts so."""
        tiers = [*self.named, _NO_TIER]
        return any(
            count in self.counts(each, tier)
            for each in self._everyone()
            if each.id != rule.id
            for tier in tiers
        )

    def _everyone(self) -> list[AnyRule]:
        default = self._rules.default
        return [*self._rules.rules, *([] if default is None else [default])]

    def _known(self, tier: str | None) -> str | None:
        return tier if tier in self.named else self._rules.default_tier

    def _is_for(self, rule: AnyRule, tier: str | None) -> bool:
        known = self._known(tier)
        tiers: list[str] = getattr(rule, "tiers", [])
        if tiers:
            return known in tiers
        return not isinstance(rule.limits, dict) or known in rule.limits or "*" in rule.limits

    def _counts_of(self, rule: AnyRule, limits: Any, algorithm: Any) -> Counts:
        counts = {}
        for text in limit_texts(limits):
            for limit in self._limits(text, algorithm):
                known_by = (
                    rule.counter or rule.id,
                    tuple(rule.by),
                    limit.algorithm,
                    rule.carry_over,
                    self._all_limits(rule) if rule.carry_over == "reset" else "",
                )
                counts[(*known_by, limit.period_ns)] = str(limit)
        return counts

    def _limits(self, text: str, algorithm: Any) -> list[_core.Limit]:
        if text == "unlimited":
            return []
        key = text, algorithm
        found = self._parsed.get(key)
        if found is None:
            found = self._parsed[key] = list(_core.parse_many(text, algorithm=algorithm))
        return found

    def _all_limits(self, rule: AnyRule) -> str:
        """The limits of all rules of its counter: where one changes, all counts of `reset` do."""
        counter = rule.counter or rule.id
        found = self._of_counter.get(counter)
        if found is None:
            texts = []
            for each in self._everyone():
                if (each.counter or each.id) != counter or not getattr(each, "enabled", True):
                    continue
                for text in limit_texts(each.limits):
                    texts += [str(limit) for limit in self._limits(text, "token-bucket")]
            found = self._of_counter[counter] = ";".join(texts)
        return found


def _changed_names(old: list[str], new: list[str]) -> list[str]:
    """Patterns that only one side has, where they or patterns of the other side for the same paths
    have names: a path is counted by the pattern with names that it matches."""

    def changes(pattern: str, others: list[str]) -> bool:
        if pattern in others:
            return False
        shared = [other for other in others if may_share(pattern, other)]
        if "{" in pattern:
            return bool(shared) or not others
        return any("{" in other for other in shared)

    sides = ((old, new), (new, old))
    return [pattern for own, others in sides for pattern in own if changes(pattern, others)]
