"""docs/howto/call-an-api.md: how many calls an API refuses, by the pace at which they leave."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import tidegate as tg

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "call-an-api.md"
ROWS = re.findall(
    r"^\| `(\d+/second[^`]*)`(?:, `(.*?)`)? \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) % \|$",
    PAGE.read_text(),
    re.M,
)
ALLOWED = tg.Limit("20/second", algorithm="sliding-log")


def share_refused(pace: tg.Limit, jitter: float) -> float:
    """The share of calls that the API refuses if 40 become due together every four seconds."""
    clock, on_the_way = tg.ManualClock(), random.Random(1)
    limiter = tg.Limiter(pace, clock=clock)
    arrivals = []
    for batch in range(500):
        clock.set_ns(max(clock.now_ns(), batch * 4 * 10**9))
        for _ in range(40):
            while not (decision := limiter.hit("partner")):
                clock.advance(decision.retry_after)
            arrivals.append(clock.now_ns() + round(on_the_way.random() * jitter * 10**9))
    decisions = tg.replay(ALLOWED, ["us"] * len(arrivals), sorted(arrivals))
    return sum(not each for each in decisions) / len(arrivals)


def test_the_table_is_there() -> None:
    assert len(ROWS) == 6


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:2]).strip())
def test_the_table_says_what_is_refused(row: tuple[str, ...]) -> None:
    limit = tg.Limit(row[0], algorithm=row[1] or "token-bucket")  # type: ignore[arg-type]
    found = [f"{100 * share_refused(limit, jitter):.1f}" for jitter in (0.01, 0.05, 0.2)]
    assert found == list(row[2:])
