"""`exempt_paths`: paths that no limit on the whole application counts, in every adapter."""

from __future__ import annotations

from typing import Any, Callable

import flask
import pytest
import tidegate as tg
from servers import ask, hello
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from tidegate import asgi, wsgi
from tidegate.flask import RateLimiter as FlaskRateLimit
from tidegate.web.exempt_paths import exempt_paths_of

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from tidegate.django import RateLimitMiddleware as DjangoMiddleware

PATHS = ["/health", "/users/*/avatar", "/docs/{page}", "/static/**"]
EXEMPT = [
    "/health", "/health/", "/users/7/avatar", "/docs/a", "/static", "/static/", "/static/a/b.css",
]  # fmt: skip
COUNTED = [
    "/", "/healthy", "/health/x", "/Health", "/users/7", "/users/7/avatar/x", "/docs", "/docs/a/b",
    "/statics", "/static/../api", "/static//api", "/static/./x", "//health", "/users//avatar",
]  # fmt: skip


@pytest.mark.parametrize("path", EXEMPT)
@pytest.mark.parametrize("root", ["", "/app"])
def test_paths_of_the_list_are_exempt_inside_the_application(path: str, root: str) -> None:
    paths: Any = exempt_paths_of(PATHS)
    assert paths({"type": "http", "path": root + path, "root_path": root})
    assert paths({"PATH_INFO": path, "SCRIPT_NAME": root})


@pytest.mark.parametrize("path", COUNTED)
def test_no_other_spelling_is_exempt(path: str) -> None:
    paths: Any = exempt_paths_of(PATHS)
    assert not paths({"type": "http", "path": path})
    assert not paths({"PATH_INFO": path})


def test_paths_are_text_as_their_router_reads_them() -> None:
    paths: Any = exempt_paths_of(["/caf\u00e9"])
    assert paths({"PATH_INFO": "/caf\u00c3\u00a9"})  # as WSGI has UTF-8
    assert paths({"type": "http", "path": "/caf\u00e9"})
    assert exempt_paths_of([]) is None


@pytest.mark.parametrize(
    "paths",
    ["/health", b"/health", 5, ["health"], [""], ["/a*"], ["/**"], ["/a/**/b"], ["/a//b"], [None],
     ["/a/../b"], ["/a?b=1"], ["/{a b}"]],
)  # fmt: skip
def test_invalid_paths_are_refused_at_once(paths: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match=r"exempt_paths .*expected"):
        asgi.RateLimitMiddleware(hello, "1/minute", exempt_paths=paths)
    with pytest.raises(tg.ConfigurationError, match=r"exempt_paths .*expected"):
        FlaskRateLimit(flask.Flask(__name__), "1/minute", exempt_paths=paths)


def by_asgi(**options: Any) -> Callable[..., int]:
    app = asgi.RateLimitMiddleware(hello, exempt_paths=["/health"], **options)
    return lambda path, **request: ask(app, path=path, **request).status


def by_wsgi(**options: Any) -> Callable[..., int]:
    app = flask.Flask(__name__)
    app.get("/health")(lambda: "ok")
    app.get("/x", endpoint="x")(lambda: "ok")
    app.wsgi_app = wsgi.RateLimitMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, exempt_paths=["/health"], **options
    )
    return lambda path, **request: app.test_client().open(path, **request).status_code


def by_flask(**options: Any) -> Callable[..., int]:
    app = flask.Flask(__name__)
    app.config["TIDEGATE_EXEMPT_PATHS"] = ["/health"]
    app.get("/health")(lambda: "ok")
    app.get("/x", endpoint="x")(lambda: "ok")
    FlaskRateLimit(app, **options)
    return lambda path, **request: app.test_client().open(path, **request).status_code


def by_django(**options: Any) -> Callable[..., int]:
    configured = {name.upper(): value for name, value in options.items()}
    with override_settings(TIDEGATE={**configured, "EXEMPT_PATHS": ["/health"]}):
        middleware = DjangoMiddleware(lambda request: HttpResponse("ok"))

    def status(path: str, method: str = "GET") -> int:
        answer: int = middleware(RequestFactory().generic(method, path)).status_code
        return answer

    return status


RULES = {"version": 1, "rules": [{"id": "all", "by": "ip", "limit": "1/hour"}]}


@pytest.mark.parametrize("make", [by_asgi, by_wsgi, by_flask, by_django])
@pytest.mark.parametrize("how", ["limit", "rules"])
def test_an_exempt_path_is_not_counted(make: Any, how: str) -> None:
    found: Any = tg.RuleSet(RULES) if how == "rules" else "1/hour"
    status = make(**{how: found}, clock=tg.ManualClock(10**18))
    assert [status("/health") for _ in range(3)] == [200] * 3
    assert [status("/x") for _ in range(2)] == [200, 429]
    assert status("/health") == 200


def test_a_list_that_blocks_a_client_holds_at_exempt_paths() -> None:
    rules = tg.RuleSet({**RULES, "block": [{"ip": "192.0.2.0/24"}]})
    app = asgi.RateLimitMiddleware(hello, rules=rules, exempt_paths=["/health"])
    assert ask(app, path="/health", client=("192.0.2.1", 1)).status == 429
    assert ask(app, path="/health", client=("198.51.100.1", 1)).status == 200


@pytest.mark.parametrize("make", [by_asgi, by_wsgi, by_flask, by_django])
def test_a_rule_that_names_options_does_not_count_them_at_exempt_paths(make: Any) -> None:
    rule = {"id": "asked", "by": "ip", "limit": "1/hour", "methods": ["OPTIONS"]}
    status = make(rules=tg.RuleSet({"version": 1, "rules": [rule]}), clock=tg.ManualClock(10**18))
    assert [status("/health", method="OPTIONS") for _ in range(3)] == [200] * 3
    assert [status("/x", method="OPTIONS") for _ in range(2)] == [200, 429]


def test_the_limit_of_a_view_of_flask_holds_at_exempt_paths() -> None:
    app = flask.Flask(__name__)
    extension = FlaskRateLimit(
        app, "1/hour", endpoint_limit="1/hour", exempt_paths=["/health"], clock=tg.ManualClock()
    )
    app.get("/health")(extension.limit("2/hour")(lambda: "ok"))
    client = app.test_client()
    assert [client.get("/health").status_code for _ in range(3)] == [200, 200, 429]


def test_a_path_is_the_one_inside_a_mounted_application() -> None:
    async def page(request: Any) -> Any:
        return PlainTextResponse("ok")

    inner = asgi.RateLimitMiddleware(
        Starlette(routes=[Route("/health", page), Route("/x", page)]),
        "1/hour",
        exempt_paths=["/health"],
    )
    client = TestClient(Starlette(routes=[Mount("/api", inner)]))
    assert [client.get("/api/health").status_code for _ in range(3)] == [200] * 3
    assert [client.get("/api/x").status_code for _ in range(2)] == [200, 429]


def test_a_websocket_at_an_exempt_path_is_not_counted() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    client = TestClient(asgi.RateLimitMiddleware(app, "1/hour", exempt_paths=["/live"]))
    for _ in range(3):
        with client.websocket_connect("/live"):
            pass
