"""Fields of lists that are taken for attributes, since lists have no such field."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidegate.rules.advice.attributes import attributes_of_lists, known_attributes
from tidegate.rules.advice.near import is_slip_of, is_spelling_of
from tidegate.rules.advice.places import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.model import Rules

__all__ = ["find"]

_FIELDS = (
    "endpoint", "endpoints", "from", "id", "ip", "method", "methods", "network", "networks",
    "reason", "tier", "tiers", "until",
)  # fmt: skip
# By the field that is meant. The words are the attributes of nobody.
_MEANT = {
    "until": (
        "expire", "expires", "expires_at", "expires_on", "expiration", "expiry", "ends", "ends_at",
        "end_time", "end_date", "valid_until", "blocked_until", "till",
    ),
    "from": (
        "begins", "begins_at", "starts", "starts_at", "start_time", "start_date", "valid_from",
    ),
    "reason": (
        "added_at", "added_by", "author", "comment", "comments", "created_at", "created_by",
        "description", "note", "notes", "remark", "ticket", "why",
    ),
    "endpoint": ("path", "paths", "route", "routes", "uri", "url", "urls"),
    "network": ("cidr", "cidrs", "subnet", "subnets"),
    "method": ("verb", "http_method"),
}  # fmt: skip
# These may be names of attributes: a value that is a time says that they are not.
_MEANT_OF_TIMES = {
    "until": ("end", "to", "ttl"),
    "from": ("begin", "since", "start"),
}
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
_LASTING = frozenset(("duration", "for", "ttl"))
_DURATION = re.compile(r"\d+ ?([smhdw]|(sec|second|min|minute|hour|day|week)s?)?")
# Fields of other parts of a document, or of other programs.
_NO_FIELDS = frozenset(("action", "disabled", "enabled", "enable", "rule"))
# Slips of other fields too, which are attributes in their own right.
_OTHERS = frozenset(("form", "team", "pier", "season", "tie", "timer"))


def find(rules: Rules) -> Iterator[Finding]:
    """`{user: mallory, expires_at: 2030-01-31}` blocks whoever has the attribute `expires_at`."""
    known: set[str] | None = None
    for where, name, value in attributes_of_lists(rules):
        meant = _meant(name, value)
        if meant is None and name not in _NO_FIELDS:
            continue
        if known is None:
            known = known_attributes(rules) | set(rules.attributes)
        if name not in known:
            yield Finding(
                where,
                f"{name!r} is no field of a list, so the entry is only for requests with an "
                f"attribute {name!r}; "
                + (f"did you mean {meant!r}?" if meant else "expected the entry without it"),
            )


def _meant(name: str, value: str) -> str | None:
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower())
    for words, applies in ((_MEANT, True), (_MEANT_OF_TIMES, bool(_TIME.fullmatch(value)))):
        for field, names in words.items():
            if applies and plain in names:
                return field
    if plain in _LASTING and _DURATION.fullmatch(value):
        return "until"
    if name in _OTHERS and not _TIME.fullmatch(value):
        return None
    return next(
        (field for field in _FIELDS if is_spelling_of(name, field) or is_slip_of(name, field)), None
    )
