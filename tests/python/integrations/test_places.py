"""Flask and Django give places of concurrency limits back at the end of a response."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest
import tidegate as tg
from place_rules import RULES
from tidegate.flask import RateLimiter

pytest.importorskip("django")
flask = pytest.importorskip("flask")

from django.conf import settings  # noqa: E402

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from asgiref.sync import async_to_sync  # noqa: E402
from django.http import HttpResponse, StreamingHttpResponse  # noqa: E402
from django.test import AsyncClient, Client, override_settings  # noqa: E402
from django.urls import path  # noqa: E402

CLOCK = tg.ManualClock(10**18)


class Counts:
    """What is left to a client of a service that counts in this storage."""

    def __init__(self) -> None:
        self._limiter = tg.Limiter(rules=RULES, clock=CLOCK)
        self.storage = self._limiter.storage

    def __call__(self) -> dict[Any, int]:
        outcomes = self._limiter.peek(ip="127.0.0.1").outcomes
        return {each.rule: each.remaining for each in outcomes}


def flask_service(counts: Counts) -> Any:
    app = flask.Flask(__name__)
    limiter = RateLimiter(app, rules=RULES, storage=counts.storage, clock=CLOCK)

    @app.get("/")
    def view() -> str:
        assert counts()["places"] == 1
        return "ok"

    @app.get("/stream")
    def stream() -> Any:
        return flask.Response(iter(["1", "2"]))

    @app.get("/broken")
    def broken() -> None:
        raise LookupError("broken")

    @app.get("/refused")
    @limiter.limit("1/hour")
    def refused() -> str:
        return "ok"

    return app


def test_flask_gives_a_place_back_at_the_end_of_the_response() -> None:
    counts = Counts()
    client = flask_service(counts).test_client()
    for where, status in (("/", 200), ("/broken", 500), ("/missing", 404)):
        for _ in range(3):
            answer = client.get(where)
            assert answer.status_code == status
            answer.close()
        assert counts()["places"] == 2
    assert counts()["calls"] == 91


@pytest.mark.parametrize("path", ["/", "/stream", "/missing"])
@pytest.mark.parametrize("end", ["read", "dropped", "closed"])
def test_flask_gives_a_place_back_though_a_client_of_tests_closes_nothing(
    path: str, end: str
) -> None:
    counts = Counts()
    client = flask_service(counts).test_client()
    kept = []
    for _ in range(3):
        answer = client.get(path)
        assert counts()["places"] == 1
        if end == "dropped":
            del answer
            gc.collect()  # that of an error is in a cycle
        else:
            answer.get_data() if end == "read" else answer.close()
            kept.append(answer)
        assert counts()["places"] == 2


def test_flask_holds_a_place_for_a_stream() -> None:
    counts = Counts()
    client = flask_service(counts).test_client()
    first, second = client.get("/stream"), client.get("/stream")
    assert counts()["places"] == 0
    assert client.get("/stream").status_code == 429
    first.close()
    assert counts()["places"] == 1
    second.close()
    assert counts()["places"] == 2


def test_a_flask_view_that_refuses_takes_no_place() -> None:
    counts = Counts()
    client = flask_service(counts).test_client()
    for status in (200, 429, 429, 429):
        answer = client.get("/refused")
        assert answer.status_code == status
        answer.close()
        assert counts()["places"] == 2
    assert counts()["calls"] == 99


def test_flask_gives_a_place_back_when_an_exception_leaves_the_application() -> None:
    counts = Counts()
    app = flask_service(counts)
    app.testing = True
    with pytest.raises(LookupError):
        app.test_client().get("/broken")
    assert counts()["places"] == 2


@pytest.mark.parametrize("path", ["/", "/stream", "/broken"])
@pytest.mark.parametrize("call", ["full_dispatch_request", "preprocess_request"])
def test_flask_gives_a_place_back_at_the_end_of_a_request_without_wsgi_app(
    path: str, call: str
) -> None:
    counts = Counts()
    app = flask_service(counts)
    context = app.test_request_context(path, environ_base={"REMOTE_ADDR": "127.0.0.1"})
    with context, contextlib.suppress(LookupError):
        getattr(app, call)()
        assert counts()["places"] == 1
    assert counts() == {"places": 2, "calls": 99}


seen: list[int] = []
counts_now: list[Counts] = []


def page(request: Any) -> HttpResponse:
    seen.append(counts_now[-1]()["places"])
    return HttpResponse("ok")


def stream(request: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter(["1", "2"]))


async def later(request: Any) -> HttpResponse:
    return page(request)


def broken(request: Any) -> None:
    raise LookupError("broken")


def project(counts: Counts) -> Any:
    counts_now[:] = [counts]
    return override_settings(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=(
            path("page", page), path("stream", stream), path("later", later), path("broken", broken)
        ),
        MIDDLEWARE=["tidegate.django.RateLimitMiddleware"],
        TIDEGATE={"RULES": RULES, "STORAGE": counts.storage, "CLOCK": CLOCK},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_django_gives_a_place_back_at_the_end_of_the_response(kind: str) -> None:
    counts = Counts()
    with project(counts):
        client = (AsyncClient if kind == "async" else Client)(raise_request_exception=False)
        ask: Any = async_to_sync(client.get) if kind == "async" else client.get
        seen.clear()
        for where, status in (("/page", 200), ("/later", 200), ("/broken", 500), ("/none", 404)):
            assert [ask(where).status_code for _ in range(3)] == [status] * 3
            assert counts()["places"] == 2
        assert seen == [1] * 6
        assert counts()["calls"] == 88


def test_django_holds_a_place_for_a_stream() -> None:
    counts = Counts()
    with project(counts):
        client = Client()
        first, second = client.get("/stream"), client.get("/stream")
        assert counts()["places"] == 0
        assert client.get("/stream").status_code == 429
        first.close()
        second.close()
        assert counts()["places"] == 2
