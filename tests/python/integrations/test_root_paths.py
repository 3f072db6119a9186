"""A route that ran is the one whose rule counted, however a release of Starlette reads `root_path`.

Releases before 0.33 match the whole path, and those from 0.33 to 0.39 take the root path for a
regular expression. Routes answer their own path here, so the tests hold for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import tidegate as tg
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from tidegate.asgi import RateLimitMiddleware
from tidegate.rules import RuleSet
from tidegate.starlette import route_path
from tidegate.web import router_paths
from tidegate.web.router_paths import path_reader_of

ROUTES = ["/items", "/behind/items", "/v1.0/items", "/v1x0/items", "/behind/behind/items"]
TARGETS = [*ROUTES, "/behind/v1.0/items", "/v1.0/behind/items", "/v1x0/v1x0/items", "/behinditems"]
RULES = RuleSet(
    {"rules": [{"id": path, "by": "ip", "endpoint": path, "limit": "9/hour"} for path in ROUTES]}
)


def routes() -> list[Route]:
    def answering(path: str) -> Route:
        async def answer(request: Any) -> PlainTextResponse:
            return PlainTextResponse(path)

        return Route(path, answer)

    return [answering(path) for path in ROUTES]


def service(root: str, routes: list[Route] | None = None) -> FastAPI:
    app = FastAPI(routes=routes)
    app.root_path = root  # the argument is deprecated
    return app


def inside(root: str, **options: Any) -> TestClient:
    app = service(root, routes())
    app.add_middleware(RateLimitMiddleware, **options)
    return TestClient(app)


def around(root: str, **options: Any) -> TestClient:
    app = CORSMiddleware(service(root, routes()))
    return TestClient(RateLimitMiddleware(app, **options), root_path=root)


def in_a_mount(root: str, **options: Any) -> TestClient:
    app: Any = RateLimitMiddleware(Starlette(routes=routes()), **options)
    if root:
        app = Starlette(routes=[Mount(root, app), Mount("", app)])
    return TestClient(app)


WAYS = pytest.mark.parametrize("make", [inside, around, in_a_mount])
ROOTS = pytest.mark.parametrize("root", ["", "/behind", "/v1.0"])


@WAYS
@ROOTS
def test_the_rule_of_the_route_that_ran_has_counted(make: Any, root: str) -> None:
    client = make(root, rules=RULES, clock=tg.ManualClock())
    ran = 0
    for target in TARGETS:
        answer = client.get(target)
        if answer.status_code == 200:
            ran += 1
            assert f'"{answer.text}"' in answer.headers["ratelimit-policy"], target
    assert ran >= 2


@WAYS
@ROOTS
def test_the_path_of_the_route_that_ran_is_exempt_and_no_other(make: Any, root: str) -> None:
    ran = 0
    for exempt in ROUTES:
        client = make(root, limit="99/hour", exempt_paths=[exempt], clock=tg.ManualClock())
        for target in TARGETS:
            answer = client.get(target)
            if answer.status_code == 200:
                ran += 1
                assert ("ratelimit" not in answer.headers) == (answer.text == exempt), target
    assert ran >= 10


@ROOTS
def test_a_mounted_application_without_routes_has_the_path_that_found_it(root: str) -> None:
    app = service(root)

    async def rest(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("rest")(scope, receive, send)

    for path in ("/behind", "/v1x0"):
        app.mount(path, rest)
    rules = [
        {"id": f"{path}/**", "by": "ip", "endpoint": f"{path}/**", "limit": "9/hour"}
        for path in ("/behind", "/v1x0")
    ]
    app.add_middleware(
        RateLimitMiddleware,
        rules=RuleSet({"rules": rules}),
        attributes={"endpoint": route_path},
        clock=tg.ManualClock(),
    )
    client = TestClient(app)
    for target in ("/behind/page", "/behind/behind/page", "/v1x0/page", "/v1.0/v1x0/page"):
        answer = client.get(target)
        assert (answer.text == "rest") == ("ratelimit-policy" in answer.headers), target


@pytest.fixture(params=["before 0.33", "before 0.40"])
def _older(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Routes that read paths as older releases did; the oldest have no such function to replace."""

    def whole(scope: Any) -> str:
        return str(scope["path"])

    def without_pattern(scope: Any) -> str:
        return re.sub("^" + scope.get("root_path", ""), "", scope["path"])

    reads = whole if request.param == "before 0.33" else without_pattern
    monkeypatch.setattr("starlette.routing.get_route_path", reads, raising=False)
    router_paths._root_reader_of_starlette.cache_clear()
    yield
    router_paths._root_reader_of_starlette.cache_clear()


@ROOTS
@pytest.mark.usefixtures("_older")
def test_the_rule_of_the_route_that_ran_has_counted_with_older_releases(root: str) -> None:
    def around_starlette(root: str, **options: Any) -> TestClient:
        app = RateLimitMiddleware(Starlette(routes=routes()), **options)
        return TestClient(app, root_path=root)

    test_the_rule_of_the_route_that_ran_has_counted(around_starlette, root)
    test_the_path_of_the_route_that_ran_is_exempt_and_no_other(around_starlette, root)


def test_middleware_of_starlette_around_another_application_is_no_router() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise NotImplementedError

    assert path_reader_of(CORSMiddleware(app)) is None
