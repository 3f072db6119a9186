"""lua/bucket_plan.lua, the short script for hits on buckets of any rate, over states of a key."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest
import tidegate as tg
from redis_server import PATIENT, RedisServer

# The time of a unit is 3600/7 s and 1036800/13 s: neither is a whole number of nanoseconds.
LIMITS = ("7/hour", "13/12 days")
RATES = (Fraction(3600, 7), Fraction(12 * 86400, 13))
E9 = 10**9


def encoded(tat: Fraction, denominator: int) -> bytes:
    """The value of an instant, in seconds: the shortest form that has it exactly."""
    ns = int(tat * E9)
    parts = (tat * E9 - ns) * denominator
    assert parts.denominator == 1
    fields = (ns // E9).to_bytes(5, "big") + struct.pack(">I", ns % E9)
    if parts:
        return b"\x81\1" + fields + int(parts).to_bytes(7, "big")
    return str(ns // 1000).encode() if ns % 1000 == 0 else b"\x81\0" + fields


def now_s(server: RedisServer) -> int:
    return int(server.command("TIME").split(b"\r\n")[2])


def limiter_of(server: RedisServer, *limits: tg.Limit | str) -> tg.Limiter:
    return tg.Limiter(list(limits), storage=server.uri(f"{PATIENT}&deny_cache_max=0"))


def keys_of(server: RedisServer, limits: tuple[str, ...] = LIMITS) -> list[bytes]:
    found = server.command("KEYS", "*").split(b"\r\n")[2::2]
    return [next(key for key in found if limit.encode() in key) for limit in limits]


def test_a_plan_of_any_rates_is_one_call_of_the_short_script(own_server: RedisServer) -> None:
    limiter = limiter_of(own_server, *LIMITS)
    limiter.hit("k")
    own_server.command("CONFIG", "SET", "slowlog-log-slower-than", "0")
    before = own_server.calls()["evalsha"]
    for _ in range(5):
        assert limiter.hit("k").allowed
    assert own_server.calls()["evalsha"] == before + 5
    own_server.command("CONFIG", "SET", "slowlog-log-slower-than", "-1")
    words = own_server.command("SLOWLOG", "GET", "8").split(b"\r\n")
    # EVALSHA, the script, the number of keys, two keys and one argument.
    assert words[words.index(b"EVALSHA") - 2] == b"*6"


# States that count: whole microseconds, whole nanoseconds, and less. The parts of a nanosecond
# are sevenths and thirteenths.
STATES = [
    (0, 0),
    (123_456_000, 0),
    (5, 0),
    (999_999_999, 0),
    (999_999_999, 6),
    (999_999_000, 3),
    (1, 1),
]


@pytest.mark.parametrize("form", ["short", "full"])
@pytest.mark.parametrize("cost", [1, 2, 4])
@pytest.mark.parametrize(("ns", "parts"), STATES)
def test_a_hit_charges_exactly(
    server: RedisServer, ns: int, parts: int, cost: int, form: str
) -> None:
    """Both scripts read and write the same values."""
    full = [tg.Limit("1000000/hour", shadow=True)] if form == "full" else []
    limiter = limiter_of(server, *LIMITS, *full)
    limiter.hit("k")
    keys = keys_of(server)
    start = now_s(server) + 100
    tats = [start + (ns + Fraction(parts, each)) / E9 for each in (7, 13)]
    for key, tat, each in zip(keys, tats, (7, 13), strict=True):
        server.command("SET", key, encoded(tat, each))
    decision = limiter.hit("k", cost)
    assert decision.allowed
    assert not decision.degraded
    for key, tat, rate, each in zip(keys, tats, RATES, (7, 13), strict=True):
        assert server.value_of(key) == encoded(tat + cost * rate, each)
        left_ms = int(server.command("PTTL", key)[1:-2])
        due_ms = (tat + cost * rate - now_s(server)) * 1000
        assert -1000 < left_ms - due_ms < 5000
    assert limiter.stats().script_errors == 0


@pytest.mark.parametrize("form", ["short", "full"])
def test_a_refused_hit_changes_nothing(server: RedisServer, form: str) -> None:
    full = [tg.Limit("1000000/hour", shadow=True)] if form == "full" else []
    limiter = limiter_of(server, *LIMITS, *full)
    limiter.hit("k")
    first, second = keys_of(server)
    values = [encoded(now_s(server) + 3500 + Fraction(5, 7 * E9), 7), server.value_of(second)]
    server.command("SET", first, values[0])
    decision = limiter.hit("k")
    assert not decision.allowed
    assert not decision.degraded
    assert decision.rule == LIMITS[0]
    assert [server.value_of(key) for key in (first, second)] == values


def test_a_bucket_beyond_the_clock_is_moved_back_exactly(server: RedisServer) -> None:
    limit = "7/hour burst 3"
    limiter = limiter_of(server, limit)
    limiter.hit("k")
    (key,) = keys_of(server, (limit,))
    server.command("SET", key, encoded(now_s(server) + 100_000 + Fraction(5, 7 * E9), 7))
    decision = limiter.hit("k")
    assert not decision.allowed
    assert not decision.degraded
    assert limiter.stats().script_errors == 0
    value = server.value_of(key)
    s, ns, parts = (int.from_bytes(value[a:b], "big") for a, b in ((2, 7), (7, 11), (11, 18)))
    assert value[:2] == b"\x81\1"
    # The depth from the instant of the call, which is a whole number of microseconds.
    now = s + (ns + Fraction(parts, 7)) / E9 - 3 * RATES[0]
    assert (now * 10**6).denominator == 1
    assert 0 <= now_s(server) - now + 1 < 60


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x81\0" + bytes(5) + struct.pack(">I", E9),
        b"\x81\0" + bytes(16),
        b"\x81\1" + bytes(9),
        b"\x82\1" + bytes(16),
        b"\x81\1" + (9_223_372_036).to_bytes(5, "big") + bytes(11),
        b"1.5",
    ],
)
def test_a_foreign_value_is_an_error_and_stays(server: RedisServer, value: bytes) -> None:
    limiter = limiter_of(server, *LIMITS)
    limiter.hit("k")
    key = keys_of(server)[1]
    server.command("SET", key, value)
    assert limiter.hit("k").degraded
    assert limiter.stats().script_errors == 1
    assert server.value_of(key) == value


def test_parts_beyond_those_of_the_limit_are_cut(server: RedisServer) -> None:
    """As the full script cuts them."""
    limiter = limiter_of(server, *LIMITS)
    limiter.hit("k")
    key = keys_of(server)[0]
    start = now_s(server) + 100
    server.command("SET", key, b"\x81\1" + start.to_bytes(5, "big") + bytes(4) + b"\xff" * 7)
    assert limiter.hit("k").allowed
    assert server.value_of(key) == encoded(start + Fraction(6, 7 * E9) + RATES[0], 7)


def test_a_rate_whose_parts_are_too_many_is_decided_by_the_full_script(
    own_server: RedisServer,
) -> None:
    """Its parts of a microsecond are beyond the numbers of a script."""
    limiter = limiter_of(own_server, "9007199254740881/day", "7/hour")
    own_server.command("CONFIG", "SET", "slowlog-log-slower-than", "0")
    assert [limiter.hit("k", 7).allowed for _ in range(2)] == [True, False]
    assert limiter.stats().script_errors == 0
