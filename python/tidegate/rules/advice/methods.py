"""HTTP methods that no request has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.rules.advice.near import meant_by
from tidegate.rules.advice.places import Finding, conditions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.model import Rules

__all__ = ["find"]

_USUAL = ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
# The registry of IANA, and what caches and proxies use.
_OTHERS = (
    "ACL", "BAN", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK",
    "LOCK", "M-SEARCH", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MKREDIRECTREF",
    "MKWORKSPACE", "MOVE", "NOTIFY", "ORDERPATCH", "PRI", "PROPFIND", "PROPPATCH", "PURGE",
    "QUERY", "REBIND", "REFRESH", "REPORT", "SEARCH", "SOURCE", "SUBSCRIBE", "UNBIND",
    "UNCHECKOUT", "UNLINK", "UNLOCK", "UNSUBSCRIBE", "UPDATE", "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
)  # fmt: skip
_KNOWN = frozenset((*_USUAL, *_OTHERS))


def find(rules: Rules) -> Iterator[Finding]:
    """Methods such as `GTE`, which the registry of methods does not have."""
    for where, what in conditions(rules):
        for i, method in enumerate(what.methods):
            if method in _KNOWN:
                continue
            meant = meant_by(method, _USUAL) or _of_letters(method)
            hint = f"; did you mean {meant!r}?" if meant else f"; expected {', '.join(_USUAL)}"
            if method in ("ALL", "ANY"):
                hint = "; expected no `methods`, for every method"
            yield Finding((*where, "methods", i), f"there is no method {method!r}{hint}")


def _of_letters(method: str) -> str | None:
    """The method that has the same letters in another order, as ``GTE``."""
    return next((usual for usual in _USUAL if sorted(usual) == sorted(method)), None)
