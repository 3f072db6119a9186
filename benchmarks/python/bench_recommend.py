"""How long recommendations, comparisons and what-if curves of a log take.

    python benchmarks/python/bench_recommend.py [--quick] [--rounds N] [--json FILE]

- tuning.recommend() of 10 M requests of 100 k clients (ints, Zipf) within a day and within a week:
  for a promise about clients and one about requests, pairs of rates and bursts, bootstraps, and
  the replay that counts its effect included.
- tuning.compare() of five algorithms and tuning.what_if() on the same log.
- The wait of a slider: WhatIf.at() of limits that were not computed before, on 1 M requests.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
from harness import Target

_CLIENTS = 100_000
_DAY_S = 86_400
_SLIDER_REQUESTS = 1_000_000


def _log(requests: int, days: int) -> Any:
    from tidegate.tuning import traffic

    seconds = days * _DAY_S
    return traffic.zipf(requests / seconds, seconds, clients=_CLIENTS, exponent=1.0, seed=1)


def _questions(log: Any) -> dict[str, Callable[[], Any]]:
    import numpy as np
    from tidegate import tuning

    keys = log.keys.codes.astype(np.int64)
    times = log.times.view("datetime64[ns]")
    return {
        "recommend, 0.1 % of clients": lambda: tuning.recommend(keys, times),
        "recommend, 0.1 % of requests": lambda: tuning.recommend(
            keys, times, refuse_requests=0.001
        ),
        "recommend, sliding window": lambda: tuning.recommend(
            keys, times, algorithm="sliding-window"
        ),
        "compare, five algorithms": lambda: tuning.compare("60/minute", keys, times),
        "what_if, a grid": lambda: tuning.what_if(keys, times),
    }


def _timed(ask: Callable[[], Any], rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - start)
    return seconds


def _slider() -> list[float]:
    """Milliseconds for each position of a slider, which is a count and a burst."""
    from tidegate import tuning
    from tidegate.tuning import traffic

    log = traffic.zipf(_SLIDER_REQUESTS / 3600, 3600, clients=20_000, exponent=1.0, seed=2)
    what_if = tuning.WhatIf(log.keys, log.times)
    waits = []
    for count in range(1, 201, 4):
        for burst in (None, 2 * count):
            start = time.perf_counter()
            what_if.at(count, burst)
            waits.append((time.perf_counter() - start) * 1e3)
    return waits


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=3, quick_rounds=1)
    options = harness.begin(parser)
    rounds = harness.rounds_of(options)
    requests = 1_000_000 if options.quick else 10_000_000

    rows = []
    for days in (1, 7):
        log = _log(requests, days)
        for name, ask in _questions(log).items():
            seconds = _timed(ask, rounds)
            rows.append(
                {
                    "name": f"{name}, {days} d",
                    "requests": len(log),
                    "seconds": statistics.median(seconds),
                    "best_seconds": min(seconds),
                }
            )
    waits = _slider()
    harness.print_table(
        f"Seconds for {requests / 1e6:.0f} M requests of {_CLIENTS:,} clients",
        ["", "median", "best"],
        [[row["name"], f"{row['seconds']:.2f}", f"{row['best_seconds']:.2f}"] for row in rows],
    )
    harness.print_table(
        "A slider over 1 M requests, ms for each new position",
        ["", "median", "worst"],
        [["WhatIf.at()", f"{statistics.median(waits):.0f}", f"{max(waits):.0f}"]],
    )
    targets = [
        Target(row["name"], row["seconds"], 5, at_least=False, unit=" s")
        for row in rows
        if row["name"].startswith("recommend")
    ]
    targets.append(Target("a slider's worst", max(waits), 200, at_least=False, unit=" ms"))
    harness.report(options.json, "recommend", {"rows": rows, "slider_ms": waits}, targets)


if __name__ == "__main__":
    main()
