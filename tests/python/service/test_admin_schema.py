"""Calls every route of the admin API as its OpenAPI document describes, and in other ways."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pytest
from admin_client import BASE, AdminService, add_api_rule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

METHODS = ("get", "post", "put", "delete")
TEXTS = st.sampled_from(
    [
        "",
        "42",
        "api",
        "free",
        "\u20ac",
        "=1+1",
        "a/b",
        "2030-01-31T12:00:00Z",
        "100/minute",
        "x" * 300,
    ]
)
JUNK = st.sampled_from([None, True, 0, -1, 2**63, 1.5, "", [], {}, [None], {"x": {"x": []}}])
# The most requests to a route with many parameters, so that the tests end soon.
EXAMPLES = 8


def values_of(schema: dict[str, Any], parts: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Returns values that nearly fit a schema: a number may lie outside its bounds."""
    if "$ref" in schema:
        return values_of(parts[schema["$ref"].rpartition("/")[2]], parts)
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return st.one_of([values_of(each, parts) for each in schema[name]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of([values_of({**schema, "type": each}, parts) for each in kind])
    if kind == "object":
        return _objects_of(schema, parts)
    if kind == "array":
        return st.lists(values_of(schema.get("items", {}), parts), max_size=2)
    if kind == "integer":
        least, most = schema.get("minimum", -3), schema.get("maximum", 5)
        return st.sampled_from([least, most, least - 1, most + 1, 1])
    simple = {"string": TEXTS, "boolean": st.booleans(), "null": st.none()}
    return simple.get(kind or "", JUNK)


def _objects_of(schema: dict[str, Any], parts: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = schema.get("properties")
    if not fields:
        inner = schema.get("additionalProperties")
        inner = inner if isinstance(inner, dict) else {}
        return st.dictionaries(st.sampled_from(["user", "id", "api"]), values_of(inner, parts))
    needed = set(schema.get("required", ()))
    known = {name: values_of(each, parts) for name, each in fields.items()}
    return st.fixed_dictionaries(
        {name: known[name] for name in known if name in needed},
        optional={name: known[name] for name in known if name not in needed},
    )


def _body_of(operation: dict[str, Any], parts: dict[str, Any]) -> st.SearchStrategy[Any]:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return st.none()
    described = content["application/json"]
    strategies = [values_of(described.get("schema", {}), parts), JUNK]
    examples = [*described.get("schema", {}).get("examples", ())]
    if "$ref" in described.get("schema", {}):
        name = described["schema"]["$ref"].rpartition("/")[2]
        examples += parts[name].get("examples", [])
    if examples:
        strategies.append(st.sampled_from(examples))
    return st.one_of(strategies)


def requests_of(
    path: str, operation: dict[str, Any], parts: dict[str, Any]
) -> st.SearchStrategy[tuple[str, dict[str, str], dict[str, str], Any]]:
    """Returns the path, the query, the headers and the body of requests of an operation."""
    by_place: dict[str, dict[str, st.SearchStrategy[Any]]] = {"path": {}, "query": {}, "header": {}}
    for each in operation.get("parameters", ()):
        by_place[each["in"]][each["name"]] = values_of(each["schema"], parts)
    places = st.fixed_dictionaries(by_place["path"])
    query = st.fixed_dictionaries({}, optional=by_place["query"])
    headers = st.fixed_dictionaries(
        {}, optional=dict.fromkeys(by_place["header"], st.sampled_from(["*", '"1"', "x"]))
    )

    def made(of: tuple[Any, Any, Any, Any]) -> tuple[str, dict[str, str], dict[str, str], Any]:
        filled = path
        for name, value in of[0].items():
            filled = filled.replace(f"{{{name}}}", urllib.parse.quote(_text(value), safe=""))
        asked = {name: _text(value) for name, value in of[1].items() if value is not None}
        return filled, asked, of[2], of[3]

    return st.tuples(places, query, headers, _body_of(operation, parts)).map(made)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _operations(service: AdminService) -> list[tuple[str, str, dict[str, Any]]]:
    described = service.ask("GET", "/openapi.json").json()
    return [
        (method, path, operation)
        for path, of_path in described["paths"].items()
        for method, operation in of_path.items()
        if method in METHODS
    ]


NAMES = [
    "anomalies",
    "audit",
    "quotas",
    "ratelimit/costs",
    "ratelimit/document",
    "ratelimit/explain",
    "ratelimit/invalidate",
    "ratelimit/lists",
    "ratelimit/overrides",
    "ratelimit/reset",
    "ratelimit/rules",
    "ratelimit/versions",
    "settings",
    "tokens",
    "upgrade-requests",
    "users",
    "whoami",
]


def _name_of(path: str) -> str:
    first, _, rest = path.removeprefix(f"{BASE}/").partition("/")
    name = f"{first}/{rest.partition('/')[0]}" if first == "ratelimit" else first
    return name.partition(".")[0]


def test_every_route_has_a_test(service: AdminService) -> None:
    assert sorted({_name_of(path) for _, path, _ in _operations(service)}) == NAMES


def test_every_route_documents_its_role_and_its_errors(service: AdminService) -> None:
    for method, path, operation in _operations(service):
        assert operation["x-tidegate-role"] in ("viewer", "operator", "admin"), (method, path)
        assert {"401", "403", "422", "503"} <= set(operation["responses"]), (method, path)
        assert operation["description"], (method, path)


@pytest.mark.parametrize("name", NAMES)
def test_no_request_makes_the_service_fail(service: AdminService, name: str) -> None:
    add_api_rule(service)
    add_api_rule(service, id="monthly", endpoints=["/paid"], limits="quota 100/month")
    parts = service.ask("GET", "/openapi.json").json()["components"]["schemas"]
    for method, path, operation in _operations(service):
        if _name_of(path) == name:
            _ask_often(service, method.upper(), operation, requests_of(path, operation, parts))


def _ask_often(
    service: AdminService, method: str, operation: dict[str, Any], requests: Any
) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests)
    def ask(request: Any) -> None:
        target, query, headers, body = request
        path = target.removeprefix(BASE)
        answer = service.ask(method, path, body, headers=headers, params=query)
        case = (method, target, query, headers, body, answer.text)
        assert str(answer.status_code) in {*operation["responses"], "405"}, case
        assert answer.status_code < 500, case
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json", case
            assert answer.json()["detail"], case

    ask()
