"""Finds what changes from one document of rules to another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Union

from tidegate.rules.carried import Carried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules import model

    AnyRule = Union[model.Rule, model.Default]

__all__ = ["differences"]


def differences(before: model.Rules, after: model.Rules) -> list[str]:
    """Lines: ``+`` what is added, ``-`` what is removed, ``~`` what changes, field by field.

    Both are accepted by compile_rules(). There are no lines where the rules say the same.
    """
    carried = Carried(before, after)
    return [
        *_plain_fields(before, after),
        *_rules(before, after, carried),
        *_entries("cost", before.costs, after.costs),
        *_overrides(before, after, carried),
        *_entries("allowed", before.allow, after.allow),
        *_entries("blocked", before.block, after.block),
    ]


def _plain(fields: Any) -> dict[str, Any]:
    plain: dict[str, Any] = fields.model_dump(mode="json", by_alias=True)
    if "limits" in plain:
        plain["limits"] = _alike(plain["limits"])
    return plain


def _alike(limits: Any) -> Any:
    """Limits that say the same are written in the same way."""
    if isinstance(limits, dict):
        by_tier = {tier: _alike(of_tier) for tier, of_tier in limits.items()}
        return by_tier["*"] if set(by_tier) == {"*"} else by_tier
    return [limits] if isinstance(limits, str) else limits


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value) or "none"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _changes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for field, value in new.items():
        if old[field] == value:
            continue
        if field == "limits" and isinstance(value, dict) and isinstance(old[field], dict):
            for tier in {**old[field], **value}:
                was, now = old[field].get(tier, []), value.get(tier, [])
                if was != now:
                    yield f"limits.{tier}: {_shown(was)} -> {_shown(now)}"
        elif field == "by":
            yield f"by: {_by(old[field])} -> {_by(value)}"
        else:
            yield f"{field}: {_shown(old[field])} -> {_shown(value)}"


def _by(names: list[str]) -> str:
    return "+".join(names) or "global"


def _plain_fields(old: model.Rules, new: model.Rules) -> Iterator[str]:
    for field in ("attributes", "tiers", "default_tier", "algorithm"):
        was, now = getattr(old, field), getattr(new, field)
        if was != now:
            yield f"~ {field}: {_shown(was)} -> {_shown(now)}"


def _everyone(rules: model.Rules) -> dict[str, AnyRule]:
    everyone: list[AnyRule] = [*rules.rules, *([rules.default] if rules.default else [])]
    return {rule.id: rule for rule in everyone}


def _rules(before: model.Rules, after: model.Rules, carried: Carried) -> Iterator[str]:
    old, new = _everyone(before), _everyone(after)
    for id, rule in old.items():
        if id not in new:
            yield f"- rule {id}: {_shown(rule.limits)} by {_by(rule.by)}"
    for id, rule in new.items():
        if id not in old:
            yield f"+ rule {id}: {_shown(rule.limits)} by {_by(rule.by)}"
            continue
        changes = [] if old[id] is rule else list(_changes(_plain(old[id]), _plain(rule)))
        changes += carried.of_rule(old[id], rule)
        if changes:
            yield f"~ rule {id}"
            yield from (f"    {change}" for change in changes)


def _entries(name: str, old: list[Any], new: list[Any]) -> Iterator[str]:
    was = [_entry(each) for each in old]
    now = [_entry(each) for each in new]
    yield from (f"- {name}: {each}" for each in was if each not in now)
    yield from (f"+ {name}: {each}" for each in now if each not in was)


def _entry(entry: Any) -> str:
    plain = entry.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    return ", ".join(f"{field} {_shown(value)}" for field, value in plain.items())


def _overrides(before: model.Rules, after: model.Rules, carried: Carried) -> Iterator[str]:
    old, new = ({_override(each): each for each in rules.overrides} for rules in (before, after))
    old_rules, new_rules = _everyone(before), _everyone(after)

    def anew(name: str) -> list[str]:
        overrides = old.get(name), new.get(name)
        rule = next(each.rule for each in overrides if each is not None)
        rules = old_rules.get(rule), new_rules.get(rule)
        return list(carried.of_key(rules, overrides))

    for name, override in old.items():
        if name not in new:
            yield f"- override of {name}: {_shown(override.limits)}"
            yield from (f"    {line}" for line in anew(name))
    for name, override in new.items():
        if name not in old:
            yield f"+ override of {name}: {_shown(override.limits)}"
            yield from (f"    {line}" for line in anew(name))
            continue
        changes = [*_changes(_plain(old[name]), _plain(override)), *anew(name)]
        if changes:
            yield f"~ override of {name}"
            yield from (f"    {change}" for change in changes)


def _override(override: model.Override) -> str:
    key = override.key
    if isinstance(key, dict):
        key = ", ".join(f"{name} {value}" for name, value in sorted(key.items()))
    return f"{override.rule} for {key}"
