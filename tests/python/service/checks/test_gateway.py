"""/v1/ratelimit/auth, which gateways ask about each request."""

from __future__ import annotations

import pytest
from check_service import Service

RULES = {
    "rules": [
        {"id": "address", "by": "ip", "endpoint": "/api/**", "limit": "2/minute"},
        {"id": "key", "by": "api_key", "methods": ["POST"], "limit": "1/hour"},
    ]
}
PATH = "/v1/ratelimit/auth"


def asked(uri: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [("x-original-uri", uri), ("x-real-ip", "192.0.2.1"), *more]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_allowed_request_is_answered_without_a_body(method: str) -> None:
    service = Service(RULES)
    status, headers, body = service.http(method, PATH, asked("/api/posts?page=2"))
    assert (status, body) == (204, b"")
    assert headers["x-ratelimit-limit"] == "2"
    assert headers["x-ratelimit-remaining"] == "1"
    assert headers["ratelimit-policy"] == '"address";q=2;w=60'
    assert headers["ratelimit"] == '"address";r=1;t=30'


@pytest.mark.parametrize("status", [429, 403, 401])
def test_a_refused_request_has_the_status_that_the_gateway_understands(status: int) -> None:
    service = Service(RULES, auth_refused_status=status)
    for expected in (204, 204, status):
        answered, headers, body = service.http("GET", PATH, asked("/api/posts"))
        assert (answered, body) == (expected, b"")
    assert headers["retry-after"] == "30"
    assert headers["ratelimit"] == '"address";r=0;t=30'


@pytest.mark.parametrize(
    "uri",
    [
        "/api/posts",
        "/api/%70osts",
        "/%61pi/posts?x=%zz",
        "//api//posts",
        "/x/../api/./posts",
        "/x/%2e%2e/api/posts",
        "/api%2Fposts",
        "https://example.com/api/posts#top",
        "/../../api/posts",
    ],
)
def test_no_spelling_of_a_path_escapes_its_rule(uri: str) -> None:
    service = Service(RULES)
    for _ in range(2):
        service.http("GET", PATH, asked("/api/posts"))
    assert service.http("GET", PATH, asked(uri))[0] == 429


@pytest.mark.parametrize("uri", ["/api/%zz", "/api/%", "api/posts", "?x=1"])
def test_a_malformed_uri_is_refused(uri: str) -> None:
    status, _, body = Service(RULES).http("GET", PATH, asked(uri))
    assert status == 400
    assert b"expected the URI of a request" in body


def test_a_header_that_was_sent_twice_is_refused() -> None:
    status, _, body = Service(RULES).http("GET", PATH, asked("/", ("x-real-ip", "192.0.2.2")))
    assert status == 400
    assert b"the header x-real-ip was sent twice; expected it once, from the gateway" in body


def test_methods_and_keys_are_told_by_headers() -> None:
    service = Service(RULES)
    ask = asked("/", ("x-original-method", "POST"), ("x-api-key", "k"))
    assert [service.http("GET", PATH, ask)[0] for _ in range(2)] == [204, 429]
    other = asked("/", ("x-original-method", "GET"), ("x-api-key", "k"))
    assert service.http("GET", PATH, other)[0] == 204


def test_users_and_tiers_are_told_by_the_headers_that_were_configured_alone() -> None:
    rules = {"rules": [{"id": "user", "by": "user", "limit": "1/minute"}]}
    ask = [("x-user", "42"), ("x-forwarded-uri", "/")]
    service = Service(rules)
    assert [service.http("GET", PATH, ask)[0] for _ in range(2)] == [204, 204]
    service = Service(rules, auth_headers=[("X-User", "user"), ("X-Forwarded-Uri", "endpoint")])
    assert [service.http("GET", PATH, ask)[0] for _ in range(2)] == [204, 429]


def test_a_request_that_no_rule_limits_has_no_fields() -> None:
    status, headers, _ = Service(RULES).http("GET", PATH, [("x-original-uri", "/x")])
    assert status == 204
    assert not [name for name in headers if "ratelimit" in name]
