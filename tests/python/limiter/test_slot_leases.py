"""The lease of a slot is extended while its holder lives, and only then."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest
import tidegate as tg
from polling import eventually
from storage_laws import (
    check_an_extension_never_takes_the_place_of_another,
    check_whoever_lost_a_place_takes_none_from_others,
)
from tidegate.limiter.waiting.leases import Extender, Lease, of_process
from tidegate.limiter.waiting.queue import WaitingRoom

MINUTE = 60 * 10**9


def places(clock: tg.ManualClock, storage: str = "memory://", count: int = 2) -> tg.Limiter:
    return tg.Limiter(f"{count}/minute", algorithm="concurrency", clock=clock, storage=storage)


def test_a_holder_keeps_its_place_beyond_its_lease(storage: str) -> None:
    clock = tg.ManualClock(10**18)
    limiter = places(clock, storage)
    with limiter.slot("k"):
        for seconds in (31, 31, 29, 31, 1, 59, 600, 45):  # also past a whole lease at once
            clock.advance(seconds)
            assert limiter.peek("k").remaining == 1
            with limiter.slot("k"), pytest.raises(tg.RateLimitExceeded):
                limiter.slot("k").__enter__()
    assert limiter.peek("k").remaining == 2


def test_a_slot_of_several_units_keeps_and_gives_back_all_of_them(storage: str) -> None:
    clock = tg.ManualClock(10**18)
    limiter = places(clock, storage, count=5)
    with limiter.slot("k", cost=3), limiter.slot("k"):
        clock.advance(40)
        assert limiter.peek("k").remaining == 1
        clock.advance(40)
        assert limiter.peek("k").remaining == 1
    assert limiter.peek("k").remaining == 5


def test_a_place_that_nobody_holds_is_free_when_its_lease_ends(storage: str) -> None:
    clock = tg.ManualClock(10**18)
    limiter = places(clock, storage)
    limiter.slot("k").__enter__()  # dropped, as a generator that is never resumed drops it
    limiter.hit("k")  # nobody can tell how long this lives
    gc.collect()
    clock.advance(59)
    assert limiter.peek("k").remaining == 0
    clock.advance(1)
    assert limiter.peek("k").remaining == 2


def test_an_extension_never_takes_the_place_of_another(storage: str) -> None:
    clock = tg.ManualClock(10**18)
    check_an_extension_never_takes_the_place_of_another(places(clock, storage, count=1), clock)


def test_whoever_lost_a_place_takes_none_from_others(storage: str) -> None:
    clock = tg.ManualClock(10**18)
    check_whoever_lost_a_place_takes_none_from_others(places(clock, storage, count=1), clock)


def test_a_slot_of_several_limits_extends_only_leases() -> None:
    clock = tg.ManualClock(10**18)
    limits = [tg.Limit("3/minute", algorithm="concurrency"), tg.Limit("10/hour")]
    limiter = tg.Limiter(limits, clock=clock)
    with limiter.slot("k"):
        for _ in range(5):
            clock.advance(45)
        assert limiter.peek("k").remaining == 2
        with limiter.slot("k"), limiter.slot("k"):
            refused = limiter.peek("k")
            assert (refused.allowed, refused.limit) == (False, 3)


class Fake:
    """A limiter that notes what is asked of it."""

    def __init__(self, decision: tg.Decision | None) -> None:
        self._room = WaitingRoom()
        self.decision = decision
        self.extended = 0
        self.released: list[tg.Decision] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def _extend(self, key: object, cost: int, decision: tg.Decision) -> tg.Decision | None:
        self.extended += 1
        assert self.goes_on.wait(30)
        return self.decision

    def _release(self, key: object, cost: int, decision: tg.Decision) -> None:
        self.released.append(decision)


@pytest.fixture
def decision() -> tg.Decision:
    return tg.Limiter("1/second").hit("k")


def test_the_thread_of_the_process_extends_what_is_held(decision: tg.Decision) -> None:
    fake = Fake(decision)
    lease = Lease(fake, "k", 1, decision, 2_000_000)
    of_process.hold(lease)
    eventually(lambda: fake.extended >= 3)
    of_process.leave(lease)
    eventually(lambda: not lease.is_extending)
    extended = fake.extended
    other = Fake(decision)
    later = Lease(other, "k", 1, decision, 2_000_000)
    of_process.hold(later)
    eventually(lambda: other.extended >= 3)
    of_process.leave(later)
    assert fake.extended == extended


def test_a_slot_left_during_an_extension_is_given_back_after_it(decision: tg.Decision) -> None:
    now_ns = 0
    extender = Extender(lambda: now_ns)
    fake = Fake(decision)
    fake.goes_on.clear()
    lease = Lease(fake, "k", 1, decision, MINUTE)
    extender.hold(lease)
    now_ns = MINUTE // 2
    thread = threading.Thread(target=extender.extend_due, daemon=True)
    thread.start()
    eventually(lambda: fake.extended == 1)
    assert extender.leave(lease) is None
    assert fake.released == []
    fake.goes_on.set()
    thread.join(30)
    assert len(fake.released) == 1
    now_ns = 10 * MINUTE
    extender.extend_due()
    assert fake.extended == 1


def test_what_a_store_did_not_extend_is_tried_again_before_the_lease_ends(
    decision: tg.Decision,
) -> None:
    now_ns = 0
    extender = Extender(lambda: now_ns)
    fake = Fake(None)
    lease = Lease(fake, "k", 1, decision, MINUTE)
    extender.hold(lease)
    now_ns = MINUTE // 2
    assert extender.extend_due() == MINUTE // 2 + MINUTE // 16
    now_ns += MINUTE // 16
    fake.decision = decision
    assert extender.extend_due() == now_ns + MINUTE // 2
    assert extender.leave(lease) is decision


def test_a_child_of_a_fork_extends_nothing_of_its_parent() -> None:
    with tg.Limiter("2/minute", algorithm="concurrency").slot("k"):
        child = os.fork()
        if child == 0:
            ok = not of_process._queues and of_process._thread is None
            with tg.Limiter("2/minute", algorithm="concurrency").slot("own"):
                ok = ok and len(of_process._queues) == 1
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_leaves_a_slot_of_its_parent_gives_no_place_back(storage: str) -> None:
    limiter = tg.Limiter("2/minute", algorithm="concurrency", storage=storage)
    with limiter.slot("k"):
        child = os.fork()
        if child != 0:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert limiter.peek("k").remaining == 1
    if child == 0:
        os._exit(0 if limiter.peek("k").remaining == 1 else 1)
    assert limiter.peek("k").remaining == 2


def test_a_process_that_ends_in_a_slot_ends_cleanly() -> None:
    script = (
        "import atexit\n"
        "atexit.register(lambda: slot.__enter__())\n"  # after all that is registered below
        "import tidegate as tg\n"
        "slot = tg.Limiter('9/4 milliseconds', algorithm='concurrency').slot('k')\n"
        "slot.__enter__()\n"
        "atexit.register(slot.__enter__)"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (child.returncode, child.stdout, child.stderr) == (0, b"", b"")


PATCHED_AFTERWARDS = """
import tidegate
from gevent import monkey
monkey.patch_all()
import gevent
limiter = tidegate.Limiter(tidegate.Limit("1/day", algorithm="concurrency"))
with limiter.slot("k"):
    gevent.sleep(0)
with limiter.slot("k"):
    print("the hub runs")
"""


def test_a_slot_keeps_no_greenlet_waiting_where_gevent_patches_after_the_import() -> None:
    """As a worker of `gunicorn --preload -k gevent` does."""
    ran = subprocess.run(
        [sys.executable, "-c", PATCHED_AFTERWARDS], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "the hub runs\n", "")
