"""What requests are given and no rule reads or matches, since it is a slip of what rules name."""

from __future__ import annotations

import logging

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidegate.rules.rule_set import RuleSet

__all__ = ["Slips"]

log = logging.getLogger("tidegate")

# The most slips that are logged of one rule set.
_MOST_LOGGED = 100


class Slips:
    """Called by the core with what no rule of its set reads or matches.

    It calls attribute() once for each of the first names that no rule reads, as `usr`, and value()
    for odd values, rarely for one value again. What is near to what rules name is logged, once.
    With `of_web`, endpoints and addresses are those that clients send, and are not looked at.
    """

    def __init__(self, rules: RuleSet, *, of_web: bool = False) -> None:
        self._rules = rules
        self.of_web = of_web
        self._named: Any = None
        self._logged: set[tuple[str, str]] = set()

    def attribute(self, name: str) -> None:
        from tidegate.rules.advice.attributes import meant_by_caller

        meant = meant_by_caller(name, self._rules._compiled._attributes)
        if meant is not None and name not in self._rules.model.attributes:
            log.warning(
                "a request was given %r, which no rule reads; did you mean %r? If the service "
                "gives both, name them in the rules' `attributes`", name, meant,
            )  # fmt: skip

    def value(self, name: str, value: bytes) -> bool:
        """Returns whether the value is a slip of what the rules name."""
        if self.of_web and name in ("endpoint", "ip"):
            return False
        if self._named is None:
            from tidegate.rules.advice.given import NamedValues

            self._named = NamedValues(self._rules.model)
        found = self._named.slip_of(name, value.decode("utf-8", "replace"))
        if found is None:
            return False
        if (name, found.about) not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add((name, found.about))
            log.warning("a request was given the %s %s", name, found.message)
        return True
