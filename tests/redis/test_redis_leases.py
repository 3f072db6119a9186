"""The leases of slots in Redis, and in the fallback, are extended while their holders live."""

from __future__ import annotations

import tidegate as tg
from outages import GIVEN_TIME, by_line
from proxy import Proxy
from redis_server import RedisServer
from storage_laws import (
    check_an_extension_never_takes_the_place_of_another,
    check_whoever_lost_a_place_takes_none_from_others,
)

START = 1_700_000_000 * 10**9


def places(server: RedisServer, clock: tg.ManualClock, count: int = 2) -> tg.Limiter:
    limit = tg.Limit(f"{count}/minute", algorithm="concurrency")
    return tg.Limiter(limit, storage=server.uri(GIVEN_TIME), clock=clock)


def test_a_holder_keeps_its_place_beyond_its_lease(
    server: RedisServer, clock: tg.ManualClock
) -> None:
    limiter = places(server, clock, count=4)
    with limiter.slot("k", cost=2), limiter.slot("k"):
        for seconds in (31, 31, 29, 31, 1, 59, 600):
            clock.advance(seconds)
            assert limiter.peek("k").remaining == 1
            with limiter.slot("k"):
                assert not limiter.peek("k")
    assert limiter.peek("k").remaining == 4
    assert limiter.stats().script_errors == 0


def test_an_extension_never_takes_the_place_of_another(
    server: RedisServer, clock: tg.ManualClock
) -> None:
    check_an_extension_never_takes_the_place_of_another(places(server, clock, count=1), clock)


def test_whoever_lost_a_place_takes_none_from_others(
    server: RedisServer, clock: tg.ManualClock
) -> None:
    check_whoever_lost_a_place_takes_none_from_others(places(server, clock, count=1), clock)


def test_the_server_says_when_it_extended(server: RedisServer) -> None:
    limit = tg.Limit(1, 60.0, algorithm="concurrency")
    with tg.Limiter(limit, storage=server.uri()) as limiter:
        admitted = limiter.hit("k")
        extended = limiter._extend("k", 1, admitted)
        assert extended is not None
        assert limiter.peek("k").remaining == 0
        # The new decision gives the place back; by the old one it is not known any more.
        limiter._release("k", 1, admitted)
        assert limiter.peek("k").remaining == 0
        limiter._release("k", 1, extended)
        assert limiter.peek("k").remaining == 1


def test_leases_are_extended_where_they_were_taken(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock
) -> None:
    limit = tg.Limit("4/minute", algorithm="concurrency")
    line, limiter, direct = by_line(server, proxy, clock, limit)
    with limiter.slot("k"):
        clock.advance(45)
        assert direct.used("k") == 1
        line.cut()
        with limiter.slot("k"):
            for _ in range(4):
                clock.advance(45)
                assert direct.used_of_share("k", 4) == 1
        assert direct.used_of_share("k", 4) == 0
        assert direct.used("k") == 0  # its lease ended while Redis was away
        line.mend()
        clock.advance(10)
        assert direct.used("k") == 1  # and it was taken again
    assert direct.used("k") == 0


def test_nothing_is_extended_while_redis_does_not_answer(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock
) -> None:
    limit = tg.Limit("4/minute", algorithm="concurrency")
    line, limiter, _direct = by_line(server, proxy, clock, limit)
    admitted = limiter.hit("k")
    assert not admitted.degraded
    line.cut()
    limiter.hit("k")
    assert limiter._extend("k", 1, admitted) is None
    line.mend()
