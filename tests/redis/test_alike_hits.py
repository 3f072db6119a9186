"""Hits of one key that share a command: it has the key once, and decides them in their order."""

from __future__ import annotations

import asyncio
import random

import pytest
import tidegate as tg
from redis_server import PATIENT, RedisServer

# Nothing comes back while a test runs.
LIMITS = {
    "token-bucket": "60/2000 weeks burst 60",
    "fixed-window": "60/2000 weeks",
}
STRICT = f"{PATIENT}&deny_cache_max=0"


def limit(algorithm: str) -> tg.Limit:
    return tg.Limit(LIMITS[algorithm], algorithm=algorithm)


def fewest_commands(server: RedisServer, hits: int, limiter: tg.Limiter) -> int:
    """Of some tries: a busy machine splits the hits of a turn, but not each time."""
    fewest = hits
    for attempt in range(20):
        server.command("CONFIG", "RESETSTAT")
        limiter.hit_many([f"k{attempt}"] * hits)
        calls = server.calls()
        commands = calls.get("evalsha", 0) + calls.get("eval", 0)
        # Each command reads and writes the key once, however many hits it has.
        assert calls["get"] == calls["set"] == calls["time"] == commands
        fewest = min(fewest, commands)
        if fewest == 1:
            break
    return fewest


@pytest.mark.parametrize("algorithm", LIMITS)
def test_one_command_reads_and_writes_a_key_once(server: RedisServer, algorithm: str) -> None:
    with tg.Limiter(limit(algorithm), storage=server.uri(STRICT)) as limiter:
        limiter.hit("script")
        assert fewest_commands(server, 60, limiter) == 1


@pytest.mark.parametrize("algorithm", LIMITS)
def test_the_first_hits_pass(server: RedisServer, algorithm: str) -> None:
    with tg.Limiter(limit(algorithm), storage=server.uri(STRICT)) as limiter:
        limiter.hit("script")  # hits that find no script are sent again, behind those that do
        assert limiter.hit_many(["k"] * 100) == [True] * 60 + [False] * 40
        assert limiter.hit_many(["j"] * 60 + ["k", "j"]) == [True] * 60 + [False] * 2
        # A command has 128 hits at most.
        assert limiter.hit_many(["i"] * 500) == [True] * 60 + [False] * 440
        assert limiter.stats().script_errors == limiter.stats().degraded == 0


@pytest.mark.parametrize("algorithm", LIMITS)
def test_each_hit_is_told_what_a_store_in_memory_tells(server: RedisServer, algorithm: str) -> None:
    draw = random.Random(11)
    with (
        tg.Limiter(limit(algorithm), storage=server.uri(STRICT)) as shared,
        tg.Limiter(limit(algorithm)) as local,
    ):
        shared.hit("a call that loads the script, after which all are sent once")
        for _ in range(30):
            # More keys than a command has, so that it is split between them too.
            keys = [f"k{draw.randrange(40)}" for _ in range(draw.randrange(1, 200))]
            costs = [draw.choice((1, 1, 1, 2, 7)) for _ in keys]

            async def hits(keys: list[str] = keys, costs: list[int] = costs) -> list[tg.Decision]:
                calls = [shared.hit_async(k, cost) for k, cost in zip(keys, costs)]
                return await asyncio.gather(*calls)

            # Hits of other costs are sent apart, but in the order of the calls.
            told = [(d.allowed, d.remaining) for d in asyncio.run(hits())]
            expected = [local.hit(k, cost) for k, cost in zip(keys, costs)]
            assert told == [(d.allowed, d.remaining) for d in expected]
        assert shared.stats().script_errors == shared.stats().degraded == 0


def test_a_bucket_that_lies_too_far_ahead_is_moved_back_once(server: RedisServer) -> None:
    with tg.Limiter(limit("token-bucket"), storage=server.uri(STRICT)) as limiter:
        limiter.hit("k")
        server.command("SET", server.only_key(), "9000000000000000")
        assert limiter.hit_many(["k"] * 20) == [False] * 20
        assert limiter.peek("k").remaining == 0
        assert limiter.stats().script_errors == limiter.stats().degraded == 0


def test_a_window_that_has_ended_is_left_behind_by_all_hits(server: RedisServer) -> None:
    with tg.Limiter(limit("fixed-window"), storage=server.uri(STRICT)) as limiter:
        limiter.hit("k", 10)
        key = server.only_key()
        ended = (1_000_000_000).to_bytes(5, "big") + bytes(4) + (59).to_bytes(7, "big")
        server.command("SET", key, server.value_of(key)[:2] + ended)
        assert limiter.hit_many(["k"] * 61) == [True] * 60 + [False]
        assert limiter.stats().script_errors == limiter.stats().degraded == 0


@pytest.mark.parametrize("algorithm", LIMITS)
def test_a_foreign_value_is_an_error_for_all_of_its_hits(
    server: RedisServer, algorithm: str
) -> None:
    with tg.Limiter(limit(algorithm), storage=server.uri(STRICT)) as limiter:
        limiter.hit("k")
        server.command("SET", server.only_key(), "foreign")
        # By the fallback, which has the limit's 60 too.
        assert limiter.hit_many(["k"] * 5 + ["j"] * 5) == [True] * 10
        assert limiter.stats().degraded == 5
