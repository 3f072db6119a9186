"""A wall clock that is wrong at first and corrected later, and processes in time namespaces of
their own: all users of a store agree on the time, which is the right one in the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from wall_clock import WallClock, asked, build_shim

YEAR = 365 * 86_400 * 10**9
SECOND = 10**9

# Answers each line with the limiter's time, the wall clock, and what a hit of a window of a day
# and of a bucket say.
PROGRAM = """
import json, sys, time
import tidegate as tg
day = tg.Limiter("1000/day", algorithm="fixed-window", storage=sys.argv[1])
bucket = tg.Limiter("5/minute", storage=sys.argv[1])
for line in sys.stdin:
    now = day._now_ns()
    wall = time.time_ns()
    print(json.dumps(dict(
        ahead=now - wall, window_end=now + day.hit("k").reset_after * 1e9,
        passed=sum(bucket.allow("k") for _ in range(20)),
    )), flush=True)
"""


class Service:
    def __init__(self, storage: str, *before: str, clock: WallClock | None = None) -> None:
        self.child = subprocess.Popen(
            [*before, sys.executable, "-c", PROGRAM, storage],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=None if clock is None else clock.environment,
        )

    def ask(self) -> dict[str, Any]:
        return asked(self.child)

    def end(self) -> None:
        self.child.communicate(timeout=30)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize("wrong_by", [-YEAR, YEAR])
def test_a_clock_that_was_wrong_at_the_start_is_right_after_its_correction(
    shim: Path, tmp_path: Path, storage: str, wrong_by: int
) -> None:
    clock = WallClock(shim, tmp_path / "page")
    clock.be_ahead(wrong_by)
    service = Service(storage, clock=clock)
    assert abs(service.ask()["ahead"]) < SECOND  # the time is what the wall clock says
    clock.be_ahead(0)
    answer = eventually(
        lambda: (answer := service.ask()) and abs(answer["ahead"]) < SECOND and answer,
        interval=0.05,
    )
    # Windows begin at the right midnight again.
    assert round(answer["window_end"] / SECOND) % 86_400 == 0
    assert abs(answer["window_end"] - time.time_ns()) < 2 * 86_400 * SECOND
    if storage != "memory://":
        later = Service(storage, clock=clock)
        assert abs(later.ask()["ahead"]) < SECOND
        later.end()
    service.end()


@pytest.mark.parametrize("wrong_by", [-YEAR, YEAR])
def test_a_service_that_starts_after_the_correction_does_not_take_the_wrong_time_over(
    shim: Path, tmp_path: Path, wrong_by: int
) -> None:
    clock = WallClock(shim, tmp_path / "page")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        storage = f"shm://{directory}/table?capacity=1000"
        clock.be_ahead(wrong_by)
        first = Service(storage, clock=clock)
        first.ask()
        first.end()
        clock.be_ahead(0)
        second = Service(storage, clock=clock)
        assert abs(second.ask()["ahead"]) < SECOND
        second.end()


def test_a_step_that_is_taken_back_is_not_followed(shim: Path, tmp_path: Path) -> None:
    clock = WallClock(shim, tmp_path / "page")
    service = Service("memory://", clock=clock)
    assert service.ask()["passed"] == 5
    for _ in range(3):
        clock.be_ahead(3600 * SECOND)
        assert service.ask()["passed"] == 0
        clock.be_ahead(0)
        assert abs(service.ask()["ahead"]) < SECOND
    service.end()


def test_a_correction_grants_one_burst_at_the_most(shim: Path, tmp_path: Path) -> None:
    clock = WallClock(shim, tmp_path / "page")
    clock.be_ahead(-YEAR)
    service = Service("memory://", clock=clock)
    passed = service.ask()["passed"]
    clock.be_ahead(0)
    ahead = -YEAR
    while abs(ahead) > SECOND:
        answer = service.ask()
        ahead = answer["ahead"]
        passed += answer["passed"]
        time.sleep(0.05)
    assert 5 <= passed + service.ask()["passed"] <= 11  # two bursts and what time brought back
    service.end()


def has_time_namespaces(offset: str) -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        ["unshare", "--time", "--monotonic", offset, "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


@pytest.mark.parametrize("offset", ["100000", "-60"])
def test_processes_in_other_time_namespaces_share_one_time(offset: str) -> None:
    if not has_time_namespaces(offset):
        pytest.skip("time namespaces need unshare, their support in Linux, and its permission")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        storage = f"shm://{directory}/table?capacity=1000"
        here = tg.Limiter("5/minute", storage=storage)
        there = Service(storage, "unshare", "--time", "--monotonic", offset, "--fork")
        answer = there.ask()
        assert answer["passed"] == 5
        assert abs(answer["ahead"]) < SECOND
        assert abs(here._now_ns() - time.time_ns()) < SECOND
        # Nothing is minted in either direction, and nobody is locked out.
        assert sum(here.allow("k") for _ in range(20)) <= 1
        assert here.peek("k").retry_after <= 13
        assert there.ask()["passed"] <= 1
        there.end()
