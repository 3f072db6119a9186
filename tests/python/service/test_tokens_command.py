"""``tidegate tokens``, which makes tokens for the admin API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from admin_client import AdminService
from tidegate.cli.main import main


def test_a_token_of_the_command_line_opens_the_api_until_it_is_revoked(
    any_service: AdminService, capsys: pytest.CaptureFixture[str]
) -> None:
    url = any_service.url
    assert (
        main(["tokens", "create", url, "ci job", "--role", "operator", "--expires", "9999w"]) == 0
    )
    token = capsys.readouterr().out.strip()
    assert token.startswith("tg_")
    assert len(token) == 3 + 43, "256 bits in base64"
    me = any_service.ask("GET", "/whoami", token=token)
    assert me.json()["role"] == "operator"
    assert main(["tokens", "list", url, "--output", "json"]) == 0
    out = capsys.readouterr().out
    listed = json.loads(out)
    assert token not in out
    assert (listed[-1]["name"], listed[-1]["role"]) == ("ci job", "operator")
    assert listed[-1]["last_used_at"]
    assert main(["tokens", "revoke", url, str(listed[-1]["id"])]) == 0
    assert any_service.ask("GET", "/whoami", token=token).status_code == 401
    actions = [(entry["action"], entry["actor"]) for entry in any_service.audit()]
    assert actions == [("token.create", "command line"), ("token.revoke", "command line")]
    assert token not in str(any_service.audit())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "URL", "../x"], "the name is '../x'"),
        (["create", "URL", "=1+1"], "the name is '=1+1'"),
        (["create", "URL", "a", "--expires", "soon"], "--expires is 'soon'"),
        (["create", "URL", "a", "--expires", "0d"], "--expires is '0d'"),
        (["revoke", "URL", "77"], "there is no token 77"),
        (["revoke", "URL", str(2**70)], "there is no token"),
    ],
)
def test_bad_arguments_are_named(
    service: AdminService,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [service.url if each == "URL" else each for each in arguments]
    assert main(["tokens", *given]) == 2
    assert message in capsys.readouterr().err


def test_a_database_without_tables_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = f"sqlite:///{tmp_path / 'none.db'}"
    assert main(["tokens", "list", missing]) == 1
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "none.db").touch()
    assert main(["tokens", "list", missing]) == 1
    assert "tidegate rules migrate" in capsys.readouterr().err


def test_a_list_says_that_there_is_no_token(
    service: AdminService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.run("DELETE FROM api_tokens")
    assert main(["tokens", "list", service.url]) == 0
    assert "there is no token" in capsys.readouterr().out
