"""Reservations of several limiters in memory, which the core settles without records."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

import pytest
import tidegate as tg
from waiting_callers import a_caller_that_waits


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
    with a_caller_that_waits(limiter, "k", 500):
        reservation.commit([1, 400]) if settle == "commit" else reservation.release()


class Between:
    """What another thread does while the token of `reservation` is read."""

    def __init__(self, name: str, when: str, call: Callable[[tg.Reservation], Any]) -> None:
        self.name, self.when, self.call = name, when, call

    def __repr__(self) -> str:
        return f"{self.name} {self.when}"

    def read_token(self, reservation: tg.Reservation, monkeypatch: pytest.MonkeyPatch) -> str:
        record = tg.Reservation._record

        def recorded(each: tg.Reservation, ident: bytes) -> None:
            monkeypatch.setattr(tg.Reservation, "_record", record)
            if self.when == "before":
                self.call(each)
            record(each, ident)
            if self.when == "after":
                self.call(each)

        monkeypatch.setattr(tg.Reservation, "_record", recorded)
        return reservation.token


@pytest.mark.parametrize(
    "between",
    [
        Between("commit", "before", lambda each: each.commit(40)),
        Between("commit", "after", lambda each: each.commit(40)),
        Between("token", "before", lambda each: each._owner.commit(each.token, 40)),
        Between("token", "after", lambda each: each._owner.commit(each.token, 40)),
    ],
    ids=repr,
)
def test_a_token_that_is_read_while_another_thread_settles(
    limiter: tg.Limiter, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservation = limiter.reserve("k", 100)
    token = between.read_token(reservation, monkeypatch)
    assert limiter.peek("k").remaining == 960
    for settle in (reservation.commit, lambda units: limiter.commit(token, units)):
        assert settle(40).charged == 40
        with pytest.raises(tg.ReservationError, match="settled before"):
            settle(41)
    assert limiter.peek("k").remaining == 960


RULES: dict[str, Any] = {
    "rules": [
        {"id": "requests", "by": "user", "limits": "3/hour", "counts": "requests", "also": True},
        {"id": "tokens", "by": "user", "limits": "1000/hour", "also": True},
        {"id": "watched", "by": "user", "limits": "150/hour", "shadow": True},
    ],
    "costs": [
        {"endpoints": ["/chat"], "cost": {"usage": {"input": 1, "output": 5}, "estimate": 50}}
    ],
}


@pytest.fixture
def by_rules(clock: tg.ManualClock) -> tg.RuleLimiter:
    return tg.Limiter(rules=tg.RuleSet(RULES), clock=clock)


def standing(limiter: tg.RuleLimiter) -> tuple[int, ...]:
    return tuple(each.remaining for each in limiter.peek(user="42").outcomes)


def test_rules_have_no_records_until_the_token_is_read(by_rules: tg.RuleLimiter) -> None:
    reservation = by_rules.reserve(cost=100, user="42")
    assert reservation.extend(20)
    assert standing(by_rules) == (2, 880, 30)
    assert by_rules.stats().keys == 3
    with pytest.raises(tg.ConfigurationError, match="the actual cost is -1"):
        reservation.commit(-1)
    with pytest.raises(tg.ArgumentTypeError, match="the actual cost is None"):
        reservation.commit(None)  # type: ignore[arg-type]
    assert reservation.commit(90).charged == 90
    assert reservation.commit(90).charged == 90
    for other, how in (
        (lambda: reservation.commit(91), "at"),
        (reservation.release, "by a commit"),
    ):
        with pytest.raises(tg.ReservationError, match=f"settled before, {how}") as error:
            other()
        assert error.value.settled
    with pytest.raises(tg.ReservationError, match="is not open, and was not raised"):
        reservation.extend(1)
    assert standing(by_rules) == (2, 910, 60)
    assert by_rules.stats().keys == 3
    token = reservation.token
    assert by_rules.stats().keys == 6
    assert by_rules.commit(token, 90).charged == 90
    with pytest.raises(tg.ReservationError, match="settled before"):
        by_rules.commit(token, 0)
    assert standing(by_rules) == (2, 910, 60)
    given_back = by_rules.release(by_rules.reserve(cost=100, user="42").token)
    assert given_back is not None
    assert (given_back.charged, given_back.remaining) == (0, 2)


def test_rules_forget_a_request_that_is_released(by_rules: tg.RuleLimiter) -> None:
    reservation = by_rules.reserve(cost=100, user="42")
    for _ in range(2):
        reservation.release()
    with pytest.raises(tg.ReservationError, match="settled before, by a release"):
        reservation.commit(0)  # which would count the request

    async def leave() -> None:
        async with by_rules.reserve_async(cost=100, user="42"):
            assert standing(by_rules) == (2, 900, 50)

    asyncio.run(leave())
    assert standing(by_rules) == (3, 1000, 150)


def test_rules_end_reservations_after_their_ttl(
    by_rules: tg.RuleLimiter, clock: tg.ManualClock
) -> None:
    reservation = by_rules.reserve(cost=100, user="42", ttl=2)
    by_rules.reserve(cost=100, user="other", ttl=2, on_expiry="release")
    clock.advance(2)
    with pytest.raises(tg.ReservationError, match=r"not known \(any more\)"):
        reservation.commit(0)  # which gives back what was left to be given back
    assert [each.remaining for each in by_rules.peek(user="other").outcomes] == [3, 1000, 150]
    assert by_rules.peek(user="42").outcomes[1].remaining == 900


def test_rules_that_are_changed_or_closed(by_rules: tg.RuleLimiter) -> None:
    reservation = by_rules.reserve(user="42", endpoint="/chat")
    weights = {"endpoints": ["/chat"], "cost": {"usage": {"input": 9, "output": 9}, "estimate": 1}}
    by_rules.use(tg.RuleSet({**RULES, "costs": [weights]}))
    assert reservation.commit(usage={"input": 10, "output": 4}).charged == 30
    assert standing(by_rules) == (2, 970, 120)
    by_rules.close()
    with pytest.raises(tg.LimiterClosedError):
        reservation.commit(30)


def test_a_usage_is_weighed_by_the_match_of_the_reservation(
    by_rules: tg.RuleLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        pytest.fail("the rules were matched again")

    monkeypatch.setattr(by_rules, "_usage_cost", fail)
    reservation = by_rules.reserve(user="42", endpoint="/chat")
    assert standing(by_rules) == (2, 950, 100)
    assert reservation.commit(usage={"input": 10, "output": 4}).charged == 30
    assert standing(by_rules) == (2, 970, 120)
    with pytest.raises(tg.ConfigurationError, match="the usage has the field 'words'"):
        reservation.commit(usage={"words": 1})


def test_with_records_the_weights_of_a_usage_are_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limiter = tg.Limiter(rules=tg.RuleSet(RULES), clock=lambda: 1_700_000_000.0)
    asked = []
    ask = limiter._usage_cost
    monkeypatch.setattr(limiter, "_usage_cost", lambda *given: asked.append(given) or ask(*given))
    reservation = limiter.reserve(user="42", endpoint="/chat")
    assert reservation.commit(usage={"input": 10, "output": 4}).charged == 30
    assert reservation.commit(usage={"input": 10, "output": 4}).charged == 30
    assert len(asked) == 1


def test_what_a_list_lets_pass_or_refuses_is_no_reservation(clock: tg.ManualClock) -> None:
    rules = {**RULES, "allow": [{"user": "free"}], "block": [{"user": "bad"}]}
    limiter = tg.Limiter(rules=tg.RuleSet(rules), clock=clock)
    passed = limiter.reserve(cost=5, user="free")
    assert passed
    assert passed.commit(usage={"input": 10}).charged == 0
    refused = limiter.reserve(cost=5, user="bad")
    assert not refused
    with pytest.raises(tg.ReservationError, match="was refused"):
        refused.commit(1)
