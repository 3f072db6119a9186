"""Limits hold if a release of a framework has other private parts; docs/adr/0009."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import fastapi.dependencies
import fastapi.routing
import pytest
from fastapi import Depends, FastAPI, Request, Response
from fastapi.testclient import TestClient
from starlette.routing import Match
from tidegate import rate_limit
from tidegate.fastapi import RateLimit, RateLimitExceeded, route_path
from tidegate.web.frameworks.fastapi_costs import settle_by_results_of
from tidegate.web.frameworks.fastapi_handlers import _past_the_limit


def test_without_fastapis_reading_of_signatures_a_decorated_route_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def page(number: int) -> dict[str, int]:
        return {"number": number}

    with monkeypatch.context() as patched:
        patched.setattr(fastapi.dependencies, "utils", SimpleNamespace())
        limited = rate_limit("1/minute")(page)
    assert "tidegate_request" in inspect.signature(limited).parameters
    app = FastAPI()
    app.get("/{number}")(limited)
    first, second = (TestClient(app).get("/7") for _ in range(2))
    assert (first.json(), second.status_code) == ({"number": 7}, 429)
    assert [each["name"] for each in app.openapi()["paths"]["/{number}"]["get"]["parameters"]] == [
        "number"
    ]


def test_without_starlettes_handlers_in_the_scope_a_dependency_refuses() -> None:
    scope = {"type": "http", "method": "GET", "client": ("192.0.2.1", 1), "headers": []}
    limit = RateLimit("1/minute")

    async def ask() -> Any:
        return await limit(Request(dict(scope)), Response())

    assert asyncio.run(ask()).allowed
    with pytest.raises(RateLimitExceeded) as refused:
        asyncio.run(ask())
    assert refused.value.status_code == 429
    assert refused.value.headers is not None
    assert refused.value.headers["retry-after"] == "60"


def test_without_the_names_of_fastapis_parameters_the_decorated_function_is_called() -> None:
    async def page() -> str:
        return "ok"

    limited = rate_limit("1/minute")(page)
    mark: Any = limited.__tidegate_rate_limit__  # type: ignore[attr-defined]
    names = {"request_param_name": "tidegate_request", "response_param_name": "own"}
    dependant = SimpleNamespace(dependencies=[], call=limited, **names)
    direct = _past_the_limit(dependant, mark)
    assert (direct.call, direct.request_param_name) == (page, None)
    assert direct.response_param_name == "own"
    assert (dependant.call, dependant.request_param_name) == (limited, "tidegate_request")
    for missing in ("dependencies", *names):
        rest = {name: value for name, value in vars(dependant).items() if name != missing}
        assert _past_the_limit(SimpleNamespace(**rest), mark) is None


@pytest.mark.parametrize("limit", ["a decorator", "a dependency"])
def test_without_the_function_that_makes_fastapis_handlers_routes_are_limited(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    handlers = inspect.unwrap(fastapi.routing.get_request_handler)
    monkeypatch.setattr(fastapi.routing, "get_request_handler", handlers)
    app = FastAPI()

    async def page() -> str:
        return "ok"

    if limit == "a decorator":
        app.get("/")(rate_limit("1/minute")(page))
    else:
        app.get("/", dependencies=[Depends(RateLimit("1/minute"))])(page)
    client = TestClient(app)
    answers = [client.get("/") for _ in range(2)]
    assert [each.status_code for each in answers] == [200, 429]
    assert [each.headers["x-ratelimit-remaining"] for each in answers] == ["0", "0"]


def test_a_route_without_a_function_to_wrap_is_left_alone() -> None:
    settle_by_results_of(None)
    settle_by_results_of(SimpleNamespace(dependant=SimpleNamespace()))


def test_without_fastapis_included_routers_a_route_is_its_path() -> None:
    class Included:
        original_router = None

        def matches(self, scope: Any) -> Any:
            return Match.FULL, {}

    scope = {"type": "http", "path": "/items/7", "app": SimpleNamespace(routes=[Included()])}
    assert route_path(scope) == "/items/7"
