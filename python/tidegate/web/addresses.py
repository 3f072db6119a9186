"""Reads addresses of clients from forwarding headers, and groups them for charging."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from typing import Union

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

__all__ = [
    "address_of",
    "forwarded_nodes",
    "grouped",
    "listed_nodes",
    "networks_of",
    "peer_network",
]

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

# Only the end of a forwarding header is read, which the nearest proxies write.
_TAIL = 4096


def networks_of(proxies: Iterable[str]) -> tuple[list[Network], bool]:
    accepted = "addresses and networks such as '10.0.0.0/8', and 'unix'"
    if isinstance(proxies, (str, bytes)) or not isinstance(proxies, Iterable):
        raise ArgumentTypeError(f"trusted_proxies is {proxies!r}; expected a list of {accepted}")
    networks: list[Network] = []
    trusts_unix = False
    for proxy in proxies:
        if proxy == "unix":
            trusts_unix = True
            continue
        try:
            if not isinstance(proxy, str):  # ipaddress takes an int for an address
                raise ValueError("no text")
            networks.append(ipaddress.ip_network(proxy))
        except ValueError as error:
            raise ConfigurationError(
                f"trusted_proxies has {proxy!r} ({error}); expected {accepted}"
            ) from None
    return networks, trusts_unix


def address_of(node: str) -> Address | None:
    """Returns the address of a node such as ``192.0.2.1:80`` or ``[2001:db8::1]:80``."""
    if node.startswith("["):
        node, closing, port = node[1:].partition("]")
        if not closing or (port and not _is_port(port[1:] if port[0] == ":" else "")):
            return None
        if ":" not in node:
            return None
    elif node.count(":") == 1:
        node, _, port = node.partition(":")
        if not _is_port(port):
            return None
    if "%" in node:
        return None
    try:
        address = ipaddress.ip_address(node)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _is_port(text: str) -> bool:
    # RFC 7239 lets a proxy obfuscate the port as well.
    return text.startswith("_") or (text.isascii() and text.isdigit() and len(text) <= 5)


def grouped(address: Address, prefix: int) -> str:
    if isinstance(address, ipaddress.IPv4Address) or prefix == 128:
        return str(address)
    return str(ipaddress.IPv6Network((int(address), prefix), strict=False))


@functools.lru_cache(maxsize=4096)
def peer_network(text: str) -> str:
    address = address_of(text.partition("%")[0])
    return text if address is None else grouped(address, 64)


def listed_nodes(text: str) -> list[str]:
    """Returns the entries of X-Forwarded-For; of an overlong one, those at the end."""
    if len(text) > _TAIL:
        text = text[-_TAIL:].partition(",")[2]
    return [node.strip(' \t"') for node in text.split(",")]


def forwarded_nodes(text: str) -> list[str]:
    """Returns the `for` of each element of Forwarded, or "" if it has no valid one.

    The header is read from the right, so that a quotation mark on the left, from a stranger, cannot
    swallow the elements that the proxies added.
    """
    if len(text) > _TAIL:
        text = text[-_TAIL:].partition(",")[2]
    nodes = []
    pairs: list[str] = []
    end = len(text)
    quoted = False
    for at in range(len(text) - 1, -2, -1):
        mark = text[at] if at >= 0 else ","
        if mark == '"' and not _is_escaped(text, at):
            quoted = not quoted
        elif (mark in ",;" and not quoted) or at < 0:
            pairs.append(text[at + 1 : end])
            end = at
            if mark == ",":
                nodes.append(_for_of(pairs))
                pairs = []
    nodes.reverse()
    return nodes


def _is_escaped(text: str, at: int) -> bool:
    slashes = 0
    while at > slashes and text[at - slashes - 1] == "\\":
        slashes += 1
    return slashes % 2 == 1


def _for_of(pairs: list[str]) -> str:
    found = None
    for pair in pairs:
        name, _, value = pair.strip(" \t").partition("=")
        if name.lower() != "for":
            continue
        if found is not None:
            return ""
        found = value
    if found is None:
        return ""
    if len(found) >= 2 and found[0] == found[-1] == '"':
        return re.sub(r"\\(.)", r"\1", found[1:-1])
    return "" if '"' in found else found
