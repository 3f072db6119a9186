"""The answers to concurrent processes could have been given to one caller after the other.

A few processes make a few calls each on one key, at a clock that stands still, and note when each
call began and ended. Some order of the calls, in which none comes before one that had ended when it
began, must give the same answers through the oracle.
"""

from __future__ import annotations

import copy
import mmap
import os
import pickle
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import oracle as naive
import pytest
import tidegate as tg
from polling import eventually

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")

NOW = 1_700_000_000 * 10**9
PROCESSES = 3
CALLS = 4


class Call(NamedTuple):
    began: int
    ended: int
    what: str
    cost: int
    allowed: bool
    remaining: int


def answer(reference: naive.Oracle, call: Call) -> bool:
    """Whether the oracle, in its present state, would have given the same answer."""
    if call.what == "refund":
        reference.refund("k", now=NOW, cost=call.cost)
        return True
    decision = reference.hit("k", now=NOW, cost=call.cost)
    return decision.allowed == call.allowed and decision.remaining == call.remaining


def is_linearizable(reference: naive.Oracle, calls: list[Call]) -> bool:
    if not calls:
        return True
    first_end = min(call.ended for call in calls)
    for index, call in enumerate(calls):
        if call.began > first_end:
            continue
        after = copy.deepcopy(reference)
        if answer(after, call) and is_linearizable(after, calls[:index] + calls[index + 1 :]):
            return True
    return False


def work(limiter: tg.Limiter, dice: random.Random, refunds: bool) -> list[Call]:
    plan = [
        ("refund", 1) if refunds and dice.random() < 0.3 else ("hit", dice.randint(1, 2))
        for _ in range(CALLS)
    ]
    calls = []
    clock = time.monotonic_ns
    for what, cost in plan:
        began = clock()
        if what == "refund":
            limiter.refund("k", cost)
            calls.append(Call(began, clock(), what, cost, True, 0))
        else:
            decision = limiter.hit("k", cost)
            ended = clock()
            calls.append(Call(began, ended, what, cost, decision.allowed, decision.remaining))
    return calls


def recorded(limiters: list[tg.Limiter], refunds: bool) -> list[list[Call]]:
    """The calls on each limiter in turn, by processes that begin with it at once."""
    children = []
    ready = mmap.mmap(-1, len(limiters) * PROCESSES)
    for number in range(PROCESSES):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                mine = []
                for seed, limiter in enumerate(limiters):
                    dice = random.Random(1000 * seed + number)
                    first = seed * PROCESSES
                    ready[first + number] = 1
                    everybody = slice(first, first + PROCESSES)
                    eventually(lambda: all(ready[everybody]), interval=0)  # noqa: B023
                    mine.append(work(limiter, dice, refunds and seed % 2 == 1))
                with os.fdopen(writing, "wb") as file:
                    pickle.dump(mine, file)
            finally:
                os._exit(0)
        os.close(writing)
        children.append((child, reading))
    histories: list[list[Call]] = [[] for _ in limiters]
    for child, reading in children:
        with os.fdopen(reading, "rb") as file:
            for history, calls in zip(histories, pickle.load(file)):
                history += calls
        os.waitpid(child, 0)
    return histories


@pytest.fixture
def limiters(algorithm: str) -> Iterator[list[tg.Limiter]]:
    """Limiters with fresh keys: entering one is part of what is checked."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield [
            tg.Limiter(
                "6/hour",
                storage=f"shm://{directory}/table?capacity=1000",
                algorithm=algorithm,
                prefix=f"history{number}",
                clock=tg.ManualClock(NOW),
            )
            for number in range(20)
        ]


@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-window"])
def test_recorded_histories_are_linearizable(algorithm: str, limiters: list[tg.Limiter]) -> None:
    for calls in recorded(limiters, refunds=True):
        assert len(calls) == PROCESSES * CALLS
        limit = naive.Limit(6, 3600 * 10**9, algorithm=algorithm)  # type: ignore[arg-type]
        assert is_linearizable(naive.Oracle([limit]), calls), sorted(calls)
    # The check can fail: an answer that no process can have received.
    wrong = calls[0]._replace(what="hit", cost=1, allowed=True, remaining=6)
    assert not is_linearizable(naive.Oracle([limit]), [wrong, *calls[1:]])


@pytest.mark.parametrize("algorithm", ["sliding-log", "concurrency"])
def test_logs_admit_what_there_is_room_for(limiters: list[tg.Limiter]) -> None:
    """Who wants one place is refused only where there is none; the rest errs to refusing."""
    for limiter, calls in zip(limiters, recorded(limiters, refunds=False)):
        admitted = sum(call.cost for call in calls if call.allowed)
        assert admitted <= 6
        assert admitted + limiter.peek("k").remaining == 6
        if any(call.cost == 1 and not call.allowed for call in calls):
            assert admitted >= 5
