"""The bounds of the usage history and of violations, whatever names strangers invent."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from rule_database import RuleDatabase
from tidegate import ConfigurationError, StorageError
from tidegate.rules.usage import UsageHistory
from tidegate.rules.violations import ViolationLog

HOUR = 3600.0
NEVER = 10 * HOUR
BEGIN = 400_000 * HOUR
MOST_BYTES = 2**20


class Clock:
    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> RuleDatabase:
    found: RuleDatabase = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def five_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories are written in parts of five users."""
    monkeypatch.setattr("tidegate.rules.sql.usage_history._AT_ONCE", 5)


def history_of(database: RuleDatabase, clock: Clock, **options: Any) -> UsageHistory:
    options = {"most_rows": 1000, "keep": None, "timeout": 60.0, **options}
    return UsageHistory(database.url, interval=NEVER, clock=clock, **options)


def filled(database: RuleDatabase, hours: Sequence[dict[str, int]]) -> Clock:
    """A history in which these users, each at this cost, called /a; the time after its hours."""
    clock = Clock()
    with history_of(database, clock, most_rows=None) as history:
        for costs in hours:
            for user, cost in costs.items():
                history.add(user, "/a", allowed=1, cost=cost)
            assert history.flush()
            clock.now += HOUR
    return clock


def rows_of(database: RuleDatabase, hour: int) -> dict[tuple[str, str], int]:
    found = database.rows("SELECT user_id, endpoint, hour, allowed FROM usage_hours")
    wanted = dt.datetime.fromtimestamp(BEGIN + hour * HOUR, dt.timezone.utc)
    is_sqlite = database.url.startswith("sqlite")
    text = wanted.strftime("%Y-%m-%d %H:%M:%S.000000") if is_sqlite else None
    return {
        (user, endpoint): allowed
        for user, endpoint, at, allowed in found
        if at == (text if is_sqlite else wanted)
    }


def test_invented_users_share_one_row_and_known_ones_keep_theirs(database: RuleDatabase) -> None:
    clock = Clock()
    with history_of(database, clock) as history:
        for user in range(20):
            history.add(f"known{user}", "/a", allowed=1)
        assert history.flush()
        clock.now += HOUR
        for write in range(3):
            for i in range(500):
                history.add(f"invented{write}-{i}", "/a", allowed=1, refused=1, cost=2)
            for user in range(20):
                history.add(f"known{user}", "/a", allowed=1)
            assert history.flush()
        assert history.dropped == 0
        # A 24th of the room, which is 980 rows in the second hour, is for new names.
        found = rows_of(database, 1)
        of_known = {key: n for key, n in found.items() if key[0].startswith("known")}
        assert of_known == {(f"known{user}", "/a"): 3 for user in range(20)}
        of_invented = [key for key in found if key[0].startswith("invented")]
        assert len(of_invented) <= 980 // 24
        assert found[("", "(other)")] == 1500 - len(of_invented)
        assert history.folded == 2 * (1500 - len(of_invented))


def test_known_users_wait_beside_any_number_of_invented_ones(sqlite: RuleDatabase) -> None:
    told: list[list[str]] = []
    with history_of(sqlite, Clock(), capacity=20) as history:
        history.on_known = told.append
        for write in range(2):
            for i in range(5):
                history.add(f"known{i}", "/a", allowed=1)
            for i in range(30):
                history.add(f"invented{write}-{i}", "/a", allowed=1)
            assert history.flush()
        assert (told[0], sorted(told[1])) == ([], [f"known{i}" for i in range(5)])
        for i in range(30):
            history.add(f"invented2-{i}", "/a", allowed=1)
        for i in range(5):
            history.add(f"known{i}", "/a", allowed=1)
            history.add(f"known{i}", "/x", allowed=1)
        assert history.flush()
        assert history.dropped == 0
    found = rows_of(sqlite, 0)
    # There is a fourth more room: for the row of all others, and for four entries of known users.
    assert [found[(f"known{i}", "/a")] for i in range(5)] == [3, 3, 2, 2, 2]
    assert [(f"known{i}", "/x") in found for i in range(5)] == [True, True, False, False, False]
    assert sum(found.values()) == 35 + 35 + 30 + 10


@pytest.mark.usefixtures("five_at_once")
def test_known_users_are_written_before_any_number_of_invented_ones(
    sqlite: RuleDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = history_of(sqlite, Clock(), capacity=1000)
    for _ in range(2):
        history.add("known", "/a", allowed=1)
        assert history.flush()
    for i in range(100):
        history.add(f"invented{i}", "/a", allowed=1)
    history.add("known", "/a", allowed=1)
    write_part = history._write_part

    def end_in_the_second_part(part: dict[Any, list[int]]) -> None:
        if len(history._being_written) < 101:
            raise StorageError("the service ends")
        write_part(part)

    monkeypatch.setattr(history, "_write_part", end_in_the_second_part)
    assert not history.flush()
    history.give_up()
    assert rows_of(sqlite, 0) == {("known", "/a"): 3}


def test_invented_users_without_rows_are_written_once_in_each_write(
    sqlite: RuleDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.rules.sql.usage_history._AT_ONCE", 50)
    with history_of(sqlite, Clock()) as history:
        parts: list[int] = []
        write_part = history._write_part

        def count(part: dict[Any, list[int]]) -> None:
            parts.append(len(part))
            write_part(part)

        monkeypatch.setattr(history, "_write_part", count)
        for write in range(2):
            for i in range(200):
                history.add(f"invented{write}-{i}", "/a", allowed=1)
            assert history.flush()
    assert parts == [1000 // 24, 1, 1]
    assert rows_of(sqlite, 0)[("", "(other)")] == 400 - 1000 // 24


@pytest.mark.usefixtures("five_at_once")
def test_the_pause_between_two_transactions_is_as_long_as_they_are(sqlite: RuleDatabase) -> None:
    """Else a change by an operator might find none for its whole time-out, on a busy machine."""

    class Pauses(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout == NEVER:
                return super().wait(timeout)
            assert timeout is not None
            pauses.append((time.monotonic() - begun[0], timeout))
            begun[0] = time.monotonic()
            return self.is_set()

    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000)"
    sqlite.run(
        "CREATE TRIGGER slow AFTER INSERT ON usage_hours BEGIN "
        f"SELECT count(*) FROM ({numbers} SELECT i FROM n); END"
    )
    pauses: list[tuple[float, float]] = []
    with history_of(sqlite, Clock()) as history:
        history._stop = Pauses()
        for user in range(15):
            history.add(f"user{user}", "/a", allowed=1)
        begun = [time.monotonic()]
        assert history.flush()
    assert len(pauses) == 2
    for took, pause in pauses:
        assert 0.15 < pause <= took


@pytest.mark.usefixtures("five_at_once")
def test_a_history_that_is_closed_writes_not_each_of_many_invented_users(
    sqlite: RuleDatabase,
) -> None:
    history = history_of(sqlite, Clock(), capacity=1000)
    for i in range(30):
        history.add(f"invented{i}", "/a", allowed=2, refused=1)
    history.close()
    found = rows_of(sqlite, 0)
    assert len(found) == 5 + 1
    assert found[("", "(other)")] == 2 * 25
    assert (history.dropped, history.folded) == (0, 3 * 25)


def test_the_busiest_of_new_users_have_rows_of_their_own(sqlite: RuleDatabase) -> None:
    with history_of(sqlite, Clock()) as history:
        for i in range(200):
            history.add(f"rare{i}", "/a", allowed=1)
        history.add("busy", "/a", allowed=2)
        assert history.flush()
    found = rows_of(sqlite, 0)
    assert found[("busy", "/a")] == 2
    assert len(found) == 1000 // 24 + 1


def test_invented_endpoints_of_a_known_user_are_bounded(sqlite: RuleDatabase) -> None:
    clock = Clock()
    with history_of(sqlite, clock, most_rows=4000) as history:
        history.add("known", "/a", allowed=1)
        assert history.flush()
        clock.now += HOUR
        for i in range(2000):
            history.add("known", f"/{i}", allowed=1)
        assert history.flush()
    found = rows_of(sqlite, 1)
    assert len(found) == 4000 // 24 + 1
    assert sum(found.values()) == 2000


def test_a_full_history_joins_users_of_one_hour_before_it_forgets_hours(
    database: RuleDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    strangers = [[f"of hour {hour} {i}" for i in range(31)] for hour in range(30)]
    clock = filled(database, [{"known": 0, **dict.fromkeys(each, 2**62)} for each in strangers])
    with history_of(database, clock) as history:
        history.add("known", "/a", allowed=1)
        assert history.flush()
    counts = database.rows("SELECT user_id = 'known', count(*) FROM usage_hours GROUP BY 1")
    assert {bool(is_known): count for is_known, count in counts} == {True: 31, False: 30 * 31 - 180}
    assert rows_of(database, 0) == {("known", "/a"): 1, ("", "(other)"): 31}
    assert len(rows_of(database, 29)) == 32
    assert "were deleted" not in caplog.text


def test_the_oldest_hours_are_deleted_where_nothing_can_be_joined(
    sqlite: RuleDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    clock = filled(sqlite, [{f"known{i}": 0 for i in range(20)}] * 50)
    with caplog.at_level(logging.WARNING), history_of(sqlite, clock) as history:
        history.add("known1", "/a", allowed=1)
        assert history.flush()
    assert sqlite.rows("SELECT count(*) FROM usage_hours") == [(801,)]
    assert rows_of(sqlite, 9) == {}
    assert len(rows_of(sqlite, 10)) == 20
    assert "its 10 oldest hours were deleted" in caplog.text


def test_the_file_of_a_flood_of_names_stays_within_the_bytes(sqlite: RuleDatabase) -> None:
    path = sqlite.url.removeprefix("sqlite:///")
    empty = os.path.getsize(path)
    clock = Clock()
    with (
        history_of(sqlite, clock, most_rows=None, most_bytes=MOST_BYTES) as history,
        ViolationLog(
            sqlite.url,
            interval=NEVER,
            clock=clock,
            keep=None,
            capacity=100_000,
            most_bytes=MOST_BYTES,
        ) as violations,
    ):
        for hour in range(8):
            clock.now = BEGIN + hour * HOUR
            for write in range(2):
                for i in range(1000):
                    name = f"{hour}-{write}-{i}-" + "x" * (i % 200)
                    history.add(name, f"/{i}", allowed=1)
                    violations.note("rule", {"user": name, "endpoint": f"/{i}"})
                assert history.flush()
                assert violations.flush()
    assert sqlite.rows("SELECT sum(allowed) FROM usage_hours") == [(16_000,)]
    assert os.path.getsize(path) - empty <= 2 * MOST_BYTES


def test_the_callers_with_the_most_refusals_have_rows_of_their_own(database: RuleDatabase) -> None:
    clock = Clock()
    with ViolationLog(
        database.url, interval=NEVER, clock=clock, keep=None, most_rows=1000
    ) as violations:
        for i in range(900):
            violations.note("a" if i % 2 else "b", {"user": f"rare{i}", "endpoint": f"/{i}"})
        violations.note("a", {"user": "busy", "endpoint": "/x"}, 7)
        assert violations.flush()
    found = database.rows(
        "SELECT caller, endpoint, rule_id, attempted_count FROM rate_limit_violations"
    )
    assert ("user:busy", "/x", "a", 7) in found
    assert len(found) == 100 + 2
    joined = [row for row in found if row[:2] == ("(other)", "(other)")]
    assert sorted(row[2] for row in joined) == ["a", "b"]
    assert sum(row[3] for row in found) == 907


def test_the_oldest_violations_are_deleted_at_the_bound(
    sqlite: RuleDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with ViolationLog(sqlite.url, interval=NEVER, clock=clock, keep=None) as violations:
        for hour in range(50):
            clock.now = BEGIN + hour * HOUR
            for i in range(20):
                violations.note("a", {"user": str(i)}, at=clock.now)
            assert violations.flush()
    clock.now = BEGIN + 50 * HOUR
    with ViolationLog(
        sqlite.url, interval=NEVER, clock=clock, keep=None, most_rows=1000
    ) as violations:
        violations.note("a", {"user": "1"}, at=clock.now)
        assert violations.flush()
    assert sqlite.rows("SELECT count(*) FROM rate_limit_violations") == [(801,)]
    assert "those of the 10 oldest hours were deleted" in caplog.text


@pytest.mark.parametrize("bound", [{"most_rows": 999}, {"most_bytes": 1.5}, {"most_rows": True}])
def test_bounds_that_are_too_small_are_refused(sqlite: RuleDatabase, bound: Any) -> None:
    for kind in (UsageHistory, ViolationLog):
        with pytest.raises(ConfigurationError, match=r"expected (1000|1048576) or more"):
            kind(sqlite.url, **bound)


def test_entries_wait_while_writing_is_paused(
    sqlite: RuleDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    with history_of(sqlite, Clock()) as history:
        history.pause = "the disk has 1 MiB left"
        history.add("1", "/a", allowed=1)
        assert not history.flush()
        assert "hours of usage were not written: the disk has 1 MiB left" in caplog.text
        assert sqlite.rows("SELECT * FROM usage_hours") == []
        history.pause = None
        assert history.flush()
        assert (history.written, history.dropped) == (1, 0)


@pytest.mark.usefixtures("five_at_once")
def test_what_a_failed_write_has_stored_is_not_stored_again(sqlite: RuleDatabase) -> None:
    with history_of(sqlite, Clock(), most_rows=None) as history:
        for i in range(6):
            history.add(f"{i:05}", "/a", allowed=1)
        write, parts = history._write_part, []

        def fail_once(part: Any) -> None:
            parts.append(len(part))
            if len(parts) == 2:
                raise OSError("the disk is full")
            write(part)

        history._write_part = fail_once  # type: ignore[method-assign]
        assert not history.flush()
        assert history.written == 5
        assert history.flush()
        assert (history.written, parts) == (6, [5, 1, 1])
    assert sqlite.rows("SELECT count(*), sum(allowed) FROM usage_hours") == [(6, 6)]
