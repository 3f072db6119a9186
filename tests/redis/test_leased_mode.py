"""Leases: hot keys are decided without asking, and no interval has more than the limit allows."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import processes
import pytest
import tidegate as tg
from lease_calls import (
    check_cold_keys_take_one_command,
    check_script_and_core_alike,
    most_over,
    scripts,
    warm,
)
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT, RedisServer

LEASED = f"{PATIENT}&mode=leased&deny_cache_max=0"
# A unit a second, so that a test's own time brings few back; leases of 10 seconds.
SLOW = "60/minute burst 1000"
SLOW_RATE = 1.0


def node(server: RedisServer, limit: str = SLOW, name: str = "a", **options: object) -> tg.Limiter:
    """A limiter with a store of its own."""
    uri = server.uri(f"{LEASED}&lease=10&client_name={name}")
    return tg.Limiter(limit, storage=uri, **options)


def strict(server: RedisServer, limit: str = SLOW) -> tg.Limiter:
    return tg.Limiter(limit, storage=server.uri(f"{PATIENT}&deny_cache_max=0"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("mode=lease", "mode is 'lease'; expected 'strict' or 'leased'"),
        ("clock=mine", "clock is 'mine'; expected 'server' or 'client'"),
        ("mode=leased&lease=0", "lease is '0'; expected 0.001 to 10"),
        ("mode=leased&lease=3600", "lease is '3600'; expected 0.001 to 10"),
        ("mode=leased&lease=soon", "lease is 'soon'; expected 0.001 to 10"),
        ("lease=0.1", "lease is '0.1', and the mode is strict; expected lease= with mode=leased"),
        ("mode=leased&clock=client", "expected leases with clock=server"),
    ],
)
def test_what_cannot_be_leased_is_said_at_once(options: str, message: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=message.replace("(", r"\(")):
        tg.Limiter("100/second", storage=f"redis://127.0.0.1:1?{options}")


def test_a_hot_key_is_decided_without_asking(server: RedisServer) -> None:
    limiter = tg.Limiter("6000000/minute", storage=server.uri(f"{LEASED}&lease=10"))
    assert not limiter.hit("k").leased
    warm(limiter, held=300)
    before, questions = scripts(server), limiter.stats().lease_questions
    decisions = [limiter.hit("k") for _ in range(300)]
    assert all(decision and decision.leased for decision in decisions)
    # Only for later units.
    assert scripts(server) - before <= limiter.stats().lease_questions - questions
    assert limiter.stats().script_errors == 0
    assert pickle.loads(pickle.dumps(decisions[-1])).leased


def test_it_is_decided_by_all_kinds_of_calls(server: RedisServer) -> None:
    limiter = node(server)
    warm(limiter)
    assert limiter.allow("k")
    assert limiter.peek("k").leased
    assert limiter.hit_many(["k", "k"]) == [True, True]

    async def hits() -> list[tg.Decision]:
        return [await limiter.hit_async("k") for _ in range(3)]

    before, questions = scripts(server), limiter.stats().lease_questions
    assert all(decision.leased for decision in asyncio.run(hits()))
    assert scripts(server) - before <= limiter.stats().lease_questions - questions


def test_many_hits_ask_only_for_keys_without_a_lease(server: RedisServer) -> None:
    limiter = tg.Limiter("6000000/minute", storage=server.uri(f"{LEASED}&lease=10"))
    warm(limiter, held=300)
    before, asked = limiter.stats(), scripts(server)
    keys = ["k"] * 100 + ["cold"] + ["k"] * 100 + ["other", "cold"]
    assert limiter.hit_many(keys) == [True] * len(keys)
    after = limiter.stats()
    assert after.leased > before.leased
    strict = len(keys) - (after.leased - before.leased)
    assert scripts(server) - asked <= strict + after.lease_questions - before.lease_questions
    assert limiter.hit_many([]) == []


def test_a_cold_key_costs_what_it_costs_without_leases(server: RedisServer) -> None:
    check_cold_keys_take_one_command(server, node(server), 200)


@pytest.mark.parametrize(
    ("limit", "reason"), [("10/second", "burst"), ("100/day", "rate"), ("leaky", "algorithm")]
)
def test_limits_that_gain_nothing_stay_strict(server: RedisServer, limit: str, reason: str) -> None:
    uri = server.uri(f"{PATIENT}&mode=leased")
    if limit == "leaky":
        limiter = tg.Limiter("100000/hour", algorithm="leaky-bucket", storage=uri)
    else:
        limiter = tg.Limiter(limit, storage=uri)
    assert not any(limiter.hit("k").leased for _ in range(50)), reason


def test_why_a_limit_stays_strict_is_logged_once(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate")
    uri = server.uri(f"{PATIENT}&mode=leased&client_name=log")
    kept = [tg.Limiter("10/second", storage=uri, prefix=prefix) for prefix in ("a", "b")]
    told = [record.getMessage() for record in caplog.records if "leased" in record.getMessage()]
    assert told == [
        "rate limiting: the limit 10/second is not leased, but asked for each call: "
        "its burst is 10; expected 20 to 1099511627776"
    ]
    del kept


def test_the_counters_of_a_limiter_tell_of_leases(server: RedisServer) -> None:
    begin = time.monotonic()
    limiter = node(server)
    before = warm(limiter)
    known = limiter.stats().leased
    decisions = [limiter.hit("k") for _ in range(200)]
    stats = limiter.stats()
    assert stats.leased - known == sum(decision.leased for decision in decisions) >= 20
    # One at a time, each with what some calls found.
    assert 0 < stats.lease_questions <= before + 200
    warm(limiter)
    assert limiter.stats().held_units >= 20
    limiter.refund("k", decision=limiter.hit("k"))
    # Of leases of 10 seconds.
    assert limiter.stats().wasted_units == 0 or time.monotonic() - begin > 9
    assert strict(server).stats().leased == 0


def test_several_nodes_admit_no_more_than_one(server: RedisServer) -> None:
    begin = time.monotonic()
    nodes = [node(server, name=f"n{i}") for i in range(4)]
    chance = random.Random(7)
    admitted = 0
    for _ in range(6000):
        cost = chance.choice((1, 1, 1, 5))
        admitted += cost * chance.choice(nodes).allow("k", cost)
    passed = time.monotonic() - begin
    assert 900 < admitted <= 1000 + SLOW_RATE * passed
    for each in nodes:
        stats = each.stats()
        assert (stats.degraded, stats.script_errors) == (0, 0)


def test_strict_and_leased_nodes_share_a_key(server: RedisServer) -> None:
    begin = time.monotonic()
    leased, alone = node(server), strict(server)
    admitted = leases = 0
    for _ in range(800):
        decision = leased.hit("k")
        leases += decision.leased
        admitted += bool(decision) + alone.allow("k")
    # What is left, the strict node takes.
    while alone.allow("k", 7):
        admitted += 7
    passed = time.monotonic() - begin
    assert leases > 100
    assert admitted <= 1000 + SLOW_RATE * passed
    assert alone.stats().script_errors == leased.stats().script_errors == 0


def test_a_refund_goes_into_the_lease(server: RedisServer) -> None:
    limiter = node(server)
    warm(limiter)
    decision = limiter.hit("k")
    assert decision.leased
    before, questions = scripts(server), limiter.stats().lease_questions
    limiter.refund("k", decision=decision)
    again = limiter.hit("k")
    assert again.leased
    assert scripts(server) - before <= limiter.stats().lease_questions - questions


def test_refunds_mint_nothing(server: RedisServer) -> None:
    begin = time.monotonic()
    nodes = [node(server, name=f"n{i}") for i in range(3)]
    chance = random.Random(3)
    admitted = 0
    for _ in range(5000):
        limiter = chance.choice(nodes)
        decision = limiter.hit("k")
        admitted += decision.allowed
        if decision and chance.random() < 0.2:
            limiter.refund("k", decision=decision)
            admitted -= 1
    assert admitted <= 1000 + SLOW_RATE * (time.monotonic() - begin)


def test_a_reset_keeps_what_other_nodes_hold(server: RedisServer) -> None:
    begin = time.monotonic()
    holder, other = node(server), node(server, name="b")
    spent = warm(holder)
    held = 0
    while holder.peek("k").leased and held < 5:
        held += holder.allow("k")
    other.reset("k")
    admitted = 0
    while other.allow("k"):
        admitted += 1
    while holder.hit("k").leased and holder.hit("k"):
        admitted += 2
    # What was spent is forgotten, but not what may still be spent.
    assert admitted <= 1000 + SLOW_RATE * (time.monotonic() - begin) + spent
    assert other.stats().script_errors == holder.stats().script_errors == 0


def test_a_key_that_owes_is_not_leased(server: RedisServer) -> None:
    limiter = node(server)
    limiter.charge("k", 1200)
    assert limiter.peek("k").debt >= 190
    assert not any(limiter.hit("k") for _ in range(30))
    assert limiter.stats().script_errors == 0


def test_a_cost_that_can_never_pass_is_said_so_each_time(server: RedisServer) -> None:
    limiter = node(server)
    warm(limiter)
    for _ in range(3):
        assert limiter.hit("k", 1001).retry_after == float("inf")
        assert limiter.hit("k")


def test_charges_are_counted_beside_leases(server: RedisServer) -> None:
    limiter = node(server)
    spent = warm(limiter)
    assert limiter.charge("k", 100).charged == 100
    assert limiter.charge_up_to("k", 5000).charged <= 1000
    total = spent + 100
    assert total < 1000
    assert limiter.stats().script_errors == 0


def test_what_is_not_used_goes_back_when_the_limiter_is_closed(server: RedisServer) -> None:
    limiter = node(server)
    spent = warm(limiter)
    limiter.close()
    del limiter
    alone = strict(server)
    eventually(lambda: alone.peek("k").remaining >= 1000 - spent - 2)


def test_other_threads_run_while_a_limiter_that_is_dropped_waits(own_server: RedisServer) -> None:
    """What is under way when the last user of a store goes is waited for without the GIL."""
    ran: list[int] = []
    usual = sys.getswitchinterval()
    # A thread that is ready may get no processor for as long as one limiter waits.
    for attempt in range(30):
        limiter = node(own_server)
        warm(limiter)
        own_server.signal(signal.SIGSTOP)
        before = limiter.stats().lease_questions
        while limiter.stats().lease_questions == before:
            limiter.hit("k")
        turn = threading.Lock()
        turn.acquire()

        def run(turn: threading.Lock = turn, attempt: int = attempt) -> None:
            turn.acquire()
            ran.append(attempt)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            sys.setswitchinterval(1000)  # the other thread has to be given the GIL
            turn.release()
            del limiter
            has_run = bool(ran)
        finally:
            sys.setswitchinterval(usual)
            own_server.signal(signal.SIGCONT)
        thread.join()
        if has_run:
            return
        ran.clear()
    pytest.fail("no other thread has run")


def test_a_child_of_a_fork_spends_nothing_of_its_parents(server: RedisServer) -> None:
    limiter = node(server)
    warm(limiter)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"1" if limiter.hit("k").leased else b"0")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"0"
    os.close(reader)
    os.waitpid(child, 0)
    assert limiter.hit("k").leased


def test_a_lease_goes_on_without_redis_and_then_on_error_decides(own_server: RedisServer) -> None:
    uri = own_server.uri("mode=leased&lease=10&timeout=5&on_error=closed&breaker_failures=1")
    limiter = tg.Limiter(SLOW, storage=uri)
    warm(limiter)
    own_server.kill()
    decisions = [limiter.hit("k") for _ in range(600)]
    leased = [decision for decision in decisions if decision.leased]
    assert leased
    assert all(leased)
    assert any(decision.degraded for decision in decisions)
    assert not any(decision for decision in decisions if decision.degraded)


def test_lost_answers_grant_nothing_twice(server: RedisServer, proxy: Proxy) -> None:
    begin = time.monotonic()
    uri = f"redis://127.0.0.1:{proxy.port}?mode=leased&lease=10&timeout=0.2&on_error=closed"
    lossy = tg.Limiter(SLOW, storage=f"{uri}&breaker_failures=1000&deny_cache_max=0")
    other = node(server)
    admitted = 0
    for i in range(1500):
        if i % 100 == 50:
            proxy.drop()
        admitted += lossy.allow("k") + other.allow("k")
    assert admitted <= 1000 + SLOW_RATE * (time.monotonic() - begin)


def test_a_server_that_forgot_the_scripts_is_told_again(server: RedisServer) -> None:
    begin = time.monotonic()
    limiter = node(server)
    admitted = 0
    for i in range(1200):
        if i % 100 == 0:
            server.command("SCRIPT", "FLUSH")
        admitted += limiter.allow("k")
    assert admitted <= 1000 + SLOW_RATE * (time.monotonic() - begin)
    assert limiter.stats().degraded == 0


@pytest.mark.parametrize(
    "limit", ["7/3 seconds burst 70", "700/minute burst 33", "11/second burst 97"]
)
def test_script_and_core_lease_alike(server: RedisServer, limit: str) -> None:
    """Limits whose units are no whole nanoseconds, under all operations at once."""
    nodes = [node(server, limit, name=f"n{i}") for i in range(2)]
    nodes.append(strict(server, limit))
    check_script_and_core_alike(nodes, seed=limit, charge=9)


def test_a_limit_with_an_id_keeps_its_usage_when_its_count_changes(server: RedisServer) -> None:
    def limiter(count: int, name: str) -> tg.Limiter:
        limit = tg.Limit(count, 60, burst=count, id="api")
        return node(server, limit, name=name)  # type: ignore[arg-type]

    old, new = limiter(600, "old"), limiter(900, "new")
    chance = random.Random(5)
    admitted = 0
    begin = time.monotonic()
    for _ in range(3000):
        admitted += chance.choice((old, new)).allow("k")
    assert admitted <= 900 + 15 * (time.monotonic() - begin)
    assert old.stats().script_errors == new.stats().script_errors == 0


def value(seconds: int, rest: bytes, flags: int = 1 + 32) -> bytes:
    """The value of a bucket that ends at this second, with what follows its fields."""
    return struct.pack(">BBBII", 129, flags, 0, seconds, 0) + bytes(7) + rest


def slots(finish: int, length: int, current: int = 3, previous: int = 4) -> bytes:
    widths = ((finish, 7), (length, 5), (current, 6), (previous, 6))
    return b"".join(number.to_bytes(width, "big") for number, width in widths)


@pytest.mark.parametrize(
    "rest",
    [
        slots(1_800_000_000_000_000, 0),  # no slot is of no length
        slots(1_800_000_000_000_000, 3_600_000_001),  # nor of more than an hour
        slots(2**56 - 1, 200_000),
        slots(1_800_000_000_000_000, 200_000)[:-1],
        b"",
    ],
)
def test_slots_that_cannot_be_ours_are_neither_used_nor_changed(
    server: RedisServer, rest: bytes
) -> None:
    limiter = strict(server, "100/second")
    key = "tg:100/second{k}"
    written = value(int(time.time()), rest)
    server.command("SET", key, written)
    limiter.hit("k")
    assert limiter.stats().script_errors == 1
    assert written in server.command("GET", key)


def test_slots_that_are_ours_keep_the_bucket_as_full_as_what_is_out(server: RedisServer) -> None:
    # In a slot that has nearly a minute to go. Nothing else is used.
    finish = (int(time.time()) + 50) * 1_000_000
    server.command("SET", "tg:100/second{k}", value(1, slots(finish, 60_000_000)))
    limiter = strict(server, "100/second")
    assert limiter.peek("k").remaining == 93
    refused = limiter.hit("k", 94)
    assert not refused
    assert refused.retry_after > 20  # until the slot of those units is over
    assert limiter.stats().script_errors == 0


# ------------------------------------------------------------------------- processes

RATE, BURST = 2000, 2000
WORKER = """
import os, sys, time, tidegate
uri, seconds = sys.argv[1], float(sys.argv[2])
limiter = tidegate.Limiter("2000/second burst 2000", storage=uri)
limiter.ping()
print("ready", flush=True)
sys.stdin.readline()
log = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
begin = now()
until = begin + int(seconds * 1e9)
while True:
    before = now()
    # Units are hoarded, and spent all at once just before their leases end.
    if sys.argv[4] == "waves" and 40_000_000 < (before - begin) % 400_000_000 < 185_000_000:
        continue
    decision = limiter.hit("k")
    after = now()
    if decision and not decision.degraded:
        os.write(log, b"%d %d %d\\n" % (before, after, decision.leased))
    if after > until:
        break
stats = limiter.stats()
print(stats.script_errors, flush=True)
"""


def test_the_check_of_intervals_sees_one_unit_too_many() -> None:
    exact = [(0.0, 0.0)] * BURST + [(i / RATE, i / RATE) for i in range(1, 100)]
    assert most_over(np.array(exact), RATE, BURST) == pytest.approx(0)
    assert most_over(np.array([*exact, (1e-7, 1e-7)]), RATE, BURST) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("manner", ["steady", "waves"])
def test_processes_under_kills_admit_no_more_in_any_interval(
    server: RedisServer, tmp_path: Path, manner: str
) -> None:
    logs = [tmp_path / f"log{i}" for i in range(4)]
    uri = server.uri(f"{PATIENT}&mode=leased&lease=0.2")
    workers = [
        processes.start(
            [sys.executable, "-c", WORKER, uri, "1.5", str(log), manner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for log in logs
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
    eventually(lambda: all(log.exists() and log.stat().st_size > 0 for log in logs))
    workers[0].kill()  # with what it holds
    server.command("SCRIPT", "FLUSH")
    told = [worker.communicate()[0].split() for worker in workers[1:]]
    workers[0].communicate()
    assert told == [[b"0"]] * 3
    admitted, leased = [], 0
    for log in logs:
        for line in log.read_text().splitlines():
            before, after, by_lease = map(int, line.split())
            admitted.append((before / 1e9, after / 1e9))
            leased += by_lease
    assert leased > 0
    assert most_over(np.array(admitted), RATE, BURST) <= 0
