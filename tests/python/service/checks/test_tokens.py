"""The tokens that may call the service."""

from __future__ import annotations

import hashlib
from typing import Any

import check_wire as wire
import pytest
from check_service import JSON, OK, PERMISSION_DENIED, UNAUTHENTICATED, Service
from tidegate import ArgumentTypeError, ConfigurationError

ROLES = ["viewer", "check", "operator", "admin"]


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def service_with_tokens() -> Service:
    service = Service(require_token=True)
    service.native.set_tokens([(digest(f"token-{role}"), role) for role in ROLES])
    return service


def bearer(token: str) -> list[tuple[str, str]]:
    return [*JSON, ("authorization", f"Bearer {token}")]


def test_without_tokens_every_call_is_refused() -> None:
    service = Service(require_token=True)
    assert service.check({"userId": "1"}, bearer("x"))[0] == 401
    assert service.grpc("Check", b"", bearer("x"))[0] == UNAUTHENTICATED


@pytest.mark.parametrize(
    "headers",
    [
        JSON,
        [*JSON, ("authorization", "")],
        [*JSON, ("authorization", "Bearer")],
        [*JSON, ("authorization", "Bearer ")],
        [*JSON, ("authorization", "Basic token-check")],
        [*JSON, ("authorization", "token-check")],
        bearer("token-chec"),
        bearer("token-check2"),
        bearer("Token-check"),
        bearer("x" * 513),
    ],
    ids=range(10),
)
def test_without_a_valid_token_the_answer_says_how_to_give_one(headers: Any) -> None:
    service = service_with_tokens()
    status, answered, problem = service.check({"userId": "1"}, headers)
    assert status == 401
    assert answered["www-authenticate"].startswith('Bearer realm="tidegate"')
    assert answered["content-type"] == "application/problem+json"
    code, said, _ = service.grpc("Check", b"", headers)
    assert (code, said) == (UNAUTHENTICATED, problem["detail"])
    assert "token-check" not in said
    assert service.native.stats()["unauthorized"] == 2


def test_a_body_is_not_read_without_a_token() -> None:
    assert service_with_tokens().check(b"{", JSON)[0] == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_case_of_the_scheme_does_not_matter(scheme: str) -> None:
    headers = [*JSON, ("authorization", f"{scheme} token-check")]
    assert service_with_tokens().check({"userId": "1"}, headers)[0] == 200


@pytest.mark.parametrize(
    ("method", "least"),
    [
        ("Peek", "viewer"),
        ("Status", "viewer"),
        ("Check", "check"),
        ("Refund", "check"),
        ("Reset", "operator"),
    ],
)
def test_a_role_permits_what_lower_roles_permit(method: str, least: str) -> None:
    service = service_with_tokens()
    for role in ROLES:
        code, said, _ = service.grpc(method, wire.request({"user": "1"}), bearer(f"token-{role}"))
        if ROLES.index(role) >= ROLES.index(least):
            assert code == OK, said
        else:
            assert (code, said) == (
                PERMISSION_DENIED,
                f"the token has the role {role}; expected {least} or more",
            )


def test_a_viewer_may_read_a_status_but_not_check() -> None:
    service = service_with_tokens()
    assert service.status("42", headers=bearer("token-viewer"))[0] == 200
    assert service.check({"userId": "42"}, bearer("token-viewer"))[0] == 403
    assert service.native.stats()["forbidden"] == 1


def test_new_tokens_replace_the_old_ones_at_once() -> None:
    service = service_with_tokens()
    service.native.set_tokens([(digest("new"), "check")])
    assert service.check({"userId": "1"}, bearer("token-check"))[0] == 401
    assert service.check({"userId": "1"}, bearer("new"))[0] == 200


def test_tokens_are_ignored_if_none_is_required() -> None:
    assert Service().check({"userId": "1"}, bearer("anything"))[0] == 200


@pytest.mark.parametrize(
    "token", [(b"short", "check"), ("x" * 32, "check"), b"x" * 32, (b"x" * 32,)]
)
def test_a_malformed_digest_is_refused_without_being_shown(token: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a tuple of the 32 bytes") as raised:
        Service().native.set_tokens([token])
    assert "short" not in str(raised.value)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'root'.*expected viewer, check, operator or admin"
    ):
        Service().native.set_tokens([(b"x" * 32, "root")])
