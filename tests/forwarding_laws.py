"""What must hold of the address that client_ip() reads from a forwarding header, whoever wrote it.

Shared by a property test and a fuzzer. Nothing here uses the parser that it checks.
"""

from __future__ import annotations

import functools
import ipaddress
import re

from tidegate import keys

PROXY = "10.0.0.1"
STRANGER = "198.51.100.1"
CLIENT = "203.0.113.9"
TRUSTED = ("10.0.0.0/8", "2001:db8:ffff::/48")
EVERYBODY = ("0.0.0.0/0", "::/0", "unix")

NAMES = ("x-forwarded-for", "forwarded")


@functools.lru_cache(maxsize=None)  # noqa: UP033 - Python 3.9
def key_function(name: str, trusted: tuple[str, ...], hops: int | None = None) -> keys.KeyFunction:
    # A header without proxies that send it is refused.
    header = name if trusted else "x-forwarded-for"
    return keys.client_ip(trusted_proxies=trusted, header=header, hops=hops)


def entry(address: str, name: str) -> str:
    return f"for={address}" if name == "forwarded" else address


def scope(name: str, line: str | None, peer: str | None) -> dict[str, object]:
    headers = [] if line is None else [(name.encode(), line.encode("latin-1"))]
    client = None if peer is None else (peer, 5000)
    return {"type": "http", "headers": headers, "client": client}


def networks_in(line: str) -> set[str]:
    """Every key that some part of `line` could stand for, however entries are told apart."""
    found = set()
    for text in re.findall(r"[0-9A-Fa-f:.]+", line.replace("\\", "")):
        for part in (text, text.rpartition(":")[0], text.strip(":")):
            try:
                address = ipaddress.ip_address(part)
            except ValueError:
                continue
            address = getattr(address, "ipv4_mapped", None) or address
            prefix = 64 if address.version == 6 else 32
            network = ipaddress.ip_network((int(address), prefix) if prefix == 32 else address)
            if prefix == 64:
                network = network.supernet(new_prefix=64)
            found.add(str(address) if prefix == 32 else str(network))
    return found


def check(line: str) -> None:
    """Raises AssertionError where a law is broken for a header that says `line` (Latin-1)."""
    for name in NAMES:
        _only_proxies_are_believed(name, line)
        _the_address_was_written_somewhere(name, line)
        _the_left_changes_nothing(name, line)


def _only_proxies_are_believed(name: str, line: str) -> None:
    believing = key_function(name, TRUSTED)
    for peer in (STRANGER, "testclient", None):
        assert believing(scope(name, line, peer)) == peer
    assert believing(scope(name, None, PROXY)) == PROXY
    for hops, trusted in ((None, ()), (0, TRUSTED), (0, EVERYBODY), (0, ("unix",))):
        key = key_function(name, trusted, hops)
        for peer in (PROXY, STRANGER, None):
            assert key(scope(name, line, peer)) == peer


def _the_address_was_written_somewhere(name: str, line: str) -> None:
    written = networks_in(line)
    for trusted, hops in ((TRUSTED, None), (TRUSTED, 2), (EVERYBODY, None), (EVERYBODY, 2)):
        key = key_function(name, trusted, hops)
        found = key(scope(name, line, PROXY))
        assert found == PROXY or found in written


def _the_left_changes_nothing(name: str, line: str) -> None:
    """What the proxies wrote stands on the right."""
    nearest = f"{line},{entry(CLIENT, name)}"
    further = f"{nearest}, {entry('10.2.3.4', name)}"
    believing = key_function(name, TRUSTED)
    assert believing(scope(name, nearest, PROXY)) == CLIENT
    assert believing(scope(name, further, PROXY)) == CLIENT
    for hops, right in ((1, nearest), (2, further)):
        counting = key_function(name, EVERYBODY, hops)
        for peer in (PROXY, STRANGER, None):
            assert counting(scope(name, right, peer)) == CLIENT
    only_one = key_function(name, TRUSTED, 1)
    assert only_one(scope(name, further, PROXY)) == "10.2.3.4"
