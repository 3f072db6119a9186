"""Whatever is stored at a key: no script hangs, and no value locks anybody out."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tidegate as tg
import value_fuzz
from redis_server import PATIENT, RedisServer

HEADER = b"\x81\0"
FAR_S = 9_000_000_000  # in 2255


def five(number: int) -> bytes:
    return number.to_bytes(5, "big")


def hit_on(server: RedisServer, limit: tg.Limit, value: bytes) -> tuple[tg.Limiter, bytes]:
    """A limiter whose key has the value."""
    limiter = tg.Limiter(limit, storage=server.uri(f"{PATIENT}&deny_cache_max=0"))
    limiter.hit("k")
    key = server.only_key()
    server.command("SET", key, value)
    return limiter, key


def entry(s: int) -> bytes:
    return five(s) + bytes(4)


NOW = int(time.time())
HANGING = [
    HEADER + b"\xff\xff\xff\xff" + entry(NOW + 60),
    HEADER + struct.pack(">I", 2) + entry(NOW - 60),
    # As of earlier versions: without a format.
    b"\xff\xff\xff\xff" + entry(NOW + 60),
    struct.pack(">I", 1_700_000_000) + entry(FAR_S),
]


@pytest.mark.parametrize("algorithm", ["sliding-log", "concurrency"])
@pytest.mark.parametrize("value", HANGING)
def test_a_log_with_a_head_beyond_its_end_hangs_nobody(
    own_server: RedisServer, algorithm: Any, value: bytes
) -> None:
    limiter, key = hit_on(own_server, tg.Limit("5/minute", algorithm=algorithm), value)
    # A refund is first, since it would go to what the fallback had charged.
    calls = [limiter.refund, limiter.hit, limiter.peek, lambda k: limiter.charge_up_to(k, 2)]
    start = time.monotonic()
    for call in calls:
        call("k")
    assert time.monotonic() - start < 5  # it was minutes
    assert limiter.stats().script_errors == len(calls)
    assert own_server.value_of(key) == value


BUCKET = five(NOW + 60) + bytes(4)
KEPT = b"\x81\3" + BUCKET  # of a limit with an id
FOREIGN = [
    (("5/minute", "token-bucket", None), HEADER + five(2**40 - 1) + bytes(4)),
    (("5/minute", "token-bucket", None), HEADER + five(NOW) + b"\xff" * 4),
    (("5/minute", "token-bucket", None), b"\x81\1" + BUCKET),
    (("5/minute", "token-bucket", None), b"1.5"),
    (("5/minute", "token-bucket", None), b"inf"),
    (("5/minute", "token-bucket", None), b"nan"),
    (("5/minute", "token-bucket", None), b"-5"),
    (("5/minute", "token-bucket", "x"), b"\x81\3" + BUCKET + bytes(7) + struct.pack(">II", 5, 0)),
    (("5/minute", "token-bucket", "x"), b"\x81\3" + BUCKET + bytes(7) + struct.pack(">II", 0, 1)),
    (
        ("5/minute", "token-bucket", "x"),
        b"\x81\3" + BUCKET + b"\xff" * 7 + struct.pack(">II", 5, 1),
    ),
    (("5/minute", "fixed-window", None), HEADER + BUCKET + b"\xff" * 7),
    (("5/minute", "fixed-window", None), HEADER + five(2**40 - 1) + bytes(11)),
    (("5/minute", "sliding-window", None), HEADER + five(NOW + 60) + b"\xff" * 4 + bytes(8)),
    (("5/minute", "sliding-log", None), HEADER + bytes(4)),
    (("5/minute", "sliding-log", None), HEADER + bytes(4) + entry(2**40 - 1)),
    (("quota 9/day", "quota", None), HEADER),
    (("quota 9/day", "quota", None), HEADER + b"\xff" * 39),
]


@pytest.mark.parametrize(("limit", "value"), FOREIGN)
def test_a_value_that_cannot_be_ours_is_an_error_and_stays(
    server: RedisServer, limit: tuple[Any, Any, Any], value: bytes
) -> None:
    text, algorithm, id = limit
    limiter, key = hit_on(server, tg.Limit(text, algorithm=algorithm, id=id), value)
    assert limiter.hit("k").degraded
    assert limiter.stats().script_errors == 1
    assert not limiter.stats().breaker_open
    assert server.value_of(key) == value


def test_a_log_in_no_order_locks_nobody_out(server: RedisServer) -> None:
    soon, far = entry(int(time.time()) + 40), entry(FAR_S)
    value = HEADER + bytes(4) + far + 3 * soon + far
    limiter, key = hit_on(server, tg.Limit("5/minute", algorithm="sliding-log"), value)
    decision = limiter.hit("k")
    assert decision.degraded
    assert decision.retry_after <= 60
    assert server.value_of(key) == value


@pytest.mark.parametrize("newer", [b"\x82\0", b"\x81\x80", b"\xbf\xff"])
@pytest.mark.parametrize(
    "limit",
    [
        tg.Limit("5/minute"),
        tg.Limit("5/minute", id="x"),
        tg.Limit("5/minute", algorithm="fixed-window"),
        tg.Limit("5/minute", algorithm="sliding-window"),
        tg.Limit("5/minute", algorithm="sliding-log"),
        tg.Limit("5/minute", algorithm="concurrency"),
        tg.Limit("quota 5/day"),
    ],
)
def test_a_value_of_a_newer_version_is_refused_by_its_version(
    server: RedisServer, limit: tg.Limit, newer: bytes
) -> None:
    limiter, key = hit_on(server, limit, newer + bytes(30))
    said: list[str] = []
    with tg.Limiter(limit, storage=server.uri(), on_script_error=said.append) as listening:
        assert listening.hit("k").degraded
    expected = (
        f"has the format {newer[0] - 128}, flags {newer[1]}, which a newer version of tidegate"
    )
    assert expected in said[0]
    assert server.value_of(key) == newer + bytes(30)
    limiter.close()


@pytest.mark.parametrize("id", [None, "rule"])
@pytest.mark.parametrize(
    "ahead_s", [FAR_S - NOW, 99 * 3600, 2 * 3600], ids=["centuries", "days", "hours"]
)
@pytest.mark.parametrize("form", ["decimal", "packed"])
def test_a_bucket_far_in_the_future_is_moved_back(
    server: RedisServer, id: str | None, ahead_s: int, form: str
) -> None:
    value = str((NOW + ahead_s) * 10**6).encode()
    if form == "packed":
        value = HEADER + five(NOW + ahead_s) + bytes(4)
        if id is not None:
            value = b"\x81\3" + value[2:] + bytes(7) + struct.pack(">II", 100, 1)
    limiter, key = hit_on(server, tg.Limit("100/hour", id=id), value)
    for _ in range(2):
        refused = limiter.hit("k")
        assert not refused.degraded
        assert not refused
        assert 0 < refused.retry_after <= 36
        assert refused.reset_after <= 3600
    assert int(server.command("PTTL", key)[1:]) <= 3_600_010


@pytest.mark.parametrize("units", [2**48 - 1, 10**6, 6])
@pytest.mark.parametrize("id", [None, "rule"])
def test_leased_units_that_no_grant_can_have_made_are_taken_off(
    server: RedisServer, id: str | None, units: int
) -> None:
    """Of a burst of 5, or with an id of what an earlier limit of it may have had."""
    now = int(time.time())
    finish_us, length_us = (now + 30) * 10**6, 10**7
    slots = finish_us.to_bytes(7, "big") + length_us.to_bytes(5, "big")
    value = b"\x81\x21" + five(now) + bytes(4) + bytes(7)
    if id is not None:
        value = b"\x81\x23" + value[2:] + struct.pack(">II", 5, 1)
    value += slots + units.to_bytes(6, "big") * 2
    limiter, key = hit_on(server, tg.Limit("5/minute", id=id), value)
    refused = limiter.hit("k")
    assert not refused.degraded
    assert not refused, "units are out until the slots end"
    assert limiter.stats().script_errors == 0
    assert int(server.command("PTTL", key)[1:]) <= 60_000 * (100 if id else 1) + 40_000


@pytest.mark.parametrize("record", [b"o1" + bytes([48]) * 30, b"s9007199254740993", b"o", b"x5"])
def test_a_record_of_a_reservation_that_cannot_be_ours_is_none(
    own_server: RedisServer, record: bytes
) -> None:
    with tg.Limiter("50/minute", storage=own_server.uri(PATIENT)) as limiter:
        reservation = limiter.reserve("k", 5)
        (key,) = (k for k in own_server.command("KEYS", "*").split(b"\r\n") if b"}:" in k)
        own_server.command("SET", key, record)
        with pytest.raises(tg.ReservationError):
            reservation.commit(3)
        assert limiter.stats().script_errors == 0
        assert limiter.peek("k").remaining == 45


@pytest.fixture
def rules(server: RedisServer) -> Iterator[tg.Limiter]:
    document = {"rules": [{"id": "all", "by": ["user"], "limit": "100/hour"}]}
    with tg.Limiter(tg.RuleSet(document), storage=server.uri(f"{PATIENT}&deny_cache_max=0")) as all:
        yield all


def test_a_bucket_of_a_rule_far_in_the_future_is_moved_back(
    server: RedisServer, rules: tg.Limiter
) -> None:
    assert rules.check(user="u")
    server.command("SET", server.only_key(), str(FAR_S * 10**6))
    assert rules.check(user="u").reset_after <= 3600
    assert rules.check(user="u").reset_after <= 3600


def test_random_values_hang_no_script_and_fail_none(own_server: RedisServer) -> None:
    # A loaded machine makes scripts late; one that hangs takes minutes.
    report = value_fuzz.fuzz(own_server, seconds=5, seed=time.time_ns(), slow_s=10)
    assert report.failures == []
    assert report.slow_scripts == []
    assert report.calls > 100
    assert report.refused_values > 10
