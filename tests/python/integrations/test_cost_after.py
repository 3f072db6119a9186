"""cost_after in middleware and dependencies, with answers and with exceptions."""

from __future__ import annotations

from collections import UserDict

import fastapi
import pytest
import tidegate as tg
from fastapi.testclient import TestClient
from servers import ask as ask_asgi
from tidegate import asgi, wsgi
from tidegate.fastapi import RateLimit

LIMIT = {"limit": "10/minute", "cost": 10}


class UpstreamError(Exception):
    pass


def only_what_succeeds(request, answer):
    return 10 if getattr(answer, "status", None) == 200 else 0


# ---------------------------------------------------------------- ASGI


async def application(scope, receive, send):
    if scope["path"] == "/raises":
        raise UpstreamError
    status = 502 if scope["path"] == "/502" else 200
    headers = [(b"content-type", b"text/plain"), (b"x-used", b"3")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


def test_the_asgi_middleware_settles_by_the_answer_and_by_the_exception(clock):
    seen = []

    async def cost_after(scope, answer):
        seen.append(repr(answer))
        return only_what_succeeds(scope, answer)

    app = asgi.RateLimitMiddleware(application, cost_after=cost_after, clock=clock, **LIMIT)
    with pytest.raises(UpstreamError):
        ask_asgi(app, path="/raises")
    found = [ask_asgi(app, path=path).status for path in ("/502", "/200", "/200")]
    assert found == [502, 200, 429]
    assert seen == ["UpstreamError()", "<answer with status 502>", "<answer with status 200>"]


def test_the_answer_has_its_headers(clock):
    app = asgi.RateLimitMiddleware(
        application,
        cost_after=lambda s, answer: int(answer.headers["x-used"]),
        clock=clock,
        **LIMIT,
    )
    ask_asgi(app)
    assert app.limiter.peek("203.0.113.9").remaining == 7


# ---------------------------------------------------------------- WSGI


def wsgi_application(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/raises":
        raise UpstreamError
    start_response("502 Bad Gateway" if path == "/502" else "200 OK", [])
    if path == "/breaks":
        return breaking()
    return [b"hello"]


def breaking():
    yield b"he"
    raise UpstreamError


def wsgi_call(app, path):
    statuses = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "REMOTE_ADDR": "203.0.113.9"}
    body = app(environ, lambda status, headers, *exc_info: statuses.append(int(status[:3])))
    try:
        b"".join(body)
    finally:
        close = getattr(body, "close", None)
        if close:
            close()
    return statuses[-1]


def test_the_wsgi_middleware_settles_by_the_answer_and_by_the_exception(clock):
    seen = []

    def cost_after(environ, answer):
        seen.append(repr(answer))
        return only_what_succeeds(environ, answer)

    app = wsgi.RateLimitMiddleware(wsgi_application, cost_after=cost_after, clock=clock, **LIMIT)
    for path in ("/raises", "/breaks"):
        with pytest.raises(UpstreamError):
            wsgi_call(app, path)
    assert [wsgi_call(app, path) for path in ("/502", "/200", "/200")] == [502, 200, 429]
    assert seen == [
        *("UpstreamError()", "UpstreamError()"),
        *("<answer with status 502>", "<answer with status 200>"),
    ]


# --------------------------------------------------------------- rules

RULES = tg.RuleSet(
    {
        "rules": [
            {"id": "tokens", "by": "ip", "limit": "100/minute"},
            {"id": "requests", "by": "ip", "limit": "10/minute", "counts": "requests"},
            {"id": "shadowed", "by": "endpoint", "limit": "5/minute", "shadow": True},
            {"id": "places", "by": "method", "limit": "40/minute", "algorithm": "concurrency"},
        ],
        "costs": [
            {"endpoint": "/twice", "cost": 2},
            {"endpoint": "/usage", "cost": {"estimate": 30, "usage": {"input": 1, "output": 5}}},
        ],
    }
)


def used_by_rules(limiter, path="/"):
    outcomes = limiter.peek(ip="203.0.113.9", endpoint=path, method="GET").outcomes
    left = {each.rule: each.limit - each.remaining + each.debt for each in outcomes}
    assert left["places"] == 0
    return left["tokens"], left["requests"]


class Unreadable(UserDict):
    def items(self):
        raise RuntimeError("of the application")


@pytest.mark.parametrize("kind", [asgi, wsgi])
@pytest.mark.parametrize(
    ("path", "returned", "used"),
    [
        ("/", 4, 4),
        ("/", 10, 10),
        ("/", 130, 130),
        ("/", 0, 0),
        ("/twice", 3, 6),
        ("/usage", 70, 70),
        ("/usage", {"input": 10, "output": 8}, 50),
        ("/usage", {"input": 7}, 7),
        # What stays as it was charged.
        ("/", {"input": 7}, 10),
        ("/usage", {"other": 7}, 30),
        ("/usage", Unreadable(), 30),
        ("/", -1, 10),
        ("/", "4", 10),
    ],
)
def test_middleware_settles_what_rules_charged(kind, path, returned, used, clock):
    middleware = kind.RateLimitMiddleware(
        application if kind is asgi else wsgi_application,
        rules=RULES,
        clock=clock,
        cost=10 if path != "/usage" else 1,
        cost_after=lambda request, answer: returned,
    )
    status = ask_asgi(middleware, path=path).status if kind is asgi else wsgi_call(middleware, path)
    assert status == 200
    assert used_by_rules(middleware.limiter, path) == (used, 1)


# ---------------------------------------------------------------- FastAPI


def fastapi_service(cost_after, dependencies=(), **options):

    limit = RateLimit("10/minute", cost=10, cost_after=cost_after, **options)
    service = fastapi.FastAPI()
    depends = [fastapi.Depends(each) for each in (limit, *dependencies)]

    def raise_for(status):
        if status == 500:
            raise UpstreamError
        if status != 200:
            raise fastapi.HTTPException(status)

    @service.get("/later/{status}", dependencies=depends)
    async def later(status: int):
        raise_for(status)
        return {"used": 4}

    @service.get("/now/{status}", dependencies=depends)
    def now(status: int):
        raise_for(status)
        return {"used": 4}

    @service.get("/response/{status}", dependencies=depends)
    async def response(status: int):
        raise_for(status)
        return fastapi.Response("x", headers={"x-used": "4"})

    @service.get("/stream/{status}", dependencies=depends)
    async def stream(request: fastapi.Request, status: int):
        async def chunks():
            request.state.used = 4
            yield b"x"

        return fastapi.responses.StreamingResponse(chunks())

    return TestClient(service, raise_server_exceptions=False), limit


@pytest.mark.parametrize("route", ["later", "now", "response"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_dependency_settles_by_the_result_and_by_the_exception(clock, route, is_async):
    seen = []

    def now(request, answer):
        seen.append(type(answer).__name__)
        return 0 if isinstance(answer, Exception) else 4

    async def later(request, answer):
        return now(request, answer)

    client, _ = fastapi_service(later if is_async else now, clock=clock)
    failed = [client.get(f"/{route}/{status}") for status in (502, 500)]
    assert [each.status_code for each in failed] == [502, 500]
    assert failed[0].headers["x-ratelimit-remaining"] == "10"
    answer = client.get(f"/{route}/200")
    assert (answer.status_code, answer.headers["x-ratelimit-remaining"]) == (200, "6")
    assert client.get(f"/{route}/200").status_code == 429
    kind = "Response" if route == "response" else "dict"
    assert seen == ["HTTPException", "UpstreamError", kind]


def test_a_dependency_settles_a_stream_at_its_end(clock):
    client, limit = fastapi_service(lambda request, answer: request.state.used, clock=clock)
    assert client.get("/stream/200").headers["x-ratelimit-remaining"] == "0"
    assert limit.limiter.peek("testclient").remaining == 6


def test_a_later_dependency_that_raises_settles_the_earlier_one(clock):

    def forbidden():
        raise fastapi.HTTPException(403)

    def cost_after(request, answer):
        return 0 if isinstance(answer, fastapi.HTTPException) else 10

    client, limit = fastapi_service(cost_after, [forbidden], clock=clock)
    assert [client.get("/later/200").status_code for _ in range(3)] == [403] * 3
    assert limit.limiter.peek("testclient").remaining == 10


def test_a_later_limit_that_refuses_gives_back_without_settling(clock):

    seen = []
    refusing = RateLimit("0/minute", clock=clock)
    client, limit = fastapi_service(lambda r, a: seen.append(a) or 10, [refusing], clock=clock)
    assert [client.get("/later/200").status_code for _ in range(2)] == [429] * 2
    assert seen == []
    assert limit.limiter.peek("testclient").remaining == 10


def test_a_websocket_is_settled_when_it_ends(clock):

    seen = []
    service = fastapi.FastAPI()
    limit = RateLimit(
        "10/minute", cost=10, cost_after=lambda w, a: seen.append(a) or 3, clock=clock
    )

    @service.websocket("/ws", dependencies=[fastapi.Depends(limit)])
    async def ws(websocket: fastapi.WebSocket):
        await websocket.accept()
        await websocket.close()

    with TestClient(service).websocket_connect("/ws"):
        pass
    assert seen == [None]
    assert limit.limiter.peek("testclient").remaining == 7
