"""A refund goes where the units were charged, through outages and recoveries, or nowhere."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, Callable

import pytest
import tidegate as tg
from outages import GIVEN_TIME, Direct, Line, by_line
from polling import eventually, run_threads
from proxy import Proxy
from redis_server import PATIENT, RedisServer

START = 1_700_000_000 * 10**9
ALGORITHMS = (
    "token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log", "concurrency",
)  # fmt: skip
COUNTS = (100, 60)


class Caller:
    """Hits and gives back, and keeps the books: what Redis and what the fallback must count."""

    def __init__(
        self,
        kind: str,
        loop: asyncio.AbstractEventLoop | None,
        algorithm: str,
        server: RedisServer,
        line: Line,
        clock: tg.ManualClock,
    ) -> None:
        self.name = f"{kind} of {algorithm}, {'sync' if loop is None else 'async'}"
        self.loop = loop
        self.line = line
        prefix = self.name
        limits = [tg.Limit(f"{count}/hour", algorithm=algorithm) for count in COUNTS]
        self.keys = ["a", "b"] if kind == "plan" else ["a", "a"]
        self.weights = [1, 2] if kind == "plan" else [1, 1]
        prefixes = [prefix, prefix + "2"] if kind == "plan" else [prefix, prefix]
        if kind == "limit":
            del limits[1:], self.keys[1:]
        self.limiter = self.plan = None
        if kind == "plan":
            self.plan = tg.Plan(
                tg.Limiter(limit, storage=line.storage, prefix=prefix, clock=clock)
                for limit, prefix in zip(limits, prefixes)
            )
        else:
            self.limiter = tg.Limiter(limits, storage=line.storage, prefix=prefix, clock=clock)
        self.direct = [
            Direct(server, line, clock, limit=limit, prefix=prefix)
            for limit, prefix in zip(limits, prefixes)
        ]
        self.shared = [0] * len(limits)
        self.local = [0] * len(limits)
        self.hits: list[tuple[tg.Decision, int]] = []

    def _run(
        self, call: Callable[..., Any], later: Callable[..., Any], *args: Any, **kw: Any
    ) -> Any:
        if self.loop is None:
            return call(*args, **kw)
        coroutine: Coroutine[Any, Any, Any] = later(*args, **kw)
        return self.loop.run_until_complete(coroutine)

    def hit(self, cost: int) -> None:
        if self.plan is not None:
            costs = [weight * cost for weight in self.weights]
            decision = self._run(self.plan.hit, self.plan.hit_async, self.keys, costs)
        else:
            assert self.limiter is not None
            decision = self._run(self.limiter.hit, self.limiter.hit_async, "a", cost)
        assert decision.degraded is self.line.is_cut
        if decision.allowed:
            self.hits.append((decision, cost))
            if not decision.degraded or self.line.has_fallback:
                books = self.local if decision.degraded else self.shared
                for i, weight in zip(range(len(books)), self.weights):
                    books[i] += weight * cost

    def refund(self, cost: int, **decision: tg.Decision) -> None:
        if self.plan is not None:
            costs = [weight * cost for weight in self.weights]
            self._run(self.plan.refund, self.plan.refund_async, self.keys, costs, **decision)
        else:
            assert self.limiter is not None
            self._run(self.limiter.refund, self.limiter.refund_async, "a", cost, **decision)

    def refund_hit(self, decision: tg.Decision, cost: int) -> None:
        self.refund(cost, decision=decision)
        if self.line.is_cut if not decision.degraded else not self.line.has_fallback:
            return
        books = self.local if decision.degraded else self.shared
        for i, weight in zip(range(len(books)), self.weights):
            books[i] = max(0, books[i] - weight * cost)

    def refund_anything(self, cost: int) -> None:
        """Without a decision: first what the fallback counts, then only the rest."""
        self.refund(cost)
        for i, weight in zip(range(len(self.shared)), self.weights):
            locally = min(self.local[i], weight * cost)
            self.local[i] -= locally
            if not self.line.is_cut:
                self.shared[i] = max(0, self.shared[i] - (weight * cost - locally))

    def check(self, shares: list[int] | None) -> None:
        for i, direct in enumerate(self.direct):
            assert direct.used(self.keys[i]) == self.shared[i], self.name
            if self.line.is_cut and shares is not None:
                assert direct.used_of_share(self.keys[i], shares[i]) == self.local[i], self.name


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("with_decision", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_outage_makes_a_refund_count_twice(
    server: RedisServer,
    proxy: Proxy,
    clock: tg.ManualClock,
    loop: asyncio.AbstractEventLoop,
    algorithm: str,
    with_decision: bool,
    seed: int,
) -> None:
    dice = random.Random(f"{seed} {algorithm} {with_decision}")
    shared_out = seed == 2
    line = Line(proxy, clock, "&fallback_share=0.25" if shared_out else "")
    shares = [count // 4 for count in COUNTS] if shared_out else list(COUNTS)
    callers = [
        Caller(kind, where, algorithm, server, line, clock)
        for kind in ("limit", "limits", "plan")
        for where in (None, loop)
    ]
    for step in range(48):
        clock.advance_ns(10**6)
        if step % 6 == 5:
            line.mend() if line.is_cut else line.cut()
        for caller in callers:
            cost = dice.randrange(1, 4)
            if dice.random() < 0.6:
                caller.hit(cost)
            elif with_decision and caller.hits:
                caller.refund_hit(*caller.hits.pop(dice.randrange(len(caller.hits))))
            elif not with_decision:
                caller.refund_anything(cost)
            caller.check(shares)
    assert any(sum(caller.shared) for caller in callers)
    assert any(sum(caller.local) for caller in callers)


@pytest.mark.parametrize("policy", ["open", "closed"])
def test_units_that_a_policy_let_through_are_given_back_nowhere(
    server: RedisServer,
    proxy: Proxy,
    clock: tg.ManualClock,
    loop: asyncio.AbstractEventLoop,
    policy: str,
) -> None:
    line = Line(proxy, clock, f"&on_error={policy}")
    callers = [
        Caller(kind, where, algorithm, server, line, clock)
        for kind in ("limits", "plan")
        for where in (None, loop)
        for algorithm in ALGORITHMS
    ]
    for caller in callers:
        caller.hit(3)
    line.cut()
    for caller in callers:
        caller.hit(2)
        assert len(caller.hits) == (2 if policy == "open" else 1)
    line.mend()
    for caller in callers:
        if policy == "open":
            caller.refund_hit(*caller.hits.pop())
        caller.check(None)
        assert caller.shared[0] == 3
        caller.refund_hit(*caller.hits.pop())
        caller.check(None)
        assert caller.shared[0] == 0


def test_a_charge_whose_reply_never_came_stays_charged(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock
) -> None:
    line, limiter, direct = by_line(server, proxy, clock, "10/hour")
    assert not limiter.hit("k").degraded
    proxy.mode = "close"  # after the request was passed on
    lost = limiter.hit("k", 2)
    assert lost.degraded
    line.cut()
    assert (direct.used("k"), direct.used_of_share("k", 10)) == (3, 2)
    limiter.refund("k", 2, decision=lost)
    assert (direct.used("k"), direct.used_of_share("k", 10)) == (3, 0)
    line.mend()
    limiter.refund("k", 2, decision=lost)
    assert direct.used("k") == 3


def test_a_pickled_decision_knows_where_it_was_charged(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock
) -> None:
    line, limiter, direct = by_line(server, proxy, clock, "10/hour")
    shared = limiter.hit("k", 3)
    line.cut()
    local = limiter.hit("k", 4)
    line.mend()
    limiter.refund("k", 4, decision=pickle.loads(pickle.dumps(local)))
    assert direct.used("k") == 3
    limiter.refund("k", 3, decision=pickle.loads(pickle.dumps(shared)))
    assert direct.used("k") == 0
    line.cut()
    assert direct.used_of_share("k", 10) == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_slot_is_left_where_it_was_entered(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock, is_async: bool
) -> None:
    limit = tg.Limit("4/hour", algorithm="concurrency")
    line, limiter, direct = by_line(server, proxy, clock, limit)

    async def main() -> None:
        slot = limiter.slot("k")

        async def enter() -> None:
            clock.advance_ns(10**6)
            await slot.__aenter__() if is_async else slot.__enter__()

        async def leave() -> None:
            await slot.__aexit__(None, None, None) if is_async else slot.__exit__(None, None, None)

        await enter()
        line.cut()
        await enter()
        await enter()
        assert (direct.used("k"), direct.used_of_share("k", 4)) == (1, 2)
        # The first that is left is the first that was entered: Redis is not there to hear of it.
        await leave()
        assert (direct.used("k"), direct.used_of_share("k", 4)) == (1, 2)
        line.mend()
        await enter()
        assert direct.used("k") == 2
        await leave()
        await leave()
        assert direct.used("k") == 2
        await leave()
        assert direct.used("k") == 1
        line.cut()
        assert direct.used_of_share("k", 4) == 0

    asyncio.run(main())


def test_a_sliding_log_forgets_the_very_units_of_the_hit(
    server: RedisServer, clock: tg.ManualClock
) -> None:
    uri = server.uri(GIVEN_TIME)
    limits = [tg.Limit("3/10 seconds", algorithm="sliding-log"), tg.Limit("30/hour")]
    with (
        tg.Limiter(limits, storage=uri, clock=clock) as shared,
        tg.Limiter(limits, clock=clock) as memory,
    ):
        for limiter in (shared, memory):
            clock.set_ns(START)
            first = limiter.hit("k")
            clock.advance(6)
            assert limiter.hit("k", 2)
            limiter.refund("k", decision=first)
            assert limiter.hit("k")
            clock.advance(4)
            # Those of the sixth second count for six seconds more.
            assert limiter.hit("k").retry_after == 6
            # Of a hit that no longer counts, nothing is given back in the log.
            limiter.refund("k", decision=first)
            assert not limiter.hit("k")


@pytest.mark.parametrize("given_back", ["decision", "reservation"])
def test_units_that_left_a_sliding_log_forgive_no_debt_when_they_are_given_back(
    server: RedisServer, clock: tg.ManualClock, given_back: str
) -> None:
    limit = tg.Limit("5/10 seconds", algorithm="sliding-log", oversize="debt")
    with (
        tg.Limiter(limit, storage=server.uri(GIVEN_TIME), clock=clock) as shared,
        tg.Limiter(limit, clock=clock) as memory,
    ):
        for limiter in (shared, memory):
            clock.set_ns(START)
            if given_back == "decision":
                decision = limiter.hit("k", 3)
            else:
                reservation = limiter.reserve("k", 3, ttl=600)
            clock.advance(25)
            assert limiter.hit("k", 7)
            assert limiter.peek("k").debt == 2
            if given_back == "decision":
                limiter.refund("k", 3, decision=decision)
            else:
                reservation.commit(1)
            assert limiter.peek("k").debt == 2


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS[:5])
def test_a_refund_with_a_decision_ends_a_cached_refusal(
    server: RedisServer, algorithm: str, is_async: bool
) -> None:
    limit = tg.Limit("2/hour", algorithm=algorithm)
    with tg.Limiter(limit, storage=server.uri(f"{PATIENT}&deny_cache_max=3600")) as limiter:
        decision = limiter.hit("k", 2)
        assert not limiter.hit("k")
        assert not limiter.hit("k")
        assert limiter.stats().denied_locally == 1
        if is_async:
            asyncio.run(limiter.refund_async("k", decision=decision))
        else:
            limiter.refund("k", decision=decision)
        assert limiter.hit("k")
        assert not limiter.hit("k")


@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
def test_threads_and_tasks_under_faults_of_all_kinds(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock, algorithm: str
) -> None:
    """Calls that are late or lost: Redis may count more than it said, but never less."""
    limit = tg.Limit("1000000/hour", algorithm=algorithm)
    options = "timeout=0.05&connect_timeout=0.2&breaker_failures=3&breaker_open=0.03"
    uri = f"redis://127.0.0.1:{proxy.port}?{options}&clock=client&ttl_margin=600"
    limiter = tg.Limiter(limit, storage=uri, clock=clock)
    books: list[tuple[bool, int]] = []  # of each hit, and below 0 of each refund
    done = threading.Event()
    survived: list[bool] = []

    def wait_for_hits(degraded: bool) -> None:
        seen, wanted = len(books), 25
        deadline = time.monotonic() + 60
        while wanted > 0:
            assert time.monotonic() < deadline
            time.sleep(0.002)
            wanted -= sum(each is degraded and units > 0 for each, units in books[seen:])
            seen = len(books)

    def sabotage() -> None:
        try:
            for mode in ("close", "hole", "reset", "stall", "garbage", "hole"):
                wait_for_hits(degraded=False)
                proxy.mode = mode
                wait_for_hits(degraded=True)
                proxy.mode = "pass"
                proxy.drop()
            wait_for_hits(degraded=False)
            survived.append(True)
        finally:
            done.set()

    async def work(number: int, is_async: bool) -> None:
        dice = random.Random(number)
        hits = []
        while not done.is_set():
            cost = dice.randrange(1, 4)
            decision = await limiter.hit_async("k", cost) if is_async else limiter.hit("k", cost)
            books.append((decision.degraded, cost))
            hits.append((decision, cost))
            if dice.random() < 0.5:
                decision, cost = hits.pop(dice.randrange(len(hits)))
                books.append((decision.degraded, -cost))
                if is_async:
                    await limiter.refund_async("k", cost, decision=decision)
                else:
                    limiter.refund("k", cost, decision=decision)
            # The proxy's threads need the interpreter too.
            await asyncio.sleep(0.001)

    async def tasks() -> None:
        await asyncio.gather(*(work(number, True) for number in range(4)))

    threads = [
        threading.Thread(target=sabotage),
        threading.Thread(target=lambda: asyncio.run(tasks())),
        *(
            threading.Thread(target=lambda n=n: asyncio.run(work(n, False)))  # type: ignore[misc]
            for n in (5, 6)
        ),
    ]
    run_threads(threads)
    assert survived == [True]
    shared, local = (
        sum(units for degraded, units in books if degraded is wanted) for wanted in (False, True)
    )
    with tg.Limiter(limit, storage=server.uri(GIVEN_TIME), clock=clock) as direct:
        assert 1_000_000 - direct.peek("k").remaining >= shared
    proxy.mode = "close"
    eventually(lambda: limiter.peek("k").degraded)
    decision = limiter.peek("k")
    # The fallback is lost and late for nobody.
    assert 1_000_000 - decision.remaining == local
