"""Reservations in Redis: settled exactly once, whatever replies, processes and servers do."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import processes
import pytest
import tidegate as tg
from polling import eventually, eventually_async
from proxy import Proxy
from redis_server import PATIENT, RedisServer
from reservation_law import ALGORITHMS, Simulation
from reservation_model import COUNT, LIMITS, PERIOD, Interleavings
from tidegate.quotas import Quota

# So long that no unit comes back during a test.
LONG = "1000000/36500 days"  # a unit comes back in 53 minutes


def ask(server: RedisServer, *words: str) -> Any:
    """The reply to a command."""
    store: Any = tg.Limiter(LONG, storage=server.uri(PATIENT)).storage
    return store.command(words, timeout=20)


def records(server: RedisServer) -> list[str]:
    """The keys of the records of reservations."""
    return [key for key in ask(server, "KEYS", "*") if re.search(":[0-9a-f]{32}$", key)]


def let_pass(server: RedisServer, seconds: float) -> None:
    """Makes records as old as if that time had passed."""
    for key in records(server):
        left = int(ask(server, "PTTL", key)) - round(seconds * 1000)
        if left <= 0:
            ask(server, "DEL", key)
        else:
            ask(server, "PEXPIRE", key, str(left))


def settled(reservation: tg.Reservation, actual: int) -> tg.Decision:
    """The decision of a commit that is made until there is a connection again."""
    decisions: list[tg.Decision] = []

    def commit() -> bool:
        decisions.append(reservation.commit(actual))
        return not decisions[-1].degraded

    eventually(commit)
    return decisions[-1]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.algorithm} {limit.id}")
def test_no_unit_is_lost_or_charged_twice_in_any_order(
    server: RedisServer, limit: tg.Limit
) -> None:
    for seed in range(5):
        limiters = [tg.Limiter(limit, storage=server.uri(PATIENT)) for _ in range(2)]
        Interleavings(limiters, lambda seconds: let_pass(server, seconds), seed).run(60)
        assert limiters[0].stats().degraded == 0


@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-window"])
@pytest.mark.parametrize("limit_id", [None, "kept"])
def test_decisions_are_those_of_memory(
    server: RedisServer, algorithm: str, limit_id: str | None
) -> None:
    clock = tg.ManualClock(1_700_000_000 * 10**9 + 123)
    limit = tg.Limit("700/minute", algorithm=algorithm, id=limit_id)
    given = f"{PATIENT}&clock=client&ttl_margin=6000000"
    limiters = [
        tg.Limiter(limit, storage=storage, clock=clock)
        for storage in (server.uri(given), "memory://")
    ]
    rng = random.Random(1)
    for number in range(60):
        estimate, actual = rng.randint(1, 300), rng.randint(0, 700)
        pair = [limiter.reserve("k", estimate) for limiter in limiters]
        assert pair[0].decision == pair[1].decision, number
        clock.advance(rng.choice([0, 1, 13]))
        assert limiters[0].hit("k", 7) == limiters[1].hit("k", 7), number
        if pair[0]:
            extended = [each.extend(5) for each in pair]
            assert extended[0] == extended[1], number
            clock.advance(rng.choice([0, 2.5, 41]))
            settled = [each.commit(actual) for each in pair]
            assert settled[0] == settled[1], number
            assert settled[0].debt == settled[1].debt
            assert settled[0].charged == settled[1].charged
        clock.advance(rng.choice([0, 30]))


def test_each_call_is_one_command_and_a_record_lives_as_long_as_it_must(
    server: RedisServer,
) -> None:
    limiter = tg.Limiter(["100/hour", "1000/day"], storage=server.uri(PATIENT))
    reservation = limiter.reserve("k", 10, ttl=3600)  # sends the script
    for call in (
        lambda: limiter.reserve("k", 10, ttl=3600),
        lambda: reservation.extend(1),
        lambda: reservation.commit(30),
        lambda: reservation.commit(30),
    ):
        before = server.calls()["evalsha"]
        call()
        assert server.calls()["evalsha"] == before + 1
    for key in records(server):
        if ask(server, "GET", key).startswith("s"):
            assert 0 < int(ask(server, "PTTL", key)) <= 60_000
        else:
            assert 3_000_000 < int(ask(server, "PTTL", key)) <= 3_600_000
    assert len(records(server)) == 4


def test_reserve_and_commit_of_a_plan_of_four_are_one_command_each(server: RedisServer) -> None:
    first = tg.Limiter("100/hour", storage=server.uri(PATIENT))
    others = [tg.Limiter(f"{count}/day", storage=first.storage) for count in (1000, 2000, 3000)]
    plan = tg.Plan([first, *others])
    keys, estimate = list("abcd"), [1, 10, 10, 10]
    plan.reserve(keys, estimate).commit(estimate)  # sends the script
    for how in ("commit", "commit_soon"):
        before = server.calls()["evalsha"]
        reservation = plan.reserve(keys, estimate)
        assert server.calls()["evalsha"] == before + 1
        getattr(reservation, how)([1, 20, 20, 20])
        eventually(lambda before=before: server.calls()["evalsha"] == before + 2)
    assert others[0].peek("b").remaining == 1000 - 10 - 2 * 20


def test_a_commit_that_nobody_waits_for(server: RedisServer) -> None:
    limiter = tg.Limiter(LONG, storage=server.uri(PATIENT))
    with limiter.reserve("k", 100, ttl=600) as reservation:
        server.signal(signal.SIGSTOP)
        reservation.commit_soon(30)  # a call that waited would be degraded
        server.signal(signal.SIGCONT)
    eventually(lambda: limiter.peek("k").remaining == 10**6 - 30)
    assert reservation.commit(30).charged == 30
    assert limiter.stats().degraded == 0


def test_answers_that_nobody_waited_for_are_read_later(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = tg.Limiter(LONG, storage=server.uri(PATIENT))
    raised, other = limiter.reserve("k", 100, ttl=600), limiter.reserve("k", 100, ttl=600)
    limiter._of_token(raised.token).extend(50)  # which the object does not know
    limiter.commit(other.token, 10)
    raised.commit_soon(7)
    other.commit_soon(20)

    def is_read() -> bool:
        limiter.reserve("k", 1, ttl=600).commit_soon(0)
        return raised._is_settled and "at 10 units" in caplog.text

    eventually(is_read)
    eventually(lambda: limiter.peek("k").remaining == 10**6 - 17)
    assert limiter.stats().degraded == 0


def test_in_memory_and_without_redis_a_commit_is_made_at_once(own_server: RedisServer) -> None:
    limiter = tg.Limiter("1000/36500 days", storage=own_server.uri("timeout=0.5"))
    own_server.kill()
    for each in (limiter, tg.Limiter("1000/36500 days")):
        with each.reserve("k", 100) as reservation:
            reservation.commit_soon(250)
        assert each.peek("k").remaining == 750
        with pytest.raises(tg.ReservationError, match="settled before, at 250 units"):
            reservation.commit_soon(1)


def test_a_key_without_a_reservation_has_one_value_in_redis(server: RedisServer) -> None:
    limiter = tg.Limiter("100/hour", storage=server.uri(PATIENT))
    limiter.hit("k")
    assert len(ask(server, "KEYS", "*")) == 1


def by_proxy_and_direct(server: RedisServer, proxy: Proxy) -> tuple[tg.Limiter, tg.Limiter]:
    """Two limiters that share their keys, of which one may lose replies."""
    uri = f"redis://127.0.0.1:{proxy.port}/0?{PATIENT}&breaker_failures=1000"
    return tg.Limiter(LONG, storage=uri), tg.Limiter(LONG, storage=server.uri(PATIENT))


@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
@pytest.mark.parametrize("used", [2**53 - 1, 2**53, 2**62])
def test_an_absurd_use_is_charged_as_in_memory(
    server: RedisServer, algorithm: str, used: int
) -> None:
    limit = tg.Limit("10/hour", algorithm=algorithm)
    key = f"absurd {algorithm} {used}"
    found = []
    for uri in (server.uri(PATIENT), "memory://"):
        limiter = tg.Limiter(limit, storage=uri)
        reservation = limiter.reserve(key, 5)
        decision = reservation.commit(used)
        reservation.commit(used)  # changes nothing
        found.append((decision.charged, limiter.peek(key).debt))
    assert found == [(110, 100), (110, 100)]  # a key may owe ten times the burst


@pytest.mark.parametrize("mode", ["reset", "close", "half-close"])
def test_a_lost_reply_loses_and_doubles_no_unit(
    server: RedisServer, proxy: Proxy, mode: str
) -> None:
    limiter, direct = by_proxy_and_direct(server, proxy)
    used = 0
    for number, actual in enumerate((0, 40, 100, 250)):
        reservation = limiter.reserve("k", 100, ttl=600)
        assert not reservation.decision.degraded
        proxy.mode = mode
        lost = reservation.commit(actual)
        assert lost.degraded, number
        proxy.mode = "pass"
        assert settled(reservation, actual).charged == actual
        used += actual
        assert direct.peek("k").remaining == 10**6 - used


def test_leaving_after_a_lost_reply_settles_at_what_was_committed(
    server: RedisServer, proxy: Proxy
) -> None:
    limiter, direct = by_proxy_and_direct(server, proxy)
    with limiter.reserve("k", 100, ttl=600) as reservation:
        proxy.mode = "reset"
        assert reservation.commit(30).degraded
        proxy.mode = "pass"
    assert direct.peek("k").remaining in (10**6 - 30, 10**6 - 100)
    settled(reservation, 30)
    assert direct.peek("k").remaining == 10**6 - 30


def test_a_lost_reply_to_an_extension_is_found_by_the_commit(
    server: RedisServer, proxy: Proxy
) -> None:
    limiter, direct = by_proxy_and_direct(server, proxy)
    reservation = limiter.reserve("k", 100, ttl=600)
    proxy.mode = "reset"
    assert reservation.extend(50).degraded
    assert direct.peek("k").remaining == 10**6 - 150
    proxy.mode = "pass"
    settled(reservation, 20)
    assert direct.peek("k").remaining == 10**6 - 20


def test_without_redis_the_fallback_reserves_and_settles(own_server: RedisServer) -> None:
    uri = own_server.uri("timeout=0.5&breaker_failures=1")
    limiter = tg.Limiter("1000/36500 days", storage=uri)
    own_server.kill()
    assert limiter.hit("k").degraded
    with limiter.reserve("k", 100) as reservation:
        assert reservation.decision.degraded
        with pytest.raises(tg.ReservationError, match="known to this process only"):
            _ = reservation.token
        reservation.commit(250)
        reservation.commit(250)
        with pytest.raises(tg.ReservationError, match="settled before, at 250 units"):
            reservation.commit(1)
    assert limiter.peek("k").remaining == 749
    with limiter.reserve("k", 100):
        pass
    assert limiter.peek("k").remaining == 749

    async def main() -> None:
        async with limiter.reserve_async("k", 100) as reservation:
            await reservation.commit_async(9)

    asyncio.run(main())
    assert limiter.peek("k").remaining == 740


def test_a_server_that_lost_its_data_lost_the_reservations_too(own_server: RedisServer) -> None:
    limiter = tg.Limiter(LONG, storage=own_server.uri(PATIENT))
    reservation = limiter.reserve("k", 100)
    ask(own_server, "FLUSHALL")
    with pytest.raises(tg.ReservationError, match="storage has lost it"):
        reservation.commit(0)
    assert limiter.peek("k").remaining == 10**6


def test_a_foreign_value_in_a_record_settles_nothing(server: RedisServer) -> None:
    limiter = tg.Limiter(LONG, storage=server.uri(PATIENT))
    for value in ("", "o", "o-5", "x5", "o5.5", "5"):
        reservation = limiter.reserve("k", 100)
        (key,) = records(server)
        ask(server, "SET", key, value)
        with pytest.raises(tg.ReservationError, match="not known"):
            reservation.commit(0)
        ask(server, "DEL", key)
    assert limiter.peek("k").remaining == 10**6 - 600


def test_async_calls_and_a_plan(server: RedisServer) -> None:
    requests = tg.Limiter("5/36500 days", storage=server.uri(PATIENT))
    tokens = tg.Limiter(LONG, storage=requests.storage)
    plan = tg.Plan([requests, tokens])

    async def main() -> None:
        async with plan.reserve_async(["user", "tenant"], [1, 500]) as reservation:
            assert await reservation.extend_async([1, 100])
            token = reservation.token
            await reservation.commit_async([1, 900])
        assert (await plan.commit_async(token, [1, 900])).charged == 1
        refused = await plan.reserve_async(["user", "tenant"], [5, 500])
        assert not refused
        await asyncio.gather(*[use(number) for number in range(50)])

    async def use(number: int) -> None:
        async with tokens.reserve_async("tenant", 100) as reservation:
            await reservation.commit_async(number)

    asyncio.run(main())
    assert requests.peek("user").remaining == 4
    assert tokens.peek("tenant").remaining == 10**6 - 900 - sum(range(50))


def test_a_limit_in_shadow_without_room_reserves_nothing(server: RedisServer) -> None:
    shadow = tg.Limit("5/36500 days", shadow=True)
    limiter = tg.Limiter([LONG, shadow], storage=server.uri(PATIENT))
    with limiter.reserve("k", 10) as reservation:
        assert reservation.extend(5)
        assert reservation.commit(20).charged == 20
    counted = tg.Limiter("5/36500 days", storage=limiter.storage)
    assert counted.peek("k").remaining == 5


@pytest.mark.parametrize("where", ["memory", "redis"])
def test_a_release_by_limits_in_shadow_alone_says_that_nothing_is_charged(
    server: RedisServer, where: str
) -> None:
    storage = "memory://" if where == "memory" else server.uri(PATIENT)
    limits = [tg.Limit("5/minute", shadow=True), Quota(10, period="day", shadow=True)]
    with tg.Limiter(limits, storage=storage) as limiter:
        assert limiter.reserve("k", 3).release().charged == 0


def test_a_quota_is_reserved(server: RedisServer) -> None:
    limiter = tg.Limiter("quota 1000/month", storage=server.uri(PATIENT))
    with limiter.reserve("k", 100) as reservation:
        reservation.commit(130)
    with limiter.reserve("k", 100) as reservation:
        reservation.commit(20)
    assert limiter.quota_status("k").used == 150


@pytest.mark.parametrize("on_expiry", ["keep", "release"])
def test_a_limit_that_was_lowered_gives_all_back_as_in_memory(
    server: RedisServer, on_expiry: Any
) -> None:
    clock = tg.ManualClock(1_700_000_000 * 10**9)
    for uri in (server.uri(f"{PATIENT}&clock=client&ttl_margin=6000000"), "memory://"):
        before = tg.Limiter(tg.Limit("100/day", id="kept"), storage=uri, clock=clock)
        after = tg.Limiter(tg.Limit("50/day", id="kept"), storage=before.storage, clock=clock)
        reservation = before.reserve("lowered", 40, ttl=600, on_expiry=on_expiry)
        assert after.peek("lowered").remaining == 10
        if on_expiry == "keep":
            after.commit(reservation.token, 0)
        else:
            clock.advance(600)
            assert before.reserve("lowered", 1).commit(0)
        assert after.peek("lowered").remaining == 50


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_rate_holds_whatever_the_estimates(server: RedisServer, algorithm: str) -> None:
    storage = server.uri(f"{PATIENT}&clock=client&ttl_margin=6000000&deny_cache_max=0")
    Simulation(algorithm, "ten times too low", storage, seed=1, seconds=120).run()


WORKER = """
import random, sys, tidegate as tg
uri, seed, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = random.Random(seed)
limiter = tg.Limiter("LONG", storage=uri)
with open(path, "a", buffering=1) as log:
    while True:
        estimate, actual = rng.randint(1, 100), rng.randint(0, 300)
        reservation = limiter.reserve("k", estimate, ttl=3600)
        if reservation.decision.degraded:
            continue
        log.write(f"{reservation.token} {estimate} {actual}\\n")
        if rng.random() < 0.3:
            reservation.extend(rng.randint(1, 50))
        if rng.random() < 0.8:
            reservation.commit(actual)
""".replace("LONG", LONG)


def test_killed_processes_lose_and_double_no_unit(server: RedisServer, tmp_path: Path) -> None:
    """Processes die at any instant; others settle by the tokens that they have written down."""
    rng = random.Random(7)
    limiter = tg.Limiter(LONG, storage=server.uri(PATIENT))
    used = count = 0
    for seed in range(6):
        path = tmp_path / str(seed)
        command = [sys.executable, "-c", WORKER, server.uri(PATIENT), str(seed), str(path)]
        wanted = rng.randint(2_000, 8_000)
        begun = time.monotonic()
        with processes.running(command):
            # Some work, however slow the machine is.
            eventually(
                lambda path=path, size=wanted: path.stat().st_size > size, 120, despite=OSError
            )
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # it was cut by the end of the process, before anything else
            token, _, actual = line.split()
            for _ in range(2):  # by two processes
                try:
                    assert limiter.commit(token, int(actual)).charged == int(actual)
                except tg.ReservationError as error:
                    # What was settled is known for a minute.
                    if error.settled or time.monotonic() - begun < 60:
                        raise
            used += int(actual)
            count += 1
    # Reservations whose process died before it wrote them down stay at their estimates.
    values = [ask(server, "GET", key) for key in records(server)]
    left = sum(int(value[1:]) for value in values if value.startswith("o"))
    assert count > 60
    assert limiter.peek("k").remaining == 10**6 - used - left
    assert limiter.stats().degraded == 0


def test_a_limit_of_ordinary_size_holds_with_reservations(server: RedisServer) -> None:
    limiter = tg.Limiter(tg.Limit(COUNT, PERIOD), storage=server.uri(PATIENT))
    with limiter.reserve("k", 900) as first:
        assert not limiter.reserve("k", 101)
        first.commit(5000)
    assert limiter.peek("k").debt == 4000
    assert not limiter.reserve("k", 1)


def test_a_plan_over_several_slots_of_a_cluster_is_reserved_all_or_none(node: RedisServer) -> None:
    uri = f"redis+cluster://127.0.0.1:{node.port}?{PATIENT}"
    requests = tg.Limiter("3/36500 days", storage=uri)
    tokens = tg.Limiter("1000/36500 days", storage=requests.storage)
    plan = tg.Plan([requests, tokens])

    def standing() -> tuple[int, int]:
        return requests.peek("user").remaining, tokens.peek("tenant").remaining

    with plan.reserve(["user", "tenant"], [1, 500]) as reservation:
        assert standing() == (2, 500)
        assert reservation.extend([1, 100])
        assert not plan.reserve(["user", "tenant"], [1, 401])
        assert standing() == (1, 400)
        assert reservation.commit([1, 700]).charged == 1
    assert standing() == (2, 300)
    with plan.reserve(["user", "tenant"], [1, 100]) as reservation:
        assert not reservation.extend([1, 201])
        token = reservation.token
        assert plan.commit(token, [1, 10]).charged == 1
    assert standing() == (1, 290)
    assert plan.commit(token, [1, 10]).charged == 1
    with pytest.raises(tg.ReservationError, match="settled before"):
        plan.release(token)


@pytest.mark.parametrize("kind", ["limiter", "plan", "rules"])
@pytest.mark.parametrize("is_block", [True, False])
def test_a_task_that_is_cancelled_while_it_reserves_leaves_nothing_charged(
    server: RedisServer, kind: str, is_block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[tg.Decision] = []
    release = tg.Reservation.release_async

    async def noting(self: tg.Reservation) -> tg.Decision:
        released.append(await release(self))
        return released[-1]

    monkeypatch.setattr(tg.Reservation, "release_async", noting)
    limiter = tg.Limiter(LONG, storage=server.uri(PATIENT))
    rules = tg.Limiter(
        rules=tg.RuleSet({"rules": [{"id": "r", "by": "user", "limit": LONG}]}),
        storage=server.uri(PATIENT),
    )

    def reserving() -> Any:
        if kind == "rules":
            return rules.reserve_async(cost=10, user="u")
        return (
            limiter.reserve_async("k", 10)
            if kind == "limiter"
            else (tg.Plan([limiter]).reserve_async(["k"], [10]))
        )

    async def reserve() -> None:
        if is_block:
            async with reserving():
                pass
        else:
            await reserving()

    def left() -> int:
        return (rules.peek(user="u") if kind == "rules" else limiter.peek("k")).remaining

    async def main() -> None:
        tasks = [asyncio.create_task(reserve()) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in found)
        await eventually_async(lambda: len(released) == 20)
        assert left() == 1_000_000

    assert left() == 1_000_000
    asyncio.run(main())
