"""Every engine gives the answers of tests/vectors/ (their README describes the format)."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tidegate

VECTORS = Path(__file__).resolve().parent.parent / "vectors"

Case = dict[str, Any]
# The decisions of a case, one for each call; None where the call has none.
Engine = Callable[[Case], list["tidegate.Decision | None"]]


def limits_of(case: Case) -> list[tidegate.Limit]:
    """The limits, named by their places in the plan."""
    limits = []
    for index, given in enumerate(case["limits"]):
        name = f"rule{index}"
        if given["calendar"] is not None:
            text = f"{given['count']}/{given['calendar_n']} {given['calendar']}s"
            limits.append(tidegate.Limit(text, algorithm="fixed-window", name=name))
            continue
        limit = tidegate.Limit(
            given["count"],
            given["period_ns"] / 1e9,
            burst=given["burst"],
            algorithm=given["algorithm"],
            name=name,
            max_debt=given.get("max_debt"),
            oversize=given.get("oversize", "refuse"),
        )
        assert limit.period_ns == given["period_ns"]
        limits.append(limit)
    return limits


def one_or_all(limits: list[tidegate.Limit]) -> tidegate.Limit | list[tidegate.Limit]:
    return limits[0] if len(limits) == 1 else limits


def through_shared_memory(case: Case) -> list[tidegate.Decision | None]:
    with tempfile.TemporaryDirectory() as directory:
        return through_a_limiter(case, f"shm://{directory}/vectors?capacity=10000")


def through_a_limiter(case: Case, storage: str) -> list[tidegate.Decision | None]:
    clock = tidegate.ManualClock()
    answers: list[tidegate.Decision | None] = []
    with tidegate.Limiter(one_or_all(limits_of(case)), storage=storage, clock=clock) as limiter:
        for call in case["calls"]:
            clock.set_ns(call["now_ns"])
            key = f"k{call['key']}"
            if call["op"] == "hit":
                answers.append(limiter.hit(key, cost=call["cost"]))
            elif call["op"] == "peek":
                answers.append(limiter.peek(key, cost=call["cost"]))
            elif call["op"] == "charge":
                answers.append(limiter.charge(key, call["cost"]))
            else:
                answers.append(None)
                if call["op"] == "refund":
                    limiter.refund(key, cost=call["cost"])
                else:
                    limiter.reset(key)
    return answers


def through_replay(case: Case) -> list[tidegate.Decision | None]:
    """Hits are all a replay knows, and what they used: a charge that follows a hit at once.

    It plays those before the first other call. Peeks change nothing.
    """
    calls = case["calls"]
    used: dict[int, int] = {}
    for index, call in enumerate(calls):
        before = calls[index - 1] if index else call
        at = [before["now_ns"], before["key"]] == [call["now_ns"], call["key"]]
        if call["op"] == "charge" and before["op"] == "hit" and at and before["expect"]["allowed"]:
            used[index - 1] = before["cost"] + call["cost"]
        elif call["op"] not in ("hit", "peek"):
            calls = calls[:index]
            break
    hits = [index for index, call in enumerate(calls) if call["op"] == "hit"]
    # In the order given, also where the clock steps back.
    decisions = tidegate._core.replay(
        limits_of(case),
        [f"k{calls[index]['key']}" for index in hits],
        [calls[index]["now_ns"] for index in hits],
        [calls[index]["cost"] for index in hits],
        [used.get(index, calls[index]["cost"]) for index in hits],
    )
    answers: list[tidegate.Decision | None] = [None] * len(case["calls"])
    for index, decision in zip(hits, decisions):
        answers[index] = decision
    return answers


ENGINES: dict[str, Engine] = {
    "memory": partial(through_a_limiter, storage="memory://"),
    "shm": through_shared_memory,
    "replay": through_replay,
}


CASES = [
    pytest.param(case, id=f"{path.stem}-{case['name']}")
    for path in sorted(VECTORS.glob("*.json"))
    for case in json.loads(path.read_text("utf-8"))
]


def check_seconds(seconds: float, nanoseconds: int | None, what: str) -> None:
    if nanoseconds is None:
        assert seconds == math.inf, what
    elif nanoseconds < 2**53:
        assert seconds == nanoseconds / 1e9, what
    else:
        # Doubles are coarser than a nanosecond here; what matters is never to be early.
        given = Fraction(seconds) * 10**9
        assert nanoseconds <= given <= nanoseconds * (1 + Fraction(1, 2**50)), what


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_vector(engine: str, case: Case) -> None:
    answers = ENGINES[engine](case)
    assert len(answers) == len(case["calls"])
    for index, (call, answer) in enumerate(zip(case["calls"], answers)):
        if answer is None:
            continue
        expect = call["expect"]
        what = f"call {index} {call}: {answer}"
        assert answer.allowed is expect["allowed"], what
        assert bool(answer) is expect["allowed"], what
        assert answer.limit == expect["limit"], what
        assert answer.remaining == expect["remaining"], what
        check_seconds(answer.retry_after, expect["retry_after_ns"], what)
        check_seconds(answer.reset_after, expect["reset_after_ns"], what)
        check_seconds(answer.delay, expect["delay_ns"], what)
        assert answer.rule == f"rule{expect['rule_index']}", what
        assert not answer.degraded, what
        if "debt" in expect:  # in the cases of debts
            assert answer.debt == expect["debt"], what
        assert answer.charged == expect.get("charged"), what
