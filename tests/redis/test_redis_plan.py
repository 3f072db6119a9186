"""tidegate.Plan on Redis: one command for several keys, and several in a cluster."""

from __future__ import annotations

import asyncio

import pytest
import tidegate as tg
from redis_server import PATIENT, RedisServer

NOW = 1_700_000_000 * 10**9
ALGORITHMS = ("token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log")


def limiters(uri: str, *limits: str, algorithm: str = "token-bucket") -> list[tg.Limiter]:
    first = tg.Limiter(limits[0], storage=uri, algorithm=algorithm, prefix="plan0")
    return [
        first,
        *(
            tg.Limiter(limit, storage=first.storage, algorithm=algorithm, prefix=f"plan{number}")
            for number, limit in enumerate(limits[1:], 1)
        ),
    ]


def check_all_or_none(plan: tg.Plan, name: str) -> None:
    """A plan of 5 and of 3 in an hour."""
    first, second = plan.limiters
    keys = [f"user-{name}", f"tenant-{name}"]
    told = [plan.hit(keys) for _ in range(5)]
    assert [bool(decision) for decision in told] == [True] * 3 + [False] * 2
    assert not any(decision.degraded for decision in told)
    assert [plan.binding(decision) for decision in told] == [1] * 5
    assert first.peek(keys[0]).remaining == 2
    assert second.peek(keys[1]).remaining == 0
    # The first one refuses what the second would let through.
    assert plan.hit([keys[0], f"other-{name}"], costs=[2, 1])
    for _ in range(3):
        assert not plan.hit([keys[0], f"other-{name}"])
    assert second.peek(f"other-{name}").remaining == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_or_none_in_one_command(server: RedisServer, algorithm: str) -> None:
    uri = f"redis://127.0.0.1:{server.port}?{PATIENT}&deny_cache_max=0"
    plan = tg.Plan(limiters(uri, "5/hour", "3/hour", algorithm=algorithm))
    plan.hit(["warm", "up"])
    before = server.calls()
    check_all_or_none(plan, algorithm)
    after = server.calls()
    scripts = {
        name: after.get(name, 0) - before.get(name, 0) for name in ("evalsha", "eval", "del")
    }
    # 9 hits and 3 looks, each one command.
    assert scripts["evalsha"] == 12
    assert scripts["eval"] <= 2
    assert scripts["del"] == 0


def test_states_of_hosts_with_a_clock_of_their_own(server: RedisServer) -> None:
    """Hosts with clock=client may leave instants that are no whole microseconds."""
    uri = f"redis://127.0.0.1:{server.port}?{PATIENT}&deny_cache_max=0"
    with tg.Limiter(["5/hour", "3/hour"], storage=uri, prefix="odd") as limiter:
        assert limiter.hit("key").remaining == 2
        for key in server.command("KEYS", "*odd*").split(b"\r\n")[2::2]:
            seconds, micros = divmod(int(server.command("GET", key).split(b"\r\n")[1]), 10**6)
            packed = seconds.to_bytes(5, "big") + (micros * 1000 + 1).to_bytes(4, "big")
            server.command("SET", key, b"\x81\0" + packed, "PX", "3600000")
        told = [limiter.hit("key") for _ in range(3)]
        assert [bool(decision) for decision in told] == [True, True, False]
        assert not any(decision.degraded for decision in told)
        assert limiter.stats().script_errors == 0


def test_in_an_event_loop(server: RedisServer) -> None:
    uri = f"redis://127.0.0.1:{server.port}?{PATIENT}"
    plan = tg.Plan(limiters(uri, "100/hour", "50/hour"))

    async def run() -> None:
        told = await asyncio.gather(*(plan.hit_async(["loop", f"{n % 2}"]) for n in range(150)))
        assert sum(map(bool, told)) == 100
        assert {plan.binding(decision) for decision in told if not decision} <= {0, 1}
        # The deny cache knows without a round trip.
        assert not await plan.hit_async(["loop", "0"])
        await plan.refund_async(["loop", "0"], costs=[1, 1])
        assert await plan.hit_async(["loop", "0"])

    asyncio.run(run())
    first, second = plan.limiters
    assert (first.peek("loop").remaining, second.peek("0").remaining) == (0, 0)
    assert first.stats().allowed == 101


def test_as_the_memory_store_decides(server: RedisServer) -> None:
    """Law 5, with instants of one clock."""
    clock = tg.ManualClock(NOW)
    for algorithm in ALGORITHMS:
        plans = []
        for storage in ("memory://", f"redis://127.0.0.1:{server.port}?{PATIENT}&clock=client"):
            first = tg.Limiter("7/3 seconds", storage=storage, algorithm=algorithm, clock=clock)
            second = tg.Limiter(
                ["20/10 seconds", "5/second"],
                storage=first.storage,
                algorithm=algorithm,
                clock=clock,
                prefix="second",
            )
            plans.append(tg.Plan([first, second]))
        for number in range(120):
            keys = [f"{algorithm}{number % 3}", f"{algorithm}{number % 2}"]
            costs = [number % 4 + 1, number % 3 + 1]
            memory, shared = (plan.hit(keys, costs) for plan in plans)
            assert memory == shared
            assert plans[0].binding(memory) == plans[1].binding(shared)
            clock.advance_ns(number * 7_654_321)


def test_without_redis_the_fallback_decides_for_all() -> None:
    plan = tg.Plan(limiters("redis://127.0.0.1:1?timeout=0.05", "5/hour", "3/hour"))
    told = [plan.hit(["a", "b"]) for _ in range(5)]
    assert [bool(decision) for decision in told] == [True] * 3 + [False] * 2
    assert all(decision.degraded for decision in told)
    assert [plan.binding(decision) for decision in told] == [1] * 5
