"""The log of violations, and the callers whose refusals rose."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from postgres_server import PostgresServer
from rule_database import RuleDatabase
from tidegate.cli.main import main
from tidegate.rules import RuleSet, Tiers
from tidegate.rules.violations import Rise, Violation, ViolationLog, top_violations

RULES = RuleSet({"rules": [{"id": "api", "by": "user", "limits": "1/hour"}]})
NEVER = 3600.0


def limiter_of(log: ViolationLog, **options: Any) -> Any:
    return tg.Limiter(rules=RULES, violations=log, clock=tg.ManualClock(0), **options)


def test_refusals_are_counted_by_caller_rule_and_endpoint() -> None:
    taken: list[Violation] = []
    with ViolationLog(taken.extend, interval=NEVER, clock=lambda: 1_000_000.0) as log:
        limiter = limiter_of(log)
        for _ in range(4):
            limiter.check(user="1", endpoint="/a", ip="192.0.2.1", api_key="secret", method="GET")
        limiter.check(user="1", endpoint="/b")
        limiter.check(user="2", endpoint="/a")
        assert taken == [], "requests write nothing"
        assert log.flush()
    at = dt.datetime(1970, 1, 12, 13, 46, 40, tzinfo=dt.timezone.utc)
    attributes = {"user": "1", "ip": "192.0.2.1", "method": "GET"}
    assert taken == [
        Violation(at, "api", "user:1", "/a", 3, attributes),
        Violation(at, "api", "user:1", "/b", 1, {"user": "1"}),
    ]
    assert (log.written, log.dropped, log.failures) == (2, 0, 0)


def test_refusals_of_other_calls_are_recorded_too() -> None:
    taken: list[Violation] = []
    log = ViolationLog(taken.extend, interval=NEVER)
    limiter = limiter_of(log, tiers=Tiers({"1": "gold"}))
    limiter.check(user="1")
    limiter.peek(user="1")
    assert not asyncio.run(limiter.check_async(user="1")).allowed
    log.close()
    assert [(each.attempted, each.attributes["tier"]) for each in taken] == [(1, "gold")]


@pytest.mark.parametrize(
    ("attributes", "caller"),
    [
        ({"user": "1", "ip": "192.0.2.1"}, "user:1"),
        ({"api_key": "secret"}, "api_key:sha256-2bb80d537b1da3e3"),
        ({"ip": b"192.0.2.1"}, "ip:192.0.2.1"),
        ({}, "anyone:"),
        ({"user": "\0\ud800" + "x" * 10_000}, "user:�?" + "x" * 248),
        ({"user": b"\xff" * 10_000}, "user:" + "�" * 250),
    ],
)
def test_callers_cannot_inject_sql_and_secrets_are_not_kept(
    database: RuleDatabase, attributes: dict[str, Any], caller: str
) -> None:
    with ViolationLog(database.url, interval=NEVER) as log:
        limiter = tg.Limiter(
            rules=RuleSet({"rules": [{"id": "all", "by": "global", "limits": "0/hour"}]}),
            violations=log,
        )
        limiter.check(endpoint="/a", **attributes)
        assert log.flush()
    rows = database.rows(
        "SELECT caller, endpoint, attempted_count, rule_id FROM rate_limit_violations"
    )
    assert rows == [(caller, "/a", 1, "all")]
    assert "secret" not in str(database.rows("SELECT * FROM rate_limit_violations"))


def test_a_thread_writes_violations(database: RuleDatabase) -> None:
    with ViolationLog(database.url, interval=0.02) as log:
        limiter = limiter_of(log)
        for _ in range(3):
            limiter.check(user="1", endpoint="/a")
        rows = "SELECT sum(attempted_count), min(user_id) FROM rate_limit_violations"
        eventually(lambda: database.rows(rows) == [(2, "1")])


def test_a_logger_can_be_the_sink(caplog: pytest.LogCaptureFixture) -> None:
    log = ViolationLog(logging.getLogger("refused"))
    with log, caplog.at_level(logging.WARNING, "refused"):
        limiter = limiter_of(log)
        for _ in range(3):
            limiter.check(user="1\n", endpoint="/a\n")
        log.flush()
    assert caplog.messages == ["'user:1\\n' was refused 2 times by api at '/a\\n'"]
    assert caplog.records[0].violation["attempted"] == 2  # type: ignore[attr-defined]


def test_violations_beyond_the_capacity_are_dropped_and_counted() -> None:
    taken: list[Violation] = []
    log = ViolationLog(taken.extend, interval=NEVER, capacity=3)
    limiter = limiter_of(log)
    for user in range(5):
        for _ in range(3):
            limiter.check(user=str(user))
    log.close()
    assert [each.attempted for each in taken] == [2, 2, 2]
    assert log.dropped == 4


def test_a_sink_that_fails_loses_nothing_while_there_is_room() -> None:
    taken: list[Violation] = []
    fails = True

    def sink(violations: list[Violation]) -> None:
        if fails:
            raise OSError("down")
        taken.extend(violations)

    log = ViolationLog(sink, interval=NEVER, capacity=2)
    limiter = limiter_of(log)
    for user in ("1", "1", "2", "2"):
        limiter.check(user=user)
    assert not log.flush()
    for user in ("1", "3", "3"):
        limiter.check(user=user)
    fails = False
    assert log.flush()
    assert {each.caller: each.attempted for each in taken} == {"user:1": 2, "user:2": 1}
    assert (log.failures, log.dropped) == (1, 1)
    fails = True
    limiter.check(user="1")
    log.close()
    assert log.dropped == 2


def test_violations_are_dropped_if_the_sink_keeps_failing() -> None:
    def sink(violations: list[Violation]) -> None:
        raise OSError("down")

    log = ViolationLog(sink, interval=0.001)
    limiter = limiter_of(log)
    for _ in range(3):
        limiter.check(user="1")
    eventually(lambda: log.dropped)
    assert log.failures == 5
    log.close()
    assert log.dropped == 2


def test_a_slow_sink_makes_no_request_wait() -> None:
    goes_on, entered = threading.Event(), threading.Event()

    def sink(violations: list[Violation]) -> None:
        entered.set()
        assert goes_on.wait(60)

    log = ViolationLog(sink, interval=0.001)
    limiter = limiter_of(log)
    limiter.check(user="1")
    limiter.check(user="1")
    assert entered.wait(60)
    for _ in range(1000):
        assert not limiter.check(user="1")
    goes_on.set()
    log.close()
    assert log.dropped == 0


def test_no_violation_is_lost_if_the_database_restarts(own_postgres: PostgresServer) -> None:
    log = ViolationLog(own_postgres.url("postgres"), interval=NEVER)
    limiter = limiter_of(log)
    limiter.check(user="1")
    own_postgres.kill()
    for _ in range(5):
        assert not limiter.check(user="1")
    assert not log.flush()
    own_postgres.start()
    assert not limiter.check(user="1")
    assert log.flush()
    with own_postgres.connect("postgres") as connection:
        database = RuleDatabase("", connection)
        assert database.rows("SELECT attempted_count FROM rate_limit_violations") == [(6,)]
    log.close()


def test_a_child_of_fork_writes_only_its_own_violations(database: RuleDatabase) -> None:
    log = ViolationLog(database.url, interval=NEVER)
    limiter = limiter_of(log)
    limiter.check(user="1")
    limiter.check(user="1")
    assert log.flush()
    limiter.check(user="1")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            limiter.check(user="1", endpoint="/child")
            status = 0 if log.flush() else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log.close()
    assert log.failures == 0
    rows = "SELECT endpoint, attempted_count FROM rate_limit_violations ORDER BY endpoint, id"
    assert database.rows(rows) == [("", 1), ("", 1), ("/child", 1)]


def test_waiting_violations_are_written_at_exit(database: RuleDatabase) -> None:
    program = f"""
import tidegate as tg
from tidegate.rules import RuleSet
from tidegate.rules.violations import ViolationLog
rules = RuleSet({{"rules": [{{"id": "api", "by": "user", "limits": "1/hour"}}]}})
limiter = tg.Limiter(rules=rules, violations=ViolationLog({database.url!r}, interval=3600))
limiter.check(user="1")
limiter.check(user="1")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert database.rows("SELECT attempted_count FROM rate_limit_violations") == [(1,)]


def test_old_violations_are_deleted(database: RuleDatabase) -> None:
    now = dt.datetime.now(dt.timezone.utc)
    for days in (1, 29, 31, 400):
        _add(database, "user:1", 1, now - dt.timedelta(days=days))
    with ViolationLog(database.url, interval=NEVER, keep=30) as log:
        limiter = limiter_of(log)
        limiter.check(user="1")
        limiter.check(user="1")
        assert log.flush()
    assert database.rows("SELECT count(*) FROM rate_limit_violations") == [(3,)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sink": 5}, "the sink is 5 of type int; expected a URL"),
        ({"sink": print, "interval": 0}, "the interval is 0; expected seconds above 0"),
        ({"sink": print, "capacity": 0}, "the capacity is 0; expected 1 or more"),
        ({"sink": "sqlite://", "keep": -1}, "keep is -1; expected days above 0"),
        ({"sink": "sqlite://", "keep": 0}, "keep is 0; expected days above 0"),
        ({"sink": "sqlite://", "keep": "x"}, "keep is 'x'; expected days above 0"),
        ({"sink": "sqlite://", "keep": float("inf")}, "keep is inf; expected days above 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=said):
        ViolationLog(**options)
    with pytest.raises(tg.ConfigurationError, match="expected tidegate"):
        tg.Limiter(rules=RULES, violations=print)
    with pytest.raises(tg.ConfigurationError, match="violations were given without rules"):
        tg.Limiter("1/second", violations=ViolationLog(print))


def _add(database: RuleDatabase, caller: str, count: int, at: dt.datetime) -> None:
    zone = "+00" if database.url.startswith("postgres") else ""
    database.add(
        "rate_limit_violations",
        caller=caller,
        endpoint="/a",
        rule_id="api",
        attempted_count=count,
        timestamp=f"{at:%Y-%m-%d %H:%M:%S}.000000{zone}",
    )


def _history(database: RuleDatabase, now: dt.datetime) -> None:
    hour = dt.timedelta(hours=1)
    for hours in range(24):
        _add(database, "user:busy", 1000, now - hour * (hours + 0.5))
    for _ in range(2):
        _add(database, "user:changed", 60, now - hour * 0.5)
    _add(database, "user:changed", 24, now - hour * 5)
    _add(database, "user:new", 3, now - hour * 0.5)
    _add(database, "user:gone", 900, now - hour * 5)
    _add(database, "user:ancient", 5, now - hour * 0.5)
    _add(database, "user:ancient", 99999, now - hour * 400)


def test_callers_whose_refusals_rose_most_come_first(database: RuleDatabase) -> None:
    now = dt.datetime(2030, 1, 2, 12, tzinfo=dt.timezone.utc)
    _history(database, now)
    rises = top_violations(database.url, now=now)
    assert rises == [
        Rise("user:changed", 120, 1.0),
        Rise("user:ancient", 5, 0.0),
        Rise("user:new", 3, 0.0),
        Rise("user:busy", 1000, 23000 / 24),
    ]
    assert rises[0].factor == 60.5
    assert [each.name for each in top_violations(database.url, now=now, most=1)] == ["user:changed"]
    assert top_violations(database.url, now=now, by="rule")[0].recent == 1128
    with pytest.raises(tg.ConfigurationError, match="by is 'colour'; expected"):
        top_violations(database.url, by="colour")


def test_the_command_shows_rises(
    database: RuleDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["violations", "top", database.url]) == 0
    assert capsys.readouterr().out == "nobody was refused in the last 1h\n"
    _history(database, dt.datetime.now(dt.timezone.utc))
    _add(database, "user:\x1b[2J", 1, dt.datetime.now(dt.timezone.utc))
    assert main(["violations", "top", database.url, "--past", "23", "--most", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["caller", "last", "1h", "mean", "before", "rise"]
    assert lines[1].split()[:2] == ["user:changed", "120"]
    assert any(line.startswith("user:?[2J") for line in lines)
    assert main(["violations", "top", database.url, "--period", "soon"]) == 2
    assert "expected one such as 10m" in capsys.readouterr().err


def test_the_command_reports_a_database_that_does_not_answer(
    own_postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    own_postgres.kill()
    assert main(["violations", "top", own_postgres.url("postgres")]) == 1
    assert "failed" in capsys.readouterr().err
    assert main(["rules", "migrate", own_postgres.url("postgres")]) == 1
    assert capsys.readouterr().err.startswith("tidegate: ")


def test_the_command_makes_tables(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    assert main(["rules", "migrate", url]) == 0
    assert main(["rules", "migrate", url]) == 0
    assert capsys.readouterr().out == "the tables are up to date\n" * 2
    assert main(["violations", "top", url]) == 0
