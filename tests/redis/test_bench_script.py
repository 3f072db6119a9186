"""benchmarks/python/bench_redis.py calls a script of the core, with arguments of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from redis_server import RedisServer

if sys.version_info < (3, 10):
    pytest.skip("the benchmarks need Python 3.10 or newer", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "python"))

import bench_redis


def test_the_benchmark_of_redis_calls_the_script_with_its_arguments(server: RedisServer) -> None:
    digest = bench_redis.load(server, bench_redis.SCRIPT)
    # What the benchmark's own limit, of a million a second, stores is gone after a millisecond.
    hourly = bench_redis.argument(3_600_000_000, 60_000_000)
    replies = [
        server.command("EVALSHA", digest, "1", key, argument).split(b"\r\n")
        for key, argument in (("h", hourly), ("h", hourly), ("bare", bench_redis.ARGUMENT))
    ]
    # Each hit passes; the first finds no state, the second that of the first.
    assert [reply[2] for reply in replies] == [b":1", b":1", b":1"]
    assert replies[0][3] == b":0"
    assert int(replies[1][3][1:]) > int(replies[0][1][1:])
    assert bench_redis.by_redis_benchmark(server, seconds=0.001) > 0
