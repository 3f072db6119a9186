"""Attributes that no caller sets, since their names are slips."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tidegate.rules.advice.near import is_slip_of, is_spelling_of, meant_by
from tidegate.rules.advice.places import LISTS, Finding, attributes_of, conditions, values_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tidegate.rules.advice.places import Where
    from tidegate.rules.model import Rules

__all__ = ["find", "meant_by_caller"]

_HAVE_A_MEANING = ("endpoint", "ip", "method", "tier", "priority")
_USUAL = (*_HAVE_A_MEANING, "user", "api_key", "tenant")
_MEANT = {
    **dict.fromkeys(("ips", "ip_addr", "ipaddr", "ip_address", "ipaddress", "IP", "Ip"), "ip"),
    **dict.fromkeys(("client_ip", "remote_addr", "remote_address", "remote_ip"), "ip"),
    "http_method": "method",
    **dict.fromkeys(("all", "any", "everybody", "everyone", "nobody", "none"), "global"),
}
# Words that are near to a usual name, and are names of other things.
_OTHERS = frozenset(("app_key", "apikey", "apiKey", "timer", "tiger", "tie", "use", "used", "uses"))


def find(rules: Rules) -> Iterator[Finding]:
    """Names such as `usr`, `Tenant` and `ips`, unless the document declares its attributes."""
    if rules.attributes:  # then a name that is not declared is refused
        return
    places = list(_places(rules))
    uses = Counter(name for _, name, _ in places)
    for where, name, counts in places:
        if name == "global":
            yield Finding(
                where,
                "'global' is an attribute here, which no request has; expected it alone, for one "
                "count of all requests, or without it the names of attributes",
            )
            continue
        meant = _meant(name, uses)
        if meant is not None and (meant != "global" or counts):
            yield Finding(
                where,
                f"no request is known to have the attribute {name!r}; did you mean {meant!r}? If "
                "the service gives it, name it in `attributes`",
            )


def _places(rules: Rules) -> Iterator[tuple[Where, str, bool]]:
    """Each use of an attribute: its place, its name, and whether something counts by it."""
    for where, what in conditions(rules):
        for name in getattr(what, "by", ()):
            yield (*where, "by"), name, True
        for place, name, _ in values_of(where, what):
            yield place, name, False
    default: Any = rules.default
    for name in default.by if default else ():
        yield ("default", "by"), name, True


def _meant(name: str, uses: Counter[str]) -> str | None:
    if name in _USUAL:
        return None
    if name in _MEANT:
        return _MEANT[name]
    if is_spelling_of(name, "global"):
        return "global"
    if name not in _OTHERS:
        # A name of the service's own may be spelled in its own way: `apikey` beside no `api_key`.
        spellings = [other for other in (*_HAVE_A_MEANING, "user") if is_spelling_of(name, other)]
        slips = [other for other in _USUAL if is_slip_of(name, other)]
        if spellings or slips:
            return (spellings or slips)[0]
    more_used = [other for other, times in uses.items() if times > uses[name] and len(other) > 4]
    return meant_by(name, more_used)


def meant_by_caller(name: str, read: Iterable[str]) -> str | None:
    """The attribute that a request's `name` is likely to be meant for, of those that rules read."""
    known = {*_HAVE_A_MEANING, *read}
    if _MEANT.get(name) in known:
        return _MEANT[name]
    return None if name in _USUAL or name in _OTHERS else meant_by(name, known)


def known_attributes(rules: Rules) -> set[str]:
    """The attributes that rules count by or ask for, and the usual ones."""
    known = set(_USUAL)
    for where, what in conditions(rules):
        if where[0] not in LISTS:
            known.update(getattr(what, "by", ()), getattr(what, "when", ()))
    return known


def attributes_of_lists(rules: Rules) -> Iterator[tuple[Where, str, str]]:
    """The place, name and value of each attribute of an entry of a list."""
    for section in LISTS:
        for i, entry in enumerate(getattr(rules, section)):
            for name, value in attributes_of(entry).items():
                yield (section, i, name), name, value
