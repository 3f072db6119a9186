"""The same three routes in each framework, behind rules for these routes.

`asgi` and `wsgi` serve them side by side: the first label of the header Host names the framework.
The body of an answer is the name of the route that ran.
"""

import contextlib
import functools

from spelled_rules import RULES
from tidegate import Limiter
from tidegate.asgi import RateLimitMiddleware
from tidegate.wsgi import RateLimitMiddleware as WSGIMiddleware


def starlette():
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def route(pattern, name):
        async def answer(request):
            return PlainTextResponse(name)

        return Route(pattern, answer)

    routes = [
        route("/login", "login"),
        route("/items/{id}", "items"),
        route("/files/{rest:path}", "files"),
    ]
    return Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, rules=RULES)])


def fastapi():
    from fastapi import FastAPI

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, rules=RULES)
    app.get("/login")(lambda: "login")
    app.get("/items/{id}")(lambda: "items")
    app.get("/files/{rest:path}")(lambda: "files")
    return app


def litestar():
    from litestar import Litestar, get
    from litestar.middleware import DefineMiddleware

    @get("/login")
    async def login() -> str:
        return "login"

    @get("/items/{id:str}")
    async def items(id: str) -> str:
        return "items"

    @get(["/files", "/files/{rest:path}"])
    async def files(rest: str = "") -> str:
        return "files"

    limited = DefineMiddleware(RateLimitMiddleware, limiter=Limiter(rules=RULES))
    return Litestar([login, items, files], middleware=[limited])


def quart():
    from quart import Quart

    app = Quart("quart_service")
    app.asgi_app = RateLimitMiddleware(app.asgi_app, rules=RULES)

    def route(pattern, name):
        async def answer(**parts):
            return name

        app.add_url_rule(pattern, name, answer)

    route("/login", "login")
    route("/items/<id>", "items")
    route("/files/<path:rest>", "files")
    return app


def falcon_asgi():
    from falcon.asgi import App

    def resource(name):
        class Resource:
            async def on_get(self, req, resp, **parts):
                resp.text = name

        return Resource()

    return RateLimitMiddleware(_of_falcon(App(), resource), rules=RULES)


def blacksheep():
    from blacksheep import Application, text

    app = Application()

    async def login():
        return text("login")

    async def items(id: str):
        return text("items")

    async def files(rest: str):
        return text("files")

    app.router.add_get("/login", login)
    app.router.add_get("/items/{id}", items)
    app.router.add_get("/files/{path:rest}", files)
    return RateLimitMiddleware(app, rules=RULES)


def django_asgi():
    from django.core.asgi import get_asgi_application

    _set_up_django()
    return get_asgi_application()


def flask():
    app = _routes_of_flask()
    app.wsgi_app = WSGIMiddleware(app.wsgi_app, rules=RULES)
    return app


def flask_extension():
    from tidegate.flask import RateLimiter

    app = _routes_of_flask()
    RateLimiter(app, rules=RULES)
    return app


def bottle():
    from bottle import Bottle

    app = Bottle()
    app.get("/login", callback=lambda: "login")
    app.get("/items/<id>", callback=lambda id: "items")
    app.get("/files/<rest:path>", callback=lambda rest: "files")
    return WSGIMiddleware(app, rules=RULES)


def falcon():
    from falcon import App

    def resource(name):
        class Resource:
            def on_get(self, req, resp, **parts):
                resp.text = name

        return Resource()

    return WSGIMiddleware(_of_falcon(App(), resource), rules=RULES)


def pyramid():
    from pyramid.config import Configurator
    from pyramid.response import Response

    with Configurator() as config:
        for name, pattern in (
            ("login", "/login"),
            ("items", "/items/{id}"),
            ("files", "/files/*rest"),
        ):
            config.add_route(name, pattern)
            config.add_view(lambda request, name=name: Response(name), route_name=name)
        return WSGIMiddleware(config.make_wsgi_app(), rules=RULES)


def django():
    from django.core.wsgi import get_wsgi_application

    _set_up_django()
    return get_wsgi_application()


def _routes_of_flask():
    from flask import Flask

    app = Flask("flask_service")
    app.add_url_rule("/login", "login", lambda: "login")
    app.add_url_rule("/items/<id>", "items", lambda id: "items")
    app.add_url_rule("/files/<path:rest>", "files", lambda rest: "files")
    return app


def _of_falcon(app, resource):
    app.add_route("/login", resource("login"))
    app.add_route("/items/{id}", resource("items"))
    app.add_route("/files/{rest:path}", resource("files"))
    return app


def _set_up_django():
    from django.conf import settings
    from django.http import HttpResponse
    from django.urls import path, re_path

    if settings.configured:
        return

    def view(name):
        return lambda request, **parts: HttpResponse(name)

    urls = type("urls", (), {})
    urls.urlpatterns = [
        path("login", view("login")),
        path("items/<str:id>", view("items")),
        re_path(r"^files/(?P<rest>.*)$", view("files")),
    ]
    settings.configure(
        ROOT_URLCONF=urls,
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="-",
        MIDDLEWARE=["tidegate.django.RateLimitMiddleware"],
        TIDEGATE={"RULES": RULES},
    )


ASGI = (starlette, fastapi, litestar, quart, falcon_asgi, blacksheep, django_asgi)
WSGI = (flask, flask_extension, bottle, falcon, pyramid, django)
MAKERS = {make.__name__.replace("_", "-"): make for make in (*ASGI, *WSGI)}


@functools.cache
def service(name):
    """The application of a framework, made when it is first asked for."""
    return MAKERS[name]()


async def asgi(scope, receive, send):
    if scope["type"] != "lifespan":
        host = dict(scope["headers"])[b"host"].decode()
        await service(host.partition(".")[0])(scope, receive, send)
        return
    app = _no_lifespan
    with contextlib.suppress(ModuleNotFoundError):
        app = service("blacksheep")  # which alone makes its routes ready there
    await app(scope, receive, send)


async def _no_lifespan(scope, receive, send):
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})


def wsgi(environ, start_response):
    return service(environ["HTTP_HOST"].partition(".")[0])(environ, start_response)
