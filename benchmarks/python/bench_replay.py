"""How fast logs are replayed, and how much memory that takes.

    python benchmarks/python/bench_replay.py [--quick] [--rounds N] [--json FILE]

- tuning.replay() of 50 M requests of 100 k keys (ints, Zipf and uniform), with one limit of each
  algorithm: requests a second, with the numbering of keys and all columns; the peak of memory over
  that of the input. Each line comes from a process of its own.
- The same by a Python loop over `limits`, which returns a bool, and throttled-py, which returns
  all columns; their clock is set before each call. They get fewer requests, since only their rate
  matters.
- The least limit of each key, of 10 M requests.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from typing import Any

import harness
from harness import Target

_ALGORITHMS = ("token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log")
_KEYS = 100_000
_START_S = 1_700_000_000
_LIMIT = "100/minute"
_COUNT = 100
_PEER_REQUESTS = 100_000


def _log(requests: int, shape: str) -> tuple[Any, Any]:
    """Keys, and times within an hour."""
    import numpy as np

    chance = np.random.default_rng(1)
    if shape == "uniform":
        keys = chance.integers(0, _KEYS, requests)
    else:
        keys = np.minimum(chance.zipf(1.2, requests), _KEYS - 1)
    times = np.sort(chance.integers(0, 3_600 * 10**9, requests)) + _START_S * 10**9
    return keys, times


class _Peak:
    """The most resident memory, sampled by a thread."""

    def __enter__(self) -> _Peak:
        self.bytes = self.before = harness.resident_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.bytes = max(self.bytes, harness.resident_bytes())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def _replay(algorithm: str, shape: str, requests: int, rounds: int) -> dict[str, Any]:
    from tidegate import tuning

    keys, times = _log(requests, shape)
    given = keys.nbytes + times.nbytes
    seconds, alone = [], []
    peak = 0
    for _ in range(rounds):
        with _Peak() as memory:
            start = time.perf_counter()
            result = tuning.replay(_LIMIT, keys, times, algorithm=algorithm)
            seconds.append(time.perf_counter() - start)
        peak = max(peak, memory.bytes - memory.before)
        refused = result.refused_share
        del result
        start = time.perf_counter()
        tuning.replay(_LIMIT, keys, times, algorithm=algorithm, columns=[])
        alone.append(time.perf_counter() - start)
    return {
        "name": f"{algorithm}, {shape} keys",
        "requests": requests,
        "per_second": requests / statistics.median(seconds),
        "best_per_second": requests / min(seconds),
        "allowed_alone_per_second": requests / statistics.median(alone),
        "memory_over_input": (given + peak) / given,
        "refused_share": refused,
    }


def _least_limits(requests: int, rounds: int) -> dict[str, Any]:
    from tidegate import tuning

    keys, times = _log(requests, "uniform")
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        tuning.least_limits(keys, times, "minute")
        seconds.append(time.perf_counter() - start)
    return {"name": "least_limits", "requests": requests, "seconds": statistics.median(seconds)}


def _peer(name: str, requests: int, rounds: int) -> dict[str, Any]:
    """A loop over decisions of a peer, at the times of the log."""
    keys, times = _log(requests, "zipf")
    instants = [(f"user:{key}", at / 1e9) for key, at in zip(keys.tolist(), times.tolist())]
    seconds = []
    for _ in range(rounds):
        decide = _PEERS[name]()
        seconds.append(_time_loop(decide, instants))
    return {"name": name, "requests": requests, "per_second": requests / statistics.median(seconds)}


def _time_loop(decide: Any, instants: list[tuple[str, float]]) -> float:
    watch, real = time.perf_counter, (time.time, time.monotonic)
    now = [0.0]
    time.time = time.monotonic = lambda: now[0]
    try:
        start = watch()
        for key, at in instants:
            now[0] = at
            decide(key)
        return watch() - start
    finally:
        time.time, time.monotonic = real


def _limits() -> Any:
    module = harness.optional("limits")
    assert module is not None
    limiter = module.strategies.FixedWindowRateLimiter(module.storage.MemoryStorage())
    item = module.RateLimitItemPerMinute(_COUNT)
    return lambda key: limiter.hit(item, key)


def _throttled() -> Any:
    module = harness.optional("throttled")
    assert module is not None
    limiter = module.Throttled(
        using="token_bucket",
        quota=module.per_min(_COUNT),
        store=module.MemoryStore(options={"MAX_SIZE": 10_000_000}),
    )
    return limiter.limit


_PEERS = {"limits, fixed window": _limits, "throttled-py, token bucket": _throttled}
_MODULES = {"limits, fixed window": "limits", "throttled-py, token bucket": "throttled"}
_TASKS = {"replay": _replay, "least": _least_limits, "peer": _peer}


def _like(peer: str, replays: dict[str, Any]) -> float:
    """The rate of a replay by the algorithm of a peer, with the columns that the peer returns."""
    if peer.startswith("limits"):  # a bool
        return float(replays["fixed-window, zipf keys"]["allowed_alone_per_second"])
    return float(replays["token-bucket, zipf keys"]["per_second"])


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        task, *given = json.loads(sys.argv[2])
        print(json.dumps(_TASKS[task](*given)))
        return
    parser = harness.arguments(__doc__ or "", rounds=3, quick_rounds=1)
    options = harness.begin(parser)
    rounds = harness.rounds_of(options)
    requests = 5_000_000 if options.quick else 50_000_000

    replays = [
        harness.in_child(__file__, "replay", algorithm, shape, requests, rounds)
        for algorithm in _ALGORITHMS
        for shape in ("uniform", "zipf")
    ]
    lines = [
        [
            row["name"],
            f"{row['per_second'] / 1e6:,.1f}",
            f"{row['best_per_second'] / 1e6:,.1f}",
            f"{row['allowed_alone_per_second'] / 1e6:,.1f}",
            f"{row['memory_over_input']:.2f}x",
            f"{row['refused_share']:.0%}",
        ]
        for row in replays
    ]
    headers = ["", "M requests/s", "best", "allowed alone", "peak over input", "refused"]
    harness.print_table(f"Replay of {requests:,} requests of {_KEYS:,} keys", headers, lines)

    present = [name for name in _PEERS if harness.optional(_MODULES[name]) is not None]
    loops = [harness.in_child(__file__, "peer", name, _PEER_REQUESTS, rounds) for name in present]
    lines = [[row["name"], f"{row['per_second']:,.0f}"] for row in loops]
    harness.print_table("A loop in Python with a faked clock", ["", "requests/s"], lines)

    least = harness.in_child(__file__, "least", 1_000_000 if options.quick else 10_000_000, rounds)
    print(f"\nleast_limits of {least['requests']:,} requests: {least['seconds']:.2f} s")

    targets = [
        Target(
            row["name"],
            row["per_second"] / 1e6,
            20 if row["name"].startswith("token-bucket") else 10,
            unit=" M/s",
        )
        for row in replays
    ]
    most = max(row["memory_over_input"] for row in replays)
    targets.append(Target("peak over input", most, 3, at_least=False))
    by_name = {row["name"]: row for row in replays}
    targets += [
        Target(f"over {row['name']}", _like(row["name"], by_name) / row["per_second"], 200)
        for row in loops
    ]
    targets.append(Target("least_limits", least["seconds"], 2, at_least=False, unit=" s"))
    harness.report(
        options.json, "replay", {"replays": replays, "loops": loops, "least_limits": least}, targets
    )


if __name__ == "__main__":
    main()
