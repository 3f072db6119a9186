"""Reservations in memory that only one object knows: the core settles them without a record."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import tidegate as tg
from polling import eventually


@pytest.fixture
def clock() -> tg.ManualClock:
    return tg.ManualClock(1_700_000_000 * 10**9)


@pytest.fixture
def limiter(clock: tg.ManualClock) -> tg.Limiter:
    return tg.Limiter("1000/hour", clock=clock)


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
    passed = threading.Event()

    def wait() -> None:
        if limiter.acquire("k", 500, timeout=None):
            passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: len(limiter._room._lines) == 1)
    if settle == "commit":
        reservation.commit(400)
    elif settle == "release":
        reservation.release()
    else:
        with reservation:
            pass
    thread.join(60)
    assert passed.is_set()


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


def test_arguments_by_name(limiter: tg.Limiter) -> None:
    reservation = limiter.reserve(key="k", estimate=10)
    assert reservation.extend(more=5)
    assert reservation.commit(actual=12).charged == 12
    with pytest.raises(TypeError, match="another name; expected actual"):
        reservation.commit(units=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"0 arguments were given, .*expected more"):
        reservation.extend()  # type: ignore[call-arg]
