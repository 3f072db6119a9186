"""Databases that an older release created."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidegate as tg
from postgres_server import PostgresServer
from rule_database import RuleDatabase
from tidegate.rules import RuleSet
from tidegate.rules.sql import read_rules, upgrade


@pytest.fixture
def old_sqlite(tmp_path: Path) -> Iterator[RuleDatabase]:
    url = f"sqlite:///{tmp_path / 'rules.db'}"
    upgrade(url, "0001")
    with contextlib.closing(
        sqlite3.connect(tmp_path / "rules.db", isolation_level=None, timeout=30)
    ) as connection:
        yield RuleDatabase(url, connection)


@pytest.fixture
def old_postgres(shared_postgres: PostgresServer) -> Iterator[RuleDatabase]:
    name = shared_postgres.create_database()
    upgrade(shared_postgres.url(name), "0001")
    with shared_postgres.connect(name) as connection:
        yield RuleDatabase(shared_postgres.url(name), connection)


@pytest.fixture(params=["sqlite", "postgres"])
def old_database(request: pytest.FixtureRequest) -> RuleDatabase:
    """Tables of the first release, with rows in them."""
    found: RuleDatabase = request.getfixturevalue(f"old_{request.param}")
    found.add_rule("api", "10/minute", endpoint_pattern="/api/*")
    found.add("operation_costs", endpoint="/api/*", method="POST", cost=5, methods=["PUT"])
    return found


def test_rows_of_an_older_database_keep_their_meaning(old_database: RuleDatabase) -> None:
    with pytest.raises(tg.StorageError, match="tidegate rules migrate"):
        read_rules(old_database.url)
    upgrade(old_database.url)
    document = {
        "rules": [{"id": "api", "by": "user", "endpoint": "/api/*", "limits": ["10/minute"]}],
        "costs": [{"endpoint": "/api/*", "methods": ["POST", "PUT"], "cost": 5}],
    }
    before = read_rules(old_database.url)
    # A text of limits means the same as a list with it, but has another digest.
    assert before.digest in {
        RuleSet({**document, "rules": [{**document["rules"][0], "limits": limits}]}).digest
        for limits in ("10/minute", ["10/minute"])
    }
    old_database.add("operation_costs", endpoint="/pay", priority="critical")
    old_database.run("UPDATE rate_limit_rules SET reserve = '\"20%\"', carry_over = 'reset'")
    limiter = tg.Limiter(rules=read_rules(old_database.url), clock=tg.ManualClock(0))
    assert limiter.explain(user="1", endpoint="/pay").priority == "critical"
    assert limiter.explain(user="1", endpoint="/api/x", method="PUT").cost == 5
    upgrade(old_database.url)  # once more does nothing
    assert len(read_rules(old_database.url).rules) == 1


def test_an_upgraded_postgres_still_notifies_of_changed_costs(old_postgres: RuleDatabase) -> None:
    upgrade(old_postgres.url)
    old_postgres.run("LISTEN tidegate_rules")
    old_postgres.run("INSERT INTO operation_costs (priority) VALUES ('background')")
    notified = old_postgres.connection.notifies(timeout=30, stop_after=1)
    assert [each.channel for each in notified] == ["tidegate_rules"]
