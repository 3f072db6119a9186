"""Django settles a streaming response when it is closed, even if the client disconnects."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from servers import uvicorn_at, wsgi_server

pytest.importorskip("django")
pytest.importorskip("uvicorn")

import django
from asgiref.sync import iscoroutinefunction
from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import StreamingHttpResponse
from django.test import override_settings
from django.urls import path
from streams import START, limited, request_to
from tidegate.django import rate_limit as of_django

began = threading.Event()


def forever() -> Iterator[bytes]:
    while True:
        yield b"x" * 10000
        began.set()


async def forever_later() -> AsyncIterator[bytes]:
    import asyncio

    while True:
        yield b"x" * 10000
        began.set()
        await asyncio.sleep(0.001)


def project(view: Any) -> Any:
    began.clear()
    return override_settings(ALLOWED_HOSTS=["*"], ROOT_URLCONF=(path("", view),), MIDDLEWARE=[])


def test_streams_are_settled_under_wsgi() -> None:
    decorator, left = limited(cost_after=lambda request, response: 30)

    @decorator
    def view(request: Any) -> Any:
        if "end" in request.GET:
            return StreamingHttpResponse(iter([b"x", b"y"]))
        return StreamingHttpResponse(forever())

    with project(view), wsgi_server(get_wsgi_application()) as client:
        answer = client("/?end")
        assert (answer.body, answer["x-ratelimit-remaining"]) == (b"xy", "50")
        eventually(lambda: left() == 70)
        with request_to((client._connection.host, client._connection.port)):
            assert began.wait(20)
            assert left() == 20
        eventually(lambda: left() == 40, 20)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.skipif(django.VERSION < (5, 0), reason="older ones do not see a client go away")
def test_streams_are_settled_under_asgi_if_the_client_leaves(is_async: bool) -> None:
    async def cost_later(request: Any, response: Any) -> int:
        return 30

    cost_after = cost_later if is_async else lambda request, response: 30
    decorator, left = limited(cost_after=cost_after)

    @decorator
    async def view(request: Any) -> Any:
        return StreamingHttpResponse(forever_later())

    assert iscoroutinefunction(view)
    with project(view), uvicorn_at(get_asgi_application(), lifespan="off") as address:
        with request_to(address):
            assert began.wait(20)
            assert left() == 50
        eventually(lambda: left() == 70, 20)


def test_streams_are_settled_under_the_decorator_of_django() -> None:
    storage = tg.Limiter("1/second").storage
    clock = tg.ManualClock(START)
    ended = []

    def cost(request: Any, response: Any) -> int:
        ended.append(True)
        return 30

    with project(forever):

        @of_django(
            "100/minute", cost=50, cost_after=cost, storage=storage, clock=clock, scope="streams"
        )
        def view(request: Any) -> Any:
            return StreamingHttpResponse(iter([b"x"]))

    from django.test import Client

    with project(view):
        for told in ("50", "20"):
            answer = Client().get("/")
            assert answer.headers["X-RateLimit-Remaining"] == told
            assert b"".join(answer.streaming_content) == b"x"
            answer.close()
            answer.close()
        assert len(ended) == 2
