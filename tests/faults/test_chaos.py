"""A part of the fault campaign that takes seconds, and tests of its judge and its page."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos import page
from chaos.fault import NONE, SOME, Fault, all_faults
from chaos.judge import Times, Verdict, Window, judge
from chaos.load import Waits
from chaos.processes import Control
from chaos.stage import Pace, Pool, run_fault
from polling import eventually

FAULTS = all_faults()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"

# One of each sort that is over in a second, and needs one server.
QUICK = [
    "killed",
    "client-kill",
    "script-flush",
    "read-only",
    "password-changed",
    "wrong-type",
    "black-hole",
    "truncated-replies",
    "garbage",
    "refused",
    "loops-come-and-go",
    "fallback-shared-by-two-processes",
]


def pace(fault: Fault) -> Pace:
    # A deadline that a working server meets on a busy machine.
    timeout = 2.0 if fault.degraded == NONE else 0.2
    options = {"timeout": timeout, "connect_timeout": 0.5, "breaker_open": 0.2}
    return Pace(warm=0.1, hold=0.3, calm=0.2, options=options)


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists() or not Path("/dev/shm").is_dir(),
    reason="the campaign reads /proc and shares memory as Linux has them",
)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        pool = Pool(Path(directory))
        yield pool
        pool.discard()


@pytest.fixture(scope="module")
def control() -> Iterator[Control]:
    control = Control()
    yield control
    control.kill()


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_breaks_no_law(name: str, pool: Pool, control: Control) -> None:
    verdict = run_fault(FAULTS[name], pool, pace(FAULTS[name]), control)
    if verdict.broken:
        pool.discard()
    assert verdict.broken == []
    assert verdict.calls > 0


def test_a_wait_of_another_thread_for_a_processor_is_the_machines() -> None:
    ends = threading.Event()
    core = min(os.sched_getaffinity(0))

    def compute() -> None:
        os.sched_setaffinity(threading.get_native_id(), {core})
        while not ends.is_set():
            hashlib.sha256(bytes(1 << 16))  # without the GIL

    threads = [threading.Thread(target=compute) for _ in range(2)]
    with contextlib.closing(Waits()) as waits:
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: waits.grown() > 0)
        finally:
            ends.set()
            for thread in threads:
                thread.join()


# ---------------------------------------------------------------------- the judge

TIMES = Times(begun=100.0, ended=101.0, recovered=101.2, stopped=103.0)
OPTIONS = {"timeout": 0.05, "connect_timeout": 0.3, "breaker_open": 0.5}


def a_fault(**attributes: Any) -> Fault:
    return Fault("a-fault", "server", "something happens", lambda _: iter([]), "host", **attributes)


def a_report() -> dict[str, Any]:
    """The report of a process for which all laws held."""
    calls = {"seconds": [0.001] * 1000, "ended": [102.0] * 1000, "operations": [0] * 1000}
    use = {"fds": 10, "threads": 5}
    return {
        "calls": {"sync": calls, "async": copy.deepcopy(calls)},
        "degraded_at": [100.5],
        "shared": {"k": [40, 40, 100]},
        "own": [{"admitted": 20, "unknown": 3, "refunds": 2, "charged": 20}],
        "errors": {},
        "ticks": [{"at": [102.0] * 1000, "late": [0.001] * 1000}],
        "stats": {"script_errors": 0, "breaker_opened": 1},
        "usage": {"before": dict(use), "after": dict(use)},
        "resident": {"before": 1 << 20, "after": 1 << 20},
    }


def verdict_on(report: dict[str, Any], fault: Fault, times: Times = TIMES) -> Verdict:
    return judge(fault, [report], times, Window(0.001, 0.002), OPTIONS, 1, {}, [])


def test_a_report_in_which_all_laws_held_is_passed() -> None:
    verdict = verdict_on(a_report(), a_fault(degraded=SOME, opens_breaker=True))
    assert verdict.broken == []
    assert verdict.calls == 2000
    assert verdict.recovery_s == pytest.approx(0.2)


def set_at(report: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    target: Any = report
    for each in parents:
        target = target[int(each)] if isinstance(target, list) else target[each]
    target[int(last) if isinstance(target, list) else last] = value


@pytest.mark.parametrize(
    ("path", "value", "law"),
    [
        ("errors", {"sync hit: ValueError": 2}, "2 calls raised"),
        ("degraded_at", [], "did not bite"),
        ("degraded_at", [100.5, 102.5], "after it had recovered"),
        ("shared.k", [41, 0, 100], "the server let 41 through of 40"),
        ("shared.k", [40, 41, 100], "the fallback let 41 through of 40"),
        ("own.0.charged", 17, "only 17 charged"),
        ("own.0.charged", 24, "sent twice"),
        ("own.0.charged", None, "could not be read"),
        ("calls.sync.seconds.0", 0.5, "the worst sync call took 500 ms"),
        ("calls.async.seconds", [0.2] * 1000, "the p99.9 async call took 200 ms"),
        ("ticks.0.late", [0.02] * 1000, "the loop stalled for 20.0 ms"),
        ("usage.after", {"fds": 11, "threads": 5}, "11 descriptors"),
        ("usage.after", {"fds": 10, "threads": 6}, "6 threads"),
        ("resident.after", 200 << 20, "grew by 199 MB"),
        ("stats", {"script_errors": 1, "breaker_opened": 1}, "mistakes in our scripts"),
        ("stats", {"script_errors": 0, "breaker_opened": 0}, "never opened"),
    ],
)
def test_a_broken_law_is_found(path: str, value: Any, law: str) -> None:
    report = a_report()
    set_at(report, path, value)
    verdict = verdict_on(report, a_fault(degraded=SOME, opens_breaker=True))
    assert any(law in text for text in verdict.broken), verdict.broken


def test_degraded_calls_are_found_where_the_server_was_well() -> None:
    (text,) = verdict_on(a_report(), a_fault(degraded=NONE)).broken
    assert "1 calls were decided without a server that was well" in text


def test_what_a_machine_that_is_late_itself_does_is_not_judged() -> None:
    late = Window(p999=0.06, worst=0.2)
    verdict = judge(a_fault(degraded=NONE), [a_report()], TIMES, late, OPTIONS, 1, {}, [])
    assert verdict.broken == []
    assert "the machine itself was late" in verdict.not_judged[0]


def test_a_recovery_that_takes_too_long_is_found() -> None:
    for recovered in (None, 120.0):
        times = Times(100.0, 101.0, recovered, 130.0)
        broken = verdict_on(a_report(), a_fault(degraded=SOME), times).broken
        assert any("recover" in text for text in broken)


# ------------------------------------------------------------------------ the page


def test_the_page_lists_exactly_the_faults_of_the_code() -> None:
    assert page.TABLE.faults(PAGE.read_text(encoding="utf-8")) == list(FAULTS)


def test_the_page_is_made_from_a_report() -> None:
    verdict = verdict_on(a_report(), a_fault(degraded=SOME))
    report = {
        "server": "Redis 7",
        "python": "3.11",
        "system": "Linux",
        "minutes": 1.0,
        "faults": [verdict.as_dict()],
    }
    assert page.TABLE.faults(page.TABLE.begin + page.table(report)) == ["a-fault"]
