"""Finds fields of limits where a mapping has tiers: ``limit: {limit: 3/minute, burst: 5}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from tidegate.types import Algorithm

__all__ = ["fields_for_tiers"]

_LIMIT = ("limit", "limits")
# The fields of a rule that a limit may seem to have.
_OF_RULES = frozenset(
    ("algorithm", "by", "carry_over", "counter", "counts", "headers", "id", "reserve", "shadow")
)
_FIELDS = _OF_RULES | {*_LIMIT, "burst", "count", "max_debt", "name", "oversize", "period"}


def fields_for_tiers(data: Mapping[str, Any], rule: Mapping[str, Any]) -> str | None:
    """Says what is wrong with the limits of a rule of the document `data`, if their mapping has
    fields instead of tiers. A tier that the document names is one, whatever its name."""
    limits = rule.get("limits")
    if not isinstance(limits, dict) or _FIELDS.isdisjoint(limits):
        return None
    tiers = _tiers_of(data)
    fields = [name for name in limits if name in _FIELDS and name not in tiers]
    is_limit = len(fields) == len(limits) and any(name in _LIMIT for name in fields)
    if not (is_limit or any(_is_no_limit(limits[name]) for name in fields)):
        return None
    moved = [name for name in fields if name in _OF_RULES]
    return (
        f"has {_joined(fields)}, which {'are no tiers' if fields[1:] else 'is no tier'}, and a "
        "mapping gives limits by tier; expected a limit such as '100/minute' or '10/second burst "
        "40'" + (f", and {_joined(moved)} beside it in the rule" if moved else "")
    )


def _is_no_limit(value: Any) -> bool:
    return not isinstance(value, (str, list)) or value in get_args(Algorithm)


def _tiers_of(data: Mapping[str, Any]) -> list[Any]:
    """The tiers that the document names elsewhere than in limits."""
    rules = data.get("rules")
    rules = [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    conditions = [rule.get(name) for rule in rules for name in ("tier", "tiers")]
    tiers = [data.get("default_tier")]
    for given in (data.get("tiers"), *conditions):
        tiers += given if isinstance(given, list) else [given]
    return tiers


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
