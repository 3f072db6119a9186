"""Fixtures: databases with tables of rules."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from rule_database import RuleDatabase
from tidegate.rules.sql import upgrade


@pytest.fixture
def postgres(shared_postgres: PostgresServer) -> Iterator[RuleDatabase]:
    """A new database with tables, on a server that tests share."""
    with shared_postgres.migrated() as name, shared_postgres.connect(name) as connection:
        yield RuleDatabase(shared_postgres.url(name), connection)


@pytest.fixture
def own_postgres(postgres_directory: Path) -> Iterator[PostgresServer]:
    """A server for one test alone, with tables in its database ``postgres``."""
    with PostgresServer(postgres_directory) as server:
        upgrade(server.url("postgres"))
        yield server


@pytest.fixture
def sqlite(tmp_path: Path, migrated_sqlite: Path) -> Iterator[RuleDatabase]:
    path = tmp_path / "rules.db"
    shutil.copyfile(migrated_sqlite, path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        yield RuleDatabase(f"sqlite:///{path}", connection)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> RuleDatabase:
    """A database of each kind in turn."""
    found: RuleDatabase = request.getfixturevalue(request.param)
    return found
