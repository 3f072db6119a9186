"""How many callers an entry of the lists is for: those for everybody need the role admin."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Entry = dict[str, Any]

__all__ = ["FEW_VALUES", "are_for_everybody", "is_for_everybody"]

FEW_VALUES = frozenset({"method", "methods", "tier", "tiers", "priority"})
"""Attributes and fields that tell neither callers nor endpoints apart."""

# The addresses of the widest networks that a provider or a company has: a /8, and a /19 of IPv6.
_MOST_ADDRESSES = {4: 2**24, 6: 2**109}
# The entries of networks of one list have at most so many times that.
_MOST_TOGETHER = 4
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_NETWORKS = ("ip", "network", "networks")


def is_for_everybody(entry: Entry) -> bool:
    """Whether no condition of the entry tells callers or endpoints apart."""
    conditions = _conditions(entry)
    for name in _NETWORKS:
        if _are_wide(_listed(entry.get(name))):
            conditions.discard(name)
    return not conditions


def are_for_everybody(known: Iterable[Entry], added: Entry, now: dt.datetime) -> bool:
    """Whether an entry that is for networks alone is for everybody together with others like it.

    Known entries that have ended do not count, nor do those that are for everybody by themselves:
    an admin made them. Their `until` is a time in ISO 8601, with its zone.
    """
    if not _is_for_networks(added):
        return False
    networks = {*_networks_of(added)}
    for entry in known:
        until = entry.get("until")
        is_over = until is not None and dt.datetime.fromisoformat(until) <= now
        if not is_over and _is_for_networks(entry):
            networks.update(_networks_of(entry))
    return _are_wide(networks, _MOST_TOGETHER)


def _is_for_networks(entry: Entry) -> bool:
    return _conditions(entry).issubset(_NETWORKS) and not is_for_everybody(entry)


def _networks_of(entry: Entry) -> Iterator[str]:
    for name in _NETWORKS:
        yield from map(str, _listed(entry.get(name)))


def _conditions(entry: Entry) -> set[str]:
    """The fields of the entry that may tell callers or endpoints apart."""
    asked = {name for name, value in entry.items() if value not in (None, "", [], {})}
    asked -= {"id", "reason", "from", "begin", "until"}
    asked -= FEW_VALUES
    for name in ("endpoint", "endpoints"):
        if any(_has_no_name(each) for each in _listed(entry.get(name))):
            asked.discard(name)
    return asked


def _has_no_name(pattern: Any) -> bool:
    """Whether each part of the pattern of endpoints may be any."""
    parts = [part for part in str(pattern).split("/") if part]
    return bool(parts) and all(
        part in ("*", "**") or (part.startswith("{") and part.endswith("}")) for part in parts
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _are_wide(texts: Iterable[Any], times: int = 1) -> bool:
    """Whether networks together have more than so many `times` the addresses of the widest."""
    addresses = {4: 0, 6: 0}
    for text in {str(text) for text in texts}:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:  # the rules say what is wrong with it
            continue
        # The rules take addresses of IPv4 for those that are mapped to IPv6.
        if network.version == 6 and network.overlaps(_MAPPED):
            addresses[4] += min(network.num_addresses, _MAPPED.num_addresses)
        else:
            addresses[network.version] += network.num_addresses
    return any(addresses[version] > most * times for version, most in _MOST_ADDRESSES.items())
