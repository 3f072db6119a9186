"""A disk that becomes full, and one that is full: operators revoke and unlock all the same."""

from __future__ import annotations

import datetime as dt
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from admin_client import AdminService, Clock
from tidegate.server.admin.late_changes import LateChanges
from tidegate.server.anomalies.detector import Action, Anomaly
from tidegate.server.disk_watch import DiskWatch
from tidegate.server.enforcement import Enforcement
from tidegate.server.late_file import LateFile
from tidegate.server.snapshots import Snapshots

MIB = 2**20


class Writer:
    pause: str | None = None


class Disk:
    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self, folder: Path) -> int:
        if self.free < 0:
            raise OSError("no such folder")
        return self.free


def test_the_alarm_comes_before_the_disk_is_full_and_the_history_leaves_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, writer = Disk(2000 * MIB), Writer()
    with caplog.at_level(logging.INFO, "tidegate"):
        watch = DiskWatch(Path("/data"), [writer], least=256 * MIB, free_at=disk)
        assert (watch.problem, writer.pause, caplog.messages) == (None, None, [])
        disk.free = 1000 * MIB
        for _ in range(2):
            watch.look()
        assert writer.pause is None
        early = (
            "the disk of the database has 1000 MiB left; below 256 MiB nothing is added to the "
            "history"
        )
        assert (watch.problem, caplog.messages) == (early, [early])
        disk.free = 100 * MIB
        for _ in range(2):
            watch.look()
        late = (
            "the disk of the database has 100 MiB left; nothing is added to the history below "
            "256 MiB"
        )
        assert (watch.problem, writer.pause) == (late, late)
        assert caplog.messages[1:] == [late]
        assert caplog.records[-1].levelno == logging.ERROR
        disk.free = 3000 * MIB
        watch.look()
        assert (watch.problem, writer.pause) == (None, None)
        disk.free = -1
        watch.look()
        assert (watch.free, watch.problem) == (None, None)
        assert caplog.messages[2:] == [
            "the disk of the database has room again",
            "the free room of /data is not known: no such folder",
        ]


def fill(service: AdminService) -> int:
    """Lets the database take no page and no entry of the audit log more."""
    engine = service.app.state.admin.database.engine
    (pages,) = service.rows("PRAGMA page_count")[0]

    @sa.event.listens_for(engine, "connect")
    def bound(connection: Any, record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages}")

    def add_entries(connection: sa.Connection) -> None:
        while True:
            connection.exec_driver_sql(
                "INSERT INTO audit_log (time, actor, role, action, target) "
                "VALUES ('2026-01-01 00:00:00.000000', 'filler', '', 'filler', '')"
            )
            connection.commit()

    with engine.connect() as connection, pytest.raises(sa.exc.OperationalError, match="is full"):
        add_entries(connection)
    return int(pages)


def empty(service: AdminService, pages: int) -> None:
    """Gives the disk room again."""

    @sa.event.listens_for(service.app.state.admin.database.engine, "connect")
    def unbound(connection: Any, record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages + 1000}")


class Checks:
    def __init__(self) -> None:
        self.tokens: list[tuple[bytes, str]] = []

    def set_tokens(self, tokens: list[tuple[bytes, str]]) -> None:
        self.tokens = tokens


def test_a_token_is_revoked_while_the_disk_is_full(
    service: AdminService, caplog: pytest.LogCaptureFixture
) -> None:
    stolen = service.make_token("operator")
    (id,) = service.rows("SELECT max(id) FROM api_tokens")[0]
    checks = Checks()
    snapshots = Snapshots(service.url, checks)
    late: LateChanges = service.app.state.admin.database.late
    snapshots.revoked = lambda: late.revoked
    snapshots.read_tokens()
    before = len(checks.tokens)
    pages = fill(service)
    assert service.ask("GET", "/whoami", token=stolen).status_code == 200
    assert service.ask("DELETE", f"/tokens/{id}").status_code == 204
    assert service.ask("DELETE", f"/tokens/{id}").status_code == 404
    assert service.ask("GET", "/whoami", token=stolen).status_code == 401
    snapshots.read_tokens()
    assert len(checks.tokens) == before - 1
    assert f"the end of token {id} by token:" in caplog.text
    assert "is in force in this process, and is written once the database takes it" in caplog.text
    late.close()
    assert f"the end of token {id} by token:" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("is lost: it was never written")
    empty(service, pages)
    at = service.clock()
    service.clock.advance(minutes=5)
    assert late.write_all()
    (revoked,) = service.rows(f"SELECT revoked_at FROM api_tokens WHERE id = {id}")[0]
    assert dt.datetime.fromisoformat(revoked) == at.replace(tzinfo=None)
    (entry,) = [each for each in service.audit() if each["action"] == "token.revoke"]
    assert (entry["target"], entry["actor"][:6]) == (f"token:{id}", "token:")
    assert service.ask("GET", "/whoami", token=stolen).status_code == 401
    snapshots.close()


def test_a_caller_is_unlocked_while_the_disk_is_full(service: AdminService, clock: Clock) -> None:
    enforcement = Enforcement([])
    enforcement.apply([Anomaly("user:42", Action.BLOCK, 12.0, "900 requests", 900, 12.0, 0.0)])
    with AdminService(service.url, clock, enforcement=enforcement) as made:
        pages = fill(made)
        asked = {"caller": "user:42"}
        assert made.ask("POST", "/anomalies/unlock", asked, role="operator").status_code == 200
        assert enforcement.in_force() == []
        empty(made, pages)
        assert made.app.state.admin.database.late.write_all()
        assert [each["target"] for each in made.audit()][-1] == "user:42"


def test_what_another_instance_has_done_meanwhile_is_not_done_again(
    service: AdminService, caplog: pytest.LogCaptureFixture
) -> None:
    service.make_token("viewer")
    (id,) = service.rows("SELECT max(id) FROM api_tokens")[0]
    pages = fill(service)
    assert service.ask("DELETE", f"/tokens/{id}").status_code == 204
    empty(service, pages)
    service.run(f"UPDATE api_tokens SET revoked_at = created_at WHERE id = {id}")
    assert service.app.state.admin.database.late.write_all()
    assert "was not written: there is no token" in caplog.text
    assert [each for each in service.audit() if each["action"] == "token.revoke"] == []


def test_too_many_changes_that_wait_are_refused(
    service: AdminService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.server.admin.late_changes._MOST", 1)
    ids = []
    for _ in range(2):
        service.make_token("viewer")
        ids.append(service.rows("SELECT max(id) FROM api_tokens")[0][0])
    fill(service)
    answers = [service.ask("DELETE", f"/tokens/{id}").status_code for id in ids]
    assert answers == [204, 503]


def test_a_token_stays_revoked_over_a_restart_on_a_full_disk(
    service: AdminService, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "service.db.late"
    stolen = service.make_token("operator")
    (id,) = service.rows("SELECT max(id) FROM api_tokens")[0]
    with AdminService(service.url, clock, late=LateFile(path)) as before:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.stat().st_blocks * 512 >= path.stat().st_size > 0  # the room is taken
        pages = fill(before)
        assert before.ask("DELETE", f"/tokens/{id}").status_code == 204
        before.app.state.admin.database.late.close()
        assert "is in force again once the service starts" in caplog.messages[-1]
    with AdminService(service.url, clock, late=LateFile(path)) as after:
        assert "1 changes of operators are in force" in caplog.text
        assert after.ask("GET", "/whoami", token=stolen).status_code == 401
        assert after.ask("DELETE", f"/tokens/{id}").status_code == 404
        empty(after, pages)
        late: LateChanges = after.app.state.admin.database.late
        assert late.write_all()
        assert late.revoked == frozenset()
        assert after.ask("GET", "/whoami", token=stolen).status_code == 401
        (entry,) = [each for each in after.audit() if each["action"] == "token.revoke"]
        assert entry["target"] == f"token:{id}"
        late.close()


def test_a_process_that_takes_over_has_changes_that_are_in_memory(
    service: AdminService, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with AdminService(service.url, clock, late=LateFile()) as before:
        old: LateChanges = before.app.state.admin.database.late
        number = old.share()
        assert number is not None
        inherited = LateFile(descriptor=os.dup(number))
        with AdminService(service.url, clock, late=inherited) as after:
            new: LateChanges = after.app.state.admin.database.late
            stolen = service.make_token("operator")
            (id,) = service.rows("SELECT max(id) FROM api_tokens")[0]
            pages = fill(before)
            assert before.ask("DELETE", f"/tokens/{id}").status_code == 204
            old.close()
            assert "is left to the process that takes over" in caplog.messages[-1]
            assert after.ask("GET", "/whoami", token=stolen).status_code == 401
            empty(after, pages)
            assert new.write_all()
            assert after.audit()[-1]["action"] == "token.revoke"
            new.close()


def test_changes_that_cannot_be_kept_are_refused_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = LateFile(tmp_path / "late")
    assert not file.append(b"x" * 2**18, most=9)
    assert file.append(b"of another version", most=9)
    assert not file.append(b"{}", most=1)
    assert file.read() == [b"of another version"]
    assert LateFile(tmp_path / "late").read() == file.read()
    LateFile(tmp_path / "absent" / "late")
    assert "what the database does not take ends with the process" in caplog.text


def test_a_change_of_another_version_does_not_hold_the_others_up(
    service: AdminService, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = LateFile(tmp_path / "late")
    assert file.append(b'["2026-01-01", ["a", "admin", null, null], "rule", []]', most=9)
    with AdminService(service.url, clock, late=file) as made:
        late: LateChanges = made.app.state.admin.database.late
        assert late.revoked == frozenset()
        assert late.write_all()
        late.close()
    assert "cannot be read: 'rule' is of another version" in caplog.text
    assert file.read() == []
