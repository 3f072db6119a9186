"""charge_up_to() in Redis: as in memory, in one round trip, and by the fallback."""

from __future__ import annotations

import asyncio

import pytest
import tidegate as tg
from charge_model import LIMITS, check_against_the_model
from redis_server import PATIENT, RedisServer

GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=6000000"


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.algorithm} {limit}")
def test_a_key_stands_as_in_memory(server: RedisServer, limit: tg.Limit) -> None:
    for seed in range(4):
        check_against_the_model([limit], server.uri(GIVEN_TIME), seed)


def test_several_limits_are_charged_each_as_far_as_it_has_room(server: RedisServer) -> None:
    limits = [
        tg.Limit("5/second"),
        tg.Limit("40/minute", algorithm="fixed-window"),
        tg.Limit("30/minute", algorithm="sliding-window"),
        tg.Limit("50/minute", algorithm="sliding-log"),
    ]
    for seed in range(8):
        check_against_the_model(limits, server.uri(GIVEN_TIME), seed)


@pytest.mark.parametrize("algorithm", sorted({limit.algorithm for limit in LIMITS}))
def test_it_is_one_round_trip_by_the_servers_clock(server: RedisServer, algorithm: str) -> None:
    limits = [tg.Limit("100/hour", algorithm=algorithm), tg.Limit("150/day", algorithm=algorithm)]
    with tg.Limiter(limits, storage=server.uri(PATIENT)) as limiter:
        assert limiter.hit("k", 30).remaining == 70
        assert limiter.charge_up_to("warm", 1).charged == 1  # the script is known now
        server.command("CONFIG", "RESETSTAT")
        decision = limiter.charge_up_to("k", 500)
        assert (decision.charged, decision.remaining, decision.degraded) == (70, 0, False)
        assert commands(server) == {"evalsha": 1}
        assert not limiter.hit("k")


def test_async(server: RedisServer) -> None:
    async def charge() -> None:
        async with tg.Limiter("100/hour", storage=server.uri(PATIENT)) as limiter:
            decisions = await asyncio.gather(
                *(limiter.charge_up_to_async("k", 7) for _ in range(20))
            )
            assert sorted(each.charged or 0 for each in decisions) == [0] * 5 + [2] + [7] * 14
            with pytest.raises(tg.ConfigurationError, match="expected"):
                await limiter.charge_up_to_async("k", 0)

    asyncio.run(charge())


def test_a_refusal_that_is_remembered_does_not_outlive_what_is_charged(server: RedisServer) -> None:
    with tg.Limiter("10/hour", storage=server.uri(PATIENT)) as limiter:
        assert not limiter.hit("k", 11)
        assert limiter.charge_up_to("k", 4).charged == 4
        assert limiter.hit("k").remaining == 5
        assert limiter.charge_up_to("k", 99).charged == 5
        assert not limiter.hit("k")


@pytest.mark.parametrize(("on_error", "charged"), [("fallback", 5), ("open", 0), ("closed", 0)])
def test_without_redis_the_fallback_is_charged_or_nothing(on_error: str, charged: int) -> None:
    uri = f"redis://127.0.0.1:1?on_error={on_error}&fallback_share=0.5&timeout=0.2"
    with tg.Limiter("10/hour", storage=uri, clock=None) as limiter:
        decision = limiter.charge_up_to("k", 99)
        assert (decision.charged, decision.degraded, decision.allowed) == (charged, True, True)
        if on_error == "fallback":
            assert not limiter.hit("k")
            limiter.refund("k", charged, decision=decision)
            assert limiter.hit("k", 5)


def commands(server: RedisServer) -> dict[str, int]:
    """How often each command was sent since the statistics were reset."""
    told = server.command("INFO", "commandstats")
    text = told.decode() if isinstance(told, bytes) else str(told)
    counts = {}
    for line in text.splitlines():
        name, found, rest = line.partition(":calls=")
        if found:
            counts[name.removeprefix("cmdstat_")] = int(rest.partition(",")[0])
    return {name: count for name, count in counts.items() if name in ("evalsha", "eval", "ping")}
