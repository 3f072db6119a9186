"""Computes what happens now, from the decisions of the last five minutes."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tidegate.server.call_times import quantile
from tidegate.server.recording import caller_of

if TYPE_CHECKING:
    from tidegate.server.call_times import Taken
    from tidegate.server.recording import Recorded, Row

__all__ = [
    "SECONDS",
    "SLICE",
    "Caller",
    "Second",
    "Slice",
    "seconds_of",
    "slices_of",
    "top_callers",
]

SECONDS = 300
SLICE = 10


class Second(NamedTuple):
    """Decisions of one second."""

    allowed: int
    refused: int
    degraded: int
    in_shadow: int


class Slice(NamedTuple):
    """Decisions of ten seconds."""

    ago: int
    """How many seconds ago the slice ended."""
    allowed: int
    refused: int
    p50: float | None
    """The seconds within which half of the calls were answered; None without calls."""
    p99: float | None


class Caller(NamedTuple):
    """Decisions about one caller."""

    name: str
    attributes: dict[str, str]
    """The attributes that were refused most; if none was refused, the most frequent ones."""
    allowed: int
    refused: int
    rules: list[str]
    """The rules that refused, the one that refused most first."""


def seconds_of(recent: list[Recorded], now: float, since: float = 0.0) -> list[Second]:
    """Returns a Second for each second of the last five minutes, the earliest first.

    The last is the one before that of `now`, whose decisions may not have been taken yet. Of the
    seconds before `since`, when recording began, nothing is known, and they are left out; a
    `since` after `now`, of a clock that went back, is ignored.
    """
    last = math.floor(now) - 1
    sums = [[0, 0, 0, 0] for _ in range(SECONDS)]
    for recorded in recent:
        i = SECONDS - 1 - (last - math.floor(recorded.at))
        if not 0 <= i < SECONDS:
            continue
        for row in recorded.rows:
            sums[i][0] += row.allowed
            sums[i][1] += row.refused
            sums[i][2] += row.degraded
            sums[i][3] += row.refused_in_shadow
    known = SECONDS if since > now else min(SECONDS, last - math.floor(since) + 1)
    return [Second(*each) for each in sums[SECONDS - known :]]


def slices_of(
    seconds: list[Second], times: list[Taken], now: float, length: int = SLICE
) -> list[Slice]:
    """Returns sums of ten seconds, the latest first; `times` are those of the same minutes."""
    found = []
    last = math.floor(now) - 1
    for end in range(len(seconds), 0, -length):
        part = seconds[max(0, end - length) : end]
        ago = len(seconds) - end
        taken = [
            each.buckets
            for each in times
            if last - ago - length < math.floor(each.at) <= last - ago
        ]
        found.append(
            Slice(
                ago,
                sum(each.allowed for each in part),
                sum(each.refused for each in part),
                quantile(taken, 0.5),
                quantile(taken, 0.99),
            )
        )
    return found


def top_callers(recent: list[Recorded], most: int = 20) -> list[Caller]:
    """Returns the callers that were refused most; among equals, those with the most requests."""
    found: dict[str, list[Row]] = {}
    for recorded in recent:
        for row in recorded.rows:
            found.setdefault("all others" if row.is_rest else caller_of(row), []).append(row)
    callers = [_caller(name, rows) for name, rows in found.items()]
    callers.sort(key=lambda each: (-each.refused, -each.allowed, each.name))
    return callers[:most]


def _caller(name: str, rows: list[Row]) -> Caller:
    rules: Counter[str] = Counter()
    kinds: Counter[tuple[int, tuple[tuple[str, str], ...]]] = Counter()
    for row in rows:
        if row.refused and row.rule:
            rules[row.rule] += row.refused
        # Attributes that were refused come first, since 1 is above 0.
        kinds[(int(row.refused > 0), _attributes_of(row))] += row.refused or row.allowed
    likely = max(kinds, key=lambda kind: (kind[0], kinds[kind], kind[1]))
    return Caller(
        name,
        dict(likely[1]),
        sum(row.allowed for row in rows),
        sum(row.refused for row in rows),
        [rule for rule, _ in rules.most_common(3)],
    )


def _attributes_of(row: Row) -> tuple[tuple[str, str], ...]:
    given = () if row.is_rest else ("user", "ip", "endpoint", "tier")
    # A user has many addresses, so an address identifies only a caller without a name.
    names = [name for name in given if not (name == "ip" and row.user)]
    values = ((name, getattr(row, name)) for name in names)
    return tuple((name, value) for name, value in values if value)
