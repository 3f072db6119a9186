"""How soon floods are found, and how many alarms are false.

    python benchmarks/python/bench_anomaly.py [--log FILE] [--quick] [--json FILE]

Traces: the sample logs of examples/data and those given by --log, and four weeks of 30 clients
with a daily course. Each is counted by client and minute. First it is judged as it is: a client
that is throttled or blocked is a false alarm, and one that is monitored a remark; both are given
per client and day. Then a flood of 20 minutes is added, at a random time in its second half, by a
random client of at least 60 requests, as a multiple of the client's own 90th percentile. The table
shows how many floods are found, and how many minutes passed until the client was throttled or
blocked.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import harness

_SAMPLES = Path(__file__).resolve().parents[2] / "examples" / "data"
_FACTORS = (3, 5, 10, 30)
_FLOOD = 20
_MINUTE_NS = 60 * 10**9

Counts = dict[int, dict[str, int]]


def _counted(keys: Any, times: Any) -> Counts:
    counts: Counts = defaultdict(dict)
    for minute, key in zip((times // _MINUTE_NS).tolist(), keys):
        counts[minute][key] = counts[minute].get(key, 0) + 1
    return counts


def _of_file(path: Path) -> Counts:
    import numpy as np
    from tidegate.tuning import read_log

    log = read_log(path)
    return _counted(log.to_pandas()["ip"].astype(str).tolist(), np.asarray(log.times))


def _diurnal(days: int) -> Counts:
    """Clients between 1 and 40 requests a minute at noon, and a tenth of that at midnight."""
    import numpy as np

    random_numbers = np.random.default_rng(1)
    rates = random_numbers.uniform(1, 40, 30)
    counts: Counts = {}
    for minute in range(days * 1440):
        course = 0.55 - 0.45 * np.cos(2 * np.pi * minute / 1440)
        drawn = random_numbers.poisson(rates * course)
        counts[minute] = {f"client {i}": int(n) for i, n in enumerate(drawn) if n}
    return counts


def _judge(counts: Counts, flood: tuple[str, int, int] | None = None) -> list[Any]:
    """The anomalies of a trace; with a flood, those of the flooding client during the flood."""
    from tidegate.anomaly import AnomalyDetector

    detector = AnomalyDetector()
    first, last = min(counts), max(counts)
    if flood is not None:
        last = flood[1] + _FLOOD - 1
    found = []
    for minute in range(first, last + 1):
        here = counts.get(minute, {})
        if flood is not None and minute >= flood[1]:
            here = {**here, flood[0]: here.get(flood[0], 0) + flood[2]}
        anomalies = detector.judge(here, minute * 60.0)
        if flood is None or minute >= flood[1]:
            found += [each for each in anomalies if flood is None or each.caller == flood[0]]
    return found


def _measure(counts: Counts, trials: int) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    for here in counts.values():
        totals.update(here)
    minutes = max(counts) - min(counts) + 1
    client_days = len(totals) * minutes / 1440
    actions = Counter(each.action.value for each in _judge(counts))
    false = actions["throttle"] + actions["block"]
    result: dict[str, Any] = {
        "clients": len(totals),
        "days": round(minutes / 1440, 2),
        "false_alarms": false,
        "false_alarms_per_client_day": false / client_days,
        "remarks_per_client_day": actions["monitor"] / client_days,
        "floods": {},
    }
    draw = random.Random(1)
    heavy = sorted(client for client, total in totals.items() if total >= 60)
    for factor in _FACTORS:
        delays = []
        for _ in range(trials):
            client = draw.choice(heavy)
            own = sorted(here[client] for here in counts.values() if client in here)
            start = draw.randrange(min(counts) + minutes // 2, max(counts) - _FLOOD)
            size = factor * own[int(len(own) * 0.9)]
            acted = [
                each
                for each in _judge(counts, (client, start, size))
                if each.action.value in ("throttle", "block")
            ]
            if acted:
                delays.append(round(acted[0].at / 60) - start + 1)
        result["floods"][factor] = {
            "found": len(delays) / trials,
            "minutes": statistics.median(delays) if delays else None,
            "most_minutes": max(delays, default=None),
        }
    return result


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=1, quick_rounds=1)
    parser.add_argument("--log", type=Path, action="append", metavar="FILE", default=[])
    options = harness.begin(parser)
    traces = {
        path.name.partition(".")[0]: _of_file(path)
        for path in [*sorted(_SAMPLES.glob("*.log.gz")), *options.log]
    }
    traces["daily course"] = _diurnal(2 if options.quick else 28)
    trials = 5 if options.quick else 60
    results = {}
    for name, counts in traces.items():
        results[name] = _measure(counts, min(trials, 10) if name == "daily course" else trials)
    harness.print_table(
        "Alarms without a flood",
        ["", "clients", "days", "false alarms", "for each client and day", "remarks"],
        [
            [name, f"{each['clients']:,}", f"{each['days']:.1f}", f"{each['false_alarms']:,}"]
            + [f"{each[f'{what}_per_client_day']:.5f}" for what in ("false_alarms", "remarks")]
            for name, each in results.items()
        ],
    )
    harness.print_table(
        "Floods",
        ["times its 90th percentile", "found", "after min", "at most"],
        [
            [
                f"{name}, {factor}x",
                f"{flood['found']:.0%}",
                f"{flood['minutes']}",
                f"{flood['most_minutes']}",
            ]
            for name, each in results.items()
            for factor, flood in each["floods"].items()
        ],
    )
    harness.write_json(options.json, "anomaly", results)


if __name__ == "__main__":
    main()
