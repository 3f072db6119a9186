"""Malformed requests get a clear 4xx, and never a 500."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from admin_client import BASE, AdminService, add_api_rule
from tidegate.rules import RuleFile
from tidegate.server.admin import document_routes
from tidegate.server.admin.app import create_admin

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "status", "said"),
    [
        (b"{", JSON, 400, "not JSON"),
        (b'{"name": "\xff"}', JSON, 400, "not UTF-8"),
        ('{"name": "a"}'.encode("utf-16"), JSON, 400, "not UTF-8"),
        (b'{"name": "a\x00"}', JSON, 400, "NUL"),
        (b'{"name": "a\\u0000"}', JSON, 400, "NUL"),
        (b'{"name\\u0000": "a"}', JSON, 400, "NUL"),
        (b'{"name": "\\ud800"}', JSON, 400, "surrogate"),
        (b'{"name": NaN}', JSON, 400, "NaN"),
        (b'{"name": 1, "name": 2}', JSON, 400, "given twice"),
        (b"[" * 100_000, JSON, 400, "deep"),
        (b"[" * 70 + b"]" * 70, JSON, 400, "deep"),
        (b"[" + b"9" * 10_000 + b"]", JSON, 400, "not JSON"),
        (b"\xef\xbb\xbf{}", JSON, 400, "not JSON"),
        (b"a=1", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
        (b"{}", {}, 415, "application/json"),
        (b"null", JSON, 422, "expected"),
        (b"[]", JSON, 422, "expected"),
        (b'"x"', JSON, 422, "expected"),
        (b"", JSON, 422, "missing"),
    ],
)
def test_bad_bodies_are_refused_with_a_reason(
    service: AdminService, content: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    answer = service.ask("POST", "/tokens", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.text
    assert service.ask("GET", "/whoami").status_code == 200


def test_the_place_of_a_wrong_value_has_no_types(service: AdminService) -> None:
    override = {"rule": "api", "key": None, "limits": "5/minute"}
    answer = service.ask("POST", "/ratelimit/overrides", override)
    assert answer.status_code == 422
    assert {each["where"] for each in answer.json()["problems"]} == {"key"}
    assert answer.json()["detail"].startswith("key is None; expected")


def test_large_bodies_are_refused_with_and_without_a_length(service: AdminService) -> None:
    service.app = create_admin(service.url, most_body_bytes=1000, now=service.clock)
    body = json.dumps({"name": "x" * 1000, "role": "viewer"}).encode()
    answer = service.ask("POST", "/tokens", content=body, headers=JSON)
    assert answer.status_code == 413
    assert "1000" in answer.json()["detail"]

    async def pieces() -> Any:
        for i in range(0, len(body), 100):
            yield body[i : i + 100]

    assert service.ask("POST", "/tokens", content=pieces(), headers=JSON).status_code == 413
    wrong = {**JSON, "Content-Length": "9" * 5000}
    assert service.ask("POST", "/tokens", content=b"{}", headers=wrong).status_code == 413


def test_a_body_that_does_not_arrive_is_answered_408(service: AdminService) -> None:
    app = create_admin(service.url, body_timeout=0.05, now=service.clock)
    sent: list[dict[str, Any]] = []

    async def ask() -> None:
        async def never() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        token = service.tokens["admin"].encode()
        scope = {
            "type": "http",
            "method": "POST",
            "path": f"{BASE}/tokens",
            "raw_path": f"{BASE}/tokens".encode(),
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer " + token)],
            "client": ("127.0.0.1", 1),
        }
        await app(scope, never, send)

    asyncio.run(asyncio.wait_for(ask(), 30))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize(
    "path",
    [
        "/users/%FF",
        "/users/a%00b",
        "/users/..%2f..%2fetc%2fpasswd",
        "/users/%2e%2e",
        "/ratelimit/rules/..%2fetc",
        "/ratelimit/rules/%00",
        "/ratelimit/rules/a%0Ab",
        "/ratelimit/rules/a%0A",
        "/users?tier=%FF",
        "/users?after=%00",
    ],
)
def test_bad_paths_and_queries_are_refused(service: AdminService, path: str) -> None:
    answer = service.ask("GET", path)
    assert answer.status_code == 400, answer.text
    assert "expected" in answer.json()["detail"]


def test_a_line_feed_at_the_end_of_a_path_is_not_ignored(service: AdminService) -> None:
    service.ask("PUT", "/users/42", {"tier": "free"})
    assert service.ask("DELETE", "/users/42%0A").status_code == 400
    assert service.ask("GET", "/users/42").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/users?limit=0",
        "/users?limit=1001",
        "/users?limit=x",
        "/audit?before=99999999999999999999",
        "/audit?since=1700000000",
        "/ratelimit/versions/0",
        "/ratelimit/versions/99999999999999999999",
        "/upgrade-requests?status=MAYBE",
    ],
)
def test_values_out_of_range_are_refused(service: AdminService, path: str) -> None:
    answer = service.ask("GET", path)
    assert answer.status_code == 422, answer.text
    assert answer.json()["problems"]


def test_a_time_outside_the_years_of_utc_is_refused(service: AdminService) -> None:
    token = {"name": "ci", "role": "viewer", "expires_at": "9999-12-31T23:59:59-14:00"}
    answer = service.ask("POST", "/tokens", json=token)
    assert answer.status_code == 422, answer.text
    assert "expected a time in the years 1 to 9999, in UTC too" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/document/validate", "/document/diff"])
def test_only_few_large_documents_are_read_at_a_time(
    service: AdminService, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_routes, "_LARGE", 200)
    monkeypatch.setattr(document_routes, "_LARGE_ONES", threading.BoundedSemaphore(1))
    rule = {"by": "user", "limits": "1/second"}
    small = {"rules": [{"id": "a", **rule}]}
    large = {"rules": [{"id": f"{i}", "endpoint": f"/{i}", **rule} for i in range(10)]}
    for _ in range(2):
        answer = service.ask("POST", f"/ratelimit{path}", json=large)
        assert answer.status_code == 200, answer.text
    with document_routes._LARGE_ONES:
        answer = service.ask("POST", f"/ratelimit{path}", json=large)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert service.ask("POST", f"/ratelimit{path}", json=small).status_code == 200


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("rules: [", "yaml"),
        ("a: &a [*a]", "yaml"),
        ("- 1", "yaml"),
        ("", "yaml"),
        ("!!python/object/apply:os.system ['true']", "yaml"),
        ("rules = [", "toml"),
        ("null", "json"),
    ],
)
def test_bad_documents_are_refused_with_a_reason(
    service: AdminService, text: str, kind: str
) -> None:
    headers = {"Content-Type": f"application/{kind}"}
    answer = service.ask(
        "POST", "/ratelimit/document/validate", content=text.encode(), headers=headers
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["valid"] is False
    assert answer.json()["problems"][0]["message"]
    put = {**headers, "If-Match": "*"}
    saved = service.ask("PUT", "/ratelimit/document", content=text.encode(), headers=put)
    assert saved.status_code == 422


def test_a_document_without_a_type_is_refused(service: AdminService) -> None:
    answer = service.ask("POST", "/ratelimit/document/validate")
    assert answer.status_code == 415


def test_the_answer_to_an_unexpected_failure_shows_no_internals(
    service: AdminService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(type(service.limiter), "explain", fail)
    answer = service.ask("POST", "/ratelimit/explain", {"attributes": {"user": "1"}})
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_a_change_stays_if_on_change_raises(service: AdminService) -> None:
    def fail(what: str, key: str | None) -> None:
        raise RuntimeError(what)

    service.app = create_admin(service.url, on_change=fail, now=service.clock)
    add_api_rule(service)


def test_rules_of_a_file_are_not_changed_in_the_database(
    service: AdminService, tmp_path: Path
) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": [{"id": "of-file", "limits": {"free": "7/minute"}}]}')
    source = RuleFile(file)
    service.app = create_admin(service.url, rules=source, now=service.clock)
    rule = {"id": "a", "limits": "1/s"}
    asked = (
        ("POST", "/ratelimit/rules", {"rules": [rule]}),
        ("PUT", "/ratelimit/rules/a", rule),
        ("DELETE", "/ratelimit/rules/a", None),
        ("PUT", "/ratelimit/document", {"rules": []}),
        ("POST", "/ratelimit/versions/1/rollback", None),
        ("POST", "/ratelimit/overrides", {"rule": "a", "key": "1", "limits": "1/s"}),
        ("GET", "/ratelimit/document", None),
        ("POST", "/ratelimit/document/diff", {"rules": []}),
    )
    for method, path, body in asked:
        answer = service.ask(method, path, body, headers={"If-Match": "*"})
        assert answer.status_code == 409, (method, path)
        assert "rules.json" in answer.json()["detail"]
    (listed,) = service.ask("GET", "/ratelimit/rules/free").json()["rules"]
    assert (listed["id"], listed["limits"]) == ("of-file", "7/minute")
    assert service.ask("PUT", "/users/42", {"tier": "gold"}).status_code == 422
    assert service.ask("PUT", "/users/42", {"tier": "free"}).status_code == 200
    source.close()


def test_the_description_of_the_api_names_roles_and_errors(service: AdminService) -> None:
    assert service.ask("GET", "/openapi.json", role=None).status_code == 401
    schema = service.ask("GET", "/openapi.json", role="viewer").json()
    assert schema["security"] == [{"bearer": []}]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation["x-tidegate-role"], (method, path)
            assert operation["description"], (method, path)
            assert "application/problem+json" in operation["responses"]["401"]["content"]
