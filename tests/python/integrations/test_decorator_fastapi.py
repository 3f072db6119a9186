"""@rate_limit on routes of FastAPI and Starlette."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Annotated

import pytest
import tidegate as tg
from polling import run_threads
from servers import asgi_server, ask
from tidegate import rate_limit
from tidegate.asgi import RateLimitMiddleware
from tidegate.fastapi import RateLimit

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from fastapi import (
    APIRouter,
    BackgroundTasks,
    Depends,
    FastAPI,
    HTTPException,
    Query,
    Request,
    Response,
)
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.routing import Route

NOW = 1_700_000_000 * 10**9


@pytest.fixture
def app():
    return FastAPI()


class Item(BaseModel):
    name: str = "shell"
    price: int = 3


def dependency() -> str:
    return "dependency"


def routes(app, decorate):
    """Adds one route of each kind that FastAPI knows, under `decorate`."""

    @app.get("/dict/{number}")
    @decorate
    async def a_dict(number: int, q: str = "x", flag: Annotated[bool, Query()] = False):
        return {"number": number}

    @app.get("/model")
    @decorate
    def a_model(found: str = Depends(dependency)) -> Item:
        """A plain function."""
        return Item(name=found)

    @app.post("/item", status_code=201)
    @decorate
    async def a_body(item: Item, tasks: BackgroundTasks) -> Item:
        tasks.add_task(len, "x")
        return item

    @app.get("/own-request")
    @decorate
    async def own_request(request: Request, response: Response) -> str:
        response.headers["x-own"] = "1"
        return request.url.path

    @app.get("/response")
    @decorate
    def a_response() -> Response:
        return PlainTextResponse("plain", headers={"x-own": "1"})

    @app.get("/stream", response_class=StreamingResponse)
    @decorate
    async def a_stream():
        return StreamingResponse(iter(["a", "b"]))

    @app.get("/error")
    @decorate
    async def an_error() -> None:
        raise HTTPException(404, headers={"x-own": "1"})

    return app


def test_every_sort_of_route_sends_the_fields_of_its_limit(clock):
    app = routes(FastAPI(), lambda view: rate_limit("1/minute", clock=clock)(view))
    with asgi_server(app) as client:
        for path, method, body, status, answered in (
            ("/dict/3", "GET", None, 200, b'{"number":3}'),
            ("/model", "GET", None, 200, b'{"name":"dependency","price":3}'),
            ("/item", "POST", b'{"name": "pearl"}', 201, b'{"name":"pearl","price":3}'),
            ("/own-request", "GET", None, 200, b'"/own-request"'),
            ("/response", "GET", None, 200, b"plain"),
            ("/stream", "GET", None, 200, b"ab"),
            ("/error", "GET", None, 404, b'{"detail":"Not Found"}'),
        ):
            headers = {"content-type": "application/json"}
            answer = client(path, method, body=body, headers=headers)
            assert (path, answer.status, answer.body) == (path, status, answered)
            assert answer["x-ratelimit-limit"] == "1"
            assert answer["x-ratelimit-remaining"] == "0"
            assert answer["x-ratelimit-reset"] == "1700000060"
            assert answer["ratelimit-policy"] == '"1/minute";q=1;w=60'
            assert answer["ratelimit"] == '"1/minute";r=0;t=60'
            assert "retry-after" not in answer
            assert ("x-own" in answer) == (path in ("/own-request", "/response", "/error"))

            refusal = client(path, method, body=body, headers=headers)
            assert refusal.status == 429
            assert refusal["content-type"] == "application/problem+json"
            assert refusal["retry-after"] == "60"
            assert refusal["ratelimit"] == '"1/minute";r=0;t=60'
            assert refusal.json()["violated-policies"] == ["1/minute"]


def test_the_openapi_schema_gains_only_the_429():
    bare = routes(FastAPI(), lambda view: view).openapi()
    limited = routes(FastAPI(), lambda view: rate_limit("1/minute")(view)).openapi()
    for operations in limited["paths"].values():
        for operation in operations.values():
            refusal = operation["responses"].pop("429")
            assert "application/problem+json" in refusal["content"]
    assert limited == bare


def test_a_route_that_documents_its_own_429_keeps_it(app):
    @app.get("/", responses={429: {"description": "Come again"}})
    @rate_limit("1/minute")
    async def own():
        return {}

    responses = app.openapi()["paths"]["/"]["get"]["responses"]
    assert responses["429"]["description"] == "Come again"


def test_dependencies_document_the_429():
    def route():
        return {}

    router = APIRouter(dependencies=[Depends(RateLimit("1/minute"))])
    router.get("/router")(route)
    app = FastAPI()
    app.include_router(router)
    app.get("/route", dependencies=[Depends(RateLimit("1/minute"))])(route)
    app.get("/free")(route)
    paths = app.openapi()["paths"]
    told = {path: "429" in each["get"]["responses"] for path, each in paths.items()}
    assert told == {"/router": True, "/route": True, "/free": False}


def test_routes_of_one_name_do_not_share_a_counter(app, clock):
    for path in ("/a", "/b", "/c"):

        @app.get(path)
        @rate_limit("1/minute", clock=clock)
        async def get():
            return {}

    assert [ask(app, path).status for path in ("/a", "/b", "/c", "/a", "/b", "/c")] == [
        200,
        200,
        200,
        429,
        429,
        429,
    ]


def test_one_decorator_on_two_routes_counts_for_each(app, clock):
    limited = rate_limit("1/minute", clock=clock)

    @app.get("/a")
    @limited
    async def a():
        return {}

    @app.get("/b")
    @limited
    async def b():
        return {}

    assert [ask(app, path).status for path in ("/a", "/b", "/a")] == [200, 200, 429]


def test_a_scope_is_shared(app, clock):
    @app.get("/a")
    @rate_limit("2/minute", scope="both", clock=clock)
    async def a():
        return {}

    @app.get("/b")
    @rate_limit("2/minute", scope="both", clock=clock)
    def b():
        return {}

    assert [ask(app, path).status for path in ("/a", "/b", "/a", "/b")] == [200, 200, 429, 429]


def test_a_route_may_have_its_own_store(app, clock):
    limiter = tg.Limiter("1/minute", clock=clock)

    @app.get("/")
    @rate_limit("1/minute", storage=limiter.storage, clock=clock)
    async def route():
        return {}

    ask(app)
    assert limiter.stats().keys == 1


def test_async_routes_may_have_async_functions(app, clock):
    async def user(request):
        return request.path_params["user"]

    async def length(request):
        return len(request.path_params["user"])

    async def is_root(request):
        return request.path_params["user"] == "root"

    async def short(request, decision):
        return PlainTextResponse(f"wait {decision.retry_after}", 503)

    @app.get("/{user}")
    @rate_limit(
        "5/minute", clock=clock, key=user, cost=length, exempt_when=is_root, on_refused=short
    )
    async def route(user: str):
        return {}

    users = ("bob", "bob", "al", "al", "al", "root", "root")
    assert [ask(app, f"/{user}").status for user in users] == [200, 503, 200, 200, 503, 200, 200]
    refusal = ask(app, "/bob")
    assert refusal.body == b"wait 12.0"
    assert refusal["retry-after"] == "12"


def test_a_lambda_that_returns_an_awaitable_in_a_plain_route_is_an_error(app, clock):
    async def user(request):
        return "user"

    @app.get("/")
    @rate_limit("1/minute", clock=clock, key=lambda request: user(request))
    def route():
        return {}

    with pytest.raises(tg.ArgumentTypeError, match="one that is not async either"):
        ask(app)


def test_clients_are_distinguished_by_address(app, clock):
    @app.get("/")
    @rate_limit("1/minute", clock=clock)
    async def route():
        return {}

    forged = [(b"x-forwarded-for", b"198.51.100.7")]
    assert [
        ask(app).status,
        ask(app, headers=forged).status,
        ask(app, client=("203.0.113.10", 1)).status,
    ] == [200, 429, 200]


def test_on_refused_may_return_what_the_route_could(app, clock, caplog):
    @app.get("/dict", status_code=201)
    @rate_limit("1/minute", clock=clock, on_refused=lambda request, decision: {"wait": 1})
    def a_dict():
        return {}

    @app.get("/own", status_code=201)
    @rate_limit(
        "1/minute",
        clock=clock,
        on_refused=lambda request, decision: PlainTextResponse("later", 503),
    )
    async def own():
        return {}

    @app.get("/broken")
    @rate_limit("1/minute", clock=clock, on_refused=lambda request, decision: 1 / 0)
    def broken():
        return {}

    ask(app, "/dict")
    answer = ask(app, "/dict")
    assert (answer.status, answer.json()) == (429, {"wait": 1})
    assert answer["retry-after"] == "60"
    assert [ask(app, "/own") for _ in range(2)][1].status == 503
    ask(app, "/broken")
    assert ask(app, "/broken").status == 429
    assert "on_refused raised" in caplog.text


def test_an_exception_that_is_raised_repeatedly_is_not_changed(app, clock):
    error = HTTPException(409, "taken", headers={"x-own": "1"})

    @app.get("/")
    @rate_limit("5/minute", clock=clock)
    async def route():
        raise error

    assert [ask(app)["x-ratelimit-remaining"] for _ in range(3)] == ["4", "3", "2"]
    assert error.headers == {"x-own": "1"}
    assert (ask(app).status, ask(app).json()) == (409, {"detail": "taken"})


def test_a_response_that_is_returned_repeatedly_has_each_field_once(app, clock):
    response = PlainTextResponse("same")

    @app.get("/")
    @rate_limit("5/minute", clock=clock)
    async def route():
        return response

    assert [ask(app)["x-ratelimit-remaining"] for _ in range(3)] == ["4", "3", "2"]


def test_exceptions_of_a_route_pass_through(app, clock):
    @app.get("/")
    @rate_limit("5/minute", clock=clock)
    def route():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(app)


def test_a_limit_on_a_router_works_with_a_middleware_outside(clock):
    router = APIRouter(prefix="/api")

    @router.get("/a")
    @rate_limit("1/minute", clock=clock)
    async def a():
        return {}

    app = FastAPI()
    app.include_router(router)
    app.add_middleware(RateLimitMiddleware, limit="100/minute", clock=clock)
    for status in (200, 429):
        answer = ask(app, "/api/a")
        assert answer.status == status
        assert answer["x-ratelimit-limit"] == "1"
        assert Counter(name for name, _ in answer.fields)["ratelimit"] == 1
        assert answer["ratelimit-policy"] == '"1/minute";q=1;w=60, "100/minute";q=100;w=60'


def test_routes_of_starlette_are_limited(clock):
    @rate_limit("1/minute", clock=clock)
    async def by_position(request):
        return PlainTextResponse(request.url.path)

    @rate_limit("1/minute", clock=clock)
    def plain(request):
        return PlainTextResponse("plain")

    class Endpoint(HTTPEndpoint):
        @rate_limit("1/minute", clock=clock)
        async def get(self, request):
            return PlainTextResponse("endpoint")

    app = Starlette(
        routes=[Route("/a", by_position), Route("/b", plain), Route("/c", Endpoint)],
    )
    for path, body in (("/a", b"/a"), ("/b", b"plain"), ("/c", b"endpoint")):
        answer = ask(app, path)
        assert (answer.status, answer.body) == (200, body)
        assert answer["ratelimit"] == '"1/minute";r=0;t=60'
        assert ask(app, path).status == 429


def test_threads_are_admitted_up_to_the_limit(app, clock):
    @app.get("/")
    @rate_limit("20/minute", clock=clock)
    def route():
        return {}

    counts: Counter[int] = Counter()
    threads = [
        threading.Thread(target=lambda: counts.update(ask(app).status for _ in range(10)))
        for _ in range(4)
    ]
    run_threads(threads)
    assert counts == {200: 20, 429: 20}
