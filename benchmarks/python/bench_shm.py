"""Shared memory: the cost of sharing for one process, and the speed of several.

    python benchmarks/python/bench_shm.py [--quick] [--rounds N] [--json FILE]

One process: a hit through shm:// beside memory://, over 1,000 hot keys. Two processes: each with
keys of its own in one shared memory, beside one of them alone, and two with a memory:// each, which
is the most that the machine can reach. Four processes on one key: checks a second in all, beside
PyrateLimiter's buckets for several processes and limits on a Redis. Every call is below the limit,
so that none is refused only because another process has the lock. Peers that are not installed are
left out. Ratios are taken within each round.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import tidegate
from harness import Subject, Target
from tidegate._core import ShmStore

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from redis_server import RedisServer

NAME = f"bench-{os.getpid()}"
SHM = f"shm://{NAME}"
PLENTY = 1_000_000
LIMIT = f"{PLENTY}/second"
KEYS = 1_000
FORK = multiprocessing.get_context("fork")

# Creates a function of a key, in the process that will call it.
Maker = Callable[[], Callable[[str], Any]]


def calls_a_second(make: Maker, keys: list[list[str]], seconds: float) -> float:
    """Checks a second of all processes together, one for each list of keys."""
    ready = FORK.Barrier(len(keys))
    counts: Any = FORK.Queue()

    def work(mine: list[str]) -> None:
        call = make()
        for key in mine[:10]:
            call(key)
        ready.wait()
        count = 0
        start = time.perf_counter()
        stop = start + seconds
        # The clock is read once for each block of keys; slow peers have short blocks.
        while time.perf_counter() < stop:
            for key in mine:
                call(key)
            count += len(mine)
        counts.put(count / (time.perf_counter() - start))
        counts.close()
        counts.join_thread()
        os._exit(0)  # skips the exit handlers of peers

    processes = [FORK.Process(target=work, args=(mine,)) for mine in keys]
    for process in processes:
        process.start()
    total = sum(counts.get(timeout=seconds + 30) for _ in processes)
    for process in processes:
        process.join()
    return float(total)


def hit_of(storage: str) -> Maker:
    return lambda: tidegate.Limiter(LIMIT, storage=storage).hit


def peers(server: RedisServer, directory: Path) -> dict[str, Maker]:
    """Peers that share one limit between several processes."""
    makers: dict[str, Maker] = {}
    if importlib.util.find_spec("pyrate_limiter"):
        import pyrate_limiter as pyrate

        rates = [pyrate.Rate(PLENTY, pyrate.Duration.SECOND)]
        shared = pyrate.MultiprocessBucket.init(rates)

        def multiprocess() -> Callable[[str], Any]:
            limiter = pyrate.Limiter(shared)
            return lambda key: limiter.try_acquire(key)

        makers["pyrate-limiter, MultiprocessBucket"] = multiprocess
        if importlib.util.find_spec("filelock"):

            def sqlite() -> Callable[[str], Any]:
                bucket = pyrate.SQLiteBucket.init_from_file(
                    rates, db_path=str(directory / "pyrate.sqlite"), use_file_lock=True
                )
                limiter = pyrate.Limiter(bucket)
                return lambda key: limiter.try_acquire(key)

            makers["pyrate-limiter, SQLiteBucket"] = sqlite
    if importlib.util.find_spec("limits") and importlib.util.find_spec("redis"):
        import limits

        def redis() -> Callable[[str], Any]:
            storage = limits.storage.storage_from_string(f"redis://127.0.0.1:{server.port}")
            fixed = limits.strategies.FixedWindowRateLimiter(storage)
            item = limits.parse(f"{PLENTY}/second")
            return lambda key: fixed.hit(item, key)

        makers["limits on Redis, fixed window"] = redis
    return makers


def measure_processes(rounds: int, seconds: float) -> dict[str, list[float]]:
    one = [f"user:{i}" for i in range(KEYS)]
    other = [f"client:{i}" for i in range(KEYS)]
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            block = [["login"] * 20] * 4
            makers = peers(server, Path(directory))
            for _ in range(rounds):
                for name, value in (
                    ("shm://, 1 process", calls_a_second(hit_of(SHM), [one], seconds)),
                    ("shm://, 2 processes", calls_a_second(hit_of(SHM), [one, other], seconds)),
                    (
                        "memory://, 1 process",
                        calls_a_second(hit_of("memory://"), [one], seconds),
                    ),
                    (
                        "memory:// each, 2 processes",
                        calls_a_second(hit_of("memory://"), [one, other], seconds),
                    ),
                    (
                        "shm://, 4 processes on one key",
                        calls_a_second(hit_of(SHM), [["login"] * KEYS] * 4, seconds),
                    ),
                    *(
                        (f"{peer}, 4 processes on one key", calls_a_second(make, block, seconds))
                        for peer, make in makers.items()
                    ),
                ):
                    samples.setdefault(name, []).append(value)
        finally:
            server.kill()
    return samples


def bytes_a_key() -> float:
    """Bytes a key of a shared memory of the default size that is filled to its capacity."""
    name = f"{NAME}-full"
    store = ShmStore(name, None)
    try:
        limiter = tidegate.Limiter("100/hour", storage=store)
        chunk = 100_000
        for start in range(0, store.capacity, chunk):
            limiter.hit_many([f"user:{i}" for i in range(start, start + chunk)])
        live = store.census()[0]
        print(f"{live:,} of {store.capacity:,} keys are live in {store.bytes:,} bytes")
        return float(store.bytes) / live
    finally:
        ShmStore.remove(name)


def main() -> None:
    parser = harness.arguments("shared memory", rounds=7, quick_rounds=2)
    options = parser.parse_args()
    rounds = harness.rounds_of(options)
    harness.print_interpreter()
    try:
        rows = harness.measure(
            [
                Subject(
                    storage.partition("//")[0] + "//",
                    "hit(key)",
                    {"hit": tidegate.Limiter(LIMIT, storage=storage).hit},
                    verdict=bool,
                )
                for storage in ("memory://", SHM)
            ],
            rounds * 3,
            quick=options.quick,
        )
        samples = measure_processes(rounds, 0.2 if options.quick else 0.5)
    finally:
        ShmStore.remove(NAME)
    usage = bytes_a_key()

    def ratio(one: str, two: str) -> float:
        return statistics.median(a / b for a, b in zip(samples[one], samples[two], strict=True))

    harness.print_rows("One process", rows, rows[0])
    harness.print_table(
        "Several processes: checks/s in all",
        ["", "median", "least", "most"],
        [
            [name, f"{statistics.median(all_):,.0f}", f"{min(all_):,.0f}", f"{max(all_):,.0f}"]
            for name, all_ in samples.items()
        ],
    )
    ceiling = ratio("memory:// each, 2 processes", "memory://, 1 process")
    targets = [
        Target("a hit through shm:// over memory://", rows[1].ns / rows[0].ns, 1.25, False),
        Target(
            "2 processes on distinct keys over one",
            ratio("shm://, 2 processes", "shm://, 1 process"),
            1.8,
            note=f"two processes that share nothing do {ceiling:.2f}x of one on this machine now",
        ),
        *(
            Target(
                f"4 processes on one key, over {peer.removesuffix(', 4 processes on one key')}",
                ratio("shm://, 4 processes on one key", peer),
                100,
            )
            for peer in samples
            if peer.endswith("on one key") and not peer.startswith("shm")
        ),
        Target("bytes a key", usage, 48, False, unit=""),
    ]
    harness.report(
        options.json,
        "shm",
        {
            "rounds": rounds,
            "peers": {n: harness.version(n) for n in ("pyrate-limiter", "limits", "redis")},
            "rows": rows,
            "samples": samples,
            "bytes_a_key": usage,
        },
        targets,
    )


if __name__ == "__main__":
    main()
