"""Plan.acquire() and Plan.slot(): all limiters or none, fair by key, on a clock that tests move."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Callable

import pytest
import tidegate as tg
from polling import eventually, eventually_async
from tidegate.limiter import loops
from tidegate.limiter.loops import AsyncBridge

SECOND = 1_000_000_000

Acquire = Callable[..., tg.Decision]


def in_thread(plan: tg.Plan) -> Acquire:
    return plan.acquire


def in_task(plan: tg.Plan) -> Acquire:
    return lambda *args, **kwargs: asyncio.run(plan.acquire_async(*args, **kwargs))


def in_task_of_a_store_that_waits(plan: tg.Plan) -> Acquire:
    plan._loops = AsyncBridge  # as with a store outside of the process
    for limiter in plan.limiters:
        limiter._loops = AsyncBridge  # type: ignore[assignment]
    return in_task(plan)


@pytest.fixture(params=[in_thread, in_task, in_task_of_a_store_that_waits])
def waiting(request: pytest.FixtureRequest) -> Callable[[tg.Plan], Acquire]:
    return request.param  # type: ignore[no-any-return]


class Model:
    """Requests, tokens and places of a language model, for one user each."""

    def __init__(self, *limits: str) -> None:
        self.clock = tg.ManualClock(100 * SECOND)
        first = tg.Limiter(limits[0], clock=self.clock)
        self.limiters = [
            first,
            *(tg.Limiter(each, storage=first.storage, clock=self.clock) for each in limits[1:]),
        ]
        self.plan = tg.Plan(self.limiters)
        self.served: list[str] = []
        self.answers: dict[str, tg.Decision] = {}

    def start(self, name: str, acquire: Acquire, *args: Any) -> threading.Thread:
        """Begins a wait, and returns once it is in its queues."""

        def work() -> None:
            self.answers[name] = acquire(*args)
            self.served.append(name)

        before = self.waiting()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        eventually(lambda: self.waiting() != before or not thread.is_alive())
        return thread

    def waiting(self) -> int:
        return sum(len(line) for each in self.limiters for line in each._room.lines.values())


def test_a_plan_that_passes_does_not_wait(waiting: Any) -> None:
    model = Model("10/second", "1000/second", "2 at once")
    acquire = waiting(model.plan)
    assert acquire(["u", "t", "m"], [1, 400, 1])
    assert [limiter.peek(key).remaining for limiter, key in zip(model.limiters, "utm")] == [
        9,
        600,
        1,
    ]
    assert model.waiting() == 0


def test_nothing_is_charged_until_all_can_be(waiting: Any) -> None:
    model = Model("10/10 seconds", "100/10 seconds")
    requests, tokens = model.limiters
    assert tokens.hit("t", 100)
    thread = model.start("call", waiting(model.plan), ["u", "t"], [1, 50], 100)
    model.clock.advance(4.9)
    assert requests.peek("u").remaining == 10
    assert (requests.stats().denied, tokens.stats().denied) == (0, 0)
    model.clock.advance(0.1)
    thread.join(20)
    assert model.answers["call"].allowed
    assert (requests.peek("u").remaining, tokens.peek("t").remaining) == (9, 0)


def test_a_refusal_names_the_limit_that_is_in_the_way(waiting: Any) -> None:
    model = Model("10/10 seconds", "100/10 seconds")
    model.limiters[1].hit("t", 100)
    refused = waiting(model.plan)(["u", "t"], [1, 50], 4)
    assert not refused.allowed
    assert model.plan.binding(refused) == 1
    assert (refused.rule, refused.retry_after) == ("100/10 seconds", 5.0)
    assert model.limiters[0].peek("u").remaining == 10
    never = waiting(model.plan)(["u", "t"], [1, 101], None)
    assert never.retry_after == float("inf")


def test_a_rate_without_units_is_said_at_once_although_a_place_may_be_free_soon(
    waiting: Any,
) -> None:
    model = Model("1/hour", "1 at once")
    assert model.plan.hit(["u", "m"])
    refused = waiting(model.plan)(["u", "m"], None, 5)
    assert not refused.allowed
    assert model.waiting() == 0


def test_callers_of_one_key_are_served_in_the_order_they_came(waiting: Any) -> None:
    model = Model("1/second", "1000/second")
    assert model.plan.hit(["u", "t"])
    acquire = waiting(model.plan)
    threads = [model.start(str(n), acquire, ["u", f"t{n}"], None, 100) for n in range(4)]
    for _ in range(4):
        served = len(model.served)
        model.clock.advance(1)
        eventually(lambda served=served: len(model.served) > served)
    for thread in threads:
        thread.join(20)
    assert model.served == ["0", "1", "2", "3"]


def test_a_caller_that_waits_for_its_user_lets_others_have_the_model(waiting: Any) -> None:
    model = Model("1/hour", "10/second")
    assert model.plan.hit(["ann", "model"])
    acquire = waiting(model.plan)
    model.start("ann", acquire, ["ann", "model"], None, None)
    assert acquire(["bob", "model"], None, 0).allowed
    assert acquire(["cid", "model"], None, 100).allowed
    assert "ann" not in model.served
    model.clock.advance(3600)
    eventually(lambda: "ann" in model.served)


def test_a_caller_that_cannot_wait_passes_nobody_who_came_before(waiting: Any) -> None:
    model = Model("10/10 seconds", "100/second")
    assert model.limiters[0].hit("u", 10)
    acquire = waiting(model.plan)
    thread = model.start("first", acquire, ["u", "t"], [5, 1], 100)
    model.clock.advance(3)
    late = acquire(["u", "t"], [1, 1], 0)
    assert not late.allowed
    assert late.retry_after == 3.0  # the first one's 5 units and its own
    model.clock.advance(2)
    thread.join(20)
    assert model.served == ["first"]


def test_plans_that_name_their_keys_in_another_order_do_not_wait_for_each_other() -> None:
    model = Model("1/second", "60/minute burst 1")
    one, other = model.limiters
    there, back = tg.Plan([one, other]), tg.Plan([other, one])
    assert there.hit(["k", "k"])
    threads = [
        model.start(str(n), plan.acquire, ["k", "k"], None, 1000)
        for n, plan in enumerate([there, back] * 3)
    ]
    for _ in threads:
        served = len(model.served)
        model.clock.advance(1)
        eventually(lambda served=served: len(model.served) > served)
    assert model.served == [str(n) for n in range(6)]


def test_a_limiter_that_gets_one_key_twice_waits_for_both_costs() -> None:
    model = Model("10/10 seconds")
    (limiter,) = model.limiters
    plan = tg.Plan([limiter, limiter])
    assert limiter.hit("k", 10)
    thread = model.start("both", plan.acquire, ["k", "k"], [2, 3], 100)
    assert model.waiting() == 1
    model.clock.advance(4.9)
    assert model.served == []
    model.clock.advance(0.1)
    thread.join(20)
    assert limiter.peek("k").remaining == 0


def test_a_key_that_stands_in_a_plan_twice_leaves_the_units_of_earlier_callers_once(
    waiting: Any,
) -> None:
    model = Model("20/20 seconds")
    (limiter,) = model.limiters
    acquire = waiting(tg.Plan([limiter, limiter]))
    ahead = limiter._room.enter("k", 5, lambda: None)
    assert acquire(["k", "k"], [2, 3], 0).allowed
    assert acquire(["k", "k"], [4, 6], 0).allowed
    refused = acquire(["k", "k"], [2, 3], 0)
    assert (refused.allowed, refused.retry_after) == (False, 5.0)
    limiter._room.leave(ahead)
    assert acquire(["k", "k"], [2, 3], 0).allowed


def test_a_slot_of_a_plan_gives_back_its_places_and_nothing_else() -> None:
    model = Model("10/minute", "2 at once")
    requests, places = model.limiters
    slot = model.plan.slot(["u", "m"])
    with slot as entered:
        assert entered.decision.allowed
        assert (requests.peek("u").remaining, places.peek("m").remaining) == (9, 1)
        with slot, pytest.raises(tg.RateLimitExceeded) as refused:
            slot.__enter__()
        assert refused.value.decision.rule == "2 at once"
    assert (requests.peek("u").remaining, places.peek("m").remaining) == (8, 2)


def test_a_cancelled_task_that_leaves_a_slot_gives_back_all_its_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model("2 at once", "2 at once")
    in_task_of_a_store_that_waits(model.plan)

    def begin(limiter: Any, op: int, key: str, cost: int, hit: tg.Decision) -> Any:
        limiter._release(key, cost, hit)
        return asyncio.get_running_loop().create_future()  # the store's answer does not come

    async def main() -> None:
        slot = await model.plan.slot(["a", "b"]).__aenter__()
        monkeypatch.setattr(loops, "begin", begin)
        monkeypatch.setattr(AsyncBridge, "begin", staticmethod(begin))
        leaving = asyncio.ensure_future(slot.__aexit__(None, None, None))
        await eventually_async(lambda: model.limiters[0].peek("a").remaining == 2)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving

    asyncio.run(main())
    assert [each.peek(key).remaining for each, key in zip(model.limiters, "ab")] == [2, 2]


@pytest.mark.parametrize("waits", [False, True])
def test_a_slot_wakes_the_caller_that_waits_for_its_place(waits: bool) -> None:
    model = Model("10/minute", "1 at once")
    if waits:
        in_task_of_a_store_that_waits(model.plan)

    async def main() -> None:
        async with model.plan.slot(["u", "m"]):
            later = asyncio.ensure_future(model.plan.acquire_async(["v", "m"], timeout=1000))
            await eventually_async(lambda: model.waiting() == 2)
        assert (await later).allowed

    asyncio.run(main())


def test_the_lease_of_a_slot_is_extended_while_its_holder_lives() -> None:
    model = Model("10/minute", "1/10 seconds")
    places = tg.Limiter(
        tg.Limit("1/10 seconds", algorithm="concurrency"),
        storage=model.limiters[0].storage,
        clock=model.clock,
    )
    plan = tg.Plan([model.limiters[0], places])
    with plan.slot(["u", "m"]):
        for _ in range(5):
            model.clock.advance(6)
            assert not places.peek("m").allowed
    assert places.peek("m").allowed


def test_a_cancelled_task_leaves_all_queues_and_holds_no_place() -> None:
    model = Model("1/hour", "1 at once")
    assert model.limiters[0].hit("u")

    async def main() -> None:
        task = asyncio.ensure_future(model.plan.acquire_async(["u", "m"], timeout=None))
        await eventually_async(lambda: model.waiting() == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert model.waiting() == 0
    assert model.limiters[1].peek("m").allowed


def test_invalid_arguments_join_no_queue() -> None:
    model = Model("1/second", "2/second")
    for keys, costs, timeout in (
        (["u"], None, 1.0),
        (["u", ""], None, 1.0),
        (["u", "t"], [1, 0], 1.0),
        (["u", "t"], [1], 1.0),
        ("ut", None, 1.0),
        (["u", "t"], None, -1.0),
    ):
        with pytest.raises(tg.ConfigurationError):
            model.plan.acquire(keys, costs, timeout)
    with pytest.raises(tg.ConfigurationError, match="at once"):
        model.plan.slot(["u", "t"])
    assert model.waiting() == 0


def test_a_peek_charges_and_counts_nothing() -> None:
    model = Model("2/second", "5/second")
    forecast = model.plan.peek(["u", "t"], [1, 5], outcomes=True)
    assert [each.allowed for each in forecast.outcomes] == [True, True]
    refused = model.plan.peek(["u", "t"], [1, 6])
    assert (refused.allowed, model.plan.binding(refused)) == (False, 1)
    assert asyncio.run(model.plan.peek_async(["u", "t"])).allowed
    assert [each.stats().allowed + each.stats().denied for each in model.limiters] == [0, 0]
    assert model.limiters[1].peek("t").remaining == 5


@pytest.mark.parametrize(
    "limits",
    [
        ("50/second burst 1", "7/second burst 1"),
        ("7/second burst 1", "50/second burst 1", "70/second burst 1"),
        ("7/second burst 1", "1 at once"),
        ("50/second burst 1", "7/second burst 1", "1 at once"),
    ],
)
def test_a_plan_gets_in_between_callers_who_take_each_unit_as_it_comes(
    limits: tuple[str, ...],
) -> None:
    model = Model(*limits)
    taken = [0] * len(limits)

    async def take(number: int, limiter: tg.Limiter) -> None:
        while True:
            wait = limiter.slot if limiter._has_leases else limiter.acquired
            async with wait("k", timeout=None):
                taken[number] += 1
                if limiter._has_leases:  # the place is held for a while
                    for _ in range(100):
                        await asyncio.sleep(0)

    async def main() -> int:
        others = [
            asyncio.create_task(take(number, each))
            for number, each in enumerate(model.limiters)
            for _ in range(3)
        ]
        for _ in range(10):
            await asyncio.sleep(0)
        call = asyncio.create_task(model.plan.acquire_async(["k"] * len(limits), timeout=None))
        begin = model.clock.now_ns()
        for _ in range(5000):
            if call.done():
                break
            model.clock.advance(0.001)
            for _ in range(10):
                await asyncio.sleep(0)
        assert call.done(), taken
        assert call.result().allowed
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return model.clock.now_ns() - begin

    assert asyncio.run(main()) < SECOND
    assert min(taken) > 1


def test_a_limit_in_shadow_delays_no_plan(waiting: Any) -> None:
    clock = tg.ManualClock(100 * SECOND)
    shadow = tg.Limiter(tg.Limit("1/hour", shadow=True), clock=clock)
    never = tg.Limiter(tg.Limit(0, 60, shadow=True), storage=shadow.storage, clock=clock)
    rate = tg.Limiter("1/second burst 1", storage=shadow.storage, clock=clock)
    plan = tg.Plan([shadow, never, rate])
    assert plan.hit(["s", "n", "r"])
    found: list[tg.Decision] = []
    thread = threading.Thread(
        target=lambda: found.append(waiting(plan)(["s", "n", "r"], None, 10)), daemon=True
    )
    thread.start()
    eventually(lambda: bool(rate._room.lines) or bool(found))
    assert found == []
    clock.advance(1)
    thread.join(20)
    assert [decision.allowed for decision in found] == [True]


async def pass_time(model: Model, seconds: float) -> None:
    for _ in range(round(seconds * 100)):
        model.clock.advance(0.01)
        for _ in range(10):
            await asyncio.sleep(0)


def test_the_calls_of_one_user_hold_up_a_stranger_for_a_second_at_most() -> None:
    """They wait for the user's limit, at a place that is free."""
    model = Model("1/second burst 1", "1 at once")
    assert model.limiters[0].hit("ann")

    async def call(user: str) -> None:
        async with model.plan.slot([user, "model"], timeout=None):
            model.served.append(user)

    async def main() -> None:
        calls = [asyncio.create_task(call("ann")) for _ in range(10)]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(call("bob")))
        await pass_time(model, 1.5)
        assert sorted(model.served) == ["ann", "bob"]
        await pass_time(model, 9)
        await asyncio.gather(*calls)

    asyncio.run(main())


def test_a_plan_whose_units_are_taken_by_hits_keeps_a_place_half_of_the_time() -> None:
    model = Model("10/second burst 1", "1 at once")
    rate, places = model.limiters
    taken = 0

    async def take() -> None:
        nonlocal taken
        while True:
            async with places.slot("model", timeout=None):
                taken += 1
                await asyncio.sleep(0)

    async def main() -> None:
        assert rate.hit("u")
        call = asyncio.create_task(model.plan.acquire_async(["u", "model"], timeout=None))
        await asyncio.sleep(0)
        others = [asyncio.create_task(take()) for _ in range(2)]
        passed = []
        for _ in range(600):
            model.clock.advance(0.01)
            rate.hit("u")  # before the plan looks
            before = taken
            for _ in range(10):
                await asyncio.sleep(0)
            passed.append(taken > before)
        assert not call.done()
        assert 200 < sum(passed) < 400
        for each in (call, *others):
            each.cancel()
        await asyncio.gather(call, *others, return_exceptions=True)

    asyncio.run(main())
