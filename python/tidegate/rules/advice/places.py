"""The conditions of a document, each with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.rules.pauses import pause_at_times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.model import ListEntry, Rules

    Where = tuple[str | int, ...]

__all__ = [
    "LISTS",
    "Finding",
    "attributes_of",
    "conditions",
    "limit_texts",
    "rules_in_force",
    "values_of",
]

LISTS = ("allow", "block")
_SECTIONS = ("rules", "costs", *LISTS)


class Finding(NamedTuple):
    """A likely mistake."""

    where: Where
    message: str


class Placed(NamedTuple):
    """A rule, a cost or an entry of a list."""

    where: Where
    what: Any
    """A model.Rule, model.Cost or model.ListEntry."""


def conditions(rules: Rules) -> Iterator[Placed]:
    """All that has conditions: rules, costs, and entries of lists."""
    for section in _SECTIONS:
        for i, what in enumerate(getattr(rules, section)):
            pause_at_times()
            if getattr(what, "enabled", True):
                yield Placed((section, i), what)


def rules_in_force(rules: Rules) -> Iterator[Placed]:
    """The rules that are enabled; the default is not one of them."""
    for i, rule in enumerate(rules.rules):
        pause_at_times()
        if rule.enabled:
            yield Placed(("rules", i), rule)


def values_of(where: Where, what: Any) -> Iterator[tuple[Where, str, str]]:
    """The place, the name and the value of each attribute that a condition asks for."""
    if where[0] in LISTS:
        for name, value in attributes_of(what).items():
            yield (*where, name), name, value
    else:
        for name, value in what.when.items():
            yield (*where, "when", name), name, value


def limit_texts(limits: str | list[str] | dict[str, str | list[str]]) -> Iterator[str]:
    """The limits of a rule as they are written, of all tiers."""
    for given in limits.values() if isinstance(limits, dict) else [limits]:
        yield from [given] if isinstance(given, str) else given


def attributes_of(entry: ListEntry) -> dict[str, str]:
    """The attributes of an entry of a list, which are all fields that the model does not have."""
    return entry.__pydantic_extra__ or {}
