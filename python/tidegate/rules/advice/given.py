"""Values that callers give and no rule matches, since they are slips of what rules name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tidegate.rules.advice.endpoints import METHOD_AND_PATH, URL
from tidegate.rules.advice.near import is_spelling_of, meant_by
from tidegate.rules.advice.places import conditions
from tidegate.rules.advice.tiers import named_tiers

if TYPE_CHECKING:
    from tidegate.rules.model import Rules

__all__ = ["NamedValues", "Slip"]

# A path is compared with at most as many patterns that have a wildcard.
_MOST_PATTERNS = 500


class Slip(NamedTuple):
    """A value that is likely not what was meant."""

    about: str
    """What is the same of slips of one kind."""
    message: str
    """The value, what is wrong with it, and what is expected."""


class NamedValues:
    """The tiers, endpoints and values of attributes that the rules of a document name."""

    def __init__(self, rules: Rules) -> None:
        self._default_tier = rules.default_tier
        self._tiers = named_tiers(rules)
        self._values: dict[str, set[str]] = {}
        for rule in rules.rules:
            for name, value in rule.when.items():
                self._values.setdefault(name, set()).add(value)
        endpoints: dict[str, None] = {
            e: None for _, what in conditions(rules) for e in what.endpoints
        }
        self._literal = {e.rstrip("/") or e for e in endpoints if "*" not in e and "{" not in e}
        self._folded = {e.casefold(): e for e in self._literal}
        wild = [e for e in endpoints if e.startswith("/") and ("*" in e or "{" in e)]
        self._patterns: list[tuple[str, re.Pattern[str]]] = [
            (e, _expression(e)) for e in wild[:_MOST_PATTERNS]
        ]
        self._names_paths = any(e.startswith("/") for e in endpoints)

    def slip_of(self, name: str, value: str) -> Slip | None:
        """Says what is wrong with the value of an attribute, None if nothing is known to be."""
        if name == "endpoint":
            return self._slip_of_endpoint(value)
        if name == "tier":
            meant = meant_by(value, self._tiers)
            if meant is None:
                return None
            tier = f"the default tier {self._default_tier!r}" if self._default_tier else "no tier"
            return Slip(
                value,
                f"{value!r:.80}, which no rule names; did you mean {meant!r}? Its requests have "
                f"{tier}",
            )
        if name == "priority":
            expected = "'critical', 'normal' or 'background'"
            return Slip(expected, f"{value!r:.80}, which changes nothing; expected {expected}")
        if name == "ip":
            return Slip(
                "an address",
                f"{value!r:.80}, which is no address, so no network and no list of addresses holds "
                "it; expected one such as '203.0.113.9'",
            )
        for known in sorted(self._values.get(name, ())):
            if is_spelling_of(value, known):
                return Slip(known, f"{value!r:.80}, which no rule names; did you mean {known!r}?")
        return None

    def _slip_of_endpoint(self, value: str) -> Slip | None:
        if value in self._literal or not self._names_paths:
            return None
        with_method = METHOD_AND_PATH.fullmatch(value)
        if with_method:
            method, alone = with_method[1], _path_of(with_method[2])
            shown = f"{f'{method} {alone}'!r:.200}"
            return Slip(
                "a path without a method",
                f"{shown}, which has a method; expected endpoint={alone!r:.200} and "
                f"method={method!r}",
            )
        # The log shows no query and nothing of a URL but its path: these may have secrets.
        path = _path_of(value)
        url = URL.fullmatch(path)
        if url:
            return Slip(
                "a path without a host",
                f"{(url[1] or '/')!r:.200}, which came in a URL; expected the path alone",
            )
        if "://" in path:
            return None
        shown = f"{path!r:.200}"
        if path != value and value.startswith("/"):
            return Slip(
                "a path without a query",
                f"{shown}, which came with a query, so rules for it do not apply; expected the "
                "path alone",
            )
        if not path.startswith("/"):
            rule = self._endpoint_of("/" + path)
            if rule is None:
                return None
            return Slip(
                f"no slash before {rule}",
                f"{shown}, so rules for {rule!r:.200} do not apply; expected {'/' + path!r:.200}",
            )
        rule = self._endpoint_of(path, ignores_case=True)
        if rule is None or self._endpoint_of(path) == rule:
            return None
        return Slip(
            rule,
            f"{shown}, which differs from the endpoint {rule!r:.200} of rules in case, so they do "
            "not apply; expected the case of the rules",
        )

    def _endpoint_of(self, path: str, *, ignores_case: bool = False) -> str | None:
        """An endpoint of the rules that the path meets, the literal one first."""
        literal = path.rstrip("/") or path
        if literal in self._literal:
            return literal
        if ignores_case and literal.casefold() in self._folded:
            return self._folded[literal.casefold()]
        for endpoint, expression in self._patterns:
            if expression.fullmatch(literal):
                return endpoint
        if ignores_case:
            for endpoint, expression in self._patterns:
                if re.fullmatch(expression.pattern, literal, re.IGNORECASE):
                    return endpoint
        return None


def _path_of(text: str) -> str:
    return re.split("[?#]", text)[0]


def _expression(pattern: str) -> re.Pattern[str]:
    parts = []
    for part in pattern.split("/")[1:]:
        if part == "**":
            parts.append("(/.*)?")
        elif part == "*" or (part.startswith("{") and part.endswith("}")):
            parts.append("/[^/]+")
        else:
            parts.append("/" + re.escape(part))
    return re.compile("".join(parts))
