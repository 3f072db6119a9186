"""Django settles a streaming response when it is closed, even if the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
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
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import StreamingHttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.http import http_date
from streams import START, limited, request_to
from tidegate.django import RateLimitMiddleware
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

    with project(view):
        for told in ("50", "20"):
            answer = Client().get("/")
            assert answer.headers["X-RateLimit-Remaining"] == told
            assert b"".join(answer.streaming_content) == b"x"
            answer.close()
            answer.close()
        assert len(ended) == 2


def asked(middleware: list[str], view: Any, settings: dict[str, Any]) -> None:
    """Asks the view, and sends its response as Django's server of ASGI does."""

    async def ask() -> None:
        gone = asyncio.Event()

        async def send(message: Any) -> None:
            if message.get("body") == b"gone":  # the client reads nothing after that
                gone.set()
                await asyncio.Event().wait()

        handler = get_asgi_application()
        request = AsyncRequestFactory().get("/")
        response = await handler.get_response_async(request)
        sending = asyncio.ensure_future(handler.send_response(response, send))
        left = asyncio.ensure_future(gone.wait())
        await asyncio.wait([sending, left], return_when=asyncio.FIRST_COMPLETED)
        if left.done():
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            await sync_to_async(response.close)()
        left.cancel()
        await sending

    with override_settings(
        ALLOWED_HOSTS=["*"], ROOT_URLCONF=(path("", view),), MIDDLEWARE=middleware, **settings
    ):
        asyncio.run(ask())


async def breaks() -> AsyncIterator[bytes]:
    yield b"x"
    raise LookupError("broken")


def breaks_at_once() -> Iterator[bytes]:
    yield b"x"
    raise LookupError("broken")


MIDDLEWARE = ["tidegate.django.RateLimitMiddleware"]


@pytest.mark.parametrize("kind", ["decorator", "middleware"])
@pytest.mark.parametrize("stream", [breaks, breaks_at_once])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.skipif(django.VERSION < (4, 2), reason="older ones stream nothing asynchronous")
def test_a_stream_that_raises_under_asgi_is_settled(kind: str, stream: Any) -> None:
    clock = tg.ManualClock(START)
    limits = tg.Limiter("100/minute", clock=clock)
    given: list[Any] = []

    def cost(request: Any, response: Any) -> int:
        given.append(response.status_code)
        return 30

    def view(request: Any) -> Any:
        return StreamingHttpResponse(stream())

    options = {"cost": 50, "cost_after": cost, "storage": limits.storage, "clock": clock}
    if kind == "decorator":
        limited_view = of_django("100/minute", scope="s", key=lambda request: "k", **options)(view)
        with pytest.raises(LookupError):
            asked([], limited_view, {})
    else:
        project_options = {name.upper(): value for name, value in options.items()}
        of_project = {"LIMIT": "100/minute", "KEY": lambda request: "k", **project_options}
        with pytest.raises(LookupError):
            asked(MIDDLEWARE, view, {"TIDEGATE": of_project})
    prefix = "tg:s" if kind == "decorator" else "tg:project"
    same = tg.Limiter("100/minute", storage=limits.storage, prefix=prefix, clock=clock)
    assert (given, same.peek("k").remaining) == ([200], 70)


@pytest.mark.parametrize("kind", ["decorator", "middleware"])
@pytest.mark.skipif(django.VERSION < (4, 2), reason="older ones stream nothing asynchronous")
def test_a_stream_that_raises_under_asgi_gives_its_place_back(kind: str) -> None:
    storage = tg.Limiter("1/second").storage

    def view(request: Any) -> Any:
        return StreamingHttpResponse(breaks())

    decorator = of_django("1 at once", scope="s", key=lambda request: "k", storage=storage)
    limited_view = decorator(view)
    of_project = {"LIMIT": "1 at once", "KEY": lambda request: "k", "STORAGE": storage}
    given: Any = ([], limited_view, {})
    if kind == "middleware":
        given = (MIDDLEWARE, view, {"TIDEGATE": of_project})
    for _ in range(3):
        with pytest.raises(LookupError):
            asked(*given)


@pytest.mark.skipif(django.VERSION < (5, 0), reason="older ones do not see a client go away")
def test_a_stream_is_closed_before_it_is_settled() -> None:
    used = {"units": 0}

    async def parts() -> AsyncIterator[bytes]:
        try:
            yield b"gone"
        finally:
            used["units"] = 30

    decorator, left = limited(cost_after=lambda request, response: used["units"])

    @decorator
    async def view(request: Any) -> Any:
        return StreamingHttpResponse(parts())

    with pytest.raises(asyncio.CancelledError):
        asked([], view, {})
    assert left() == 70


NOW = http_date(START / 10**9)


@pytest.mark.parametrize("kind", ["middleware", "view"])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_stream_in_whose_place_middleware_sends_another_response_is_settled(
    kind: str, client: Any
) -> None:
    clock = tg.ManualClock(START)
    storage = tg.Limiter("1/second").storage
    costs = {"key": lambda request: "k", "cost": 50, "cost_after": lambda request, response: 20}

    def view(request: Any) -> Any:
        return StreamingHttpResponse(iter([b"x"]), headers={"Last-Modified": NOW})

    options: dict[str, Any] = {"STORAGE": storage, "CLOCK": clock}
    if kind == "middleware":
        options.update(LIMIT="100/minute", **{name.upper(): each for name, each in costs.items()})
    else:
        with override_settings(TIDEGATE=options):
            view = of_django("100/minute", **costs)(view)
            places = of_django("1 at once", key=costs["key"])
            view = places(lambda request, inner=view: inner(request))
    middleware = ["django.middleware.http.ConditionalGetMiddleware", *MIDDLEWARE]
    with project(view), override_settings(MIDDLEWARE=middleware, TIDEGATE=options):
        ask = client().get if client is Client else async_to_sync(client().get)
        for _ in range(2):
            assert ask("/", headers={"if-modified-since": NOW}).status_code == 304
        answer = ask("/")
        assert answer.status_code == 200
        assert '"100/minute";r=10' in answer.headers["RateLimit"]


@pytest.mark.parametrize("end", ["cancelled", "raises"])
def test_middleware_settles_a_request_that_gets_no_response(end: str) -> None:
    clock = tg.ManualClock(START)
    limits = tg.Limiter("100/minute", clock=clock, prefix="tg:project")
    given: list[Any] = []

    def cost(request: Any, answer: Any) -> int:
        given.append(answer)
        return 30

    error = asyncio.CancelledError() if end == "cancelled" else LookupError("broken")

    async def unanswered(request: Any) -> Any:
        raise error

    options = {"LIMIT": "100/minute", "KEY": lambda request: "k", "COST": 50, "COST_AFTER": cost}
    options = {**options, "STORAGE": limits.storage, "CLOCK": clock}
    with override_settings(MIDDLEWARE=MIDDLEWARE, TIDEGATE=options):
        middleware: Any = RateLimitMiddleware(unanswered)
        with pytest.raises(type(error)):
            asyncio.run(middleware(RequestFactory().get("/")))
    assert given == [None if end == "cancelled" else error]
    assert limits.peek("k").remaining == 70
