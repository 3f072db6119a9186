"""Processes on one shared memory: they share exactly one limit, and outlive each other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import crash_campaign
import pytest
import tidegate as tg
from shm_workers import Worker
from tidegate._core import ShmStore

ALGORITHMS = [
    "token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log", "concurrency",
]  # fmt: skip

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_eight_processes_admit_exactly_n(directory: Path, algorithm: str) -> None:
    storage = f"shm://{directory}/table?capacity=10000"
    # The period is such that nothing comes back while this runs.
    limit = "800/400 days"
    workers = [Worker(directory, storage, limit, algorithm=algorithm, hits=400) for _ in range(8)]
    try:
        for worker in workers:
            worker.expect("ready")
        for worker in workers:
            worker.go()
        for worker in workers:
            worker.expect("done")
        assert sum(worker.admitted() for worker in workers) == 800
    finally:
        for worker in workers:
            worker.end()


def test_killed_workers_block_no_process_and_lose_no_units(directory: Path) -> None:
    assert crash_campaign.campaign(kills=40, seed=7) >= 40


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_after_opening_shares_the_counts(directory: Path, algorithm: str) -> None:
    limiter = tg.Limiter(
        "100/hour",
        storage=f"shm://{directory}/table?capacity=10000",
        algorithm=algorithm,
        clock=tg.ManualClock(5),
    )
    assert sum(limiter.allow("k") for _ in range(40)) == 40
    child = os.fork()
    if child == 0:
        os._exit(sum(limiter.allow("k") for _ in range(35)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 35
    assert sum(limiter.allow("k") for _ in range(100)) == 25


def test_fork_before_opening_and_both_make_it(directory: Path) -> None:
    storage = f"shm://{directory}/table?capacity=10000"
    reading, writing = os.pipe()
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # returns when the parent closes its end: all start at once
            with tg.Limiter("20/hour", storage=storage, clock=tg.ManualClock(5)) as limiter:
                os._exit(sum(limiter.allow("k") for _ in range(10)))
        children.append(child)
    os.close(writing)
    counts = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(reading)
    assert sum(counts) == 20
    assert sorted(path.name for path in directory.iterdir()) == ["table"]


def test_plans_of_several_processes_charge_all_or_none(directory: Path) -> None:
    plan = [
        tg.Limit("150/400 days"),
        tg.Limit("60/400 days", algorithm="sliding-window"),
        tg.Limit("90/400 days", algorithm="sliding-log"),
    ]
    storage = f"shm://{directory}/table?capacity=10000"
    clock = tg.ManualClock(10**18)
    children = []
    reading, writing = os.pipe()
    for number in range(5):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            with tg.Limiter(plan, storage=storage, clock=clock) as limiter:
                if number == 4:  # reads meanwhile
                    seen = [limiter.peek("k").remaining for _ in range(2000)]
                    os._exit(0 if all(0 <= left <= 60 for left in seen) else 255)
                # One of them in twos, so that some plans find room for half of what they want.
                os._exit(sum(limiter.allow("k", 1 + (number == 0)) for _ in range(40)))
        children.append(child)
    os.close(writing)
    counts = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(reading)
    assert counts.pop() == 0
    admitted = sum(counts) + counts[0]
    # Who has come in between two of its charges may refuse what would just have fitted.
    assert 55 <= admitted <= 60
    for limit in plan:
        with tg.Limiter(limit, storage=storage, clock=clock) as alone:
            assert alone.peek("k").remaining == limit.count - admitted


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become two users; run as root to test this"
)
def test_another_user_neither_joins_nor_is_joined(directory: Path) -> None:
    path = directory / "table"
    directory.chmod(0o755)
    store = ShmStore(str(path), 1000)
    assert path.stat().st_mode & 0o777 == 0o600

    def refusal_of_nobody(work: Callable[[str], object]) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                work(str(path))
            except tg.StorageError as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
        with open(reading) as message:
            return message.read()

    assert "it belongs to user 0, this is user 65534" in refusal_of_nobody(ShmStore)
    assert "not a regular file of this user" in refusal_of_nobody(ShmStore.remove)
    assert path.exists()
    # Root could open it all the same; it is refused for whose it is.
    os.chown(path, 65534, 65534)
    with pytest.raises(tg.StorageError, match="belongs to user 65534"):
        ShmStore(str(path))
    assert store.counters() == (0, 0, 0)


def test_all_processes_read_one_clock(directory: Path) -> None:
    path = str(directory / "table")
    store = ShmStore(path, 1000)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(ShmStore(path).now_ns()).encode())
        os._exit(0)
    before = store.now_ns()
    os.waitpid(child, 0)
    theirs = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    assert abs(theirs - before) < 60 * 10**9
    assert theirs <= store.now_ns() + 10**6
