"""The watch for anomalies of a service with very many callers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.anomaly import AnomalyDetector
from tidegate.server import listeners
from tidegate.server.anomalies.state_file import StateFile, beside_database
from tidegate.server.enforcement import Enforcement
from tidegate.server.listeners import AnomalyWatch
from tidegate.server.predecessor import ASKS, Predecessor
from tidegate.server.recording import Recorded, Row


class Detector:
    """Keeps the counts that it should judge."""

    interval = 60

    def __init__(self) -> None:
        self.judged: list[tuple[dict[str, int], dict[str, str]]] = []
        self.times: list[float] = []

    def judge(self, counts: Any, at: float, tiers: Any) -> list[Any]:
        self.judged.append((dict(counts), dict(tiers)))
        self.times.append(at)
        return []


def test_callers_of_one_request_do_not_displace_those_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "_MOST_CALLERS", 10)
    detector: Any = Detector()
    watch = AnomalyWatch(detector, None)
    for second in range(59):
        rows = [Row(f"{second}-{i}", "/a", "free", None, None, 1, 0, 0, 0, 1) for i in range(15)]
        flood = Row("flood", "/a", "free", None, None, 40, 9, 0, 0, 40)
        watch(Recorded(60.0 + second, [flood, *rows]))
    watch(Recorded(120.0, []))
    [(counts, tiers)] = detector.judged
    assert counts["user:flood"] == 59 * 49
    assert len(counts) <= 20
    assert tiers.keys() <= counts.keys()


def anyone(at: float, others: int = 0, count: int = 1) -> Recorded:
    users = ["a", *(f"other {i}" for i in range(others))]
    counts = [count, *[30] * others]
    return Recorded(
        at, [Row(u, "/a", None, None, None, n, 0, 0, 0, n) for u, n in zip(users, counts)]
    )


def test_a_clock_that_was_ahead_and_is_set_back_does_not_end_the_watch() -> None:
    detector: Any = Detector()
    watch = AnomalyWatch(detector, None)
    year = 365 * 86_400.0
    for at in (60.0, 120.0, year + 180.0, 240.0, 300.0, 360.0):
        watch(anyone(at))
    assert [counts["user:a"] for counts, _ in detector.judged] == [1] * 5
    times = detector.times
    assert times == sorted(times)
    week = 7 * 86_400
    assert [at % week for at in times] == [60, 120, (year + 180) % week, 240, 300]


def test_what_is_found_after_a_clock_was_set_back_is_reported_by_that_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = AnomalyWatch(AnomalyDetector(interval=60, k=1, warm_up=1), None)
    for at in (1_000_020.0, 1_000_080.0, 60.0, 120.0):
        watch(anyone(at, others=30))
    watch(anyone(180.0, others=30, count=900))
    watch(anyone(240.0))
    assert [vars(each)["anomaly"]["at"] for each in caplog.records] == [180.0]


def test_a_clock_that_is_set_back_by_less_than_an_interval_only_makes_one_longer() -> None:
    detector: Any = Detector()
    watch = AnomalyWatch(detector, None)
    for at in (60.0, 121.0, 80.0, 179.0, 180.0):
        watch(anyone(at))
    assert [counts["user:a"] for counts, _ in detector.judged] == [1, 3]
    assert detector.times == [60.0, 120.0]


def test_an_interval_that_could_not_be_judged_is_not_judged_again() -> None:
    class Failing(Detector):
        def judge(self, counts: Any, at: float, tiers: Any) -> list[Any]:
            super().judge(counts, at, tiers)
            if at == 60.0:
                raise MemoryError
            return []

    detector: Any = Failing()
    watch = AnomalyWatch(detector, None)
    watch(anyone(60.0))
    with pytest.raises(MemoryError):
        watch(anyone(120.0))
    for at in (121.0, 180.0, 240.0):
        watch(anyone(at))
    assert detector.times == [60.0, 120.0, 180.0]


def watch_with(path: Path) -> AnomalyWatch:
    detector = AnomalyDetector(interval=60)
    return AnomalyWatch(detector, None, state=StateFile(path, detector))


def test_a_restart_in_a_flood_gives_the_caller_no_free_intervals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state"
    watch = watch_with(path)
    for minute in range(20):
        watch(anyone(60.0 * minute, others=30, count=30))
    for minute in range(20, 23):
        watch(anyone(60.0 * minute, others=30, count=900))
    watch(anyone(60.0 * 23, others=30, count=900))
    assert watch.found == 1
    watch.close()
    assert path.stat().st_mode & 0o777 == 0o600
    restarted = watch_with(path)
    restarted(anyone(60.0 * 23 + 30, others=30, count=900))
    restarted(anyone(60.0 * 24, others=30, count=900))
    assert restarted.found == 1, "in the first interval that it judges"
    assert len(list(tmp_path.iterdir())) == 1


def test_what_was_learned_is_written_each_ten_minutes(tmp_path: Path) -> None:
    watch = watch_with(tmp_path / "state")
    written = []
    for minute in range(25):
        watch(anyone(60.0 * minute))
        written.append((tmp_path / "state").read_bytes() if minute else b"")
    assert [i for i in range(1, 25) if written[i] != written[i - 1]] == [1, 11, 21]


class Channel:
    """What two processes say to each other while one takes the place of the other."""

    def __init__(self) -> None:
        self._old, self._new = socket.socketpair()
        self.predecessor = Predecessor(self._new)

    def hand_on(self, old: AnomalyWatch, new: AnomalyWatch) -> None:
        taking = threading.Thread(target=new.take_over, args=(self.predecessor,))
        taking.start()
        assert self._old.recv(1) == ASKS
        old.hand_on(self._old.sendall)
        taking.join()

    def say(self, message: bytes) -> None:
        self._old.sendall(message)

    def end(self) -> None:
        """Ends the old process, and waits until the new one has read everything."""
        self._old.close()
        for thread in threading.enumerate():
            if thread.name == "tidegate taking over":
                thread.join()


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    made.end()
    made.predecessor.close()


class Told:
    """A service that receives the penalties."""

    def __init__(self) -> None:
        self.tables: list[Any] = []

    def set_penalties(self, table: Any) -> None:
        self.tables.append(table)


def test_a_flood_goes_on_in_the_process_that_takes_over(tmp_path: Path, channel: Channel) -> None:
    """It is judged by the requests that both processes counted, and its penalty lasts."""
    path = tmp_path / "state"
    watches = []
    for _ in range(2):
        detector = AnomalyDetector(interval=60)
        told = Told()
        enforcement = Enforcement([told], clock=lambda: 1000.0)
        state = StateFile(path, detector)
        watches.append(AnomalyWatch(detector, None, enforcement=enforcement, state=state))
    old, new = watches
    for minute in range(20):
        old(anyone(60.0 * minute, others=30, count=30))
    for minute in range(20, 24):
        old(anyone(60.0 * minute, others=30, count=900))
    (penalty,) = old._enforcement.in_force()
    old(anyone(60.0 * 24, others=30, count=300))
    judged: list[tuple[float, int]] = []
    judge = new._detector.judge

    def judge_noting(counts: Any, at: float, tiers: Any) -> Any:
        judged.append((at, counts["user:a"]))
        return judge(counts, at, tiers)

    new._detector.judge = judge_noting  # type: ignore[method-assign]
    channel.hand_on(old, new)
    assert new._enforcement.in_force() == [penalty]
    assert told.tables[-1] is not None, "the service refuses at once"
    old(anyone(60.0 * 24 + 10, others=0, count=300))
    old(anyone(60.0 * 25 + 10, others=0, count=1))  # it judges no interval itself
    channel.end()
    new(anyone(60.0 * 25 + 11, others=30, count=300))
    new(anyone(60.0 * 26, others=30, count=300))
    assert judged == [(60.0 * 24, 600), (60.0 * 25, 301)]
    kept = path.read_bytes()
    old.close()
    assert path.read_bytes() == kept, "the file is the other process's"


def test_a_process_that_stays_after_all_goes_on_itself(tmp_path: Path) -> None:
    old = watch_with(tmp_path / "state")
    for minute in range(3):
        old(anyone(60.0 * minute))
    sent: list[bytes] = []
    old.hand_on(sent.append)
    old.stay()
    for minute in range(3, 6):
        old(anyone(60.0 * minute))
    old.close()
    assert len(sent) == 1
    assert watch_with(tmp_path / "state")._detector.next_at == 60.0 * 5


@pytest.mark.parametrize("said", [b"{}\n", b"no\n", b"[1]\n", b'{"reported": [[1]]}\n'])
def test_what_another_version_hands_on_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, channel: Channel, said: bytes
) -> None:
    new = watch_with(tmp_path / "state")
    channel.say(said)
    new.take_over(channel.predecessor)
    assert "anomaly detection does not go on where it was" in caplog.text
    assert len(new._detector) == 0


@pytest.mark.parametrize("said", [b"\n", b""])
def test_a_process_without_anomaly_detection_hands_nothing_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, channel: Channel, said: bytes
) -> None:
    channel.say(said)
    if not said:
        channel.end()
    watch_with(tmp_path / "state").take_over(channel.predecessor)
    assert caplog.text == ""


def test_counts_for_a_process_that_has_ended_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def send(line: bytes) -> None:
        if b"state" not in line:
            raise BrokenPipeError("nobody is there")

    watch = watch_with(tmp_path / "state")
    watch.hand_on(send)
    watch(anyone(60.0))
    assert "counts were not handed on: nobody is there" in caplog.text


@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_a_file_that_cannot_be_read_is_logged_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "state").write_bytes(content)
    watch = watch_with(tmp_path / "state")
    assert "anomaly detection begins without a past" in caplog.text
    watch(anyone(60.0))
    watch(anyone(120.0))
    watch.close()
    assert len(watch_with(tmp_path / "state")._detector) == 1


def test_nothing_is_written_where_nothing_was_learned(tmp_path: Path) -> None:
    watch_with(tmp_path / "state").close()
    watch_with(tmp_path / "none" / "state").close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watch_with(tmp_path / "none" / "state")
    watch(anyone(60.0))
    watch(anyone(120.0))
    watch.close()
    assert "what is usual of callers was not written" in caplog.text


@pytest.mark.parametrize(
    ("database", "path"),
    [
        ("sqlite:///tidegate.db", Path("tidegate.db.anomalies")),
        ("sqlite:////var/lib/t.db", Path("/var/lib/t.db.anomalies")),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("postgresql://host/name", None),
        (None, None),
    ],
)
def test_the_state_is_beside_a_database_of_sqlite(database: str | None, path: Path | None) -> None:
    assert beside_database(database) == path
