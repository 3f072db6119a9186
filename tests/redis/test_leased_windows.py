"""Leases of fixed and sliding windows: no window has more than its count."""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
import tidegate as tg
from lease_calls import check_script_and_core_alike, scripts, warm
from polling import eventually
from redis_server import PATIENT, RedisServer

if TYPE_CHECKING:
    from tidegate.types import Algorithm

LEASED = f"{PATIENT}&mode=leased&deny_cache_max=0"
ALGORITHMS = ["fixed-window", "sliding-window"]
COUNT = 600


def limit_of(algorithm: Algorithm, period: str = "30 days", count: int = COUNT) -> tg.Limit:
    return tg.Limit(f"{count}/{period}", algorithm=algorithm)


def node(server: RedisServer, *limits: tg.Limit, lease: float = 10, name: str = "a") -> tg.Limiter:
    return tg.Limiter(
        list(limits), storage=server.uri(f"{LEASED}&lease={lease}&client_name={name}")
    )


def strict(server: RedisServer, limit: tg.Limit) -> tg.Limiter:
    return tg.Limiter(limit, storage=server.uri(f"{PATIENT}&deny_cache_max=0"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hot_key_of_a_window_is_decided_without_asking(
    server: RedisServer, algorithm: Algorithm
) -> None:
    limiter = node(server, limit_of(algorithm))
    spent = warm(limiter)
    before, questions = scripts(server), limiter.stats().lease_questions
    decisions = [limiter.hit("k") for _ in range(20)]
    assert all(decision and decision.leased for decision in decisions)
    # Only for later units.
    assert scripts(server) - before <= limiter.stats().lease_questions - questions
    assert decisions[-1].remaining == COUNT - spent - 20, "this node is the only one"
    assert decisions[-1].reset_after > 0
    assert limiter.peek("k").leased
    assert limiter.stats().script_errors == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_nodes_admit_the_count_of_a_window_and_no_more(
    server: RedisServer, algorithm: Algorithm
) -> None:
    limit = limit_of(algorithm)
    nodes = [node(server, limit, name=f"n{i}") for i in range(4)]
    alone = strict(server, limit)
    chance = random.Random(algorithm)
    admitted = 0
    for _ in range(1500):
        limiter = chance.choice([*nodes, alone])
        cost = chance.choice((1, 1, 1, 3))
        decision = limiter.hit("k", cost)
        if decision and chance.random() < 0.1:
            limiter.refund("k", cost, decision=decision)
        else:
            admitted += cost * decision.allowed
    assert admitted <= COUNT
    for limiter in nodes:
        stats = limiter.stats()
        assert (stats.degraded, stats.errors, stats.script_errors) == (0, 0, 0)
        limiter.close()
    # What nodes held came back: nothing is lost until the window ends.
    while alone.allow("k"):
        admitted += 1
    assert admitted == COUNT


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_grant_that_comes_while_its_node_closes_comes_back(
    own_server: RedisServer, algorithm: Algorithm
) -> None:
    limit = limit_of(algorithm)
    limiter = node(own_server, limit)
    spent = warm(limiter)
    own_server.signal(signal.SIGSTOP)
    before = limiter.stats().lease_questions
    while limiter.stats().lease_questions == before:
        spent += limiter.allow("k")
    closing = threading.Thread(target=limiter.close)
    closing.start()
    closing.join(0.1)
    own_server.signal(signal.SIGCONT)
    closing.join()
    assert strict(own_server, limit).peek("k").remaining == COUNT - spent


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_refusal_says_when_the_window_has_room(server: RedisServer, algorithm: Algorithm) -> None:
    limit = limit_of(algorithm)
    limiter = node(server, limit, lease=0.2)
    # Units that are left come with a later question.
    admitted = 0

    def is_used_up() -> bool:
        nonlocal admitted
        admitted += limiter.allow("k")
        return admitted == COUNT

    eventually(is_used_up, interval=0.0002)
    refused = [limiter.hit("k")]

    def is_known() -> bool:
        refused.append(limiter.hit("k"))
        return refused[-1].leased

    eventually(is_known)
    assert not any(refused)
    told = strict(server, limit).hit("k").retry_after
    for decision in refused:
        assert decision.remaining == 0
        assert decision.retry_after == pytest.approx(told, abs=60)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_a_key_that_cools_down_leaves_comes_back(
    server: RedisServer, algorithm: Algorithm
) -> None:
    limit = limit_of(algorithm)
    limiter = node(server, limit, lease=0.2)
    alone = strict(server, limit)
    until = time.monotonic() + 60
    spent = 0

    def is_leased() -> bool:
        nonlocal spent
        spent += limiter.allow("k")
        return limiter.stats().held_units > 0

    eventually(is_leased)
    # Calls for another key have the rest given back once the lease is over.
    while alone.peek("k").remaining < COUNT - spent:
        limiter.hit("other", 601)
        limiter.allow("other")
        assert time.monotonic() < until
    assert alone.peek("k").remaining == COUNT - spent


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_windows_that_end_are_never_exceeded(server: RedisServer, algorithm: Algorithm) -> None:
    """In windows of 0.2 s, by the server's clock in what a strict node sees of each."""
    limit = tg.Limit(COUNT, 0.2, algorithm=algorithm)
    nodes = [node(server, limit, lease=0.02, name=f"n{i}") for i in range(2)]
    chance = random.Random(1)
    admitted = leased = 0
    begin = time.monotonic()
    # On a busy machine, answers may be too late for leases that are so short.
    while time.monotonic() < begin + 2 or (leased == 0 and time.monotonic() < begin + 30):
        decision = chance.choice(nodes).hit("k")
        admitted += decision.allowed
        leased += decision.leased
    # Windows that were touched: one more than fit, at both ends.
    windows = (time.monotonic() - begin) / 0.2 + 2
    assert leased > 0
    assert admitted <= COUNT * windows
    for each in nodes:
        assert each.stats().script_errors == 0


def test_a_plan_of_a_bucket_and_windows_asks_nothing(server: RedisServer) -> None:
    limiter = node(
        server,
        tg.Limit("60/minute burst 600"),
        limit_of("fixed-window", count=900),
        limit_of("sliding-window", count=800),
    )
    warm(limiter)
    before, questions = scripts(server), limiter.stats().lease_questions
    decisions = [limiter.hit("k") for _ in range(20)]
    assert all(decision and decision.leased for decision in decisions)
    # Only for later units.
    assert scripts(server) - before <= limiter.stats().lease_questions - questions
    assert limiter.stats().script_errors == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_script_and_core_lease_windows_alike(server: RedisServer, algorithm: Algorithm) -> None:
    """Under all operations at once, while windows end."""
    limit = tg.Limit(97, 0.05, algorithm=algorithm, max_debt=40)
    nodes = [node(server, limit, lease=0.01, name=f"n{i}") for i in range(2)]
    nodes.append(strict(server, limit))
    check_script_and_core_alike(nodes, seed=algorithm, charge=120)
