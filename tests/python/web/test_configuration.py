"""tidegate.configure(): the options that limits on requests share."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import flask
import pytest
import tidegate as tg
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from servers import ask, hello
from starlette.responses import JSONResponse
from tidegate import asgi, wsgi
from tidegate.fastapi import RateLimit
from tidegate.flask import RateLimiter as FlaskLimit
from tidegate.testing import configured
from tidegate.web import configuration


@pytest.fixture(autouse=True)
def _nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> Any:
    with configured():
        # Limits of earlier tests that are still in memory were made again just now.
        monkeypatch.setattr(configuration, "_noted", {})
        yield


def of_header(request: Any) -> str:
    """The key of a request of any adapter."""
    if isinstance(request, dict):
        if "REQUEST_METHOD" in request:
            return str(request.get("HTTP_X_USER"))
        return dict(request["headers"]).get(b"x-user", b"").decode()
    return str(request.headers.get("x-user"))


def fastapi_service() -> TestClient:
    service = FastAPI()

    @service.get("/decorated")
    @tg.rate_limit("1/minute")
    async def decorated() -> str:
        return "x"

    @service.get("/dependent", dependencies=[Depends(RateLimit("1/minute"))])
    async def dependent() -> str:
        return "x"

    return TestClient(service)


def statuses(client: Any, path: str, *users: str) -> list[int]:
    return [client.get(path, headers={"x-user": user}).status_code for user in users]


@pytest.mark.parametrize("first", ["configure", "routes"])
def test_routes_take_the_options_whether_made_before_or_after(first: str) -> None:
    client = fastapi_service() if first == "routes" else None
    with configured(key=of_header, headers=["ietf"]):
        client = client or fastapi_service()
        for path in ("/decorated", "/dependent"):
            assert statuses(client, path, "ann", "bob", "ann") == [200, 200, 429]
            assert "x-ratelimit-limit" not in client.get(path, headers={"x-user": "ann"}).headers


def test_the_storage_is_shared_by_all_adapters() -> None:
    store = tg.Limiter("1/second").storage
    app = flask.Flask(__name__)
    extension = FlaskLimit(app, "1/minute")
    over_asgi = asgi.RateLimitMiddleware(hello, limit="1/minute")
    over_wsgi = wsgi.RateLimitMiddleware(lambda environ, start_response: [], limit="1/minute")
    with configured(storage=store, prefix="mine"):
        limited = app.extensions["tidegate"][extension]
        assert limited._settings.storage is store
        assert over_asgi.limiter.storage is store
        assert over_wsgi.limiter.storage is store
        assert over_asgi.limiter._prefix == "mine"
    assert over_asgi.limiter.storage is not store


def test_what_is_given_wins() -> None:
    own = tg.Limiter("1/second").storage
    app = asgi.RateLimitMiddleware(hello, limit="1/minute", storage=own, key=lambda scope: "k")
    with configured(storage="memory://?capacity=10", key=of_header):
        assert app.limiter.storage is own
        assert [ask(app, headers=[(b"x-user", u)]).status for u in (b"a", b"b")] == [200, 429]


def test_rules_take_attributes_and_limits_take_keys() -> None:
    rules = tg.RuleSet({"rules": [{"id": "r", "by": "user", "limit": "1/minute"}]})
    with configured(key=lambda scope: "k", attributes={"user": of_header}):
        app = asgi.RateLimitMiddleware(hello, rules=rules)
        users = (b"a", b"b", b"a")
        assert [ask(app, headers=[(b"x-user", u)]).status for u in users] == [200, 200, 429]
        plain = asgi.RateLimitMiddleware(hello, limit="1/minute")
        assert [ask(plain, headers=[(b"x-user", u)]).status for u in users] == [200, 429, 429]


def test_a_second_call_names_the_first() -> None:
    tg.configure(prefix="one")
    with pytest.raises(tg.ConfigurationError, match=r"before at .*test_configuration\.py:\d+"):
        tg.configure(prefix="two")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"storage": "redsi://"}, "the storage is"),
        ({"key": "users"}, "the key is 'users'"),
        ({"key": 3}, "the key is 3"),
        ({"on_refused": lambda: 1}, "on_refused"),
        ({"headers": ["x-rate"]}, "headers"),
        ({"attributes": {"user": 3}}, "the attribute user is 3"),
        ({"capacity": 3}, "without a storage"),
        ({"prefix": 3}, "the prefix is 3"),
    ],
)
def test_bad_options_raise_and_leave_nothing(options: Any, problem: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=problem):
        tg.configure(**options)
    assert configuration.current() == {}
    tg.configure(prefix="again")


def test_the_environment_has_the_least_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HEADERS", "ietf, x-ratelimit")
    monkeypatch.setenv("TIDEGATE_PREFIX", "env")
    app = asgi.RateLimitMiddleware(hello, limit="1/minute")
    assert app.limiter._prefix == "env"
    with configured(prefix="code"):
        assert app.limiter._prefix == "code"
        assert configuration.current()["headers"] == ("ietf", "x-ratelimit")
    with monkeypatch.context() as patched:
        patched.setenv("TIDEGATE_KEY", "nobody")
        with pytest.raises(tg.ConfigurationError, match="TIDEGATE_KEY"):
            asgi.RateLimitMiddleware(hello, limit="1/minute")


def test_on_refused_of_the_process_answers_for_decorators_and_middleware() -> None:
    def refused(request: Any, decision: tg.Decision) -> Any:
        return JSONResponse({"mine": True}, 429)

    with configured(on_refused=refused):
        client = fastapi_service()
        assert statuses(client, "/decorated", "a", "a") == [200, 429]
        assert client.get("/decorated").json() == {"mine": True}
        app = asgi.RateLimitMiddleware(hello, limit="1/minute")
        assert [ask(app).status for _ in range(2)] == [200, 429]
        assert ask(app).json() == {"mine": True}


def test_what_follows_the_options_is_collected() -> None:
    app = asgi.RateLimitMiddleware(hello, limit="1/minute")
    of_wsgi = wsgi.RateLimitMiddleware(lambda environ, start_response: [], limit="1/minute")
    dependency = RateLimit("1/minute")
    known = [weakref.ref(each) for each in (app, of_wsgi, dependency)]
    del app, of_wsgi, dependency
    gc.collect()
    assert [each() for each in known] == [None] * 3


def test_a_limit_that_counts_alone_beside_a_shared_storage_is_said(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def made(**options: Any) -> list[str]:
        with caplog.at_level(logging.WARNING, "tidegate"):
            caplog.clear()
            asgi.RateLimitMiddleware(hello, limit="1/minute", **options)
            fastapi_service()
        return [each.getMessage() for each in caplog.records if "alone" in each.getMessage()]

    assert made() == []
    shared = f"shm://{tmp_path}/counts"
    (found,) = made(storage=shared)
    assert "counts in this process alone" in found
    assert "tidegate.asgi.RateLimitMiddleware has a shared storage" in found
    assert made(storage=shared) == []  # said once


def test_a_line_that_runs_again_sets_its_options_again(tmp_path: Path) -> None:
    """As the module of a service that is __main__, and that its server imports."""
    module = tmp_path / "service.py"
    module.write_text("import tidegate\ntidegate.configure(prefix=prefix)\n")
    code = compile(module.read_text(), str(module), "exec")
    with configured():
        for prefix in ("one", "two"):
            exec(code, {"prefix": prefix})
        assert configuration.current()["prefix"] == "two"
        with pytest.raises(tg.ConfigurationError, match="expected a str"):
            exec(code, {"prefix": 3})
        assert configuration.current()["prefix"] == "two"
        with pytest.raises(tg.ConfigurationError, match=r"before at .*service\.py:2;"):
            tg.configure(prefix="three")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TIDEGATE_STORAGE_URI", "TIDEGATE_STORAGE"),
        ("TIDEGATE_REDIS_URL", "TIDEGATE_STORAGE"),
        ("TIDEGATE_KEY_FUNC", "TIDEGATE_KEY"),
        ("TIDEGATE_KEY_PREFIX", "TIDEGATE_PREFIX"),
        ("TIDEGATE_LIMIT", "the limit of @rate_limit"),
        ("TIDEGATE_STORGE", "TIDEGATE_STORAGE"),
        ("TIDEGATE_STORAGES", "TIDEGATE_STORAGE"),
        ("TIDEGATE_HEADER", "TIDEGATE_HEADERS"),
        ("TIDEGATE_KEYS", "TIDEGATE_KEY"),
        ("TIDEGATE_PREFX", "TIDEGATE_PREFIX"),
        ("tidegate_storage", "TIDEGATE_STORAGE"),
        ("TIDGATE_STORAGE", "TIDEGATE_STORAGE"),
    ],
)
def test_a_variable_that_nothing_reads_is_said_once(
    name: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is no error, since it may be the application's own."""
    monkeypatch.setattr(configuration, "_logged", set())
    monkeypatch.setenv(name, "redis://localhost")
    for _ in range(2):
        asgi.RateLimitMiddleware(hello, limit="1/minute")
    (said,) = (each for each in caplog.messages if "environment" in each)
    assert f"has {name}, which tidegate does not read; expected {expected}" in said


def test_variables_that_are_read_or_are_of_others_are_not_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(configuration, "_logged", set())
    for name in ("STORAGE", "DATABASE", "CHECKS__LISTEN", "ENABLED", "TOKEN"):
        monkeypatch.setenv(f"TIDEGATE_{name}", "memory://")
    monkeypatch.setenv("STORAGE_URI", "redis://localhost")
    asgi.RateLimitMiddleware(hello, limit="1/minute")
    assert not [each for each in caplog.messages if "environment" in each]
