"""What happens now: figures of the last five minutes of decisions."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tidegate._service.recording import caller_of

if TYPE_CHECKING:
    from tidegate._service.recording import Recorded

__all__ = ["SECONDS", "Caller", "Second", "Slice", "seconds_of", "slices_of", "top_callers"]

SECONDS = 300


class Second(NamedTuple):
    """Decisions of one second."""

    allowed: int
    refused: int
    degraded: int
    in_shadow: int


class Slice(NamedTuple):
    """Decisions of ten seconds."""

    ago: int
    """How many seconds ago it ended."""
    allowed: int
    refused: int


class Caller(NamedTuple):
    """Decisions about one caller."""

    name: str
    user: str | None
    ip: str | None
    allowed: int
    refused: int
    rules: list[str]
    """The rules that refused, the one that refused most first."""


def seconds_of(recent: list[Recorded], now: float) -> list[Second]:
    """One for each of the last five minutes' seconds, the earliest first."""
    last = math.floor(now)
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
    return [Second(*each) for each in sums]


def slices_of(seconds: list[Second], length: int = 10) -> list[Slice]:
    """Sums of ten seconds, the latest first."""
    found = []
    for end in range(len(seconds), 0, -length):
        part = seconds[max(0, end - length) : end]
        found.append(
            Slice(
                len(seconds) - end,
                sum(each.allowed for each in part),
                sum(each.refused for each in part),
            )
        )
    return found


def top_callers(recent: list[Recorded], most: int = 20) -> list[Caller]:
    """Those that were refused most; among equals, those that asked most."""
    allowed: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    rules: dict[str, Counter[str]] = {}
    first: dict[str, tuple[str | None, str | None]] = {}
    for recorded in recent:
        for row in recorded.rows:
            name = "all others" if row.is_rest else caller_of(row)
            first.setdefault(name, (None, None) if row.is_rest else (row.user, row.ip))
            allowed[name] += row.allowed
            refused[name] += row.refused
            if row.refused and row.rule:
                rules.setdefault(name, Counter())[row.rule] += row.refused
    names = sorted(first, key=lambda name: (-refused[name], -allowed[name], name))[:most]
    return [
        Caller(
            name,
            *first[name],
            allowed[name],
            refused[name],
            [rule for rule, _ in rules.get(name, Counter()).most_common(3)],
        )
        for name in names
    ]
