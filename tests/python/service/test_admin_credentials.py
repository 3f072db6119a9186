"""Tokens, roles, failed attempts, and requests without credentials."""

from __future__ import annotations

import datetime as dt
import logging
import re

import pytest
from admin_client import AdminService, Clock
from tidegate.server.admin.authentication import Attempts
from tidegate.server.admin.context import AdminRoute
from tidegate.server.admin.problems import ProblemError
from tidegate.server.admin_server import behind_proxies
from tidegate.server.records.api_tokens import ROLES, find_token, hash_of


def _routes(service: AdminService) -> list[tuple[str, str, str]]:
    """Returns method, path and least role of all routes, as OpenAPI has them."""
    paths = service.app.openapi()["paths"]
    return [
        (method.upper(), path[len("/v1/admin") :], operation["x-tidegate-role"])
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]


def _path(path: str) -> str:
    for name in ("rule_id", "tier", "user_id"):
        path = path.replace(f"{{{name}}}", "x")
    return path.replace("{id}", "1").replace("{version}", "1")


def test_every_route_has_a_role_and_is_closed_without_a_token(service: AdminService) -> None:
    routes = _routes(service)
    assert len(routes) > 25
    for method, path, _ in routes:
        answer = service.ask(method, _path(path), role=None)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"


def test_every_route_refuses_lower_roles_before_it_reads_the_body(service: AdminService) -> None:
    for method, path, least in _routes(service):
        for role in ROLES[: ROLES.index(least)]:
            answer = service.ask(method, _path(path), role=role)
            assert answer.status_code == 403, (method, path, role)
            assert least in answer.json()["detail"]


def test_low_roles_change_no_rules_and_no_tokens(service: AdminService) -> None:
    by_role: dict[str, set[str]] = {role: set() for role in ROLES}
    for method, path, least in _routes(service):
        by_role[least].add(f"{method} {path}")
    changes = {each for each in by_role["viewer"] if not each.startswith("GET ")}
    assert changes == {
        "POST /ratelimit/document/validate",
        "POST /ratelimit/document/diff",
        "POST /ratelimit/explain",
    }
    assert not any("tokens" in each for role in ROLES[:2] for each in by_role[role])
    assert not any("/rules" in each for each in by_role["operator"])


def test_a_route_without_a_role_cannot_be_defined() -> None:
    with pytest.raises(KeyError):
        AdminRoute("/open", lambda: None)


def test_unknown_paths_are_closed_too(service: AdminService) -> None:
    for path in ("/nothing", "/../../openapi.json", ""):
        assert service.ask("GET", path, role=None).status_code == 401
    assert service.ask("GET", "/nothing").status_code == 404
    wrong = service.ask("PATCH", "/tokens")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET, POST")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "Bearer tg_wrong",
        "Bearer " + "x" * 10_000,
        "Bearer tg_\xff\xfe",
        "bearer tg_" + "A" * 43,
    ],
)
def test_wrong_tokens_are_refused(service: AdminService, header: str) -> None:
    given = {"Authorization": header.encode("latin-1")}
    answer = service.ask("GET", "/whoami", role=None, headers=given)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert service.tokens["admin"] not in answer.text


def test_a_token_ends_when_it_expires(any_service: AdminService, clock: Clock) -> None:
    token = any_service.make_token("viewer", expires_at=clock() + dt.timedelta(hours=1))
    assert any_service.ask("GET", "/whoami", token=token).status_code == 200
    clock.advance(hours=1)
    answer = any_service.ask("GET", "/whoami", token=token)
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


def test_tokens_are_made_listed_and_revoked_by_administrators(any_service: AdminService) -> None:
    made = any_service.ask("POST", "/tokens", {"name": "ci", "role": "viewer"})
    assert made.status_code == 201, made.text
    token, id = made.json()["token"], made.json()["id"]
    assert made.headers["cache-control"] == "no-store"
    assert any_service.ask("GET", "/whoami", token=token).json()["role"] == "viewer"
    listed = any_service.ask("GET", "/tokens")
    assert token not in listed.text
    assert hash_of(token) not in listed.text
    assert listed.json()[-1]["name"] == "ci"
    assert any_service.ask("DELETE", f"/tokens/{id}").status_code == 204
    assert any_service.ask("GET", "/whoami", token=token).status_code == 401
    assert any_service.ask("DELETE", f"/tokens/{id}").status_code == 404
    log = str(any_service.audit())
    assert [entry["action"] for entry in any_service.audit()] == ["token.create", "token.revoke"]
    assert token not in log
    assert hash_of(token) not in log


@pytest.mark.parametrize(
    "body",
    [
        {"name": "ci", "role": "root"},
        {"name": "ci"},
        {"name": "../ci", "role": "viewer"},
        {"name": "", "role": "viewer"},
        {"name": "ci", "role": "viewer", "expires_at": "2020-01-01T00:00:00Z"},
        {"name": "ci", "role": "viewer", "expires_at": "2030-01-01T00:00:00"},
        {"name": "ci", "role": "viewer", "colour": "red"},
    ],
)
def test_bad_tokens_are_not_made(service: AdminService, body: dict[str, str]) -> None:
    answer = service.ask("POST", "/tokens", body)
    assert answer.status_code == 422
    assert "expected" in answer.text or "missing" in answer.text
    assert len(service.rows("SELECT * FROM api_tokens")) == len(ROLES)


def test_the_schema_says_which_names_tokens_have(service: AdminService) -> None:
    schema = service.app.openapi()["components"]["schemas"]["NewToken"]["properties"]["name"]
    assert re.fullmatch(schema["pattern"], "ci of ada@example.org")
    assert not re.search(schema["pattern"], "\u00c2")


def test_the_use_of_a_token_is_stored_once_a_minute(
    any_service: AdminService, clock: Clock
) -> None:
    def last_use() -> object:
        return any_service.ask("GET", "/tokens", role="admin").json()[0]["last_used_at"]

    assert last_use() is None
    any_service.ask("GET", "/whoami", role="viewer")
    first = last_use()
    assert first is not None
    clock.advance(seconds=59)
    any_service.ask("GET", "/whoami", role="viewer")
    assert last_use() == first
    clock.advance(seconds=1)
    any_service.ask("GET", "/whoami", role="viewer")
    assert last_use() > first  # type: ignore[operator]


def test_only_the_hash_of_a_token_is_stored(service: AdminService) -> None:
    with service.engine.connect() as connection:
        row = find_token(connection, service.tokens["viewer"], service.clock())
        assert row.role == "viewer"
        assert find_token(connection, row.hash, service.clock()) is None
    stored = str(service.rows("SELECT * FROM api_tokens"))
    assert service.tokens["viewer"][3:] not in stored


def test_an_address_that_fails_too_often_has_to_wait(service: AdminService) -> None:
    for _ in range(10):
        assert service.ask("GET", "/whoami", token="tg_wrong").status_code == 401
    for wrong in ("tg_wrong", "tg_other"):
        refused = service.ask("GET", "/whoami", token=wrong)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert service.ask("GET", "/whoami", token="tg_wrong", address="2001:db8::1").status_code == 401


def test_wrong_tokens_lock_no_operator_out(service: AdminService) -> None:
    """Behind an ingress all have one address; a fresh token was never seen before."""
    for i in range(20):
        service.ask("GET", "/whoami", token=f"tg_wrong{i}")
    for token in (service.tokens["operator"], service.make_token("admin")):
        assert service.ask("GET", "/whoami", token=token).status_code == 200


def test_a_wrong_token_of_an_address_that_waits_is_not_looked_up(service: AdminService) -> None:
    for _ in range(10):
        service.ask("GET", "/whoami", token="tg_wrong")
    service.run("ALTER TABLE api_tokens RENAME TO lost")
    assert service.ask("GET", "/whoami", token="tg_wrong").status_code == 429
    assert service.ask("GET", "/whoami", token="tg_unknown").status_code == 503


def test_a_token_that_becomes_right_is_looked_up_though_its_address_waits() -> None:
    """A token of an issuer is wrong until the issuer's new keys are known."""
    seconds = 0.0
    attempts = Attempts("10/hour", "tg-test", clock=lambda: seconds)
    for i in range(10):
        attempts.note_wrong(f"early{i}", "192.0.2.1")
    with pytest.raises(ProblemError) as caught:
        attempts.check("early0", "192.0.2.1")
    assert caught.value.status == 429
    seconds = 30.0
    attempts.check("early0", "192.0.2.1")
    with pytest.raises(ProblemError):
        attempts.note_wrong("early0", "192.0.2.1")
    with pytest.raises(ProblemError):
        attempts.check("early0", "192.0.2.1")


def test_addresses_of_one_ipv6_network_fail_together(service: AdminService) -> None:
    statuses = [
        service.ask("GET", "/whoami", token="tg_wrong", address=f"2001:db8::{i:x}").status_code
        for i in range(1, 13)
    ]
    assert statuses == [401] * 10 + [429] * 2


def test_the_log_says_how_to_make_the_first_token(
    service: AdminService, caplog: pytest.LogCaptureFixture
) -> None:
    service.run("DELETE FROM api_tokens")
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        for _ in range(3):
            assert service.ask("GET", "/whoami", role=None).status_code == 401
            assert service.ask("GET", "/whoami").status_code == 401
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, "once a minute"
    assert "tidegate tokens create" in said[0]


def test_the_log_says_nothing_if_a_token_exists(
    service: AdminService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        service.ask("GET", "/whoami", role=None)
    assert caplog.records == []


def test_without_its_database_the_api_answers_503_and_stays_closed(service: AdminService) -> None:
    service.run("ALTER TABLE api_tokens RENAME TO lost")
    answer = service.ask("GET", "/whoami")
    assert answer.status_code == 503
    assert "Retry-After" in answer.headers


def test_the_client_of_a_trusted_proxy_waits_alone_and_is_in_the_audit_log(
    service: AdminService,
) -> None:
    service.app = behind_proxies(service.app, ["10.0.0.0/8"])

    def ask(token: str, client: str, proxy: str = "10.1.2.3", path: str = "/whoami") -> int:
        headers = {"X-Forwarded-For": f"203.0.113.9, {client}"}
        return service.ask("GET", path, token=token, headers=headers, address=proxy).status_code

    assert [ask("tg_wrong", "192.0.2.1") for _ in range(11)] == [401] * 10 + [429]
    assert ask("tg_wrong", "192.0.2.2") == 401, "another client of the same proxy"
    # Nobody else chooses the address that waits.
    strangers = [ask("tg_wrong", f"192.0.2.{i}", proxy="198.51.100.1") for i in range(3, 14)]
    assert strangers == [401] * 10 + [429]
    headers = {"X-Forwarded-For": "198.51.100.7"}
    body = {"name": "made", "role": "viewer"}
    made = service.ask("POST", "/tokens", body, headers=headers, address="10.1.2.3")
    assert made.status_code == 201, made.text
    assert service.audit()[-1]["remote"] == "198.51.100.7"
