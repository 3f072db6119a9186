"""Reservations of limiters and plans: what they charge, and what they refuse."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading
import weakref
from pathlib import Path

import pytest
import tidegate as tg
from polling import run_threads
from waiting_callers import a_caller_that_waits


@pytest.fixture
def limiter(clock: tg.ManualClock) -> tg.Limiter:
    return tg.Limiter("1000/hour", clock=clock)


def test_commit_charges_what_was_used_beyond_the_estimate(limiter: tg.Limiter) -> None:
    with limiter.reserve("k", 100) as reservation:
        assert reservation.decision.remaining == 900
        assert reservation.commit(250).charged == 250
    assert limiter.peek("k").remaining == 750


def test_commit_gives_back_what_was_not_used(limiter: tg.Limiter) -> None:
    with limiter.reserve("k", 100) as reservation:
        decision = reservation.commit(30)
    assert (decision.allowed, decision.charged, decision.remaining) == (True, 30, 970)
    assert limiter.peek("k").remaining == 970


def test_leaving_without_a_commit_gives_the_estimate_back(limiter: tg.Limiter) -> None:
    with pytest.raises(KeyError), limiter.reserve("k", 100):
        raise KeyError
    assert limiter.peek("k").remaining == 1000


def test_what_is_kept_stays_open_for_another_process(limiter: tg.Limiter) -> None:
    with limiter.reserve("k", 100, on_exit="keep") as reservation:
        pass
    assert limiter.peek("k").remaining == 900
    assert limiter.commit(reservation.token, 40).charged == 40
    assert limiter.peek("k").remaining == 960


def test_a_refused_reservation_charges_nothing_and_runs_no_block(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve("k", 1001)
    assert not reservation
    assert not reservation.decision
    for call in (lambda: reservation.commit(1), lambda: reservation.extend(1), reservation.release):
        with pytest.raises(tg.ReservationError, match="was refused, and has charged nothing"):
            call()
    with pytest.raises(tg.ReservationError, match="was refused"):
        _ = reservation.token
    with pytest.raises(tg.RateLimitExceeded), reservation:
        pytest.fail("the block ran")
    assert limiter.peek("k").remaining == 1000
    assert limiter.stats().denied == 1


def test_a_second_commit_of_the_same_number_changes_nothing(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve("k", 100)
    assert reservation.commit(60).charged == 60
    assert reservation.commit(60).charged == 60
    assert limiter.commit(reservation.token, 60).charged == 60
    assert limiter.peek("k").remaining == 940


def test_a_second_commit_of_another_number_is_an_error(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve("k", 100)
    reservation.commit(60)
    with pytest.raises(tg.ReservationError, match="settled before, at 60 units") as raised:
        reservation.commit(61)
    assert raised.value.settled
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.settled) == (str(raised.value), True)
    with pytest.raises(tg.ReservationError, match="settled before"):
        limiter.release(reservation.token)
    assert limiter.peek("k").remaining == 940


def test_after_its_ttl_a_reservation_stays_at_its_estimate(
    limiter: tg.Limiter, clock: tg.ManualClock
) -> None:
    reservation = limiter.reserve("k", 100, ttl=2)
    clock.advance(2)
    with pytest.raises(tg.ReservationError, match=r"not known \(any more\)") as raised:
        reservation.commit(0)
    assert not raised.value.settled
    assert limiter.peek("k").remaining == 900


def test_leaving_after_the_ttl_is_logged(
    limiter: tg.Limiter, clock: tg.ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidegate"), limiter.reserve("k", 100, ttl=2):
        clock.advance(3)
    assert "left unsettled" in caplog.text


def test_leaving_what_another_process_has_settled_changes_nothing(
    limiter: tg.Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    with limiter.reserve("k", 100) as reservation:
        limiter.commit(reservation.token, 300)
    assert limiter.peek("k").remaining == 700
    assert not caplog.records


def test_extend_reserves_more_while_there_is_room(limiter: tg.Limiter) -> None:
    with limiter.reserve("k", 100) as reservation:
        assert reservation.extend(400)
        refusal = reservation.extend(501)
        assert (refusal.allowed, refusal.remaining) == (False, 500)
        assert limiter.peek("k").remaining == 500
        reservation.commit(450)
    assert limiter.peek("k").remaining == 550
    with pytest.raises(tg.ReservationError, match="is not open, and was not raised"):
        reservation.extend(10)
    assert limiter.peek("k").remaining == 550


def test_a_token_from_before_an_extension_settles_all(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve("k", 100)
    token = reservation.token
    reservation.extend(50)
    assert limiter.commit(token, 10).charged == 10
    assert limiter.peek("k").remaining == 990


@pytest.mark.parametrize("algorithm", ["sliding-log"])
def test_a_log_is_not_extended(algorithm: str, clock: tg.ManualClock) -> None:
    limiter = tg.Limiter("100/minute", algorithm=algorithm, clock=clock)
    reservation = limiter.reserve("k", 10)
    with pytest.raises(tg.ConfigurationError, match="expected an algorithm other than sliding-log"):
        reservation.extend(1)
    reservation.commit(4)
    assert limiter.peek("k").remaining == 96


def test_a_log_forgets_the_units_of_the_reservation(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter("100/minute", algorithm="sliding-log", clock=clock)
    reservation = limiter.reserve("k", 50)
    clock.advance(30)
    limiter.hit("k", 50)
    reservation.commit(10)
    clock.advance(30)  # what the reservation kept is over, what came later is not
    assert limiter.peek("k").remaining == 50


def test_what_a_key_must_not_owe_is_written_off(
    clock: tg.ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = tg.Limiter(tg.Limit("100/hour", max_debt=50), clock=clock)
    reservation = limiter.reserve("k", 100)
    assert reservation.commit(1000).charged == 150
    assert limiter.stats().written_off == 850
    assert "written off" in caplog.text
    assert reservation.commit(1000).charged == 1000  # again: what it was settled at
    assert limiter.stats().written_off == 850


@pytest.mark.parametrize("actual", [-1, -(10**30), 1.5, True, "7", None])
def test_an_invalid_actual_cost_settles_nothing(limiter: tg.Limiter, actual: object) -> None:
    reservation = limiter.reserve("k", 100)
    with pytest.raises(tg.ConfigurationError, match="the actual cost is"):
        reservation.commit(actual)  # type: ignore[arg-type]
    assert reservation.commit(10).charged == 10


def test_an_absurd_actual_cost_is_charged_up_to_the_debt_that_is_allowed(
    limiter: tg.Limiter,
) -> None:
    reservation = limiter.reserve("k", 100)
    assert reservation.commit(10**30).charged == 11_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimate": 0}, "cost is 0"),
        ({"estimate": -5}, "cost is -5"),
        ({"estimate": 10**20}, "the cost of a reservation is 100000000000000000000"),
        ({"estimate": 5, "ttl": 0}, "the ttl is 0"),
        ({"estimate": 5, "ttl": float("nan")}, "the ttl is nan"),
        ({"estimate": 5, "ttl": 1e9}, "the ttl is 1000000000.0"),
        ({"estimate": 5, "ttl": "1"}, "the ttl is '1' of type str"),
        ({"estimate": 5, "on_exit": "drop"}, "on_exit is 'drop'"),
    ],
)
def test_invalid_arguments_reserve_nothing(
    limiter: tg.Limiter, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(tg.ConfigurationError, match=message):
        limiter.reserve("k", **arguments)  # type: ignore[arg-type]
    assert limiter.peek("k").remaining == 1000


def test_places_of_a_concurrency_limit_are_not_reserved() -> None:
    limiter = tg.Limiter("5/minute", algorithm="concurrency")
    with pytest.raises(tg.ConfigurationError, match="other algorithms than concurrency"):
        limiter.reserve("k", 1)


def test_a_token_is_taken_only_by_limiters_of_the_same_counts(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter("1000/hour", clock=clock)
    token = limiter.reserve("k", 100).token
    same = tg.Limiter("1000/hour", storage=limiter.storage, clock=clock)
    for other in (
        tg.Limiter("1001/hour", storage=limiter.storage, clock=clock),
        tg.Limiter("1000/hour", storage=limiter.storage, clock=clock, prefix="other"),
        tg.Limiter(["1000/hour", "5/day"], storage=limiter.storage, clock=clock),
        tg.Limiter("1000/hour", storage=limiter.storage, clock=clock, algorithm="fixed-window"),
    ):
        with pytest.raises(tg.ConfigurationError, match="by other limits"):
            other.commit(token, 5)
    with pytest.raises(tg.ReservationError):  # the same limits in another storage
        tg.Limiter("1000/hour", clock=clock).commit(token, 5)
    assert same.commit(token, 5).charged == 5


@pytest.mark.parametrize(
    "token", ["", "tgr1.", "tgr1.!!", "tgr1." + "A" * 200, "x" * 3000, b"\xff"]
)
def test_a_text_that_is_no_token_is_an_error(limiter: tg.Limiter, token: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=r"the token is .*; expected that of a"):
        limiter.commit(token, 5)


def test_a_token_of_another_type_is_an_error(limiter: tg.Limiter) -> None:
    with pytest.raises(tg.ArgumentTypeError, match="the token is 5 of type int"):
        limiter.release(5)  # type: ignore[arg-type]


def test_every_altered_token_is_an_error_and_charges_nothing(limiter: tg.Limiter) -> None:
    token = limiter.reserve("k", 100).token
    for at in range(0, len(token), 7):
        altered = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        with pytest.raises(tg.ConfigurationError):
            limiter.commit(altered, 0)
    with pytest.raises(tg.ConfigurationError):
        limiter.commit(token[:-4], 0)
    assert limiter.peek("k").remaining == 900


def test_a_token_with_the_key_of_another_takes_nothing(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve("k", 100)
    limiter.hit("other", 500)
    assert reservation.token
    reservation._whose = "other"
    with pytest.raises(tg.ReservationError, match="not known"):
        limiter.commit(reservation.token, 0)
    assert limiter.peek("other").remaining == 500
    assert limiter.peek("k").remaining == 900


def test_all_limits_of_a_limiter_are_settled(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter(["100/minute", "1000/hour", "5/day"], clock=clock)
    assert not limiter.reserve("k", 6)
    with limiter.reserve("k", 5) as reservation:
        reservation.commit(50)
    hour = tg.Limiter("1000/hour", storage=limiter.storage, clock=clock)
    day = tg.Limiter("5/day", storage=limiter.storage, clock=clock)
    assert hour.peek("k").remaining == 950
    assert day.peek("k").debt == 45


def test_a_limit_in_shadow_without_room_reserves_nothing(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter(["1000/hour", tg.Limit("5/day", shadow=True)], clock=clock)
    with limiter.reserve("k", 10) as reservation:
        assert reservation.commit(20).charged == 20
    day = tg.Limiter("5/day", storage=limiter.storage, clock=clock)
    assert day.peek("k").remaining == 5
    assert limiter.stats().denied_in_shadow == 1


def test_a_quota_is_reserved(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter("quota 1000/month", clock=clock)
    with limiter.reserve("k", 100) as reservation:
        reservation.commit(130)
    with limiter.reserve("k", 100) as reservation:
        reservation.commit(20)
    assert limiter.quota_status("k").used == 150


def test_each_thread_and_task_settles_once(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve("k", 100)
    token = reservation.token
    results: list[str] = []

    def settle(actual: int) -> None:
        try:
            limiter.commit(token, actual)
            results.append("settled")
        except tg.ReservationError:
            results.append("not")

    threads = [threading.Thread(target=settle, args=(100 + i,)) for i in range(8)]
    run_threads(threads)
    assert results.count("settled") == 1
    assert limiter.peek("k").remaining in range(893, 901)


def test_the_async_calls_settle_a_reservation(limiter: tg.Limiter) -> None:
    async def main() -> None:
        async with limiter.reserve_async("k", 100) as reservation:
            assert await reservation.extend_async(20)
            await reservation.commit_async(70)
        kept = await limiter.reserve_async("k", 30)
        await limiter.commit_async(kept.token, 10)
        released = await limiter.reserve_async("k", 30)
        await limiter.release_async(released.token)
        async with limiter.reserve_async("k", 30):
            pass
        with pytest.raises(tg.RateLimitExceeded):
            async with limiter.reserve_async("k", 1001):
                pytest.fail("the block ran")

    asyncio.run(main())
    assert limiter.peek("k").remaining == 920


def test_a_plan_reserves_all_or_none(clock: tg.ManualClock) -> None:
    requests = tg.Limiter("2/hour", clock=clock)
    tokens = tg.Limiter("1000/hour", storage=requests.storage, clock=clock)
    plan = tg.Plan([requests, tokens])
    assert not plan.reserve(["user", "tenant"], [1, 2000])
    assert requests.peek("user").remaining == 2
    with plan.reserve(["user", "tenant"], [1, 500]) as reservation:
        assert reservation.extend([1, 100])
        assert not reservation.extend([1, 100])  # no request is left
        reservation.commit([1, 900])
    assert (requests.peek("user").remaining, tokens.peek("tenant").remaining) == (1, 100)
    with plan.reserve(["user", "tenant"], [1, 50]):
        pass
    assert (requests.peek("user").remaining, tokens.peek("tenant").remaining) == (1, 100)
    token = plan.reserve(["user", "tenant"], [1, 50]).token
    with pytest.raises(tg.ConfigurationError, match="by other limits"):
        tokens.commit(token, 5)
    plan.commit(token, [0, 60])
    assert (requests.peek("user").remaining, tokens.peek("tenant").remaining) == (1, 40)
    assert plan.commit(token, [0, 60]).charged == 0
    with pytest.raises(tg.ConfigurationError, match="2 limiters"):
        plan.commit(token, [1])


def test_a_plan_with_one_key_and_limit_twice_reserves_the_sum(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter("1000/hour", clock=clock)
    plan = tg.Plan([limiter, limiter])

    async def main() -> None:
        async with plan.reserve_async(["k", "k"], [10, 20]) as reservation:
            assert limiter.peek("k").remaining == 970
            await reservation.commit_async([5, 100])

    asyncio.run(main())
    assert limiter.peek("k").remaining == 895


def test_a_limiter_that_is_closed_settles_nothing(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve("k", 10)
    limiter.close()
    with pytest.raises(tg.LimiterClosedError):
        reservation.commit(5)


def test_a_process_that_ends_leaves_its_estimate_and_its_token(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = (
        "import os, sys, tidegate as tg\n"
        f"limiter = tg.Limiter('1000/36500 days', storage='shm://{tmp_path}/t?capacity=4096')\n"
        "print(limiter.reserve('k', 100).token, flush=True)\n"
        "limiter.reserve('k', 200)\n"
        "os._exit(9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 9, ended.stderr
    limiter = tg.Limiter("1000/36500 days", storage=f"shm://{tmp_path}/t?capacity=4096")
    assert limiter.peek("k").remaining == 700
    assert limiter.commit(ended.stdout.strip(), 40).charged == 40
    assert limiter.peek("k").remaining == 760


RULES = {
    "rules": [
        {"id": "requests", "by": "user", "limits": "3/hour", "counts": "requests", "also": True},
        {"id": "tokens", "by": "user", "limits": "1000/hour"},
    ]
}


def test_rules_are_reserved_and_settled(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter(rules=tg.RuleSet(RULES), clock=clock)

    def standing() -> tuple[int, ...]:
        return tuple(each.remaining for each in limiter.peek(user="42").outcomes)

    with limiter.reserve(cost=100, user="42") as reservation:
        assert standing() == (2, 900)
        assert reservation.extend(50)
        reservation.commit(400)
    assert standing() == (2, 600)
    with limiter.reserve(cost=100, user="42"):
        pass
    assert standing() == (2, 600)
    token = limiter.reserve(cost=100, user="42").token
    assert limiter.commit(token, 0).charged == 0
    assert standing() == (1, 600)
    limiter.release(limiter.reserve(cost=100, user="42").token)
    asyncio.run(limiter.release_async(limiter.reserve(cost=100, user="42").token))
    assert standing() == (1, 600)
    assert not limiter.reserve(cost=601, user="42")
    with pytest.raises(tg.ConfigurationError, match="the actual cost is None"):
        limiter.reserve(cost=1, user="42").commit(None)  # type: ignore[arg-type]


def test_a_change_of_rules_leaves_reservations_to_the_rules_that_made_them(
    clock: tg.ManualClock,
) -> None:
    limiter = tg.Limiter(rules=tg.RuleSet(RULES), clock=clock)
    reservation = limiter.reserve(cost=100, user="42")
    token = reservation.token
    changed = {"rules": [RULES["rules"][0], {**RULES["rules"][1], "limits": "500/hour"}]}
    limiter.use(tg.RuleSet(changed))
    with pytest.raises(tg.ConfigurationError, match="by other limits"):
        limiter.commit(token, 10)
    assert reservation.commit(10).charged == 10
    assert reservation.commit(10).charged == 10


def test_rules_without_a_limit_reserve_nothing(clock: tg.ManualClock) -> None:
    limiter = tg.Limiter(rules=tg.RuleSet(RULES), clock=clock)

    async def main() -> None:
        async with limiter.reserve_async(cost=100, ip="203.0.113.9") as reservation:
            assert (await reservation.extend_async(10)).allowed
            assert (await reservation.commit_async(70)).charged == 0

    asyncio.run(main())


# ------------------------- known to one object: settled in the core, without a record


def test_the_store_has_no_record_until_the_token_is_read(limiter: tg.Limiter) -> None:
    for _ in range(100):
        limiter.reserve("k", 5).commit(1)
    left_open = limiter.reserve("k", 5)
    assert limiter.stats().keys == 1
    assert left_open.token
    assert limiter.stats().keys == 2


def test_a_token_that_is_read_late_has_all_that_happened(
    limiter: tg.Limiter, clock: tg.ManualClock
) -> None:
    worker = tg.Limiter("1000/hour", storage=limiter.storage, clock=clock)
    reservation = limiter.reserve("k", 100)
    assert reservation.extend(50)
    clock.advance(1)
    assert worker.commit(reservation.token, 170).charged == 170
    with pytest.raises(tg.ReservationError, match="settled before, at 170 units"):
        reservation.commit(1)
    settled = limiter.reserve("k", 100)
    settled.commit(20)
    clock.advance(59)
    token = settled.token
    assert worker.commit(token, 20).charged == 20
    with pytest.raises(tg.ReservationError, match="settled before") as error:
        worker.commit(token, 30)
    assert error.value.settled
    clock.advance(1)
    with pytest.raises(tg.ReservationError, match="not known"):
        worker.commit(token, 20)


def test_a_token_of_one_whose_life_is_over_is_not_known(
    limiter: tg.Limiter, clock: tg.ManualClock
) -> None:
    reservation = limiter.reserve("k", 100, ttl=1)
    clock.advance(1)
    with pytest.raises(tg.ReservationError, match="is not open, and was not raised"):
        reservation.extend(1)
    with pytest.raises(tg.ReservationError, match="not known"):
        limiter.commit(reservation.token, 1)


@pytest.mark.parametrize("settle", ["commit", "release", "leave"])
def test_what_is_given_back_lets_a_waiting_caller_pass(settle: str) -> None:
    limiter = tg.Limiter("1000/hour", clock=tg.ManualClock(1_700_000_000 * 10**9))
    reservation = limiter.reserve("k", 1000)
    with a_caller_that_waits(limiter, "k", 500):
        if settle == "commit":
            reservation.commit(400)
        elif settle == "release":
            reservation.release()
        else:
            with reservation:
                pass


def test_a_commit_gives_back_what_other_reservations_left(
    limiter: tg.Limiter, clock: tg.ManualClock
) -> None:
    limiter.reserve("other", 900, ttl=30, on_expiry="release")
    reservation = limiter.reserve("k", 10)
    clock.advance(30)
    reservation.commit(10)
    assert limiter.peek("other").remaining == 1000


def test_a_clock_in_python_has_records() -> None:
    now = [1_700_000_000.0]
    limiter = tg.Limiter("1000/hour", clock=lambda: now[0])
    reservation = limiter.reserve("k", 10)
    assert limiter.stats().keys == 2
    reservation.commit(3)
    assert limiter.peek("k").remaining == 997


def test_one_that_is_part_of_a_cycle_is_collected(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve("k", 10)
    reservation.itself = reservation  # type: ignore[attr-defined]
    gone = weakref.ref(reservation)
    del reservation
    gc.collect()
    assert gone() is None
    assert limiter.peek("k").remaining == 990


def test_the_calls_of_a_reservation_take_their_arguments_by_name(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve(key="k", estimate=10)
    assert reservation.extend(more=5)
    assert reservation.commit(actual=12).charged == 12
    with pytest.raises(TypeError, match="another name; expected actual"):
        reservation.commit(units=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"0 arguments were given, .*expected more"):
        reservation.extend()  # type: ignore[call-arg]
