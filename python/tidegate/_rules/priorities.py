"""The priority of requests, for what explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate import _core
from tidegate._rules.compile import condition_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tidegate._rules import model

__all__ = ["Priorities"]

_NORMAL = "normal"
_PRIORITIES = ("critical", _NORMAL, "background")


class Priorities:
    """Finds the priority of a request by the costs of a document.

    The core says what a request costs, and keeps its priority to itself. So a rule set of the
    costs alone has in place of each cost its number: what a request costs by that one says which
    entry is about it. Made when it is asked for the first time.
    """

    def __init__(self, rules: model.Rules) -> None:
        self._costs = list(rules.costs)
        self._tiers = list(dict.fromkeys(rules.tiers or _named_tiers(rules)))
        self._default_tier = rules.default_tier or ""
        self._matcher: _core.RuleLimiter | None = None

    def of(self, attributes: Mapping[str, Any]) -> str:
        """``critical``, ``normal`` or ``background``."""
        given = attributes.get("priority")
        said = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
        if said in _PRIORITIES:
            return str(said)
        if all(cost.priority == _NORMAL for cost in self._costs):
            return _NORMAL
        if self._matcher is None:
            self._matcher = self._made()
        number = self._matcher._match(dict(attributes))[2] - _FIRST
        return _NORMAL if number < 0 else self._costs[number].priority

    def _made(self) -> _core.RuleLimiter:
        numbered = [
            {"cost": number, "priority": _NORMAL, **condition_of(cost)}
            for number, cost in enumerate(self._costs, _FIRST)
        ]
        core, problems = _core.RuleSet._compile(
            {
                "tiers": self._tiers,
                "default_tier": self._default_tier,
                "rules": [],
                "otherwise": None,
                "overrides": [],
                "costs": numbered,
                "lists": [],
            }
        )
        assert core is not None, problems
        return _core.RuleLimiter(core, _core.MemoryStore(1), None, "", frozenset())


# Requests that no entry is about cost 1.
_FIRST = 2


def _named_tiers(rules: model.Rules) -> Iterator[str]:
    for rule in rules.rules:
        yield from rule.tiers
    limited: list[Any] = [*rules.rules, rules.default]
    for each in limited:
        if each is not None and isinstance(each.limits, dict):
            yield from (tier for tier in each.limits if tier != "*")
    entries: list[Any] = [*rules.costs, *rules.allow, *rules.block]
    for entry in entries:
        yield from entry.tiers
