"""One small service in each WSGI framework, like asgi_services.py for ASGI."""

from __future__ import annotations

import itertools
import time
from collections import Counter

from tidegate.wsgi import RateLimitMiddleware

OPTIONS = {
    "limit": ["5/hour", "100/day"],
    "key": lambda environ: environ.get("HTTP_X_CLIENT"),
}

streams = Counter()


def pieces(name, forever):
    streams[name] += 1
    try:
        for number in itertools.count() if forever else range(3):
            yield b"piece %d\n" % number
            time.sleep(0.001)
    finally:
        streams[name] -= 1


def plain():
    def service(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        if environ["PATH_INFO"] == "/plain/stream":
            return pieces("plain", environ["QUERY_STRING"])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [b"hello"]

    return RateLimitMiddleware(service, **OPTIONS)


def flask():
    from flask import Flask, Response, request

    app = Flask("flask_service")
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, **OPTIONS)

    @app.get("/flask/")
    def home():
        return "hello"

    @app.get("/flask/stream")
    def stream():
        return Response(pieces("flask", request.args))

    return app


def bottle():
    import bottle

    app = bottle.Bottle()

    @app.get("/bottle/")
    def home():
        return "hello"

    @app.get("/bottle/stream")
    def stream():
        return pieces("bottle", bottle.request.query_string)

    return RateLimitMiddleware(app, **OPTIONS)


def django():
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse, StreamingHttpResponse
    from django.urls import path

    def home(request):
        return HttpResponse("hello")

    def stream(request):
        return StreamingHttpResponse(pieces("django", request.GET))

    urls = type("urls", (), {})
    urls.urlpatterns = [path("django/", home), path("django/stream", stream)]
    settings.configure(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], SECRET_KEY="-")
    return RateLimitMiddleware(get_wsgi_application(), **OPTIONS)


SERVICES = {make.__name__: make() for make in (plain, flask, bottle, django)}


def app(environ, start_response):
    _, name, rest = environ["PATH_INFO"].split("/", 2)
    if name in SERVICES:
        return SERVICES[name](environ, start_response)
    # The tests read the number of bodies that are being sent.
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % streams[rest]]
