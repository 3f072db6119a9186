"""Values that are taken as they are written, and were meant otherwise."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import TYPE_CHECKING

from tidegate.rules.advice.attributes import known_attributes
from tidegate.rules.advice.places import LISTS, Finding, conditions, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.advice.places import Where
    from tidegate.rules.model import Rules

__all__ = ["PLACEHOLDER", "find", "hidden_character", "is_network", "of_text"]

_PRIORITIES = ("critical", "normal", "background")
# What templates and shells fill in before a program reads the text.
PLACEHOLDER = re.compile(r"\$\{\w*\}|\$[A-Z_]+|\{\{.*\}\}|%\(\w+\)s|%s")


def find(rules: Rules) -> Iterator[Finding]:
    """Wildcards, networks, white space and others in the values of attributes."""
    known: set[str] | None = None
    for where, what in conditions(rules):
        for place, name, value in values_of(where, what):
            if name == "priority" and value not in _PRIORITIES:
                yield Finding(
                    place,
                    f"no request has the priority {value!r:.80}; expected one of "
                    f"{', '.join(_PRIORITIES)}",
                )
            if where[0] in LISTS and _is_address(value):
                known = known or known_attributes(rules) | set(rules.attributes)
                if name not in known:
                    yield Finding(
                        place,
                        f"{name} is compared with {value!r} as a text, not as an address; expected "
                        "it in 'ip'",
                    )
            if is_network(value):
                expected = "networks" if where[0] in ("rules", "costs") else "ip"
                yield Finding(
                    place,
                    f"{name} is compared with {value!r} as a text, not as a network; expected it "
                    f"in {expected!r}",
                )
            yield from of_text(place, name, value)


def of_text(where: Where, name: str, value: str) -> Iterator[Finding]:
    if not value:
        yield Finding(where, f"{name} is compared with a text of no characters; expected its value")
    elif value != value.strip():
        yield Finding(
            where,
            f"{name} is compared with {value!r:.80}, white space and all; expected "
            f"{value.strip()!r:.80}",
        )
    elif hidden_character(value):
        yield Finding(
            where,
            f"{name} is compared with {value!a:.80}, whose character {hidden_character(value)!a} "
            "nobody sees; expected the value without it",
        )
    elif len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        yield Finding(
            where,
            f"{name} is compared with {value:.80}, quotes and all; expected {value[1:-1]!r:.80}",
        )
    elif PLACEHOLDER.search(value):
        yield Finding(
            where,
            f"{name} is compared with {value!r:.80}, which nothing fills in here; expected a value",
        )
    elif "*" in value and not value.startswith("/"):
        yield Finding(
            where,
            f"{name} is compared with {value!r:.80} as a text, in which '*' stands for itself; "
            "expected a value",
        )


def hidden_character(text: str) -> str | None:
    """A character of control or format, such as a zero-width space; None without one."""
    if text.isascii() and text.isprintable():
        return None
    return next((each for each in text if unicodedata.category(each) in ("Cc", "Cf")), None)


def _is_address(text: str) -> bool:
    if not text[:1].isalnum() and text[:1] != ":":
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_network(text: str) -> bool:
    """Whether it is an address with the length of a prefix."""
    if "/" not in text:
        return False
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
