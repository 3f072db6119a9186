"""Attributes that requests have, and no rule reads, since their names are slips."""

from __future__ import annotations

import logging

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tidegate.rules.rule_set import RuleSet

__all__ = ["UnreadAttributes"]

log = logging.getLogger("tidegate")


class UnreadAttributes:
    """Called by the core with the name of an attribute that no rule of its set reads.

    It calls once for each of the first names that it gets, as `usr`, and then no more: a name that
    is near to one that rules read is logged. Others are for rules to come.
    """

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules

    def __call__(self, name: str) -> None:
        from tidegate.rules.advice.attributes import meant_by_caller

        meant = meant_by_caller(name, self._rules._compiled._attributes)
        if meant is not None and name not in self._rules.model.attributes:
            log.warning(
                "a request was given %r, which no rule reads; did you mean %r? If the service "
                "gives both, name them in the rules' `attributes`", name, meant,
            )  # fmt: skip
