"""The addresses that `tidegate serve --check` examines."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from serving import SETTINGS, run


def taken() -> socket.socket:
    other = socket.socket()
    other.bind(("127.0.0.1", 0))
    other.listen()
    return other


def test_a_check_names_each_address_that_is_in_use(directory: Path) -> None:
    (directory / "tidegate.yaml").write_text(SETTINGS)
    with taken() as first, taken() as second:
        places = [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
        listen = {"TIDEGATE_CHECKS__LISTEN": places[0], "TIDEGATE_ADMIN__LISTEN": places[1]}
        done = run(directory, "--check", **listen)
        assert done.returncode == 2
        for name, place in zip(("checks.listen", "admin.listen"), places):
            assert f"{name}: {place} is in use; expected a free address" in done.stderr
        assert "rules: 1 of rules.yaml" in done.stdout, "the rest is said all the same"
    assert run(directory, "--check", **listen).returncode == 0


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("192.0.2.1:0", "checks.listen: 192.0.2.1:0 fails: "),
        ("no.such.host.invalid:1", "checks.listen: no.such.host.invalid:1 fails: "),
    ],
)
def test_a_check_names_an_address_of_another_machine(
    directory: Path, address: str, said: str
) -> None:
    (directory / "tidegate.yaml").write_text(SETTINGS)
    done = run(directory, "--check", TIDEGATE_CHECKS__LISTEN=address)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("admin", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("checks", ["127.0.0.1", "0.0.0.0"])
def test_a_check_names_one_address_for_checks_and_the_admin_api(
    directory: Path, checks: str, admin: str
) -> None:
    with taken() as other:
        port = other.getsockname()[1]
    (directory / "tidegate.yaml").write_text(
        f"checks: {{listen: '{checks}:{port}', require_token: false}}\n"
        f"admin: {{listen: '{admin}:{port}'}}\n"
    )
    done = run(directory, "--check")
    assert done.returncode == 2
    assert f"admin.listen: {admin}:{port} is taken by checks.listen; expected" in done.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("prefix: ''", ":1: prefix: is ''; expected"),
        ("admin: {trusted_proxies: [10.0.0.0/99]}", "trusted_proxies has '10.0.0.0/99'"),
        ("admin: {oidc: {issuer: a, audience: b}}", "the issuer is 'a'; expected an https URL"),
        (
            "database: sqlite:////none/tidegate.db",
            "database: sqlite:////none/tidegate.db is in a directory that this user cannot write",
        ),
        ("database: mysql://a/b", "expected SQLite or PostgreSQL"),
    ],
)
def test_a_check_names_what_would_keep_the_service_from_starting(
    directory: Path, settings: str, said: str
) -> None:
    (directory / "tidegate.yaml").write_text(f"{settings}\n")
    done = run(
        directory,
        "--check",
        TIDEGATE_CHECKS__LISTEN="127.0.0.1:0",
        TIDEGATE_ADMIN__LISTEN="127.0.0.1:0",
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_a_check_examines_the_path_of_a_unix_socket(directory: Path) -> None:
    (directory / "tidegate.yaml").write_text(SETTINGS)

    def said(path: Path) -> str:
        return run(directory, "--check", TIDEGATE_CHECKS__UNIX=str(path)).stderr

    path = directory / "checks.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert f"checks.unix: {path} is in use" in said(path)
    assert "checks.unix" not in said(path), "nobody listens there any more"
    (directory / "file").touch()
    assert f"checks.unix: {directory / 'file'} is a file" in said(directory / "file")
    assert "is in a directory that this user cannot write to" in said(directory / "no" / "sock")
