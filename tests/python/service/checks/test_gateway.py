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


def asked(uri: str, *more: tuple[str, str], method: str = "GET") -> list[tuple[str, str]]:
    known = [("x-original-uri", uri), ("x-original-method", method), ("x-real-ip", "192.0.2.1")]
    return [*known, *more]


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
        "/api/posts;v=1",
        "/api;v=1;w/posts%3Bv=1?page=2",
        "/x/..;/api/posts",
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


def test_headers_name_the_method_and_the_key() -> None:
    service = Service(RULES)
    ask = asked("/", ("x-api-key", "k"), method="POST")
    assert [service.http("GET", PATH, ask)[0] for _ in range(2)] == [204, 429]
    other = asked("/", ("x-api-key", "k"), method="GET")
    assert service.http("GET", PATH, other)[0] == 204


@pytest.mark.parametrize("told", ["endpoint", "method"])
def test_a_request_without_an_attribute_that_rules_need_is_refused(told: str) -> None:
    header = {"endpoint": "x-original-uri", "method": "x-original-method"}[told]
    headers = [each for each in asked("/api/posts") if each[0] != header]
    status, _, body = Service(RULES).http("GET", PATH, headers)
    assert status == 400
    said = f"no header names the {told} of the request, which the rules need; expected {header}"
    assert said.encode() in body
    other = Service(RULES, auth_headers=[("X-Real-Ip", "ip")])
    assert other.http("GET", PATH, headers)[0] == 400
    by_address = Service({"rules": [{"id": "address", "by": "ip", "limit": "2/minute"}]})
    assert by_address.http("GET", PATH, headers)[0] == 204


def test_a_request_without_a_method_does_not_escape_a_list() -> None:
    rules = {"block": [{"id": "read-only", "methods": ["DELETE"]}]}
    headers = [("x-original-uri", "/")]
    assert Service(rules).http("GET", PATH, headers)[0] == 400
    asked = [*headers, ("x-original-method", "DELETE")]
    assert Service(rules).http("GET", PATH, asked)[0] == 429


def test_parameters_stay_if_a_rule_has_some() -> None:
    rules = {"rules": [{"id": "v1", "endpoint": "/api;v=1", "limit": "1/minute"}]}
    service = Service(rules)
    for uri, status in (("/api;v=1", 204), ("/api;v=1", 429), ("/api;v=2", 204), ("/api", 204)):
        assert service.http("GET", PATH, [("x-original-uri", uri)])[0] == status


def test_only_configured_headers_name_users_and_tiers() -> None:
    rules = {"rules": [{"id": "user", "by": "user", "limit": "1/minute"}]}
    ask = [("x-user", "42"), ("x-forwarded-uri", "/")]
    service = Service(rules)
    assert [service.http("GET", PATH, ask)[0] for _ in range(2)] == [204, 204]
    service = Service(rules, auth_headers=[("X-User", "user"), ("X-Forwarded-Uri", "endpoint")])
    assert [service.http("GET", PATH, ask)[0] for _ in range(2)] == [204, 429]


def test_the_answer_to_an_unlimited_request_has_no_fields() -> None:
    told = [("x-original-uri", "/x"), ("x-original-method", "GET")]
    status, headers, _ = Service(RULES).http("GET", PATH, told)
    assert status == 204
    assert not [name for name in headers if "ratelimit" in name]
