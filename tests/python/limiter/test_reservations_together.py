"""Reservations of several limiters in memory, which the core settles without records."""

from __future__ import annotations

import threading

import pytest
import tidegate as tg
from polling import eventually


@pytest.fixture
def clock() -> tg.ManualClock:
    return tg.ManualClock(1_700_000_000 * 10**9)


@pytest.fixture
def limiter(clock: tg.ManualClock) -> tg.Limiter:
    return tg.Limiter("1000/hour", clock=clock)


def test_a_plan_has_no_records_until_its_token_is_read(
    limiter: tg.Limiter, clock: tg.ManualClock
) -> None:
    shadow = tg.Limit("100/hour", shadow=True)
    other = tg.Limiter(["500/hour", shadow], storage=limiter.storage, clock=clock)
    plan = tg.Plan([limiter, other])
    keys = ["k", "o"]
    reservation = plan.reserve(keys, [100, 200])  # which the limit in shadow has no room for
    keys[0] = "another"
    assert reservation.extend([100, 50])
    assert plan.limiters[0].stats().keys == 3
    with pytest.raises(tg.ConfigurationError, match="the actual cost is -1"):
        reservation.commit([1, -1])
    with pytest.raises(tg.ArgumentTypeError, match="the actual cost is None"):
        reservation.commit(None)  # type: ignore[arg-type]
    with pytest.raises(tg.ConfigurationError, match="1 costs were given for 2 limiters"):
        reservation.commit([1])
    assert reservation.commit([50, 400]).charged == 50
    assert reservation.commit([50, 400]).charged == 50
    for other_units in ([50, 401], [51, 400]):
        with pytest.raises(tg.ReservationError, match="settled before, at") as error:
            reservation.commit(other_units)
        assert error.value.settled
    with pytest.raises(tg.ReservationError, match="is not open, and was not raised"):
        reservation.extend([1, 1])
    assert plan.limiters[0].stats().keys == 3
    token = reservation.token
    assert plan.limiters[0].stats().keys > 3
    assert plan.commit(token, [50, 400]).charged == 50
    with pytest.raises(tg.ReservationError, match="settled before"):
        plan.release(token)
    assert limiter.peek("k").remaining == 950
    assert other.peek("o").remaining == 100
    limiter.close()
    with pytest.raises(tg.LimiterClosedError):
        reservation.commit([50, 400])


def test_a_plan_that_ends_stays_at_its_estimate(
    limiter: tg.Limiter, clock: tg.ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    other = tg.Limiter(tg.Limit("100/hour", max_debt=50), storage=limiter.storage, clock=clock)
    plan = tg.Plan([limiter, other])
    reservation = plan.reserve(["k", "o"], [100, 10], ttl=2)
    plan.reserve(["other", "o"], [900, 10], ttl=2, on_expiry="release")
    clock.advance(2)
    with pytest.raises(tg.ReservationError, match=r"not known \(any more\)"):
        reservation.commit([0, 0])  # which gives back what was left to be given back
    assert (limiter.peek("k").remaining, limiter.peek("other").remaining) == (900, 1000)
    assert plan.reserve(["k", "new"], [1, 1]).commit([1000, 1000]).charged == 150
    assert limiter.stats().written_off == 850
    assert "written off" in caplog.text


@pytest.mark.parametrize("settle", ["commit", "release"])
def test_what_a_plan_gives_back_lets_a_waiting_caller_pass(settle: str) -> None:
    clock = tg.ManualClock(1_700_000_000 * 10**9)
    limiter = tg.Limiter("1000/hour", clock=clock)
    other = tg.Limiter("500/hour", storage=limiter.storage, clock=clock)
    reservation = tg.Plan([other, limiter]).reserve(["o", "k"], [1, 1000])
    passed = threading.Event()

    def wait() -> None:
        if limiter.acquire("k", 500, timeout=None):
            passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: len(limiter._room.lines) == 1)
    reservation.commit([1, 400]) if settle == "commit" else reservation.release()
    thread.join(60)
    assert passed.is_set()
