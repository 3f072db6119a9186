"""Decisions by user, endpoint and hour."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from polling import eventually, run_threads
from postgres_server import PostgresServer
from rule_database import RuleDatabase
from tidegate import StorageError, TidegateError
from tidegate.rules.usage import UsageHistory, UsageHour, usage_of

NEVER = 3600.0
DAY = 86_400.0
UTC = dt.timezone.utc
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
# Eleven and a half days later, 13:46:40.
NOW = 1_000_000.0
HOUR = dt.datetime(1970, 1, 12, 13, tzinfo=UTC)
FOREVER: dict[str, Any] = {"since": EPOCH, "until": dt.datetime(2100, 1, 1, tzinfo=UTC)}


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> RuleDatabase:
    found: RuleDatabase = request.getfixturevalue(request.param)
    return found


def history_of(database: RuleDatabase, **options: Any) -> UsageHistory:
    options = {"interval": NEVER, "clock": lambda: NOW, "keep": None, **options}
    return UsageHistory(database.url, **options)


def test_decisions_of_an_hour_are_added_up(database: RuleDatabase) -> None:
    with history_of(database) as history:
        history.add("1", "/a", allowed=2, cost=10)
        history.add(b"1", "/a", allowed=1, refused=4, cost=5)
        history.add("1", "/b", refused=1)
        history.add(None, None, allowed=1)
        assert usage_of(database.url, **FOREVER) == [], "add() writes nothing"
        assert history.flush()
        assert (history.written, history.dropped, history.failures) == (3, 0, 0)
        history.add("1", "/a", allowed=1, cost=1)
    assert usage_of(database.url, **FOREVER) == [
        UsageHour("", "", HOUR, 1, 0, 0),
        UsageHour("1", "/a", HOUR, 4, 4, 16),
        UsageHour("1", "/b", HOUR, 0, 1, 0),
    ]


def test_costs_beyond_the_column_keep_nothing_from_being_written(database: RuleDatabase) -> None:
    most = 2**63 - 1
    with history_of(database) as history:
        for _ in range(3):
            history.add("1", "/a", allowed=1, cost=most)
            history.add("1", "/a", allowed=1, cost=most)
            history.add("2", "/a", allowed=1, cost=1)
            assert history.flush()
    assert usage_of(database.url, **FOREVER) == [
        UsageHour("1", "/a", HOUR, 6, 0, most),
        UsageHour("2", "/a", HOUR, 3, 0, 3),
    ]


def test_more_rows_than_a_statement_has_room_for_are_written(database: RuleDatabase) -> None:
    with history_of(database, timeout=60.0) as history:
        for i in range(20_000):
            history.add(str(i), "/a", allowed=1, cost=1)
        assert history.flush()
        assert history.written == 20_000
    assert len(usage_of(database.url, **FOREVER, most=30_000)) == 20_000


def test_hours_are_found_by_time_user_and_endpoint(database: RuleDatabase) -> None:
    with history_of(database) as history:
        for hour in range(4):
            for user in "12":
                history.add(user, f"/{hour % 2}", allowed=hour + 1, at=NOW + hour * 3600)
    hours = [dt.timedelta(hours=n) + HOUR for n in range(5)]
    found = usage_of(database.url, since=hours[1], until=hours[3], user="2")
    assert [(each.hour, each.allowed) for each in found] == [(hours[1], 2), (hours[2], 3)]
    assert len(usage_of(database.url, **FOREVER, endpoint="/1")) == 4
    assert len(usage_of(database.url, **FOREVER, most=3)) == 3


def test_several_writers_of_the_same_hours_lose_nothing(database: RuleDatabase) -> None:
    histories = [history_of(database, timeout=30.0) for _ in range(4)]

    def write(history: UsageHistory) -> None:
        for _ in range(5):
            for user in range(50):
                history.add(str(user), "/a", allowed=1)
            assert history.flush()

    threads = [threading.Thread(target=write, args=(history,)) for history in histories]
    run_threads(threads)
    for history in histories:
        history.close()
        assert history.failures == 0
    assert {each.allowed for each in usage_of(database.url, **FOREVER)} == {20}


def test_more_hours_than_one_statement_takes_are_written(database: RuleDatabase) -> None:
    with history_of(database, timeout=60.0) as history:
        for user in range(12_000):
            history.add(str(user), "/a", allowed=1)
        assert history.flush()
    assert database.rows("SELECT count(*), sum(allowed) FROM usage_hours") == [(12_000, 12_000)]


def test_beyond_the_capacity_decisions_are_dropped_and_counted(sqlite: RuleDatabase) -> None:
    with history_of(sqlite, capacity=2) as history:
        for user in "1234":
            history.add(user, "/a", allowed=2, refused=1)
        history.add("1", "/a", allowed=1)
        assert history.dropped == 6
    assert [(each.user, each.allowed) for each in usage_of(sqlite.url, **FOREVER)] == [
        ("1", 3),
        ("2", 2),
    ]


def test_old_hours_are_deleted_once_an_hour(sqlite: RuleDatabase) -> None:
    now = [NOW]
    with history_of(sqlite, keep=2, clock=lambda: now[0]) as history:
        history.add("1", "/a", allowed=1)
        assert history.flush()
        now[0] += 3 * DAY
        history.add("2", "/a", allowed=1)
        assert history.flush()
        assert [each.user for each in usage_of(sqlite.url, **FOREVER)] == ["2"]
        now[0] += 3 * DAY
        history.add("3", "/a", allowed=1, at=now[0])
        assert history.flush()
    assert [each.user for each in usage_of(sqlite.url, **FOREVER)] == ["3"]


def test_a_database_that_dies_and_comes_back_has_all_of_them(own_postgres: PostgresServer) -> None:
    history = UsageHistory(own_postgres.url("postgres"), interval=NEVER, keep=None)
    history.add("1", "/a", allowed=1)
    assert history.flush()
    own_postgres.kill()
    history.add("1", "/a", allowed=1)
    assert not history.flush()
    history.add("1", "/a", allowed=1)
    own_postgres.start()
    assert history.flush()
    history.close()
    assert history.failures == 1
    assert history.dropped == 0
    (hour,) = usage_of(own_postgres.url("postgres"), **FOREVER)
    assert hour.allowed == 3


def test_a_thread_writes_what_waits(sqlite: RuleDatabase) -> None:
    with history_of(sqlite, interval=0.01) as history:
        history.add("1", "/a", allowed=1)
        eventually(lambda: history.written == 1)


def test_any_text_of_a_client_is_kept_or_replaced(database: RuleDatabase) -> None:
    with history_of(database) as history:
        history.add("a\0b\ud800", b"\xff" * 1000, allowed=1)
        assert history.flush()
    (hour,) = usage_of(database.url, **FOREVER)
    assert hour.user == "a\ufffdb?"
    assert hour.endpoint == "\ufffd" * 255


def test_a_child_of_fork_writes_its_own(database: RuleDatabase) -> None:
    history = history_of(database)
    history.add("parent", "/a", allowed=1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            history.add("child", "/a", allowed=1)
            status = 0 if history.flush() else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    history.close()
    found = {each.user: each.allowed for each in usage_of(database.url, **FOREVER)}
    assert found == {"child": 1, "parent": 1}


def test_the_end_of_the_interpreter_writes_what_waits(sqlite: RuleDatabase) -> None:
    code = (
        "import sys; from tidegate.rules.usage import UsageHistory; "
        "UsageHistory(sys.argv[1], interval=3600).add('1', '/a', allowed=1)"
    )
    # Kept alive by nothing but the thread.
    done = subprocess.run(
        [sys.executable, "-c", code, sqlite.url], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [each.user for each in usage_of(sqlite.url, **FOREVER)] == ["1"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"interval": 0}, "the interval is 0; expected seconds above 0"),
        ({"capacity": 0}, "the capacity is 0; expected 1 or more"),
        ({"keep": -1}, "keep is -1; expected days above 0, at most 100000, or None"),
    ],
)
def test_wrong_options_are_refused(
    sqlite: RuleDatabase, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(TidegateError) as caught:
        history_of(sqlite, **options)
    assert said in str(caught.value)


def test_times_need_a_zone(sqlite: RuleDatabase) -> None:
    with pytest.raises(TidegateError, match="expected a datetime with a time zone"):
        usage_of(sqlite.url, since=dt.datetime(2024, 1, 1), until=HOUR)
    with pytest.raises(TidegateError, match="expected a datetime with a time zone"):
        usage_of(sqlite.url, since=EPOCH, until="tomorrow")  # type: ignore[arg-type]


def test_a_database_without_the_tables_says_what_makes_them(tmp_path: Any) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(StorageError, match="tidegate rules migrate"):
        usage_of(f"sqlite:///{tmp_path / 'empty.db'}", **FOREVER)
