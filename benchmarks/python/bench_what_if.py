"""How long the slider of tuning.widgets takes to redraw, for a log of a million lines.

Prints the median and the slowest move of both sliders, each to a new position, beside the target of
200 ms.
"""

from __future__ import annotations

import statistics
import time

import harness
from tidegate.tuning import traffic, widgets

REQUESTS = 1_000_000
TARGET_MS = 200


def main() -> None:
    options = harness.arguments(__doc__ or "", rounds=30, quick_rounds=10).parse_args()
    rounds = harness.rounds_of(options)
    log = traffic.zipf(REQUESTS / 86_400, 86_400, clients=20_000, seed=1)
    begun = time.perf_counter()
    explorer = widgets.what_if(log.keys, log.times)
    ready = time.perf_counter() - begun
    explorer.same.value = False
    taken = []
    most = explorer.count.max
    for step in range(1, rounds + 1):
        for slider in (explorer.count, explorer.burst):
            begun = time.perf_counter()
            slider.value = max(1, most * step // (rounds + 1))
            taken.append(1000 * (time.perf_counter() - begun))
    print(f"{len(log):,} requests of {explorer.effect.clients:,} clients; ready in {ready:.2f} s")
    targets = [
        harness.Target(
            "a move of a slider, median", statistics.median(taken), TARGET_MS, False, " ms"
        ),
        harness.Target("a move of a slider, slowest", max(taken), TARGET_MS, False, " ms"),
    ]
    harness.report(options.json, "what_if", {"ready_s": ready}, targets)


if __name__ == "__main__":
    main()
