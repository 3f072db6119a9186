"""Overrides of keys that their rules never count."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from tidegate.rules.advice.patterns import canonical, counted_as, covers
from tidegate.rules.advice.places import Finding
from tidegate.rules.advice.values import is_network, of_text
from tidegate.rules.pauses import pause_at_times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules.advice.places import Where
    from tidegate.rules.model import Rules

__all__ = ["find"]

_COUNTED_PREFIX = 64


def find(rules: Rules) -> Iterator[Finding]:
    """A network as the key of a rule by ip, and an endpoint that the rule is not for."""
    everyone: list[Any] = [*rules.rules, *([rules.default] if rules.default else [])]
    known = {rule.id: (rule.by, getattr(rule, "endpoints", [])) for rule in everyone}
    for i, override in enumerate(rules.overrides):
        pause_at_times()
        by, endpoints = known[override.rule]
        where: Where = ("overrides", i, "key")
        key = override.key
        values = key if isinstance(key, dict) else {by[0]: key}
        for name, value in values.items():
            place: Where = (*where, name) if isinstance(key, dict) else where
            yield from of_text(place, name, value)
            if name != "ip" and is_network(value):
                yield Finding(
                    place,
                    f"{name} is compared with {value!r} as a text, not as a network; expected "
                    f"a value of {name}",
                )
        if "ip" in values:
            message = _of_address(values["ip"])
            if message is not None:
                yield Finding((*where, "ip") if isinstance(key, dict) else where, message)
        endpoint = values.get("endpoint")
        if endpoint and endpoints:
            message = _of_endpoint(override.rule, endpoints, endpoint)
            if message is not None:
                yield Finding((*where, "endpoint") if isinstance(key, dict) else where, message)


def _of_endpoint(rule: str, endpoints: list[str], endpoint: str) -> str | None:
    fitting = [one for one in endpoints if covers(one, endpoint)]
    if not fitting:
        return (
            f"the rule {rule!r} is not for the endpoint {endpoint!r:.120}; expected one of "
            f"{', '.join(endpoints):.200}"
        )
    counted = {counted_as(one, endpoint) for one in fitting}
    if canonical(endpoint) in counted:
        return None
    return (
        f"the rule {rule!r} counts the endpoint {endpoint!r:.120} together with others; expected "
        f"{' or '.join(sorted(counted)):.200}, or a rule for it"
    )


def _of_address(value: str) -> str | None:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        pass
    else:
        return None
    if is_network(value):
        network = ipaddress.ip_network(value, strict=False)
        if network.version == 6 and network.prefixlen == _COUNTED_PREFIX:
            return None
        return (
            f"is the network {value}, and the rule counts each address for itself; expected one "
            "address, or a rule with `networks`"
        )
    return f"is {value!r:.80}, which is no address; expected one such as 203.0.113.9"
