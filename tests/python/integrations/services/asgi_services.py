"""One small service in each ASGI framework, under the middleware as users of the framework add it.

`app` serves them side by side, each below a path with its name, and passes each the scope
as the server made it. Clients name themselves, so that every test has its own limits.
"""

import asyncio
from collections import Counter

from tidegate import Limiter
from tidegate.asgi import RateLimitMiddleware

OPTIONS = {"limit": ["5/hour", "100/day"], "key": lambda scope: client(scope)}
# The limit of an application mounted below another application with its own limits.
INNER = {"limit": "2/hour", "key": lambda scope: client(scope)}

streams = Counter()


def client(scope):
    return dict(scope["headers"]).get(b"x-client")


async def pieces(name, forever):
    """A body in pieces, and the number of bodies that are being sent."""
    streams[name] += 1
    try:
        number = 0
        while forever or number < 3:
            yield b"piece %d\n" % number
            number += 1
            await asyncio.sleep(0.001)
    finally:
        streams[name] -= 1


def starlette():
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Mount, Route

    async def home(request):
        return PlainTextResponse("hello")

    async def stream(request):
        return StreamingResponse(pieces("starlette", "forever" in request.query_params))

    inner = RateLimitMiddleware(Starlette(routes=[Route("/", home)]), **INNER)
    routes = [
        Route("/starlette/", home),
        Route("/starlette/stream", stream),
        Mount("/starlette/inner", inner),
    ]
    return Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, **OPTIONS)])


def fastapi():
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    inner = FastAPI()
    inner.add_middleware(RateLimitMiddleware, **INNER)
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, **OPTIONS)

    @app.head("/fastapi/")
    @app.get("/fastapi/")
    @inner.get("/")
    async def home() -> str:
        return "hello"

    @app.get("/fastapi/stream")
    async def stream(forever: bool = False) -> StreamingResponse:
        return StreamingResponse(pieces("fastapi", forever))

    app.mount("/fastapi/inner", inner)
    return app


def litestar():
    from litestar import Litestar, asgi, get, head
    from litestar.middleware import DefineMiddleware
    from litestar.response import Stream

    @get("/litestar/")
    async def home() -> str:
        return "hello"

    @head("/litestar/")
    async def home_head() -> None:
        pass

    @get("/litestar/stream")
    async def stream(forever: bool = False) -> Stream:
        return Stream(pieces("litestar", forever))

    @get("/")
    async def inner_home() -> str:
        return "hello"

    # Litestar creates the middleware again for each route, so shared objects must be given.
    def shared(limit, key):
        return DefineMiddleware(RateLimitMiddleware, limiter=Limiter(limit), key=key)

    inner = Litestar([inner_home], middleware=[shared(**INNER)])
    return Litestar(
        [home, home_head, stream, asgi("/litestar/inner", is_mount=True)(inner)],
        middleware=[shared(**OPTIONS)],
    )


def quart():
    from quart import Quart, request

    app = Quart("quart_service")
    app.asgi_app = RateLimitMiddleware(app.asgi_app, **OPTIONS)

    @app.get("/quart/")
    async def home():
        return "hello"

    @app.get("/quart/stream")
    async def stream():
        return pieces("quart", "forever" in request.args)

    return app


def django():
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse, StreamingHttpResponse
    from django.urls import path

    async def home(request):
        return HttpResponse("hello")

    async def stream(request):
        return StreamingHttpResponse(pieces("django", "forever" in request.GET))

    urls = type("urls", (), {})
    urls.urlpatterns = [path("django/", home), path("django/stream", stream)]
    settings.configure(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], SECRET_KEY="-")
    return RateLimitMiddleware(get_asgi_application(), **OPTIONS)


SERVICES = {make.__name__: make() for make in (starlette, fastapi, litestar, quart, django)}


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})
        return
    name = scope["path"].split("/")[1]
    if name in SERVICES:
        await SERVICES[name](scope, receive, send)
        return
    # The tests read the number of bodies that are being sent.
    body = b"%d" % streams[scope["path"].split("/")[2]]
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
