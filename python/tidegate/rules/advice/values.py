"""Values that are taken as they are written, and were meant otherwise."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from tidegate.rules.advice.places import Finding, conditions, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.advice.places import Where
    from tidegate.rules.model import Rules

__all__ = ["find", "is_network", "of_text"]


def find(rules: Rules) -> Iterator[Finding]:
    """Wildcards, networks and white space in the values of attributes."""
    for where, what in conditions(rules):
        for place, name, value in values_of(where, what):
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
    elif "*" in value and not value.startswith("/"):
        yield Finding(
            where,
            f"{name} is compared with {value!r:.80} as a text, in which '*' stands for itself; "
            "expected a value",
        )


def is_network(text: str) -> bool:
    """Whether it is an address with the length of a prefix."""
    if "/" not in text:
        return False
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
