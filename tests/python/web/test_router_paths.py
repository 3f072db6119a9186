"""The endpoint is the path that a router matches, where it reads paths as others do not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import tidegate as tg
from servers import ask
from tidegate.asgi import RateLimitMiddleware
from tidegate.rules import RuleSet
from tidegate.web.router_paths import path_reader_of
from tidegate.wsgi import RateLimitMiddleware as WSGIMiddleware

LOGIN = {"id": "login", "by": "global", "endpoint": "/login", "limit": "1/hour"}


class Layer:
    """Middleware of a service around its application."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def reading(package: str) -> Any:
    """The reader of an application of this package, within middleware."""
    app = type("App", (), {"__module__": f"{package}.app", "asgi_app": lambda *args: None})()
    inner = path_reader_of(app)
    assert path_reader_of(Layer(Layer(app))) is path_reader_of(app.asgi_app) is inner
    return inner


@pytest.mark.parametrize(
    ("path", "root", "read"),
    [
        ("/login", "", "/login"),
        ("login", "", "/login"),
        ("\0/login", "", "/login"),
        (" \t/login", "", "/login"),
        ("http://other/login", "", "/login"),
        ("login;a", "", "/login"),
        ("login?a", "", "/login"),
        ("/api/login", "/api", "/login"),
        ("/apilogin", "/api", "/login"),
        ("/other", "/api", "/other"),
    ],
)
def test_quart_reads_a_path_without_a_slash_as_a_url(path: str, root: str, read: str) -> None:
    assert reading("quart")({"path": path, "root_path": root}) == read


def test_bottle_leaves_bytes_out_that_are_not_utf_8() -> None:
    assert reading("bottle")({"PATH_INFO": "/log\xffin/caf\xc3\xa9"}) == "/login/café"


def test_other_frameworks_read_paths_alike() -> None:
    assert reading("starlette") is None
    assert path_reader_of(lambda scope, receive, send: None) is None
    endless: Any = Layer(None)
    endless.app = endless
    assert path_reader_of(endless) is None


def test_blacksheep_ignores_case_and_endpoints_in_upper_case_are_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app: Any = type("Application", (Layer,), {"__module__": "blacksheep.server"})(None)
    rules = [LOGIN, {"id": "b", "by": "ip", "endpoint": "/Items/{Id}", "limit": "1/hour"}]
    with caplog.at_level(logging.WARNING, "tidegate"):
        RateLimitMiddleware(Layer(None), rules=RuleSet({"rules": rules}))
        made = RateLimitMiddleware(app, rules=RuleSet({"rules": [LOGIN]}))
        RateLimitMiddleware(
            app, rules=RuleSet({"rules": rules}), attributes={"endpoint": lambda scope: "/a"}
        )
        assert "ignores case" not in caplog.text
        made.limiter.use(RuleSet({"rules": rules}))
    assert "name the endpoint '/Items/{Id}', and the router here ignores case" in caplog.text
    assert "expected '/items/{Id}'" in caplog.text
    assert path_reader_of(app)({"path": "/LogIn"}) == "/login"  # type: ignore[misc]


def test_the_root_path_of_a_quart_application_is_a_folder_and_no_prefix() -> None:
    quart = pytest.importorskip("quart")
    app = quart.Quart(__name__)
    app.add_url_rule("/login", "login", lambda: "ok")
    limited = RateLimitMiddleware(app, "5/minute", clock=tg.ManualClock(10**18))
    assert ask(limited, "/login").status == 200


def test_a_spelling_that_bottle_alone_reads_is_counted() -> None:
    bottle = pytest.importorskip("bottle")
    app = bottle.Bottle()
    app.get("/login", callback=lambda: "ok")
    limited = WSGIMiddleware(app, rules=RuleSet({"rules": [LOGIN]}), clock=tg.ManualClock(10**18))
    told: list[str] = []
    for path in ("/login", "/login\xff"):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "REMOTE_ADDR": "192.0.2.1"}
        limited(environ, lambda status, *more: told.append(status[:3]))
    assert told == ["200", "429"]
