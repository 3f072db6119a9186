"""Notes on what to know about a log before choosing a limit from it."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np

from tidegate.tuning.keys import Keys
from tidegate.tuning.logs import _logs
from tidegate.tuning.logs.layout import Layout

__all__ = ["of_refusals", "of_shares", "of_stamps", "of_times", "of_units"]

_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
# In a log with fewer clients or requests, one address may have a large share by chance.
_LEAST_CLIENTS = 10
_LEAST_REQUESTS = 1000
_OUTSIZED = 0.2
_PRIVATE = [
    ipaddress.ip_network(network)
    for network in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8"),
        *("fc00::/7", "::1/128"),
    )
]


def of_times(reader: _logs.Reader, time_zone: str | None) -> list[str]:
    """Notes on how the times were read."""
    notes = []
    if reader.time_unit:
        notes.append(f"Times are numbers, taken as {_UNITS[reader.time_unit]} since the epoch.")
    if reader.has_no_zones and time_zone is None:
        notes.append("Times have no zone and are taken as UTC; time_zone= names another zone.")
    if reader.has_mixed_zones:
        notes.append("Times are of several zones; all were converted to UTC.")
    return notes


def of_units(names: list[str]) -> list[str]:
    """The note on files in W3C's format of whose durations nothing says the unit."""
    if not names:
        return []
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return [
        f"Nothing in {shown} says in which unit time-taken is; it was taken as seconds, as in "
        'W3C\'s format. IIS writes milliseconds: duration_unit="ms".'
    ]


def of_stamps(layout: Layout, end_stamped: bool | None, has_durations: bool) -> list[str]:
    """Notes on whether times are those at which requests began."""
    if end_stamped and has_durations:
        return [
            "Times are those at which requests ended; durations were subtracted, so that they are "
            "those at which requests came."
        ]
    if end_stamped is None and has_durations:
        return [
            "The log has durations, and does not say whether its times are the beginnings of "
            "requests or their ends; they were left unchanged. end_stamped= says which."
        ]
    if layout.reader == "text" and "combined" in layout.name and not has_durations:
        return [
            "If nginx wrote this log, times are those at which requests ended, and it has no "
            "durations to subtract."
        ]
    return []


def of_refusals(status: Any, total: int) -> list[str]:
    """Notes on requests that were refused when the log was written."""
    notes = []
    for code, name in ((429, "a limit"), (503, "a limit or an overload")):
        count = int(np.count_nonzero(status == code))
        if count:
            notes.append(
                f"{count:,} requests ({count / total:.2%}) were answered with {code}, which {name} "
                "may have sent: clients that wait after it would have sent more, and those that "
                "retry would have sent less. The log shows their demand only in part."
            )
    return notes


def of_shares(ips: Keys) -> list[str]:
    """Notes on addresses that may stand for many clients."""
    counts = np.bincount(ips.codes, minlength=len(ips.names))
    total = len(ips)
    if total == 0:
        return []
    notes = []
    most = int(counts.argmax())
    share = counts[most] / total
    clients = int(np.count_nonzero(counts))
    enough = clients >= _LEAST_CLIENTS or share == 1.0
    if total >= _LEAST_REQUESTS and share >= _OUTSIZED and enough:
        notes.append(
            f"{ips.names[most]} sent {share:.0%} of all requests: many clients may be behind it "
            "(a proxy, a load balancer, a NAT), or it is a machine of your own."
        )
    used = [name for name, count in zip(ips.names, counts) if count]
    if total >= _LEAST_REQUESTS and len(used) <= 1000 and all(map(_is_private, used)):
        notes.append(
            "All addresses are private: the server seems to be behind a proxy, whose address "
            "stands for its clients'."
        )
    return notes


def _is_private(name: Any) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # Python also calls addresses for benchmarks and documents private, but no proxy has them.
    return any(address in network for network in _PRIVATE if network.version == address.version)
