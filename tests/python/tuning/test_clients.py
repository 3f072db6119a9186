"""Refused clients retry, and their retries reach the limiter among the other requests."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate import ArgumentTypeError, ConfigurationError, Decision, Limiter, ManualClock, tuning
from tidegate.tuning import Clients

START = 1_700_000_000_000_000_000
SECOND = 10**9

Wait = Callable[[Decision, int], "int | None"]


def live(
    limit: str, requests: list[tuple[int, str]], wait: Wait, attempts: int
) -> tuple[list[tuple[bool, int, int]], int]:
    """(allowed, attempts, waited) of each request on a live limiter, and its number of calls."""
    clock = ManualClock()
    limiter = Limiter(limit, clock=clock)
    # At one instant retries come before new requests, in the order of their first attempts.
    order = sorted(range(len(requests)), key=lambda at: requests[at][0])
    number_of = {at: number for number, at in enumerate(order)}
    waiting = [(requests[at][0], 1, number_of[at], at, 1) for at in range(len(requests))]
    heapq.heapify(waiting)
    outcomes: dict[int, tuple[bool, int, int]] = {}
    calls = 0
    while waiting:
        now, _, number, at, tries = heapq.heappop(waiting)
        clock.set_ns(now)
        decision = limiter.hit(requests[at][1])
        calls += 1
        outcomes[at] = (decision.allowed, tries, now - requests[at][0])
        pause = None if decision or tries == attempts else wait(decision, tries)
        if pause is not None:
            heapq.heappush(waiting, (now + pause, 0, number, at, tries + 1))
    return [outcomes[at] for at in range(len(requests))], calls


def exact_ns(decision: Decision) -> int:
    # A short wait is exact to the nanosecond even as float seconds.
    return round(decision.retry_after * 1e9)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 30).map(lambda n: START + n * SECOND // 4), st.sampled_from(["a", "b"])
    ),
    max_size=40,
)
LIMITS = st.sampled_from(["2/second", "1/2 seconds", "3/second burst 1"])


def assert_agrees(
    limit: str, requests: list[tuple[int, str]], clients: Clients, wait: Wait
) -> None:
    outcomes, calls = live(limit, requests, wait, clients.attempts)
    times = [time for time, _ in requests]
    result = tuning.replay(limit, [key for _, key in requests], times, clients=clients)
    assert result.attempts is not None
    assert result.waited_ns is not None
    found = zip(result.allowed.tolist(), result.attempts.tolist(), result.waited_ns.tolist())
    assert list(found) == outcomes
    assert result.total_attempts == calls == int(result.attempts.sum())
    assert result.refused_attempts == calls - sum(allowed for allowed, _, _ in outcomes)


# What clients do that try so often, and the wait after each refusal that this comes to.
REACTIONS: dict[str, tuple[Callable[[int], Clients], Wait]] = {
    "obey": (lambda most: Clients.obey(attempts=most), lambda decision, _: exact_ns(decision)),
    "obey the header": (
        lambda most: Clients.obey(whole_seconds=True, attempts=most),
        lambda decision, _: math.ceil(decision.retry_after) * SECOND,
    ),
    "back off": (
        lambda most: Clients.back_off(base=0.25, factor=3, most=1.5, jitter=0.0, attempts=most),
        lambda _, tries: min(SECOND // 4 * 3 ** (tries - 1), 3 * SECOND // 2),
    ),
    "hammer": (lambda most: Clients.hammer(pause=0.125, attempts=most), lambda *_: SECOND // 8),
}


@pytest.mark.parametrize("reaction", REACTIONS)
@settings(max_examples=200, deadline=None)
@given(LIMITS, REQUESTS, st.integers(1, 10))
def test_clients_are_replayed_exactly(
    reaction: str, limit: str, requests: list[tuple[int, str]], attempts: int
) -> None:
    clients_of, wait = REACTIONS[reaction]
    assert_agrees(limit, requests, clients_of(attempts), wait)


def test_clients_that_obey_pass_in_the_end_if_no_others_come() -> None:
    times = START + np.arange(5) * SECOND
    result = tuning.replay("1/10 seconds", ["a"] * 5, times, clients=Clients.obey(attempts=99))
    assert result.allowed.all()
    assert result.refused_share == 0
    assert result.waited[0] == 0
    assert result.waited[1] == 9


def test_clients_that_obey_do_not_retry_what_can_never_pass() -> None:
    result = tuning.replay("2/hour", ["a"], [START], [3], clients="obey")
    assert result.attempts.tolist() == [1]
    assert result.retry_after.tolist() == [math.inf]
    hammered = tuning.replay("2/hour", ["a"], [START], [3], clients="hammer")
    assert hammered.attempts.tolist() == [100]
    assert hammered.waited.tolist() == pytest.approx([9.9])


def test_jitter_is_seeded_and_within_its_bounds() -> None:
    def waits(clients: Clients) -> Any:
        return tuning.replay("1/hour", np.zeros(200, int), START + np.arange(200), clients=clients)

    back_off = Clients.back_off(base=10, jitter=0.5, attempts=2, seed=1)
    first, again = waits(back_off).waited[1:], waits(back_off).waited[1:]
    assert first.tolist() == again.tolist()
    assert 5 <= first.min() < 6
    assert 9 < first.max() <= 10
    other = waits(Clients.back_off(base=10, jitter=0.5, attempts=2, seed=2)).waited[1:]
    assert (other != first).any()
    obeyed = waits(Clients.obey(jitter=0.1, attempts=2)).waited[1:]
    assert obeyed.min() + 1e-3 >= 3_600
    assert 3_900 < obeyed.max() <= 3_960


def test_clients_react_to_several_limits_and_to_rules() -> None:
    from tidegate import RuleSet

    times = START + np.arange(6) * SECOND // 2
    users, addresses = ["a", "b"] * 3, ["x"] * 6
    keys = {"user": users, "ip": addresses}
    by_limits = tuning.replay(
        {"user": "1/second", "ip": "2/second"}, keys, times, clients=Clients.obey(attempts=20)
    )
    rules = RuleSet(
        {
            "rules": [
                {"id": "user", "by": "user", "limits": "1/second"},
                {"id": "ip", "by": "ip", "limits": "2/second"},
            ]
        }
    )
    by_rules = tuning.replay(rules, keys, times, clients=Clients.obey(attempts=20))
    assert by_limits.allowed.all()
    assert by_limits.waited_ns.tolist() == by_rules.waited_ns.tolist()
    assert by_limits.attempts.tolist() == by_rules.attempts.tolist()


def test_clients_may_be_given_by_name() -> None:
    assert tuning.replay("1/hour", ["a"], [1], clients="never").clients == Clients.never()
    assert tuning.replay("1/hour", ["a"], [1]).attempts is None
    assert tuning.replay("1/hour", ["a"], [1], clients="back-off").clients == Clients.back_off()
    assert not Clients.never().react


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ("sometimes", r"'sometimes'; expected 'never', 'obey', 'back-off', 'hammer'"),
        (3, r"3 of type int; expected a name"),
        (None, r"None of type NoneType"),
    ],
)
def test_invalid_clients_are_errors(clients: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tuning.replay("1/hour", ["a"], [1], clients=clients)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clients.obey(attempts=0), "attempts is 0; expected 1"),
        (lambda: Clients.obey(jitter=1.5), "jitter is 1.5; expected 0 to 1"),
        (lambda: Clients.back_off(base=-1), "pause is -1; expected 0"),
        (lambda: Clients.back_off(factor=0.5), "factor is 0.5; expected 1"),
        (lambda: Clients.back_off(base=math.nan), "pause is nan"),
        (lambda: Clients.hammer(pause=math.inf), "pause is inf"),
        (lambda: Clients.obey(seed=-1), "seed is -1"),
    ],
)
def test_numbers_out_of_range_are_errors(make: Callable[[], Clients], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_values_that_are_not_numbers_are_errors() -> None:
    with pytest.raises(ArgumentTypeError, match=r"attempts is 2\.0 of type float; expected an int"):
        Clients.obey(attempts=2.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="pause is '1' of type str; expected a number"):
        Clients.hammer(pause="1")  # type: ignore[arg-type]
