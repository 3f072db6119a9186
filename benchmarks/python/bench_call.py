"""The time of one decision for a Python caller: tidegate beside its peers from PyPI.

    python benchmarks/python/bench_call.py [--quick] [--rounds N] [--json FILE]

1,000 hot keys, in memory, one thread. In the first two tables the limits are so
high that calls are allowed; in the third every call is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import harness
import peers
from harness import Row, Subject, Target
from tidegate.types import ALGORITHMS

_KEEPS_EVERY_CALL = ("sliding-log", "concurrency")
_BATCH = 1_000_000
# A key stays in use for seconds after a call: none of a million keys becomes idle, and is evicted,
# before its turn comes again.
_BATCH_LIMIT = "1000000/1000 hour"

# For each algorithm the nearest lines of pure-Python peers that also return the remaining units and
# the wait. No peer limits calls in flight, so that algorithm is compared with the fastest line.
_NEAREST = {
    "token-bucket": ("throttled-py token bucket", "throttled-py GCRA"),
    "leaky-bucket": ("throttled-py leaking bucket",),
    "fixed-window": ("throttled-py fixed window", "limits fixed window + get_window_stats"),
    "sliding-window": (
        "throttled-py sliding window",
        "limits sliding counter + get_window_stats",
    ),
    "sliding-log": ("limits moving window + get_window_stats", "throttled-py sliding window"),
    "concurrency": (
        "throttled-py fixed window",
        "throttled-py GCRA",
        "throttled-py token bucket",
        "throttled-py leaking bucket",
        "limits fixed window + get_window_stats",
        "limits moving window + get_window_stats",
    ),
}
_NEAREST_NOTE = (
    "nearest: the fastest line of `limits` (with get_window_stats) or `throttled-py` of the "
    "nearest strategy; concurrency: of any strategy."
)
_RAW_NOTE = "All times include the loop round the call."


def _empty(key: str) -> None:
    """A function that does nothing, to time a call alone."""


def _baselines() -> list[Subject]:
    return [
        Subject("the loop alone", "key", peer="python"),
        Subject("len", "len(key)", peer="python"),
        Subject("an empty Python function", "empty(key)", {"empty": _empty}, peer="python"),
    ]


def _limiter(tidegate: Any, algorithm: str, *, refuse: bool = False) -> Any:
    if refuse:
        limit = "1/hour"
    elif algorithm in _KEEPS_EVERY_CALL:
        limit = f"{peers.LOG_COUNT}/{peers.LOG_PERIOD_S} second"
    else:
        limit = f"{peers.PLENTY}/{peers.PLENTY_PERIOD_S} second"
    return tidegate.Limiter(limit, algorithm=algorithm)


def _ours(tidegate: Any, *, refuse: bool = False) -> list[Subject]:
    def subject(method: str, algorithm: str) -> Subject:
        return Subject(
            f"tidegate {method}, {algorithm}",
            f"limiter.{method}(key)",
            {"limiter": _limiter(tidegate, algorithm, refuse=refuse)},
            group=method,
            verdict=bool,
        )

    found = [subject("hit", algorithm) for algorithm in ALGORITHMS]
    found += [subject("allow", algorithm) for algorithm in ("token-bucket", "fixed-window")]
    if not refuse:
        found.append(
            Subject(
                "tidegate hit + remaining + reset_after",
                "((d := limiter.hit(key)).remaining, d.reset_after)",
                {"limiter": _limiter(tidegate, "token-bucket")},
                group="hit",
                verdict=lambda told: told[0] > 0,
            )
        )
    return found


def _batches(tidegate: Any) -> list[Subject]:
    hot = harness.hot_keys() * (_BATCH // harness.HOT_KEYS)
    distinct = harness.hot_keys(_BATCH)
    found = []
    for what, keys in (("1,000 hot keys repeated", hot), ("1 M distinct keys", distinct)):
        for how, call, batch in (
            ("hit in a loop", "limiter.hit(key)", False),
            ("allow in a loop", "limiter.allow(key)", False),
            ("hit_many", "limiter.hit_many(keys)", True),
        ):
            names = {"limiter": tidegate.Limiter(_BATCH_LIMIT, algorithm="token-bucket")}
            found.append(Subject(f"{how}, {what}", call, names, keys=keys, batch=batch))
    return found


def _fastest(rows: dict[str, Row], names: Iterable[str]) -> Row | None:
    present = [rows[name] for name in names if name in rows]
    return min(present, key=lambda row: row.ns) if present else None


def _targets(rows: dict[str, Row], batches: dict[str, Row]) -> list[Target]:
    found: list[Target] = []

    def ratio(ours: Row, other: Row | None, bound: float, note: str = "", say: str = "") -> None:
        if other is not None:
            what = f"{ours.name}: faster than {say}{other.name}"
            found.append(Target(what, other.ns / ours.ns, bound, note=note))

    for algorithm in ("token-bucket", "fixed-window"):
        ratio(rows[f"tidegate hit, {algorithm}"], rows.get("limits fixed window"), 30)
    for algorithm in ALGORITHMS:
        nearest = _fastest(rows, _NEAREST[algorithm])
        ratio(rows[f"tidegate hit, {algorithm}"], nearest, 20, _NEAREST_NOTE, "nearest, ")
    for algorithm in ALGORITHMS:
        ratio(rows[f"tidegate hit, {algorithm}"], rows.get("rust-py-rate-limit check"), 6)
    for algorithm in ("token-bucket", "fixed-window"):
        allow = rows[f"tidegate allow, {algorithm}"]
        ratio(allow, rows.get("floodgate-rs trigger"), 2)
        ratio(allow, rows.get("rust-py-rate-limit allow"), 2.5)
    hit, empty = rows["tidegate hit, token-bucket"], rows["an empty Python function"]
    what = f"{hit.name}: multiple of {empty.name}"
    found.append(Target(what, hit.ns / empty.ns, 2, at_least=False, note=_RAW_NOTE))
    for what in ("1,000 hot keys repeated", "1 M distinct keys"):
        loop, many = batches[f"hit in a loop, {what}"], batches[f"hit_many, {what}"]
        found.append(Target(f"{many.name}: faster a decision than hit", loop.ns / many.ns, 3))
    return found


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=21, quick_rounds=5)
    parser.add_argument("--peers-only", action="store_true", help="leave tidegate out")
    options = parser.parse_args()
    rounds = harness.rounds_of(options)
    tidegate = None if options.peers_only else harness.load_tidegate()
    theirs, versions, missing = peers.subjects()
    peers.print_missing(missing)
    harness.print_interpreter()

    ours = _ours(tidegate) if tidegate is not None else []
    rows = harness.measure([*_baselines(), *ours, *theirs], rounds, quick=options.quick)
    by_name = {row.name: row for row in rows}
    base = by_name.get("tidegate hit, token-bucket")
    harness.print_rows(
        f"1,000 hot keys, calls allowed; medians of {rounds} interleaved rounds", rows, base
    )

    batches: list[Row] = []
    if tidegate is not None:
        batches = harness.measure(_batches(tidegate), max(3, rounds // 3), quick=options.quick)
        harness.print_rows("A list of 1 M keys (token-bucket), per key", batches, batches[0])

    refused_subjects = _ours(tidegate, refuse=True) if tidegate is not None else []
    refused_subjects += peers.subjects(refuse=True)[0]
    refused = harness.measure(refused_subjects, max(3, rounds // 2), quick=options.quick)
    harness.print_rows(
        "1,000 hot keys, every call refused", refused, refused[0] if tidegate is not None else None
    )

    targets = _targets(by_name, {row.name: row for row in batches}) if tidegate is not None else []
    harness.report(
        options.json,
        "call",
        {
            "rounds": rounds,
            "quick": options.quick,
            "peers": versions,
            "skipped": missing,
            "rows": rows,
            "batch_rows": batches,
            "refused_rows": refused,
        },
        targets,
    )


if __name__ == "__main__":
    main()
