"""What on_refused may return, in every adapter: the table of docs/web.md."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastapi
import flask
import pytest
import tidegate as tg
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from servers import ask, hello
from starlette.applications import Starlette
from starlette.routing import Route
from tidegate import asgi, wsgi
from tidegate.fastapi import RateLimit
from tidegate.flask import RateLimiter as FlaskLimit

WEB = Path(__file__).resolve().parents[3] / "docs" / "web.md"
REFUSING: dict[str, Any] = {"limit": "0/minute"}


def by_asgi(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    found = ask(asgi.RateLimitMiddleware(hello, on_refused=on_refused, **REFUSING))
    return found.status, dict(found.fields), found.body


def by_wsgi(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    app = flask.Flask(__name__)
    app.wsgi_app = wsgi.RateLimitMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, on_refused=on_refused, **REFUSING
    )
    return shown(app.test_client().get("/"))


def by_flask(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    app = flask.Flask(__name__)
    FlaskLimit(app, "0/minute", on_refused=on_refused)
    return shown(app.test_client().get("/"))


def by_decorator(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    service = fastapi.FastAPI()

    @service.get("/")
    @tg.rate_limit("0/minute", on_refused=on_refused)
    async def page() -> str:
        return "x"

    return shown(TestClient(service).get("/"))


def by_decorator_of_starlette(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    @tg.rate_limit("0/minute", on_refused=on_refused)
    async def page(request: Any) -> Any:
        return JSONResponse("x")

    return shown(TestClient(Starlette(routes=[Route("/", page)])).get("/"))


def by_decorator_of_flask(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    app = flask.Flask(__name__)

    @app.get("/")
    @tg.rate_limit("0/minute", on_refused=on_refused)
    def page() -> str:
        return "x"

    return shown(app.test_client().get("/"))


def by_dependency(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    service = fastapi.FastAPI()
    # A handler for the status does not take the place of the limit's own answer.
    service.exception_handler(429)(lambda request, exc: JSONResponse("handler", 429))
    return by_dependency_of(service, on_refused)


def by_dependency_alone(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    return by_dependency_of(fastapi.FastAPI(), on_refused)


def by_dependency_of(
    service: fastapi.FastAPI, on_refused: Any
) -> tuple[int, dict[str, str], bytes]:
    limit = RateLimit("0/minute", on_refused=on_refused)

    @service.get("/", dependencies=[fastapi.Depends(limit)])
    async def page() -> str:
        return "x"

    return shown(TestClient(service).get("/"))


def by_django(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    from django_project import override_settings
    from tidegate.django import RateLimitMiddleware

    with override_settings(TIDEGATE={"LIMIT": "0/minute", "ON_REFUSED": on_refused}):
        return shown_of_django(RateLimitMiddleware(lambda request: None))


def by_decorator_of_django(on_refused: Any) -> tuple[int, dict[str, str], bytes]:
    from django_project import page

    return shown_of_django(tg.rate_limit("0/minute", on_refused=on_refused)(page))


def shown_of_django(view: Any) -> tuple[int, dict[str, str], bytes]:
    from django.test import RequestFactory

    answer = view(RequestFactory().get("/"))
    return answer.status_code, {k.lower(): v for k, v in answer.items()}, answer.content


def shown(answer: Any) -> tuple[int, dict[str, str], bytes]:
    body = getattr(answer, "content", None) or answer.get_data()
    return answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, body


ADAPTERS = {
    "asgi.RateLimitMiddleware": [by_asgi],
    "wsgi.RateLimitMiddleware": [by_wsgi],
    "@rate_limit": [by_decorator, by_decorator_of_starlette],
    "fastapi.RateLimit": [by_dependency],
    "flask.RateLimiter": [by_flask],
    "django.RateLimitMiddleware": [by_django],
}
VALUES: dict[str, Any] = {"dict": {"mine": 1}, "list": [1, 2], "str": "mine", "bytes": b"mine"}
ROWS = re.findall(r"^\| `([\w.@]+)` \| (dict, .*?);", WEB.read_text(), re.M)
CASES = [
    (answer, kind.strip())
    for name, kinds in ROWS
    for answer in ADAPTERS[name]
    for kind in kinds.split(",")
]


def test_the_table_has_every_adapter() -> None:
    assert [name for name, _ in ROWS] == list(ADAPTERS)


@pytest.mark.parametrize(("answer", "kind"), CASES)
def test_on_refused_may_return_what_the_table_says(answer: Any, kind: str) -> None:
    status, fields, body = answer(lambda request, decision: VALUES[kind])
    assert status == 429
    assert fields["x-ratelimit-remaining"] == "0"
    expected = VALUES[kind]
    if kind in ("dict", "list"):
        assert json.loads(body) == expected
    else:
        assert expected in (body, body.decode(), body.decode().strip('"'))


@pytest.mark.parametrize(
    "answer", [by_asgi, by_decorator, by_decorator_of_starlette, by_dependency]
)
def test_a_response_keeps_its_status_and_gains_the_fields(answer: Any) -> None:
    status, fields, body = answer(lambda request, decision: JSONResponse({"mine": 1}, 503))
    assert (status, json.loads(body)) == (503, {"mine": 1})
    assert fields["x-ratelimit-remaining"] == "0"


@pytest.mark.parametrize(
    ("answer", "returned"),
    [
        *itertools.product(
            [
                by_asgi,
                by_wsgi,
                by_decorator_of_starlette,
                by_flask,
                by_decorator_of_flask,
                by_django,
                by_decorator_of_django,
            ],
            [None, 5, {1}, ValueError, "\ud800", {"a": object()}, [{"at": {datetime, Decimal}}]],
        ),
        # Routes of FastAPI may return anything that it can encode.
        *itertools.product(
            [by_decorator, by_dependency_alone],
            ["\ud800", {"a": math.inf}, [{"at": {Decimal: object}}]],
        ),
        *itertools.product([by_asgi, by_wsgi, by_django], [{"wait": math.inf}]),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_usual_429_replaces_what_cannot_be_sent(
    answer: Any, returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    status, fields, body = answer(lambda request, decision: returned)
    assert (status, fields["content-type"]) == (429, "application/problem+json")
    assert fields["x-ratelimit-remaining"] == "0"
    assert json.loads(body)["violated-policies"] == ["0/minute"]
    failures = [record for record in caplog.records if record.name == "tidegate"]
    assert len(failures) == 1
    assert f"on_refused returned a {type(returned).__name__}" in failures[0].getMessage()


@pytest.mark.parametrize("answer", [by_flask, by_decorator_of_flask])
def test_what_a_view_of_flask_returns_is_a_429_unless_it_has_a_status(answer: Any) -> None:
    aware = {"at": datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)}
    assert b"2030" in answer(lambda request, decision: aware)[2]
    for body, expected in (
        (("x", [("X-Mine", "1")]), (429, "1")),
        (("x", (("X-Mine", "1"),)), (429, "1")),
        (("x", "418 TEAPOT", {"X-Mine": "1"}), (418, "1")),
        (iter(["x"]), (429, None)),
        (bytearray(b"x"), (429, None)),
        (flask.Response("x", 503), (503, None)),
    ):
        status, fields, sent = answer(lambda request, decision, body=body: body)
        assert ((status, fields.get("x-mine")), sent) == (expected, b"x")
        assert fields["x-ratelimit-remaining"] == "0"


@pytest.mark.parametrize("how", ["extension", "decorator"])
def test_a_function_may_abort_in_flask(how: str) -> None:
    """The handlers of the application answer, with the fields."""

    def on_refused(request: Any, decision: tg.Decision) -> Any:
        flask.abort(429, "later")

    app = flask.Flask(__name__)
    app.errorhandler(429)(lambda exc: ({"said": exc.description}, 429))

    def page() -> str:
        return "x"

    if how == "extension":
        FlaskLimit(app, "0/minute", on_refused=on_refused)
        app.get("/")(page)
    else:
        app.get("/")(tg.rate_limit("0/minute", on_refused=on_refused)(page))
    status, fields, body = shown(app.test_client().get("/"))
    assert (status, json.loads(body)) == (429, {"said": "later"})
    assert fields["x-ratelimit-remaining"] == "0"
