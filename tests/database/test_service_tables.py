"""The tables of the service, and what the database itself refuses there."""

from __future__ import annotations

import datetime as dt
import stat
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from postgres_server import PostgresServer
from rule_database import RuleDatabase
from tidegate import ConfigurationError
from tidegate.rules.sql import service_tables
from tidegate.rules.sql.connection import engine_of, name_of
from tidegate.rules.sql.upgrade import _config, upgrade

_TIME = "2026-01-31 12:00:00+00:00"


def _engine(database: RuleDatabase) -> sa.Engine:
    return engine_of(database.url)


def test_each_table_takes_a_row_and_gives_it_back(database: RuleDatabase) -> None:
    now = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)
    rows = {
        "usage_hours": {"user_id": "1", "endpoint": "/a", "hour": now, "allowed": 2**40},
        "rule_versions": {"created_at": now, "actor": "a", "digest": "d", "document": {"x": [1]}},
        "audit_log": {"time": now, "actor": "a", "role": "admin", "action": "x", "target": "t"},
        "api_tokens": {"name": "a", "hash": "0" * 64, "role": "admin", "created_at": now},
        "upgrade_requests": {"user_id": "1", "requested_tier": "premium", "created_at": now},
        "user_quotas": {"user_id": "1", "name": "m", "document": {}, "updated_at": now},
        "quota_top_ups": {"user_id": "1", "quota": "m", "units": 2**40, "created_at": now},
        "idempotency_keys": {"key": "0" * 64, "request": "1" * 64, "created_at": now},
        "anomalies": {
            "time": now,
            "caller": "user:1",
            "score": 3.5,
            "action": "throttle",
            "reason": "fast",
            "window_start": now,
        },
    }
    assert rows.keys() == set(service_tables.__all__) - {"metadata"}
    with _engine(database).begin() as connection:
        for name, row in rows.items():
            table: sa.Table = getattr(service_tables, name)
            connection.execute(sa.insert(table), row)
            found = connection.execute(sa.select(table)).mappings().one()
            assert {column: found[column] for column in row} == row, name


@pytest.mark.parametrize("change", ["UPDATE audit_log SET actor = 'x'", "DELETE FROM audit_log"])
def test_rows_of_the_audit_log_are_neither_changed_nor_deleted(
    database: RuleDatabase, change: str
) -> None:
    database.add("audit_log", time=_TIME, actor="a", role="admin", action="x", target="t")
    with pytest.raises(Exception, match="never changed or deleted"):
        database.run(change)
    assert database.rows("SELECT actor FROM audit_log") == [("a",)]


@pytest.mark.parametrize(
    ("table", "row"),
    [
        pytest.param(
            "rule_versions",
            {"created_at": _TIME, "actor": "a", "digest": "d", "document": {}, "in_force": True},
            id="two versions in force",
        ),
        pytest.param(
            "upgrade_requests",
            {"user_id": "1", "requested_tier": "premium", "created_at": _TIME},
            id="two pending requests of a user",
        ),
        pytest.param(
            "api_tokens",
            {"name": "a", "hash": "0" * 64, "role": "admin", "created_at": _TIME},
            id="two tokens of one hash",
        ),
    ],
)
def test_the_database_refuses_a_second_row_of_the_same_key(
    database: RuleDatabase, table: str, row: dict[str, object]
) -> None:
    database.add(table, **row)
    with pytest.raises(Exception, match=r"(?i)unique"):
        database.add(table, **row)


def test_many_versions_are_not_in_force_and_many_requests_were_decided(
    database: RuleDatabase,
) -> None:
    for _ in range(2):
        database.add("rule_versions", created_at=_TIME, actor="a", digest="d", document={})
        database.add(
            "upgrade_requests",
            user_id="1",
            requested_tier="b",
            created_at=_TIME,
            status="REJECTED",
        )
    assert database.rows("SELECT count(*) FROM rule_versions") == [(2,)]


def test_the_migration_can_be_undone_and_done_again(
    sqlite: RuleDatabase, shared_postgres: PostgresServer
) -> None:
    empty = shared_postgres.url(shared_postgres.create_database())
    for url in (sqlite.url, empty):
        upgrade(url)
        config = _config()
        engine = engine_of(url)
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0002")
        assert "audit_log" not in sa.inspect(engine).get_table_names()
        upgrade(url)
        assert "audit_log" in sa.inspect(engine).get_table_names()


def test_newest_tables_are_used_without_alembic(
    database: RuleDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "alembic.config", None)
    upgrade(database.url)
    database.run("UPDATE tidegate_version SET version_num = '0005'")
    with pytest.raises(ConfigurationError, match=r"takes the package alembic; expected `pip"):
        upgrade(database.url)


def test_only_its_owner_may_read_a_file_that_is_made(tmp_path: Path) -> None:
    made, known = tmp_path / "made.db", tmp_path / "known.db"
    known.touch(0o640)
    for path in (made, known):
        upgrade(f"sqlite:///{path}")
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(known.stat().st_mode) == 0o640, "an operator has chosen it"


@pytest.mark.parametrize("option", ["password", "sslpassword", "PASSWORD", "pasword", "pswd"])
def test_no_password_of_a_url_is_shown(option: str) -> None:
    url = f"postgresql://ada:hunter2@host/name?connect_timeout=3&{option}=hunter2&sslmode=require"
    shown = name_of(engine_of(url))
    assert "hunter2" not in shown
    assert "connect_timeout=3" in shown
    with pytest.raises(ConfigurationError) as caught:
        engine_of(f"postgresql://host:port/name?{option}=hunter2")
    assert "hunter2" not in str(caught.value)
