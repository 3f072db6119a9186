"""The costs of a million keys: bytes, cache misses, and the longest call while a table grows.

    python benchmarks/python/bench_memory.py [--quick] [--rounds N] [--json FILE]

Bytes a key: growth of the resident set divided by the number of keys, in a process of its own for
each line; key strings are created for each call and dropped. Cost by size: random keys of tables
from 1 k to 10 M keys, all tables alive at once and taken in turn; only decisions are timed. Beside
it, in the same rounds, the time of one cache miss in a Python loop: reading random bytes of a block
as large as the largest table, and of one that the caches hold. Worst call: the longest single call
while a table grows, beside delays that the machine causes: the longest call of an empty function,
timed in the same loop, and the first touch of a huge page.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import peers
from harness import Target

# One admission keeps a key in use for six minutes, so no key becomes idle, and thereby cheaper,
# while the benchmark runs. No call is refused either.
_COUNT, _HOURS = 10_000, 1_000
_LIMIT = f"{_COUNT}/{_HOURS} hour"
_CHUNK = 100_000
# Blocks show the time of a cache miss: the size of one that the caches hold, and about the bytes
# that tidegate takes for a key.
_NEAR = 16 << 10
_BYTES_A_KEY = 41
_TIDEGATE = "tidegate token-bucket"


def _tidegate() -> tuple[Callable[[str], Any], Any]:
    module = harness.load_tidegate()
    assert module is not None
    limiter = module.Limiter(_LIMIT, algorithm="token-bucket")
    return limiter.hit, limiter


def _limits() -> tuple[Callable[[str], Any], Any]:
    module = harness.optional("limits")
    assert module is not None
    limiter = module.strategies.FixedWindowRateLimiter(module.storage.MemoryStorage())
    item = module.RateLimitItemPerHour(_COUNT, _HOURS)
    return (lambda key: limiter.hit(item, key)), limiter


def _rust_py() -> tuple[Callable[[str], Any], Any]:
    module = harness.optional("rust_py_rate_limit")
    assert module is not None
    limiter = module.RateLimiter(_COUNT, _HOURS * 3600)
    return limiter.check, limiter


_MAKERS: dict[str, Callable[[], tuple[Callable[[str], Any], Any]]] = {
    _TIDEGATE: _tidegate,
    "limits fixed window": _limits,
    "rust-py-rate-limit": _rust_py,
}


def _key_chunks(total: int, chunk: int = _CHUNK) -> Iterator[list[str]]:
    for start in range(0, total, chunk):
        yield [f"user:{i}" for i in range(start, min(start + chunk, total))]


def _bytes_a_key(name: str, keys: int) -> dict[str, Any]:
    hit, owner = _MAKERS[name]()
    hit("user:warm-up")
    gc.collect()
    before = harness.resident_bytes()
    for i in range(keys):
        hit(f"user:{i}")
    grown = harness.resident_bytes() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = peak if sys.platform == "darwin" else peak * 1024
    found: dict[str, Any] = {
        "name": name,
        "keys": keys,
        "bytes_a_key": grown / keys,
        "peak_bytes_a_key": max(grown, peak - before) / keys,
    }
    if name == _TIDEGATE:
        stats = owner.stats()
        found["keys_held"] = stats.keys
        found["evicted_live"] = stats.evicted_live
    return found


def _block(size: int) -> bytearray | mmap.mmap:
    """Touched memory, in huge pages if the system has them, like large tables."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return bytearray(b"1") * size
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory.write(b"1" * size)
    return memory


def _read_ns(memory: bytearray | mmap.mmap, places: list[int]) -> float:
    start = time.perf_counter_ns()
    for place in places:
        memory[place]
    return (time.perf_counter_ns() - start) / len(places)


def _cost_by_size(name: str, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    tables: list[tuple[int, Callable[[str], Any], Any, list[float]]] = []
    for size in sizes:
        hit, owner = _MAKERS[name]()
        for chunk in _key_chunks(size):
            for key in chunk:
                hit(key)
        tables.append((size, hit, owner, []))
    near, far = _block(_NEAR), _block(sizes[-1] * _BYTES_A_KEY)
    misses: list[float] = []
    chance = random.Random(1)
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        near_ns, far_ns = (
            _read_ns(memory, [chance.randrange(len(memory)) for _ in range(_CHUNK)])
            for memory in (near, far)
        )
        misses.append(far_ns - near_ns)
        for size, hit, _, samples in tables:
            chunk = [f"user:{chance.randrange(size)}" for _ in range(_CHUNK)]
            start = time.perf_counter_ns()
            for key in chunk:
                hit(key)
            samples.append((time.perf_counter_ns() - start) / len(chunk))
    return [
        {
            "name": name,
            "keys": size,
            "ns": statistics.median(samples),
            "best_ns": min(samples),
            "miss_ns": statistics.median(misses),
        }
        for size, _, _, samples in tables
    ]


def _empty(key: str) -> None:
    """Does nothing: its longest call shows the machine's own interruptions."""


def _longest_touch_us() -> float:
    """Times the first touch of each of 64 huge pages: the kernel's own part of growth."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return 0.0
    huge = 2 << 20
    longest = 0
    with mmap.mmap(-1, 65 * huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(memory), huge):
            start = time.perf_counter_ns()
            memory[at] = 1
            longest = max(longest, time.perf_counter_ns() - start)
    return longest / 1e3


def _worst_call(name: str, keys: int) -> dict[str, Any]:
    """Times each call by wall time and by this thread's CPU time.

    A call that took long only by wall time was interrupted, as an empty function may be.
    """
    call, owner = _MAKERS[name]()
    wall, cpu = time.perf_counter_ns, time.thread_time_ns
    longest = {"call": (0, 0), "empty": (0, 0)}
    longest_cpu, over_1ms = 0, 0
    gc.collect()
    gc.disable()
    for chunk in _key_chunks(keys):
        for what, function in (("call", call), ("empty", _empty)):
            for key in chunk:
                cpu_start, start = cpu(), wall()
                function(key)
                took, busy = wall() - start, cpu() - cpu_start
                if took > longest[what][0]:
                    longest[what] = took, busy
                if what == "call":
                    longest_cpu = max(longest_cpu, busy)
                    over_1ms += took > 1_000_000
    gc.enable()
    del call, owner
    return {
        "name": name,
        "keys": keys,
        "wall_worst_us": longest["call"][0] / 1e3,
        "cpu_of_it_us": longest["call"][1] / 1e3,
        "cpu_worst_us": longest_cpu / 1e3,
        "wall_over_1ms": over_1ms,
        "empty_worst_us": longest["empty"][0] / 1e3,
        "huge_page_us": _longest_touch_us(),
    }


_TASKS: dict[str, Callable[..., Any]] = {
    "bytes": _bytes_a_key,
    "cost": _cost_by_size,
    "worst": _worst_call,
}


def _present(peers_only: bool) -> list[str]:
    names = [] if peers_only else [_TIDEGATE]
    missing = []
    for name, distribution in (
        ("limits fixed window", "limits"),
        ("rust-py-rate-limit", "rust-py-rate-limit"),
    ):
        if harness.optional(peers.PEERS[distribution]) is None:
            missing.append(distribution)
        else:
            names.append(name)
    peers.print_missing(missing)
    return names


def _report_bytes(names: list[str], quick: bool) -> list[dict[str, Any]]:
    found = []
    for name in names:
        sizes = [1_000_000] if quick or name != _TIDEGATE else [1_000_000, 10_000_000]
        found += [harness.in_child(__file__, "bytes", name, size) for size in sizes]
    lines = [
        [
            row["name"],
            f"{row['keys']:,}",
            f"{row['bytes_a_key']:.1f}",
            f"{row['peak_bytes_a_key']:.1f}",
            f"{row['evicted_live']:,}" if "evicted_live" in row else "-",
        ]
        for row in found
    ]
    headers = ["", "keys", "bytes/key", "at the peak", "live keys lost"]
    harness.print_table("Growth of the resident set", headers, lines)
    return found


def _report_cost(names: list[str], rounds: int, quick: bool) -> list[dict[str, Any]]:
    found = []
    peer_rounds = max(3, rounds // 3)
    for name in names:
        sizes = [1_000, 10_000, 100_000, 1_000_000]
        if name == _TIDEGATE and not quick:
            sizes.append(10_000_000)
        found += harness.in_child(
            __file__, "cost", name, sizes, rounds if name == _TIDEGATE else peer_rounds
        )
    first = {row["name"]: row for row in reversed(found)}
    lines = [
        [
            row["name"],
            f"{row['keys']:,}",
            f"{row['ns']:,.1f}",
            f"{row['best_ns']:,.1f}",
            f"{row['ns'] / first[row['name']]['ns']:.2f}x",
        ]
        for row in found
    ]
    headers = ["", "keys", "ns/decision", "best", "x 1,000 keys"]
    harness.print_table("Random keys, medians of the rounds", headers, lines)
    return found


def _report_worst(names: list[str], runs: int, quick: bool) -> list[dict[str, Any]]:
    found = []
    for run in range(runs):
        for name in names:
            if run > 0 and name != _TIDEGATE:
                continue
            keys = 4_000_000 if name == _TIDEGATE else 1_000_000
            found.append(
                {
                    **harness.in_child(__file__, "worst", name, keys // 4 if quick else keys),
                    "run": run + 1,
                }
            )
    found.sort(key=lambda row: names.index(row["name"]))
    columns = {
        "worst us": "wall_worst_us",
        "its CPU us": "cpu_of_it_us",
        "worst CPU us": "cpu_worst_us",
        "> 1 ms": "wall_over_1ms",
        "empty us": "empty_worst_us",
        "huge page us": "huge_page_us",
    }
    lines = [
        [f"{row['name']}, run {row['run']}", f"{row['keys']:,}"]
        + [f"{row[column]:,.0f}" for column in columns.values()]
        for row in found
    ]
    harness.print_table(
        "The longest single call while the table grows", ["", "keys", *columns], lines
    )
    return found


def _targets(
    sizes: list[dict[str, Any]], costs: list[dict[str, Any]], worst: list[dict[str, Any]]
) -> list[Target]:
    found = []
    for row in sizes:
        if row["name"] == _TIDEGATE:
            what = f"bytes a key at {row['keys'] // 1_000_000} M keys"
            found.append(Target(what, row["bytes_a_key"], 48, at_least=False, unit=" B"))
            what = f"live keys lost, of {row['keys'] // 1_000_000} M"
            found.append(Target(what, row["evicted_live"], 0, at_least=False, unit=""))
    ours = [row for row in costs if row["name"] == _TIDEGATE]
    if ours:
        what = f"cost a decision from {ours[0]['keys']:,} to {ours[-1]['keys']:,} keys"
        more, miss = ours[-1]["ns"] - ours[0]["ns"], ours[0]["miss_ns"]
        note = (
            f"cost by size: {more:.0f} ns more, {more / miss:.2f} times what one random byte of "
            f"a block of that size costs a Python loop beyond a byte in the cache ({miss:.0f} ns)."
        )
        found.append(Target(what, ours[-1]["ns"] / ours[0]["ns"], 4, at_least=False, note=note))
    ours = [row for row in worst if row["name"] == _TIDEGATE]
    if ours:
        least = min(ours, key=lambda row: row["wall_worst_us"])
        note = (
            "worst single call: the least of the runs' longest; what growth costs comes back "
            "in every run, an interruption by the machine does not. In that run an empty "
            f"function took up to {least['empty_worst_us'] / 1e3:.2f} ms, and the kernel up to "
            f"{least['huge_page_us'] / 1e3:.2f} ms to hand out one huge page."
        )
        what = "worst single call while the table grows"
        value = least["wall_worst_us"] / 1e3
        found.append(Target(what, value, 1, at_least=False, unit=" ms", note=note))
    return found


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=15, quick_rounds=5)
    parser.add_argument("--peers-only", action="store_true", help="leave tidegate out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        task, *given = json.loads(options.child)
        print(json.dumps(_TASKS[task](*given)))
        return
    if not options.peers_only:
        harness.load_tidegate()
    rounds = harness.rounds_of(options)
    names = _present(options.peers_only)
    sizes = _report_bytes(names, options.quick)
    costs = _report_cost(names, rounds, options.quick)
    worst = _report_worst(names, 1 if options.quick else 3, options.quick)
    targets = _targets(sizes, costs, worst)
    harness.report(
        options.json,
        "memory",
        {"rounds": rounds, "quick": options.quick, "bytes": sizes, "cost": costs, "worst": worst},
        targets,
    )


if __name__ == "__main__":
    main()
