"""lua/fixed_hits.lua, the short script for hits on fixed windows, over every state of a key."""

from __future__ import annotations

import asyncio
import struct

import pytest
import tidegate
from redis_server import RedisServer

# Ends of windows are a multiple of it, and none comes while a test runs.
PERIOD_S = 40 * 365 * 24 * 3600
LIMIT = tidegate.Limit(f"10/{PERIOD_S} seconds", algorithm="fixed-window")
END_S = 2 * PERIOD_S


def packed(end_s: int, end_ns: int, used: int) -> bytes:
    fields = end_s.to_bytes(5, "big") + struct.pack(">I", end_ns) + used.to_bytes(7, "big")
    return b"\x81\0" + fields


def now_s(server: RedisServer) -> int:
    return int(server.command("TIME").split(b"\r\n")[2])


@pytest.fixture
def limiter(server: RedisServer) -> tidegate.Limiter:
    limiter = tidegate.Limiter(LIMIT, storage=server.uri())
    limiter.hit("k")  # so that there is a key to change
    return limiter


def test_a_fresh_key_counts_in_the_window_of_now(
    server: RedisServer, limiter: tidegate.Limiter
) -> None:
    assert server.value_of(server.only_key()) == packed(END_S, 0, 1)
    left_ms = int(server.command("PTTL", server.only_key())[1:-2])
    # The clock of the second reading is up to some seconds later, or a second less exact.
    assert -1000 < left_ms - (END_S - now_s(server)) * 1000 < 5000


@pytest.mark.parametrize("used", [0, 1, 9, 10, 11, 2**52])
@pytest.mark.parametrize("cost", [1, 5, 10, 11, 2**40])
def test_a_hit_passes_where_the_window_has_room(
    server: RedisServer, limiter: tidegate.Limiter, used: int, cost: int
) -> None:
    key = server.only_key()
    server.command("SET", key, packed(END_S, 0, used))
    decision = limiter.hit("k", cost)
    assert decision.allowed is (used + cost <= 10)
    after = used + cost if decision.allowed else used
    assert decision.remaining == max(0, 10 - after)
    assert server.value_of(key) == packed(END_S, 0, after)
    assert not decision.degraded


def test_an_ended_window_counts_for_nothing(server: RedisServer, limiter: tidegate.Limiter) -> None:
    key = server.only_key()
    server.command("SET", key, packed(now_s(server) - 1, 999_999_000, 10))
    assert limiter.hit("k", 3).remaining == 7
    assert server.value_of(key) == packed(END_S, 0, 3)


@pytest.mark.parametrize("end_ns", [1, 999_999_999])
def test_a_window_that_ends_between_microseconds_counts(
    server: RedisServer, limiter: tidegate.Limiter, end_ns: int
) -> None:
    """Then the full script decides, in the same call."""
    key = server.only_key()
    server.command("SET", key, packed(END_S - 1, end_ns, 9))
    assert [limiter.hit("k").allowed for _ in range(2)] == [True, False]
    assert server.value_of(key) == packed(END_S - 1, end_ns, 10)


# At least 2, as now_s() is up to a second less than the time.
@pytest.mark.parametrize("ahead_s", [2, PERIOD_S, 5_900_000_000, 6_100_000_000])
def test_a_window_beyond_the_clock_is_moved_back(
    server: RedisServer, limiter: tidegate.Limiter, ahead_s: int
) -> None:
    """The start of the window lies ahead of now by more than a clock may be wrong."""
    key = server.only_key()
    server.command("SET", key, packed(now_s(server) + PERIOD_S + ahead_s, 0, 4))
    decision = limiter.hit("k")
    assert not decision.degraded
    assert limiter.stats().script_errors == 0
    assert server.value_of(key)[:9] == packed(END_S, 0, 0)[:9]


def test_a_window_within_the_tolerance_of_the_clock_stays(
    server: RedisServer, limiter: tidegate.Limiter
) -> None:
    key = server.only_key()
    end_s = now_s(server) + PERIOD_S
    server.command("SET", key, packed(end_s, 0, 9))
    assert [limiter.hit("k").allowed for _ in range(2)] == [True, False]
    assert server.value_of(key) == packed(end_s, 0, 10)


@pytest.mark.parametrize("value", [b"", b"1", b"x" * 17, b"x" * 18, packed(END_S, 0, 2**56 - 1)])
def test_a_foreign_value_is_an_error_and_stays(
    server: RedisServer, limiter: tidegate.Limiter, value: bytes
) -> None:
    key = server.only_key()
    server.command("SET", key, value)
    assert limiter.hit("k").degraded
    assert limiter.stats().script_errors == 1
    assert server.value_of(key) == value
    server.command("DEL", key)
    server.command("RPUSH", key, "a")
    assert limiter.hit("k").degraded
    assert server.command("LLEN", key) == b":1\r\n"


def test_a_foreign_value_among_many_keys_fails_alone(server: RedisServer) -> None:
    with tidegate.Limiter(LIMIT, storage=server.uri()) as limiter:
        limiter.hit("k3")
        server.command("SET", server.only_key(), "foreign")
        allowed = limiter.hit_many([f"k{i}" for i in range(20)])
        assert allowed == [True] * 20  # one of them by the fallback
        assert limiter.stats().degraded == 1


def test_hits_of_different_windows_and_costs_share_commands(server: RedisServer) -> None:
    store = tidegate.Limiter(LIMIT, storage=server.uri()).storage
    limiters = [
        tidegate.Limiter(tidegate.Limit(f"{n}/2000 weeks", algorithm="fixed-window"), storage=store)
        for n in range(1, 9)
    ]

    async def hits(key: str) -> list[bool]:
        calls = [each.hit_async(key, cost) for each in limiters for cost in (1, 2, 3)]
        return [decision.allowed for decision in await asyncio.gather(*calls)]

    expected = []
    for n in range(1, 9):
        used = 0
        for cost in (1, 2, 3):
            expected.append(used + cost <= n)
            used += cost if used + cost <= n else 0
    fewest = 24
    for attempt in range(20):
        # A busy machine splits the hits of a turn; it does not split them each time.
        server.command("CONFIG", "RESETSTAT")
        assert asyncio.run(hits(f"k{attempt}")) == expected
        commands = server.calls()
        fewest = min(fewest, commands.get("evalsha", 0) + commands.get("eval", 0))
        if fewest <= 4:
            break
    assert fewest <= 4


def test_a_period_between_microseconds_and_a_calendar_take_the_full_script(
    server: RedisServer,
) -> None:
    for text in ("3/1234567890123457891 ns", "3/year", "3/99 years"):
        limit = tidegate.Limit(text, algorithm="fixed-window")
        with tidegate.Limiter(limit, storage=server.uri()) as limiter:
            assert [limiter.hit(text).allowed for _ in range(4)] == [True, True, True, False]
            assert limiter.stats().script_errors == 0
