"""Which counts a caller has alone, and which it shares with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tidegate.rules.rule_set import RuleSet

__all__ = ["rules_of_caller"]

_OF_REQUESTS = frozenset(("endpoint", "method", "priority", "tier"))


def rules_of_caller(rules: RuleSet, attributes: Mapping[str, Any]) -> list[str]:
    """The ids of the rules that reset() is about, where it names none, if they apply.

    A count is shared where a rule counts by what says less of the caller than an attribute that is
    given, and that any rule counts by: least say all requests together, then the endpoint and
    others of the request, then the address, then a user, an API key and others.
    """
    everyone: list[Any] = [rule for rule in rules.rules if rule.enabled]
    everyone += [] if rules.default is None else [rules.default]
    given = {name for name, value in attributes.items() if value is not None}
    least = max((_says_of_caller(given.intersection(rule.by)) for rule in everyone), default=0)
    return [rule.id for rule in everyone if _says_of_caller(rule.by) >= least]


def _says_of_caller(names: Iterable[str]) -> int:
    return max((1 if n in _OF_REQUESTS else 2 if n == "ip" else 3 for n in names), default=0)
