"""A limit in words, and its effect on a burst, for ``tidegate check``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tidegate.limiter.clock import ManualClock
from tidegate.limiter.limiter import Limiter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tidegate._core import Limit

__all__ = ["burst_chart", "in_words", "span"]

_ROWS = 12
_WIDTH = 40
# The client of the chart sends so many calls in a row of it: as good as evenly.
_INSTANTS = 20


def in_words(limit: Limit) -> list[str]:
    """The meaning of `limit`, as sentences."""
    if limit.capacity == 0:
        return ["Nothing passes."]
    count, burst = _number(limit.count), _number(limit.capacity)
    every = span(limit.period_ns / limit.count)
    text = str(limit).partition("/")[2].partition(" burst")[0]
    per = f"every {text}" if text[0].isdigit() else f"per {text}"
    calls = "call" if limit.count == 1 else "calls"
    if limit.algorithm == "token-bucket":
        whole = span(limit.period_ns / limit.count * limit.capacity)
        return [
            f"{count} {calls} {per} on average, and up to {burst} at once after a rest.",
            f"One more passes every {every}; a burst that was used up is full again after {whole}.",
        ]
    if limit.algorithm == "leaky-bucket":
        return [
            f"A queue of {burst}, from which one call leaves every {every} ({count} {per}).",
            "A call that finds it full is refused; the others are told how long to wait.",
        ]
    if limit.algorithm == "fixed-window":
        return [
            f"{count} {calls} {per}, in windows that are aligned to the clock (UTC).",
            "Around the turn of a window, up to twice as many can pass in a moment.",
        ]
    if limit.algorithm == "sliding-window":
        return [
            f"{count} {calls} {per}, wherever it begins, as two counters estimate it: the one",
            "of this window, and as much of the one before as still overlaps.",
        ]
    if limit.algorithm == "sliding-log":
        return [
            f"Never more than {count} {calls} within any {text}, exactly, wherever it begins.",
            f"It remembers the instants of the last {count} {calls} of each key.",
        ]
    if limit.algorithm == "quota":
        return _quota_in_words(limit)
    return [
        f"Up to {count} {calls} in flight at once.",
        f"A place that is not given back is free again after {span(limit.period_ns)}.",
    ]


def _quota_in_words(limit: Limit) -> list[str]:
    words = str(limit).split()
    period = words[1].partition("/")[2]
    following = dict(zip(words, words[1:]))
    units = "unit" if limit.count == 1 else "units"
    anchor = f", anchor {following['anchor']}" if "anchor" in following else ""
    lines = [
        f"{_number(limit.count)} {units} in each calendar {period}, which begins at midnight "
        f"({following.get('in', 'UTC')}{anchor}).",
    ]
    carried = [most for word, most in zip(words, words[1:]) if word == "rollover"]
    if carried:
        mosts = [f"{most} of the quota" if most[-1] == "%" else most for most in carried]
        periods = following.get("for", "1")
        last = f"{periods} {period}s" if periods != "1" else f"one {period}"
        lines.append(
            f"Of the units that are left, at most {' and at most '.join(mosts)} are carried over, "
            f"and last {last}."
        )
    else:
        lines.append("Units that are left at its end are not carried over.")
    if "first" in following:
        lines.append("A new key has only the share for the rest of its first period.")
    return lines


class _Row(NamedTuple):
    label: str
    passed: int
    refused: int


def burst_chart(limits: Sequence[Limit], *, plain: bool = False) -> list[str]:
    """The first moments of a burst against `limits` as one plan: a bar for each step of time.

    `plain` keeps to ASCII.
    """
    if any(limit.capacity == 0 for limit in limits):
        return ["All calls of a client are refused."]
    tightest = min(limits, key=lambda limit: limit.capacity)
    at_once = tightest.capacity + math.ceil(tightest.capacity / 2)
    rows = list(_played(limits, tightest, at_once))
    most = max(row.passed + row.refused for row in rows)
    full, light = ("#", ".") if plain else ("█", "░")
    head = max(len(row.label) for row in rows)
    figures = max(len(_number(max(row.passed, row.refused))) for row in rows)
    lines = [
        f"A client makes {_number(at_once)} calls at once, and goes on at twice the rate "
        f"({full} passes, {light} refused):",
        "",
    ]
    for row in rows:
        passed, refused = _bars(row.passed, row.refused, most)
        bar = (full * passed + light * refused).ljust(_WIDTH + 1)
        lines.append(
            f"{row.label.rjust(head)}  {bar} {_number(row.passed).rjust(figures)} pass"
            f" {_number(row.refused).rjust(figures)} refused"
        )
    return lines


def _played(limits: Sequence[Limit], pace: Limit, at_once: int) -> Iterator[_Row]:
    clock = ManualClock(0)
    limiter = Limiter(limits, clock=clock)

    def take(times: int) -> int:
        # This gives the same decisions as `times` calls of cost 1 at one instant.
        passed = min(times, limiter.peek("client").remaining)
        if passed:
            limiter.hit("client", passed)
        return passed

    passed = take(at_once)
    yield _Row("at once", passed, at_once - passed)
    refill_ns = pace.period_ns * pace.capacity // pace.count
    step_ns, size, unit = _step(max(pace.period_ns, refill_ns) / 10)
    asked = 0
    for row in range(_ROWS):
        passed = wanted = 0
        for instant in range(1, _INSTANTS + 1):
            now_ns = row * step_ns + instant * step_ns // _INSTANTS
            clock.set_ns(now_ns)
            due = 2 * pace.count * now_ns // pace.period_ns
            passed += take(due - asked)
            wanted += due - asked
            asked = due
        yield _Row(f"to {(row + 1) * step_ns / size:,g} {unit}", passed, wanted - passed)


def _bars(passed: int, refused: int, most: int) -> tuple[int, int]:
    """The lengths of both parts of a bar; a part that is not zero is never invisible."""
    total = max(round((passed + refused) * _WIDTH / most), (passed > 0) + (refused > 0))
    if not passed or not refused:
        return (total, 0) if passed else (0, total)
    shown = min(max(round(passed * _WIDTH / most), 1), total - 1)
    return shown, total - shown


_UNITS = (
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "min"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
)


def span(ns: float) -> str:
    """A length of time, to three digits: ``600 ms``, ``1.5 min``."""
    if ns == 0:
        return "0 s"
    for size, unit in _UNITS:
        if ns >= size:
            return f"{_short(ns / size)} {unit}"
    return f"{_short(ns)} ns"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else _number(round(value))


def _number(value: int) -> str:
    return f"{value:,}"


def _step(least_ns: float) -> tuple[int, int, str]:
    """A round step of time of `least_ns` or more, and its best unit."""
    units = (*_UNITS, (1, "ns"))
    for at in reversed(range(len(units))):
        size, unit = units[at]
        for factor in (1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 500):
            if factor >= 50 and 10**9 <= size < _UNITS[0][0]:
                break  # minutes and hours are not decimal
            if size * factor >= least_ns:
                shown = units[at - 1] if factor >= 100 and size < 10**9 else (size, unit)
                return size * factor, *shown
    return math.ceil(least_ns), *_UNITS[0]
