"""Overrides of keys that their rules never count."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from tidegate.rules.advice.patterns import covers
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
            yield from of_text((*where, name) if isinstance(key, dict) else where, name, value)
        if "ip" in values:
            message = _of_address(values["ip"])
            if message is not None:
                yield Finding((*where, "ip") if isinstance(key, dict) else where, message)
        endpoint = values.get("endpoint")
        if endpoint and endpoints and not any(covers(one, endpoint) for one in endpoints):
            yield Finding(
                (*where, "endpoint") if isinstance(key, dict) else where,
                f"the rule {override.rule!r} is not for the endpoint {endpoint!r:.120}; expected "
                f"one of {', '.join(endpoints):.200}",
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
