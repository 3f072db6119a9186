"""Which rules apply to a request, decided the slow and obvious way: what the core is held to."""

from __future__ import annotations

import ipaddress
from typing import Any


def parts_of(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def is_any(part: str) -> bool:
    return part == "*" or (part.startswith("{") and part.endswith("}"))


def matches(pattern: str, endpoint: str | None) -> bool:
    if pattern == "**":
        return True
    if endpoint is None:
        return False
    if not pattern.startswith("/") or not endpoint.startswith("/"):
        return pattern == endpoint
    wanted, given = parts_of(pattern), parts_of(endpoint)
    below = bool(wanted) and wanted[-1] == "**"
    if below:
        wanted = wanted[:-1]
        given_head = given[: len(wanted)]
        if len(given) < len(wanted):
            return False
        given = given_head
    return len(wanted) == len(given) and all(is_any(w) or w == g for w, g in zip(wanted, given))


def endpoint_rank(pattern: str | None) -> list[int]:
    """Part by part: named, any, `**`; a pattern without a path last."""
    if pattern is None or pattern == "**":
        return [-1]
    if not pattern.startswith("/"):
        return [9]
    return [0 if part == "**" else 1 if is_any(part) else 2 for part in parts_of(pattern)] + [3]


def network_of(text: str) -> tuple[ipaddress.IPv6Network, int]:
    network = ipaddress.ip_network(text)
    if network.version == 4:
        mapped = ipaddress.ip_network(f"::ffff:{network.network_address}/{network.prefixlen + 96}")
        assert isinstance(mapped, ipaddress.IPv6Network)
        return mapped, mapped.prefixlen
    return network, network.prefixlen


def address_of(text: str | None) -> ipaddress.IPv6Address | None:
    if text is None:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if address.version == 4:
        return ipaddress.IPv6Address(f"::ffff:{address}")
    if address in ipaddress.ip_network("64:ff9b::/96"):
        return ipaddress.IPv6Address(f"::ffff:{ipaddress.IPv4Address(address.packed[12:])}")
    return address


def ranks(rule: dict[str, Any], request: dict[str, str], tiers: list[str], default: str | None):
    """How specific the rule is for this request, once for each way to match it."""
    tier = request.get("tier")
    tier = tier if tier in tiers else default
    by_tier = isinstance(rule["limits"], dict)
    allowed_tiers = rule.get("tiers") or (
        [] if not by_tier or "*" in rule["limits"] else list(rule["limits"])
    )
    methods = [method.upper() for method in rule.get("methods", [])]
    method = request.get("method", "").upper()
    if methods and method not in methods and not (method == "HEAD" and "GET" in methods):
        return
    if allowed_tiers and tier not in allowed_tiers:
        return
    if any(request.get(name) != value for name, value in rule.get("when", {}).items()):
        return
    if any(request.get(name) is None for name in names_of(rule)):
        return
    for pattern in rule.get("endpoints") or [None]:
        if pattern is not None and not matches(pattern, request.get("endpoint")):
            continue
        for network in rule.get("networks") or [None]:
            prefix = -1
            if network is not None:
                ip = address_of(request.get("ip"))
                net, prefix = network_of(network)
                is_ipv4 = ip is not None and ip.ipv4_mapped is not None
                if ip is None or ip not in net or (is_ipv4 and prefix < 96):
                    continue
            yield (
                endpoint_rank(pattern),
                len(rule.get("when", {})),
                prefix,
                bool(allowed_tiers),
                bool(methods),
                method == "HEAD" and "HEAD" in methods,
            )


def names_of(rule: dict[str, Any]) -> list[str]:
    return [] if rule.get("by", "global") == "global" else rule["by"].split("+")


def dimension_of(rule: dict[str, Any]) -> tuple[Any, ...]:
    """What rules compete in: all of one dimension that a request meets but one do not apply."""
    if rule.get("also"):
        return ("also", rule["id"])
    has_quota = "quota" in repr(rule["limits"])
    counts = rule.get("counts", "cost")
    return (frozenset(names_of(rule)), counts, has_quota, rule.get("shadow", False))


def applying(document: dict[str, Any], request: dict[str, str]) -> set[str]:
    """The ids of the rules that apply."""
    tiers = list(document.get("tiers", []))
    best: dict[tuple[Any, ...], tuple[Any, str]] = {}
    shadow = {rule["id"]: rule.get("shadow", False) for rule in document["rules"]}
    for rule in document["rules"]:
        found = list(ranks(rule, request, tiers, document.get("default_tier")))
        if not found:
            continue
        dimension = dimension_of(rule)
        candidate = (max(found), rule["id"])
        if dimension not in best or candidate[0] > best[dimension][0]:
            best[dimension] = candidate
    winners = {id for _, id in best.values()}
    replaced = {
        other
        for rule in document["rules"]
        if rule["id"] in winners
        for other in rule.get("replaces", [])
        if shadow[other] == shadow[rule["id"]]
    }
    return winners - replaced
