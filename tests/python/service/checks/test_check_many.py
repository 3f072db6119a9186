"""POST /v1/ratelimit/check-many: a list of checks in one request, answered in the same order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from check_service import API, JSON, Service

MANY = "/v1/ratelimit/check-many"


def ask(
    service: Service, body: Any, headers: Any = JSON, method: str = "POST"
) -> tuple[int, dict[str, str], Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answered, content = service.http(method, MANY, headers, raw)
    return status, answered, json.loads(content)


def test_answers_are_those_of_single_checks_in_their_order() -> None:
    checks = [
        {"userId": "42", "endpoint": "/api/a"},
        {"userId": "43", "endpoint": "/api/a", "tier": "premium", "outcomes": True},
        {"userId": "42", "endpoint": "/api/a", "cost": 2},
        {"userId": "42", "endpoint": "/other"},
        {"userId": "44", "endpoint": "/api/a?page=2"},
        {"userId": "42", "endpoint": "/api/a"},
    ]
    status, headers, body = ask(Service(), {"checks": checks})
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert "x-ratelimit-limit" not in headers
    alone = Service()
    assert body == {"answers": [alone.check(each)[2] for each in checks]}
    assert [each["allowed"] for each in body["answers"]] == [True, True, False, True, True, True]


def test_the_status_is_200_even_if_single_refusals_have_another() -> None:
    service = Service(refused_status=429)
    one = {"userId": "42", "endpoint": "/api/a", "cost": 2}
    status, _, body = ask(service, {"checks": [one, one]})
    assert (status, [each["allowed"] for each in body["answers"]]) == (200, [True, False])


def test_each_check_has_the_tier_of_its_user() -> None:
    service = Service()
    service.native.set_tiers({"42": "premium"})
    checks = [{"userId": user, "endpoint": "/api/a"} for user in ("42", "43")]
    assert [each["limit"] for each in ask(service, {"checks": checks})[2]["answers"]] == [5, 2]


def test_a_thousand_checks_are_the_most() -> None:
    service = Service({"rules": [{"id": "all", "by": "user", "limit": "1000/minute"}]})
    answers = ask(service, {"checks": [{"userId": "42"}] * 1000})[2]["answers"]
    assert [each["remaining"] for each in answers] == list(range(999, -1, -1))
    status, _, problem = ask(service, {"checks": [{"userId": "43"}] * 1001})
    assert (status, "at most" in problem["detail"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"checks": []}, 400, "no checks"),
        ({}, 400, "missing"),
        ([], 400, "an array"),
        ({"checks": {}}, 400, "an object"),
        ({"checks": None}, 400, "null"),
        ({"checks": [{"userId": "42"}, 7]}, 400, "check 1: it is a number"),
        ({"checks": [{"userId": "42"}, {"cost": 0}]}, 400, "check 1: the cost is 0"),
        ({"checks": [{"userId": "42"}, {"what": 0}]}, 400, "check 1"),
        ({"checks": [{"userId": "42"}], "more": 1}, 400, "more"),
        (b'{"checks": [{"userId": "42"}], "checks": []}', 400, "twice"),
        (b'{"checks": [{"userId": "\\ud800"}]}', 400, "malformed string"),
        (b'{"checks": [{"userId": "42"', 400, "expected"),
        (b'{"checks":' + b"[" * 50, 400, "expected"),
        (b"", 400, "nothing"),
        (b" " * (512 * 1024 + 1), 413, "524289 bytes"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_charged(body: Any, status: int, said: str) -> None:
    service = Service()
    answered, headers, problem = ask(service, body)
    assert (answered, problem["status"]) == (status, status)
    assert headers["content-type"] == "application/problem+json"
    assert said in problem["detail"]
    assert service.check({"userId": "42", "endpoint": "/api/a"})[2]["remaining"] == 1


def test_a_wrong_type_method_or_token_is_refused() -> None:
    service = Service(require_token=True)
    good = {"checks": [{"userId": "42"}]}
    assert ask(service, good)[0] == 401
    assert ask(Service(), good, headers=[("content-type", "text/plain")])[0] == 415
    status, headers, _ = ask(Service(), good, method="GET")
    assert (status, headers["allow"]) == (405, "POST")


def test_attributes_have_the_same_bounds_as_in_a_single_check() -> None:
    many = {"attributes": {f"a{i}": "x" for i in range(65)}}
    assert ask(Service(), {"checks": [many]})[0] == 400
    deep = {"attributes": {"a": {"b": {"c": {}}}}}
    assert ask(Service(API), {"checks": [deep]})[0] == 400
