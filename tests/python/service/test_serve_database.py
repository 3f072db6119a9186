"""`tidegate serve` and its database: locked, missing, with revoked tokens."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import plain_http
import pytest
from serving import RULES, SETTINGS, Served, run
from tidegate._core import ShmStore
from tidegate.rules.sql import upgrade


def test_the_service_ends_while_its_database_is_locked(directory: Path) -> None:
    service = Served(directory, TIDEGATE_DRAIN="1")
    try:
        service.check("first")
        file = directory / "tidegate.db"
        with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for _ in range(4):
                service.check()
            begun = time.monotonic()
            assert service.end() == 0
            assert time.monotonic() - begun < 12, "drain 1 s, and 5 s to write"
    finally:
        service.process.kill()
        service.process.wait()
    messages = [each["message"] for each in service.records()]
    for what in ("hours of usage", "violations"):
        pattern = rf"(\d+) requests are in no {what} that were written"
        lost = [int(found[1]) for each in messages if (found := re.fullmatch(pattern, each))]
        # The first check may have been written before the lock.
        assert sum(lost) in ((1,) if what == "violations" else (4, 5)), messages


def test_the_admin_api_makes_and_revokes_tokens_at_once(directory: Path) -> None:
    service = Served(directory, TIDEGATE_CHECKS__REQUIRE_TOKEN="true")
    try:
        checks, admin = f"{service.checks}/v1/ratelimit/check", f"{service.admin}/v1/admin/tokens"
        bearer = {"Authorization": f"Bearer {service.make_token('admin')}"}
        with plain_http.client() as client:
            for number in range(5):
                new = {"name": f"shop {number}", "role": "check"}
                made = client.post(admin, json=new, headers=bearer).json()
                token = {"Authorization": f"Bearer {made['token']}"}
                assert client.post(checks, json={}, headers=token).status_code == 200
                revoked = client.delete(f"{admin}/{made['id']}", headers=bearer)
                assert revoked.status_code == 204
                assert client.post(checks, json={}, headers=token).status_code == 401
    finally:
        service.end()


@pytest.mark.parametrize("rules", ["in a file", "in the database"])
def test_a_check_creates_nothing(tmp_path: Path, rules: str) -> None:
    name = f"tidegate-test-{os.getpid()}-{time.monotonic_ns()}"
    settings = f"storage: shm://{name}\nchecks: {{unix: checks.sock}}\n"
    if rules == "in a file":
        settings += "rules: rules.yaml\n"
        (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "tidegate.yaml").write_text(settings)
    before = sorted(tmp_path.iterdir())
    listen = {f"TIDEGATE_{part}__LISTEN": "127.0.0.1:0" for part in ("CHECKS", "ADMIN")}
    done = run(tmp_path, "--check", **listen)
    assert done.returncode == 0, done.stderr
    said = "database: sqlite:///tidegate.db (the first start makes the file and its tables)"
    assert said in done.stdout
    assert f"storage: shm://{name} (the first start makes it)" in done.stdout
    assert sorted(tmp_path.iterdir()) == before
    assert not os.path.lexists(ShmStore.path_of(name))


def test_a_check_says_that_tables_would_be_migrated_and_leaves_them(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path / 'tidegate.db'}", "0001")
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    (tmp_path / "rules.yaml").write_text(RULES)
    before = (tmp_path / "tidegate.db").read_bytes()
    done = run(tmp_path, "--check")
    assert done.returncode == 0, done.stderr
    assert "the first start migrates its tables from version 0001" in done.stdout
    assert (tmp_path / "tidegate.db").read_bytes() == before
    upgrade(f"sqlite:///{tmp_path / 'tidegate.db'}")
    done = run(tmp_path, "--check")
    assert "database: sqlite:///tidegate.db\n" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no database at all" * 100, "sqlite:///tidegate.db were not made: file is not a data"),
        (None, "sqlite:///nowhere/tidegate.db were not made: unable to open"),
    ],
)
def test_an_unusable_database_is_named(directory: Path, content: bytes | None, said: str) -> None:
    (directory / "tidegate.yaml").write_text(SETTINGS)
    if content is not None:
        (directory / "tidegate.db").write_bytes(content)
        done = run(directory)
    else:
        done = run(directory, TIDEGATE_DATABASE="sqlite:///nowhere/tidegate.db")
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_of_a_newer_version_is_named(directory: Path, migrated_sqlite: Path) -> None:
    (directory / "tidegate.yaml").write_text(SETTINGS)
    (directory / "tidegate.db").write_bytes(migrated_sqlite.read_bytes())
    file = directory / "tidegate.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("UPDATE tidegate_version SET version_num = '9999'")
    done = run(directory)
    assert done.returncode == 1
    assert "the tables of sqlite:///tidegate.db are not known: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nosuch://ada:secret@host/db", "the database 'nosuch://***@host/db' is not accepted"),
        ("postgresql//ada:s@cret@host", "the database 'postgresql//***@host' is not accepted"),
    ],
)
def test_a_malformed_url_is_named_without_its_password(
    directory: Path, url: str, said: str
) -> None:
    (directory / "tidegate.yaml").write_text(SETTINGS)
    done = run(directory, TIDEGATE_DATABASE=url)
    assert done.returncode == 2
    assert said in done.stderr
    assert "secret" not in done.stderr
    assert "cret" not in done.stderr
