"""POST /v1/ratelimit/check and GET /v1/ratelimit/status/{userId}."""

from __future__ import annotations

from typing import Any

import pytest
from check_service import API, JSON, Service, api_rule, rules_of_tiers
from service_testing import call
from tidegate.server import _native


def test_an_allowed_check_has_the_seven_members() -> None:
    service = Service()
    status, headers, answer = service.check(
        {"userId": "42", "apiKey": "k", "endpoint": "/api/posts", "tier": "premium"}
    )
    assert status == 200
    assert answer == {
        "allowed": True,
        "limit": 5,
        "remaining": 4,
        "resetTime": 1_700_000_013,
        "retryAfter": None,
        "degraded": False,
        "rule": "api",
    }
    assert headers["content-type"] == "application/json"
    assert headers["x-ratelimit-limit"] == "5"
    assert headers["x-ratelimit-remaining"] == "4"
    assert headers["x-ratelimit-reset"] == "1700000013"
    assert "retry-after" not in headers


def test_a_refusal_has_the_status_200_and_the_wait() -> None:
    service = Service()
    ask = {"userId": "42", "endpoint": "/api/posts", "cost": 2}
    assert service.check(ask)[2]["allowed"]
    status, headers, answer = service.check(ask)
    assert status == 200
    assert (answer["allowed"], answer["remaining"], answer["retryAfter"]) == (False, 0, 60)
    assert headers["retry-after"] == "60"
    service.clock.advance(59.9)
    assert not service.check(ask)[2]["allowed"]
    service.clock.advance(0.1)
    assert service.check(ask)[2]["allowed"]


def test_a_refusal_has_the_status_429_if_configured() -> None:
    service = Service(refused_status=429)
    ask = {"userId": "42", "endpoint": "/api/posts", "cost": 2}
    assert [service.check(ask)[0] for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("cost", [b"2", b"2.0", b"0.2e1", b"20e-1"])
def test_a_cost_is_a_whole_number_however_it_is_written(cost: bytes) -> None:
    body = b'{"userId": "42", "endpoint": "/api/x", "tier": "premium", "cost": %b}' % cost
    assert Service().check(body)[2]["remaining"] == 3


def test_a_cost_above_the_limit_has_no_wait() -> None:
    _, headers, answer = Service().check({"userId": "42", "endpoint": "/api/x", "cost": 3})
    assert (answer["allowed"], answer["retryAfter"]) == (False, None)
    assert "retry-after" not in headers


def test_a_request_without_a_rule_is_not_limited() -> None:
    _, headers, answer = Service().check({"userId": "42", "endpoint": "/other"})
    assert answer == {
        "allowed": True,
        "limit": None,
        "remaining": None,
        "resetTime": None,
        "retryAfter": None,
        "degraded": False,
        "rule": None,
    }
    assert "x-ratelimit-limit" not in headers


def test_members_may_be_null() -> None:
    service = Service()
    asked = {"userId": "42", "endpoint": "/api/x", "tier": None, "cost": None, "attributes": None}
    assert service.check(asked)[2]["remaining"] == 1


def test_attributes_may_have_any_names() -> None:
    rules = {"rules": [{"id": "tenants", "by": ["tenant", "user"], "limit": "1/minute"}]}
    service = Service(rules)

    def ask(tenant: str, user: str) -> bool:
        body = {"userId": user, "attributes": {"tenant": tenant, "unknown": "x"}}
        return bool(service.check(body)[2]["allowed"])

    assert ask("a", "1")
    assert not ask("a", "1")
    assert ask("b", "1")
    assert ask("a", "2")


def test_outcomes_are_returned_if_requested() -> None:
    rules = {
        "rules": [
            {"id": "both", "by": "user", "limit": ["2/minute", "9/hour"]},
            {"id": "trial", "by": "user", "limit": "1/day", "shadow": True, "endpoint": "/new"},
        ]
    }
    service = Service(rules)
    answer = service.check({"userId": "42", "outcomes": True})[2]
    assert [(o["name"], o["rule"], o["remaining"]) for o in answer["outcomes"]] == [
        ("both:2/minute", "both", 1),
        ("both:9/hour", "both", 8),
    ]
    assert "outcomes" not in service.check({"userId": "42"})[2]
    assert [
        o["shadow"]
        for o in service.check({"userId": "1", "endpoint": "/new", "outcomes": True})[2]["outcomes"]
    ] == [True, False, False]


BAD_BODIES: list[tuple[bytes, str]] = [
    (b"", "the body has nothing"),
    (b"{", "malformed JSON"),
    (b"[]", "the body is an array; expected an object"),
    (b'"text"', "the body is a string; expected an object"),
    (b'{"userId": 42}', "the member 'userId' is a number; expected a string"),
    (b'{"userId": ["42"]}', "the member 'userId' is an array; expected a string"),
    (b'{"endpoint": true}', "the member 'endpoint' is a boolean; expected a string"),
    (b'{"user": "42"}', "the member 'user' is not known; expected userId"),
    (b'{"userId": "1", "userId": "2"}', "the member 'userId' was given twice"),
    (b'{"userId": "1", "attributes": {"user": "2"}}', "the member 'user' was given twice"),
    (b'{"cost": 1, "cost": 1}', "the member 'cost' was given twice"),
    (b'{"attributes": {"a": "1", "a": "1"}}', "the member 'a' was given twice"),
    (b'{"cost": 0}', "the cost is 0; expected an integer from 1 to 9007199254740991"),
    (b'{"cost": -1}', "the cost is -1; expected"),
    (b'{"cost": 9007199254740992}', "the cost is 9007199254740992; expected"),
    (b'{"cost": 18446744073709551615}', "the cost is 2^63 or more; expected"),
    (b'{"cost": 99999999999999999999}', "a number that is malformed or out of range"),
    (b'{"cost": 1.5}', "the cost is a number with a fraction; expected an integer"),
    (b'{"cost": -1e-3}', "the cost is a number with a fraction; expected an integer"),
    (b'{"cost": 0e9}', "the cost is 0; expected an integer"),
    (b'{"cost": 1e16}', "the cost is 10000000000000000; expected an integer"),
    (b'{"cost": 1e300}', "the cost is 2^63 or more; expected an integer"),
    (b'{"cost": -1e300}', "the cost is less than -2^63; expected an integer"),
    (b'{"cost": "1"}', "the cost is a string; expected an integer"),
    (b'{"attributes": "a"}', "the member 'attributes' is a string; expected an object"),
    (b'{"attributes": {"a": 1}}', "the member 'a' is a number; expected a string"),
    (b'{"attributes": {"": "1"}}', "the name of an attribute has 0 bytes; expected 1 to 255"),
    (b'{"outcomes": 1}', "the member 'outcomes' is a number; expected true or false"),
    (b'{"userId": "\xff"}', "bytes that are not UTF-8"),
    (b'{"userId": "\\ud800"}', "expected"),
    (b'{"userId": "\\udc00"}', "expected"),
    (b'{"userId": "a\nb"}', "control characters in a string"),
    (b'{"attributes": {"a": {"b": {"c": {}}}}}', "expected"),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, "values that are nested too deeply"),
    (b'{"userId": "42"} x', "malformed JSON"),
    (b'{"endpoint": "' + b"x" * 9000 + b'"}', "has 9000 bytes; expected at most 8192"),
]


@pytest.mark.parametrize(("body", "expected"), BAD_BODIES, ids=[b[:30] for b, _ in BAD_BODIES])
def test_a_bad_body_is_refused_with_a_reason(body: bytes, expected: str) -> None:
    service = Service()
    status, headers, answer = service.check(body)
    assert status == 400
    assert headers["content-type"] == "application/problem+json"
    assert (answer["type"], answer["title"], answer["status"]) == (
        "about:blank",
        "Bad Request",
        400,
    )
    assert expected in answer["detail"]
    assert "expected" in answer["detail"]
    assert service.native.stats()["malformed"] == 1


def test_too_many_attributes_are_refused() -> None:
    body = {"attributes": {f"a{i}": "x" for i in range(65)}}
    status, _, answer = Service().check(body)
    assert (status, answer["detail"]) == (
        400,
        "more than 64 attributes were given; expected at most that many",
    )


def test_a_body_of_more_than_64_kib_is_refused() -> None:
    status, _, answer = Service().check(b" " * 65_537)
    assert status == 413
    assert answer["detail"] == "the body has 65537 bytes; expected at most 65536"


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/jsonx", "application/x"])
def test_another_content_type_than_json_is_refused(content_type: str) -> None:
    status, _, answer = Service().check({"userId": "1"}, [("content-type", content_type)])
    assert status == 415
    assert answer["detail"] == f"the content type is '{content_type}'; expected application/json"


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"]
)
def test_the_content_type_may_have_parameters(content_type: str) -> None:
    assert Service().check({"userId": "1"}, [("content-type", content_type)])[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/ratelimit/check", "POST"),
        ("POST", "/v1/ratelimit/status/42", "GET"),
        ("DELETE", "/v1/ratelimit/auth", "GET, POST"),
    ],
)
def test_a_wrong_method_is_refused_with_the_right_ones(method: str, path: str, allow: str) -> None:
    status, headers, _ = Service().http(method, path, JSON)
    assert (status, headers["allow"]) == (405, allow)


@pytest.mark.parametrize(
    "path", ["/", "/v1/ratelimit", "/v1/ratelimit/checks", "/v1/ratelimit/check/"]
)
def test_an_unknown_path_is_not_found(path: str) -> None:
    assert Service().http("POST", path, JSON)[0] == 404


def test_a_method_of_grpc_is_refused_over_rest() -> None:
    service = Service()
    assert service.http("POST", "/tidegate.v1.RateLimiter/Check")[0] == 415
    code, _, _ = call(service.native, "POST", "/v1/ratelimit/check", JSON, b"{}", grpc=True)
    assert code == 12


STATUS = rules_of_tiers(
    {
        "id": "posts",
        "by": ["user", "endpoint"],
        "endpoint": ["/api/posts", "/api/{id}/likes"],
        "limits": {"free": "5/minute", "premium": "50/minute"},
    },
    api_rule(free="10/minute"),
    {"id": "paid", "by": "user", "endpoint": "/paid", "limits": {"premium": "7/minute"}},
    {"id": "any", "by": ["user", "endpoint"], "endpoint": "/any/*", "limit": "3/minute"},
    {"id": "all", "by": "user", "limit": ["100/hour", "20/minute"]},
    {"id": "addresses", "by": "ip", "limit": "1/minute"},
)


def rows_of(answer: Any) -> list[tuple[str, str, int | None, int | None]]:
    return [(r["rule"], r["endpoint"], r["limit"], r["remaining"]) for r in answer["rules"]]


def test_the_status_has_what_each_rule_leaves_to_the_user() -> None:
    service = Service(STATUS)
    for endpoint in ("/api/posts", "/api/posts", "/api/7/likes", "/elsewhere"):
        assert service.check({"userId": "42", "endpoint": endpoint})[2]["allowed"]
    status, answer = service.status("42")
    assert status == 200
    assert rows_of(answer) == [
        ("posts", "/api/posts", 5, 3),
        ("posts", "/api/{id}/likes", 5, 4),
        ("api", "/api/**", 10, 7),
        ("all", "*", 20, 19),
    ]
    assert answer["degraded"] is False
    assert service.status("42") == (200, answer), "it charges nothing"
    assert rows_of(service.status("43")[1])[0] == ("posts", "/api/posts", 5, 5)


def test_the_status_uses_the_tier_of_the_table_or_the_query() -> None:
    service = Service(STATUS)
    assert rows_of(service.status("42", "tier=premium")[1])[0] == ("posts", "/api/posts", 50, 50)
    service.native.set_tiers({"42": "premium"})
    assert [row[0] for row in rows_of(service.status("42")[1])] == ["posts", "posts", "paid", "all"]


def test_the_status_at_an_endpoint_has_the_rules_that_apply_there() -> None:
    service = Service(STATUS)
    service.check({"userId": "42", "endpoint": "/any/1"})
    assert rows_of(service.status("42", "endpoint=%2Fany%2F1")[1]) == [
        ("any", "/any/1", 3, 2),
        ("all", "/any/1", 20, 19),
    ]


def test_the_status_leaves_out_rules_in_shadow() -> None:
    trial = {"id": "trial", "by": "user", "limit": "1/day", "shadow": True}
    service = Service({"rules": [trial, {"id": "api", "by": "user", "limit": "5/day"}]})
    service.check({"userId": "42", "endpoint": "/a"})
    assert rows_of(service.status("42")[1]) == [("api", "*", 5, 4)]
    assert service.status("42")[1]["degraded"] is False


def test_the_status_names_the_list_that_a_user_is_on() -> None:
    rules = {**API, "block": [{"id": "abuse", "user": "42"}]}
    service = Service(rules)
    assert service.status("42")[1] == {
        "rules": [],
        "degraded": False,
        "list": {"name": "abuse", "allows": False},
    }
    assert service.check({"userId": "42", "endpoint": "/api/x"})[2]["allowed"] is False


def test_the_status_of_an_override_is_that_of_its_key() -> None:
    rules = {**API, "overrides": [{"rule": "api", "key": "42", "limit": "unlimited"}]}
    answer = Service(rules).status("42")[1]
    assert rows_of(answer) == [("api", "/api/**", None, None)]


@pytest.mark.parametrize(
    ("user", "known"), [("a%2Fb", "a/b"), ("%E2%82%AC", "\u20ac"), ("a+b", "a+b"), ("%2e%2E", "..")]
)
def test_the_user_of_a_path_is_decoded(user: str, known: str) -> None:
    service = Service()
    service.check({"userId": known, "endpoint": "/api/x"})
    assert rows_of(service.status(user)[1]) == [("api", "/api/**", 2, 1)]


@pytest.mark.parametrize(
    ("user", "query", "status"),
    [
        ("%", "", 400),
        ("%4", "", 400),
        ("%zz", "", 400),
        ("", "", 404),
        ("a/b", "", 404),
        ("42", "tier", 400),
        ("42", "tier=a&tier=b", 400),
        ("42", "userId=43", 400),
        ("42", "tier=%f", 400),
        ("42", "=x", 400),
    ],
)
def test_a_malformed_path_or_query_is_refused(user: str, query: str, status: int) -> None:
    answered, answer = Service().status(user, query)
    assert answered == status
    assert "expected" in answer["detail"]


@pytest.mark.parametrize(
    "spelling",
    ["/api/posts?x=1", "/api/posts?", "/api/posts#top", "/api/posts;v=1", "/api;v=1/posts;w?x"],
)
def test_a_query_or_parameters_do_not_escape_the_rule_of_a_path(spelling: str) -> None:
    rules = {"rules": [{"id": "posts", "endpoint": "/api/posts", "limit": "2/minute"}]}
    recorder = _native.Recorder()
    service = Service(rules, recorder=recorder)
    allowed = [service.check({"endpoint": each})[2]["allowed"] for each in ("/api/posts", spelling)]
    assert allowed == [True, True]
    assert service.check({"endpoint": "/api/posts"})[2]["allowed"] is False
    assert service.ask(attributes={"endpoint": spelling}).allowed is False
    assert {row[1] for row in recorder.drain()} == {"/api/posts"}


@pytest.mark.parametrize("endpoint", ["what?", "a;b", "GET /api?x"])
def test_an_endpoint_that_is_not_a_path_stays_unchanged(endpoint: str) -> None:
    rules = {"rules": [{"id": "it", "endpoint": endpoint, "limit": "1/minute"}]}
    service = Service(rules)
    allowed = [service.check({"endpoint": endpoint})[2]["allowed"] for _ in range(2)]
    assert allowed == [True, False]
