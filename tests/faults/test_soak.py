"""A part of the soak that takes seconds, and tests of its model of answers and of its page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the service is for Linux", allow_module_level=True)

import soak_campaign
from soak import page
from soak.faults import all_faults
from soak.model import CALLS, LIMIT, Answer, User
from soak.stage import Pace, Stage, Verdict, make_stage
from soak.trace import Sample, Trace, draw, growth

FAULTS = all_faults()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
SHORT = Pace(hold=0.3, calm=0.1, connections=300, patience=0.5)

# One of each sort.
QUICK = [
    "redis-killed",
    "postgres-killed",
    "sighup-valid",
    "sighup-broken",
    "cut-within-http1",
    "cut-within-http2",
    "slow-readers",
    "idle-connections",
    "rapid-reset",
    "continuation-flood",
    "header-flood-http1",
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with make_stage(SHORT) as made:
        yield made


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_breaks_no_law(name: str, stage: Stage) -> None:
    verdict = stage.run(FAULTS[name])
    assert verdict.broken == []
    assert verdict.calls > 0


def test_a_sample_has_the_memory_of_the_service_and_the_calls_of_its_clients(stage: Stage) -> None:
    trace = Trace(stage, interval=60.0)
    stage.run(FAULTS["sighup-valid"])
    trace.take()
    trace.close()
    (sample,) = trace.samples
    assert sample.resident > 20 << 20
    assert sample.calls > 0
    assert sample.callers > 0
    assert 0.0 < sample.p50_ms <= sample.p99_ms


def test_the_service_has_logged_no_exception_and_ends_when_it_is_told_to(stage: Stage) -> None:
    assert stage.service.exceptions() == []
    stage.load.close()
    assert stage.service.end() == 0


# ------------------------------------------------------------------- the model


def answer(number: int, **changes: Any) -> Answer:
    """The right answer to the call with this number, from 0 on, but for `changes`."""
    allowed = number < LIMIT
    right = Answer(
        allowed=allowed,
        limit=LIMIT,
        remaining=max(0, LIMIT - number - 1),
        has_wait=not allowed,
        resets_in=3600.0,
        degraded=False,
        rule="api",
    )
    return replace(right, **changes)


def asked(*answers: Answer, **attributes: Any) -> User:
    user = User("u", **attributes)
    for each in answers:
        user.note(each)
    user.finish()
    return user


RIGHT = [answer(number) for number in range(CALLS)]
DEGRADED = [answer(number, degraded=True) for number in range(CALLS)]


def test_right_answers_are_passed() -> None:
    assert asked(*RIGHT).wrong == []
    assert asked(*RIGHT, is_shared=True).wrong == []
    assert asked(*RIGHT[:5], *DEGRADED).wrong == []
    assert asked(*RIGHT, *RIGHT, forgets=1).wrong == []


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([answer(1)], "returned True with 18 remaining; expected True with 19"),
        ([*RIGHT[:3], answer(CALLS)], "expected True with 16"),
        ([*RIGHT[:20], answer(0)], "the store admitted 21 of 20"),
        ([*DEGRADED[:20], answer(0, degraded=True)], "the fallback admitted 21 of 20"),
        ([*DEGRADED[:1], *RIGHT[:20], answer(0)], "the store admitted 21 of 20"),
        ([answer(0, limit=7)], "an answer that fits no request"),
        ([answer(0, rule="probe")], "an answer that fits no request"),
        ([answer(0, has_wait=True)], "an answer that fits no request"),
        ([answer(0, resets_in=1e9)], "resets in"),
    ],
)
def test_a_wrong_answer_is_found(answers: list[Answer], said: str) -> None:
    assert any(said in text for text in asked(*answers).wrong)


def test_a_shared_user_that_was_refused_too_early_is_found() -> None:
    wrong = asked(*RIGHT[:10], *[answer(CALLS)] * 20, is_shared=True).wrong
    assert wrong == ["u: of 20, only 10 were admitted"]


def test_a_leak_between_rounds_is_found() -> None:
    first = {"resident": 100 << 20, "descriptors": 30, "threads": 11}
    assert soak_campaign.leaks([first, first]) == []
    grown = {"resident": 200 << 20, "descriptors": 90, "threads": 21}
    assert len(soak_campaign.leaks([first, grown])) == 3


def sampled(*residents: int) -> list[Sample]:
    return [
        Sample(5.0 * number, resident, 24, 13, 10 * number, 100, 1.0, 5.0)
        for number, resident in enumerate(residents)
    ]


def test_growth_is_that_of_the_second_half() -> None:
    assert growth(sampled(*[100] * 20, *range(200, 220))) == pytest.approx(218.5 / 200.5 - 1)
    assert growth(sampled(*range(100, 200), *[300] * 100)) == 0.0
    assert growth(sampled(100, 900)) is None


def test_a_picture_is_drawn_of_samples(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(sampled(*range(100, 140)), "two hours", tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


# -------------------------------------------------------------------- the page


def test_the_page_lists_exactly_the_faults_of_the_code() -> None:
    assert page.TABLE.faults(PAGE.read_text(encoding="utf-8")) == list(FAULTS)


def test_the_page_is_made_from_a_report() -> None:
    fault = FAULTS["redis-killed"]
    verdict = Verdict(fault.name, fault.says, calls=5, resident=[1 << 20, 2 << 20])
    verdict.descriptors, verdict.threads = [10, 11], [5, 5]
    used = {"resident": 1 << 20, "descriptors": 10, "threads": 5}
    report = soak_campaign.report(
        [fault], [verdict, verdict], [used], [], sampled(*range(1, 41)), 60.0
    )
    text = page.TABLE.begin + page.table(report)
    assert page.TABLE.faults(text) == ["redis-killed"]
    assert "| 2 | 10 |" in text
    assert "(+83.7% in the second half), and had been asked about 390 callers" in text
