"""The route that a framework found, as the endpoint of rules."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
import tidegate.fastapi
from fastapi import APIRouter, FastAPI, WebSocket
from fastapi.testclient import TestClient
from servers import finds_roots_in_paths
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router
from tidegate.asgi import RateLimitMiddleware
from tidegate.rules import RuleSet
from tidegate.starlette import route_path

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure()

from django.http import HttpRequest, HttpResponse
from django.test import Client as DjangoClient
from django.test import RequestFactory, override_settings
from django.urls import include, path, re_path
from tidegate.django import route_path as route_path_of_django


class Seen:
    """Middleware that notes what route_path() returns, where rules would ask for it."""

    def __init__(self, app: Any, seen: list[str]) -> None:
        self.app = app
        self.seen = seen

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            self.seen.append(route_path(scope))
        await self.app(scope, receive, send)


def a_service() -> tuple[FastAPI, list[str]]:
    v1 = APIRouter(prefix="/v1")
    users = APIRouter(prefix="/users")
    app, shop = FastAPI(), FastAPI()

    @v1.get("/items/{id}")
    def item(id: int) -> int:
        return id

    @users.post("/{user}/posts/{post}")
    def post(user: str, post: str) -> str:
        return post

    @app.get("/top")
    def top() -> int:
        return 1

    @app.websocket("/rooms/{room}")
    async def room(websocket: WebSocket, room: str) -> None:
        await websocket.accept()
        await websocket.close()

    @shop.get("/files/{rest:path}")
    def files(rest: str) -> str:
        return rest

    v1.include_router(users)
    app.include_router(v1, prefix="/api")
    app.mount("/shop", shop)
    app.mount("/other", lambda scope, receive, send: PlainTextResponse("")(scope, receive, send))
    seen: list[str] = []
    app.add_middleware(Seen, seen=seen)
    return app, seen


@pytest.mark.parametrize("root_path", ["", "/behind"])
@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/top", "/top"),
        ("POST", "/top", "/top"),  # 405
        ("GET", "/api/v1/items/7", "/api/v1/items/{id}"),
        ("GET", "/api/v1/items/%37", "/api/v1/items/{id}"),
        ("GET", "/api/v1/items/seven", "/api/v1/items/{id}"),  # 422
        ("POST", "/api/v1/users/ada/posts/9", "/api/v1/users/{user}/posts/{post}"),
        ("DELETE", "/api/v1/users/ada/posts/9", "/api/v1/users/{user}/posts/{post}"),
        ("GET", "/shop/files/a/b", "/shop/files/{rest}"),
        ("GET", "/shop/nothing", "/shop/nothing"),
        ("GET", "/other/place", "/other/place"),
        ("GET", "/nothing", "/nothing"),
    ],
)
def test_the_route_path_of_fastapi(root_path: str, method: str, target: str, expected: str) -> None:
    app, seen = a_service()
    # What is in front of older releases takes the root path away.
    in_front = root_path if finds_roots_in_paths() else ""
    TestClient(app, root_path=root_path).request(method, in_front + target)
    assert seen == [expected]


def test_the_route_path_of_a_websocket() -> None:
    app, seen = a_service()
    with TestClient(app).websocket_connect("/rooms/7"):
        pass
    assert seen == ["/rooms/{room}"]


def test_the_route_path_of_starlette() -> None:
    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse("page")

    seen: list[str] = []
    routes = [
        Route("/items/{id:int}", page),
        Mount("/{tenant:str}", routes=[Mount("/in", Router([Route("/x/{y}", page)]))]),
    ]
    client = TestClient(Starlette(routes=routes, middleware=[Middleware(Seen, seen=seen)]))
    assert [client.get(target).text for target in ("/items/7", "/acme/in/x/7")] == ["page"] * 2
    assert seen == ["/items/{id}", "/{tenant}/in/x/{y}"]


def test_around_the_application_it_is_the_path() -> None:
    app, _ = a_service()
    seen: list[str] = []
    TestClient(Seen(app, seen)).get("/api/v1/items/7")
    assert seen == ["/api/v1/items/7"]


def test_a_rule_counts_a_route_once_for_all_its_paths() -> None:
    app, _ = a_service()
    rules = RuleSet.parse("rules: [{id: items, by: endpoint, endpoint: '/api/**', limit: 2/hour}]")
    app.add_middleware(
        RateLimitMiddleware,
        rules=rules,
        attributes={"endpoint": tidegate.fastapi.route_path},
        clock=tg.ManualClock(),
    )
    client = TestClient(app)
    assert [client.get(f"/api/v1/items/{id}").status_code for id in range(3)] == [200, 200, 429]


def view(request: HttpRequest, **parts: Any) -> HttpResponse:
    return HttpResponse(route_path_of_django(request))


URLS = (
    path("items/<int:id>/", view),
    path("plain", view),
    path("<slug>/in/", include([path("x/<uuid:key>", view)])),
    re_path(r"^old/(?P<year>[0-9]{4})/(?:page-)?([a-z]+)/?$", view),
    path("api/", include([re_path(r"^v(?P<version>\d)/files/(?P<rest>.*)$", view)])),
)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/items/7/", "/items/{id}/"),
        ("/plain", "/plain"),
        ("/acme/in/x/12345678-1234-5678-1234-567812345678", "/{slug}/in/x/{key}"),
        ("/old/1999/page-a/", "/old/{year}/{var}/"),
        ("/api/v2/files/a/b", "/api/v{version}/files/{rest}"),
        ("/nothing/here", "/nothing/here"),
    ],
)
def test_the_route_path_of_django(target: str, expected: str) -> None:
    with override_settings(ROOT_URLCONF=URLS, ALLOWED_HOSTS=["*"], MIDDLEWARE=[]):
        before = RequestFactory().get(target)
        assert route_path_of_django(before) == expected, "as middleware asks, before the view"
        if target != "/nothing/here":
            assert DjangoClient().get(target).content.decode() == expected


def test_a_request_of_django_may_have_urls_of_its_own() -> None:
    request = RequestFactory().get("/other/7")
    request.urlconf = (path("other/<id>", view),)
    with override_settings(ROOT_URLCONF=URLS):
        assert route_path_of_django(request) == "/other/{id}"
