"""How exactly a rate is kept, in simulated time.

    python benchmarks/python/bench_rate.py [--quick] [--json FILE]

1,000,000 events for each rate, on a ManualClock; the C++ benchmark has 1e9. Two callers both want
more than they are allowed:

- the patient one waits exactly `retry_after` after each refusal, so that the time of its
  admissions gives the rate;
- the pushing one calls at random instants, 11 % more often than allowed, and its admissions are
  compared with the exact bound, burst + floor(elapsed * rate).

The error is positive if too little is admitted, and would be negative if more than the bound were.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import harness
from harness import Target

_RATES = (7, 1_000_000, 1_000_000_000)
# So large that the pushing caller never finds the bucket full again, which would make its error
# random.
_BURST = 1_000
_NS = 1_000_000_000


def _limiter(tidegate: Any, rate: int, algorithm: str) -> tuple[Any, Any]:
    # Not at zero: a store may take that for "never".
    clock = tidegate.ManualClock(start_ns=1_700_000_000 * _NS)
    limit = tidegate.Limit(rate, "second", burst=_BURST, algorithm=algorithm)
    return tidegate.Limiter(limit, clock=clock), clock


def _patient(tidegate: Any, rate: int, algorithm: str, events: int) -> Fraction:
    limiter, clock = _limiter(tidegate, rate, algorithm)
    hit, advance, now = limiter.hit, clock.advance_ns, clock.now_ns
    start = now()
    for _ in range(events):
        decision = hit("key")
        while not decision:
            # Floating-point seconds may be slightly above a whole number of nanoseconds, so the
            # product is rounded.
            advance(max(1, round(decision.retry_after * _NS)))
            decision = hit("key")
    ideal = Fraction(events - _BURST, rate) * _NS
    return Fraction(now() - start - ideal) / ideal


def _pushing(tidegate: Any, rate: int, algorithm: str, events: int) -> Fraction:
    limiter, clock = _limiter(tidegate, rate, algorithm)
    allow, advance, now = limiter.allow, clock.advance_ns, clock.now_ns
    chance = random.Random(rate)
    mean_ns = 0.9 * _NS / rate
    start, admitted = now(), 0
    while allow("key"):
        admitted += 1
    for _ in range(events):
        # Steps of whole nanoseconds, whose mean is exact even below one.
        advance(math.floor(chance.uniform(0, 2 * mean_ns) + chance.random()))
        admitted += allow("key")
    while allow("key"):
        admitted += 1
    bound = _BURST + (now() - start) * rate // _NS
    return Fraction(bound - admitted, bound)


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=1, quick_rounds=1)
    options = parser.parse_args()
    tidegate = harness.load_tidegate()
    events = 100_000 if options.quick else 1_000_000
    rows: list[dict[str, Any]] = []
    targets: list[Target] = []
    for algorithm in ("token-bucket", "leaky-bucket"):
        for rate in _RATES:
            errors = {
                "patient": _patient(tidegate, rate, algorithm, events),
                "pushing": _pushing(tidegate, rate, algorithm, events),
            }
            for caller, error in errors.items():
                ppm = float(error * 1_000_000)
                rows.append(
                    {"algorithm": algorithm, "rate": rate, "caller": caller, "error_ppm": ppm}
                )
            name = f"{algorithm} at {rate:g}/s"
            worst = float(max(abs(error) for error in errors.values()) * 1_000_000)
            targets.append(Target(f"{name}: rate error", worst, 1, at_least=False, unit=" ppm"))
    least = min(row["error_ppm"] for row in rows)
    targets.append(Target("least error (below 0: more was admitted)", least, 0, unit=" ppm"))
    lines = [
        [row["algorithm"], f"{row['rate']:g}/s", row["caller"], f"{row['error_ppm']:+.6f}"]
        for row in rows
    ]
    headers = ["", "rate", "caller", "ppm refused too much"]
    harness.print_table(f"{events:,} simulated events a line", headers, lines)
    harness.report(options.json, "rate", {"events": events, "rows": rows}, targets)


if __name__ == "__main__":
    main()
