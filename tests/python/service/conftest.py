"""Fixtures of the service: an admin API with its own database, and fronts."""

from __future__ import annotations

import datetime as dt
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_client import AdminService, Clock
from postgres_server import PostgresServer


@pytest.fixture
def clock() -> Clock:
    return Clock(dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc))


@pytest.fixture
def service(tmp_path: Path, migrated_sqlite: Path, clock: Clock) -> Iterator[AdminService]:
    """An admin API on SQLite."""
    shutil.copyfile(migrated_sqlite, tmp_path / "service.db")
    with AdminService(f"sqlite:///{tmp_path / 'service.db'}", clock) as made:
        yield made


@pytest.fixture
def postgres_service(shared_postgres: PostgresServer, clock: Clock) -> Iterator[AdminService]:
    with (
        shared_postgres.migrated() as name,
        AdminService(shared_postgres.url(name), clock) as made,
    ):
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def any_service(request: pytest.FixtureRequest) -> AdminService:
    """An admin API on each kind of database in turn."""
    name = {"sqlite": "service", "postgres": "postgres_service"}[request.param]
    found: AdminService = request.getfixturevalue(name)
    return found


if sys.platform != "linux":  # the service needs epoll
    collect_ignore_glob = ["*"]
else:
    from fronts import MakeFront, Served, start_front
    from serving import RULES
    from serving import Served as ServedProcess

    @pytest.fixture
    def make_front() -> Iterator[MakeFront]:
        served: list[Served] = []

        def make(**options: object) -> Served:
            served.append(start_front(**options))
            return served[-1]

        yield make
        for one in served:
            one.front.stop()

    @pytest.fixture
    def directory(tmp_path: Path, migrated_sqlite: Path) -> Path:
        """With rules, and with the tables that the first start of a service would make."""
        (tmp_path / "rules.yaml").write_text(RULES)
        shutil.copyfile(migrated_sqlite, tmp_path / "tidegate.db")
        return tmp_path

    @pytest.fixture
    def served(directory: Path) -> Iterator[ServedProcess]:
        service = ServedProcess(directory)
        yield service
        service.process.kill()
        service.process.wait()
