"""Small logs for the tests of tuning, and counts of them made without NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tidegate import tuning

START = 1_700_000_000 * 10**9
SECOND = 10**9
PERIOD = 10 * SECOND
ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


@dataclass
class Log:
    """Columns as tuning takes them, in any order."""

    keys: list[int]
    times: list[int]
    costs: list[int] | None


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Up to 60 requests of up to 6 clients within some periods of 10 s."""
    scale = draw(st.sampled_from([1, SECOND // 2, SECOND, 7 * SECOND]))
    events = draw(
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(1, 3)),
            min_size=1,
            max_size=60,
        )
    )
    keys, offsets, costs = (list(column) for column in zip(*events))
    times = [START + offset * scale for offset in offsets]
    return Log(keys, times, costs if draw(st.booleans()) else None)


def touched(log: Log, replay: tuning.Replay) -> set[int]:
    """Returns the clients that are refused at least once."""
    return {key for key, allowed in zip(log.keys, replay.allowed) if not allowed}


def worst_burst(events: list[tuple[int, int]], span_ns: int) -> int:
    """The most units of any requests, (time, units), within a span shorter than `span_ns`."""
    return max(
        (
            sum(units for time, units in events if begin <= time < begin + span_ns)
            for begin, _ in events
        ),
        default=0,
    )


def replayed(log: Log, limit: Any) -> tuning.Replay:
    """Replays through the public function, with which the analyses are compared."""
    return tuning.replay(limit, log.keys, log.times, log.costs)
