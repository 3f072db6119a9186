"""Where a route's function runs, its rule has counted the request, however the path was spelled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, Callable
from urllib.parse import unquote, unquote_to_bytes

import pytest
import tidegate as tg
from fastapi import FastAPI
from flask import Flask
from servers import NO_ROOTS_IN_PATHS, finds_roots_in_paths, messages_of
from spelled_rules import RULES
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from tidegate.asgi import RateLimitMiddleware
from tidegate.flask import RateLimiter
from tidegate.starlette import route_path
from tidegate.wsgi import RateLimitMiddleware as WSGIMiddleware

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path, re_path

BASES = ("/login", "/items/7", "/files/a/b")


def spellings() -> list[str]:
    """At least 200 request targets near the routes, each with up to three changes."""
    source = random.Random(7)
    inserts = (
        *(
            "/",
            "//",
            "/.",
            "/./",
            "/../",
            "%0a",
            "%0d%0a",
            "%00",
            "%20",
            "%09",
            "%2f",
            "%5c",
            ";a=b",
        ),
        *(
            "%3b",
            "%2e",
            "%c3%a9",
            "%ff",
            "%e2%81%84",
            "+",
            "%25",
            "%3f",
            "%23",
            "\\",
            ":",
            "~",
            "*",
        ),
    )

    def changed(text: str) -> str:
        how = source.randrange(5)
        at = source.randrange(len(text) + 1)
        if how == 0:
            return text[:at] + source.choice(inserts) + text[at:]
        if how == 1:
            return text + source.choice(inserts)
        if how == 2:
            return source.choice(inserts) + text
        if how == 3:
            return text[:at] + text[at : at + 1].swapcase() + text[at + 1 :]
        one = text[at : at + 1]
        return text[:at] + "".join(f"%{ord(each):02X}" for each in one) + text[at + 1 :]

    found = {
        *BASES,
        *(base[1:] for base in BASES),
        *(base + "%0a" for base in BASES),
        *(f"http://other{base}" for base in BASES),
        *(f"http:{base}" for base in BASES),
    }
    while len(found) < 240:
        text = source.choice(BASES)
        for _ in range(source.randint(1, 3)):
            text = changed(text)
        found.add(text)
    return sorted(found)


class Service:
    """An application, how a server calls it, and which routes ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.limiter: Any = tg.Limiter(rules=RULES, clock=tg.ManualClock(10**18))
        self.prefix = ""
        self.call: Callable[[str], None] = lambda target: None

    def counted(self) -> dict[str, int]:
        return {rule: stats.allowed for rule, stats in self.limiter.rule_stats().items()}

    def by_asgi(self, app: Any, **scope: Any) -> None:
        def call(target: str) -> None:
            raw = self.prefix + target
            request = {
                "type": "http", "method": "GET", "path": unquote(raw), "headers": [],
                "raw_path": raw.encode(), "query_string": b"", "client": ("192.0.2.1", 1), **scope,
            }  # fmt: skip
            asyncio.run(messages_of(app, request))

        self.call = call

    def at_root(self, app: Any, mode: str) -> None:
        """Calls an application as a server does, with a root path or without one; a proxy may have
        ``stripped`` the root path from the path."""
        if mode == "root_path":
            self.prefix = "/api"
        self.by_asgi(app, root_path="/api" if mode in ("root_path", "stripped") else "")

    def by_wsgi(self, app: Any, script: str = "") -> None:
        import io

        def call(target: str) -> None:
            environ = {
                "REQUEST_METHOD": "GET", "SCRIPT_NAME": script, "QUERY_STRING": "",
                "PATH_INFO": unquote_to_bytes(target).decode("latin-1"), "REMOTE_ADDR": "192.0.2.1",
                "SERVER_NAME": "x", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
                "HTTP_HOST": "x", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(),
                "wsgi.errors": io.StringIO(),
            }  # fmt: skip
            body = app(environ, lambda *args: None)
            list(body)
            getattr(body, "close", lambda: None)()

        self.call = call

    def view(self, name: str) -> Callable[..., Any]:
        def ran(*args: Any, **kwargs: Any) -> Any:
            self.ran.append(name)
            return "ok"

        return ran


def starlette_routes(service: Service) -> list[Route]:
    def route(pattern: str, name: str) -> Route:
        async def answer(request: Any) -> PlainTextResponse:
            service.ran.append(name)
            return PlainTextResponse("ok")

        return Route(pattern, answer)

    return [
        route("/login", "login"),
        route("/items/{id}", "items"),
        route("/files/{rest:path}", "files"),
    ]


def how_limited(service: Service, mode: str) -> dict[str, Any]:
    if mode != "route_path":
        return {"limiter": service.limiter}
    return {"limiter": service.limiter, "attributes": {"endpoint": route_path}}


def of_starlette(service: Service, mode: str) -> None:
    limited = Middleware(RateLimitMiddleware, **how_limited(service, mode))
    inner = Starlette(routes=starlette_routes(service), middleware=[limited])
    if mode == "mount":
        service.prefix = "/api"
        service.by_asgi(Starlette(routes=[Mount("/api", inner)]))
    else:
        service.at_root(inner, mode)


def of_fastapi(service: Service, mode: str) -> None:
    app = FastAPI()

    @app.get("/login")
    async def login() -> None:
        service.ran.append("login")

    @app.get("/items/{id}")
    async def items(id: str) -> None:
        service.ran.append("items")

    @app.get("/files/{rest:path}")
    async def files(rest: str) -> None:
        service.ran.append("files")

    app.add_middleware(RateLimitMiddleware, **how_limited(service, mode))
    if mode == "mount":
        outer = FastAPI()
        outer.mount("/api", app)
        service.prefix = "/api"
        service.by_asgi(outer)
    else:
        service.at_root(app, mode)


def of_flask(service: Service, mode: str) -> None:
    app = Flask(__name__)
    app.add_url_rule("/login", "login", service.view("login"))
    app.add_url_rule("/items/<id>", "items", service.view("items"))
    app.add_url_rule("/files/<path:rest>", "files", service.view("files"))
    if mode == "middleware":
        app.wsgi_app = WSGIMiddleware(app.wsgi_app, limiter=service.limiter)  # type: ignore[method-assign]
    else:
        extension = RateLimiter(app, rules=RULES, clock=tg.ManualClock(10**18))
        limited: Any = app.extensions["tidegate"][extension]
        service.limiter = limited.rules_for(None)
    service.by_wsgi(app, "/api" if mode == "SCRIPT_NAME" else "")


MODES = [
    *((of_fastapi, mode) for mode in ("plain", "root_path", "stripped", "mount", "route_path")),
    *((of_starlette, mode) for mode in ("plain", "root_path", "stripped", "mount", "route_path")),
    *((of_flask, mode) for mode in ("plain", "SCRIPT_NAME", "middleware")),
]


def assert_each_run_is_counted(service: Service) -> None:
    uncounted = []
    for target in spellings():
        service.ran.clear()
        before = service.counted()
        service.call(target)
        after = service.counted()
        uncounted += [(target, name) for name in service.ran if after[name] == before[name]]
    assert uncounted == []
    # Each of the routes runs for several spellings.
    assert all(count >= 3 for count in service.counted().values()), service.counted()


@pytest.mark.parametrize(("make", "mode"), MODES)
def test_a_route_that_runs_was_counted(make: Any, mode: str) -> None:
    if mode == "root_path" and not finds_roots_in_paths():
        pytest.skip(NO_ROOTS_IN_PATHS)
    service = Service()
    make(service, mode)
    assert_each_run_is_counted(service)


@pytest.fixture(
    params=[
        *(("wsgi", mode) for mode in ("plain", "SCRIPT_NAME", "route_path")),
        *(("asgi", mode) for mode in ("plain", "root_path", "stripped", "route_path")),
    ],
    ids="-".join,
)
def django_service(request: pytest.FixtureRequest) -> Iterator[Service]:
    interface, mode = request.param
    service = Service()
    endpoint = "tidegate.django:route_path"
    attributes = {"endpoint": endpoint} if mode == "route_path" else {}

    def view(name: str) -> Any:
        def answer(request: Any, **parts: Any) -> HttpResponse:
            service.ran.append(name)
            return HttpResponse("ok")

        return answer

    with override_settings(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=(
            path("login", view("login")),
            path("items/<str:id>", view("items")),
            re_path(r"^files/(?P<rest>.*)$", view("files")),
        ),
        MIDDLEWARE=["tidegate.django.RateLimitMiddleware"],
        TIDEGATE={"RULES": RULES, "CLOCK": tg.ManualClock(10**18), "ATTRIBUTES": attributes},
    ):
        app: Any = get_wsgi_application() if interface == "wsgi" else get_asgi_application()
        middleware: Any = app._middleware_chain
        while not hasattr(middleware, "_request_limiter"):
            middleware = middleware.__wrapped__
        service.limiter = middleware._request_limiter.limiter
        if interface == "wsgi":
            service.by_wsgi(app, "/api" if mode == "SCRIPT_NAME" else "")
        else:
            service.prefix = "/api" if mode == "root_path" else ""
            service.by_asgi(app, root_path="" if mode in ("plain", "route_path") else "/api")
        yield service


def test_a_view_of_django_that_runs_was_counted(django_service: Service) -> None:
    assert_each_run_is_counted(django_service)
