"""Threads and forked processes on one limiter."""

from __future__ import annotations

import os
import sys
import threading

import pytest
import tidegate as tg
from polling import run_threads

ALGORITHMS = [
    "token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log", "concurrency",
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sixteen_threads_on_one_key_admit_exactly_n(algorithm: str) -> None:
    limiter = tg.Limiter("1000/hour", algorithm=algorithm, clock=tg.ManualClock(5))
    admitted: list[int] = []
    barrier = threading.Barrier(16)

    def work() -> None:
        barrier.wait()
        admitted.append(sum(limiter.allow("k") for _ in range(200)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(16)]
        run_threads(threads)
    finally:
        sys.setswitchinterval(interval)
    assert sum(admitted) == 1000
    assert limiter.stats().allowed == 1000
    assert limiter.stats().denied == 2200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_limiter_made_before_fork_works_in_both(algorithm: str) -> None:
    limiter = tg.Limiter("100/hour", algorithm=algorithm)
    assert sum(limiter.allow("k") for _ in range(60)) == 60
    child = os.fork()
    if child == 0:
        # A copy of its own: each process counts on from here.
        right = sum(limiter.allow("k") for _ in range(100)) == 40
        right = right and all(limiter.allow(f"{i}") for i in range(20_000))
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(limiter.allow("k") for _ in range(100)) == 40
    assert all(limiter.allow(f"{i}") for i in range(20_000))
