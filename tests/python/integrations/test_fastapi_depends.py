"""Depends(RateLimit(...)), on routes, routers and applications, through real requests."""

from __future__ import annotations

import asyncio
import inspect
from typing import Annotated, Any

import httpx2
import pytest
import tidegate as tg
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel
from servers import Answer, asgi_server, ask
from tidegate.fastapi import RateLimit, RateLimitExceeded


def limit(text: str = "2/minute", **options: Any) -> Any:
    options.setdefault("clock", tg.ManualClock(1_700_000_000 * 10**9))
    return Depends(RateLimit(text, **options))


FIVE = RateLimit("5/minute", clock=tg.ManualClock())


def get(app: FastAPI, path: str = "/", **options: Any) -> Answer:
    return ask(app, path, **options)


def test_requests_above_the_limit_get_429() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[limit()])
    async def route() -> dict[str, str]:
        return {"hello": "world"}

    answers = [get(app) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [answer["x-ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
    assert answers[0]["ratelimit-policy"] == '"2/minute";q=2;w=60'
    assert answers[2]["retry-after"] == "30"
    assert answers[2]["content-type"] == "application/problem+json"
    assert answers[2].json()["violated-policies"] == ["2/minute"]


def test_every_fastapi_awaits_a_limit() -> None:
    # Each release uses one of these functions; a dependency that is not awaited limits nothing.
    call = getattr(RateLimit("2/minute"), "__call__")  # noqa: B004, B009
    assert inspect.iscoroutinefunction(call)
    assert call.__func__.__code__.co_flags & inspect.CO_COROUTINE


def test_the_value_is_the_decision() -> None:
    app = FastAPI()

    @app.get("/")
    def route(decision: Annotated[Any, Depends(FIVE)]) -> int:
        assert isinstance(decision, tg.Decision)
        return decision.remaining

    assert get(app).json() == 4


RETURNS = ["dict", "response", "streaming", "sync", "background", "raise", "after", "handler"]


@pytest.mark.parametrize("path", RETURNS)
def test_responses_of_all_kinds_carry_the_fields(path: str) -> None:
    app = FastAPI(dependencies=[limit("9/minute")])
    done = []

    async def refuse_later() -> None:
        raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})

    @app.get("/dict")
    async def as_dict() -> dict[str, int]:
        return {"a": 1}

    @app.get("/response")
    async def as_response() -> JSONResponse:
        return JSONResponse({"a": 1}, headers={"X-Own": "1"})

    @app.get("/streaming")
    async def as_stream() -> StreamingResponse:
        return StreamingResponse(iter([b"a", b"b"]))

    @app.get("/sync")
    def sync() -> JSONResponse:
        return JSONResponse({"a": 1})

    @app.get("/background")
    async def background(tasks: BackgroundTasks) -> dict[str, int]:
        tasks.add_task(done.append, 1)
        return {"a": 1}

    @app.get("/raise")
    async def raises() -> None:
        raise HTTPException(404)

    @app.get("/after", dependencies=[Depends(refuse_later)])
    async def after() -> None:
        raise AssertionError("not reached")

    @app.get("/handler")
    async def handled() -> None:
        raise HTTPException(409, headers={"X-Own": "1"})

    for remaining in ("8", "7"):
        answer = get(app, f"/{path}")
        assert answer["x-ratelimit-remaining"] == remaining
        assert answer["ratelimit"].startswith('"9/minute"')
    assert bool(done) is (path == "background")
    if path == "after":
        assert answer.status == 401
        assert answer["www-authenticate"] == "Bearer"
    if path in ("response", "handler"):
        assert answer["x-own"] == "1"


def test_a_later_refusal_gives_back_earlier_charges() -> None:
    app_limit = RateLimit("10/minute", clock=tg.ManualClock(), key=lambda request: "k")
    app = FastAPI(dependencies=[Depends(app_limit)])
    router = APIRouter(dependencies=[limit("5/minute")])

    @router.get("/", dependencies=[limit("1/minute")])
    async def route() -> str:
        return "ok"

    app.include_router(router)
    answers = [get(app) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 429, 429, 429]
    # The fields are those of the binding limit, and refused requests cost nothing anywhere.
    assert answers[0]["x-ratelimit-limit"] == "1"
    assert app_limit.limiter.peek("k").remaining == 9


def test_dependencies_with_one_scope_share_a_limit() -> None:
    app = FastAPI()
    clock = tg.ManualClock()

    @app.get("/a", dependencies=[limit("1/minute", scope="shared", prefix="one", clock=clock)])
    async def a() -> str:
        return "a"

    @app.get("/b", dependencies=[limit("1/minute", scope="shared", prefix="one", clock=clock)])
    async def b() -> str:
        return "b"

    assert [get(app, path).status for path in ("/a", "/b")] == [200, 429]


def test_all_routes_with_one_object_share_its_counts() -> None:
    app = FastAPI(dependencies=[limit("4/minute")])
    router = APIRouter(dependencies=[limit("3/minute")])
    one = limit("1/minute")

    @router.get("/a", dependencies=[one])
    @router.get("/b", dependencies=[one])
    @router.get("/c", dependencies=[limit("1/minute")])
    @router.get("/d", dependencies=[limit("1/minute")])
    @router.get("/e")
    @app.get("/f")
    @app.get("/g")
    async def route() -> str:
        return "x"

    app.include_router(router)
    paths = ("/a", "/b", "/c", "/d", "/e", "/f", "/g")
    # /b is refused by the object of /a, /e by the router's, and /g by the application's.
    assert [get(app, path).status for path in paths] == [200, 429, 200, 200, 429, 200, 429]


def test_requests_are_counted_by_client_and_template() -> None:
    app = FastAPI()

    @app.get("/items/{item}", dependencies=[limit("2/minute")])
    async def item(item: int) -> int:
        return item

    # The route's template is counted, so a new path is not a new limit.
    assert [get(app, f"/items/{n}").status for n in range(3)] == [200, 200, 429]
    assert get(app, "/items/9", client=("203.0.113.10", 1)).status == 200


def test_handlers_of_the_service_answer_refusals() -> None:
    app = FastAPI()

    @app.exception_handler(RateLimitExceeded)
    async def slow_down(request: Request, exc: RateLimitExceeded) -> JSONResponse:
        return JSONResponse({"wait": exc.decision.retry_after}, 503, exc.headers)

    @app.get("/", dependencies=[limit("1/minute")])
    async def route() -> str:
        return "ok"

    get(app)
    answer = get(app)
    assert (answer.status, answer.json(), answer["retry-after"]) == (503, {"wait": 60.0}, "60")


class Storm(Exception):
    pass


@pytest.mark.parametrize("path", ["/storm", "/status", "/item/notanumber", "/teapot"])
def test_answers_of_exception_handlers_carry_the_fields(path: str) -> None:
    app = FastAPI(dependencies=[limit("9/minute"), limit("2/minute")])

    @app.exception_handler(Storm)
    def of_a_class(request: Request, exc: Storm) -> JSONResponse:
        return JSONResponse({}, 503)

    @app.exception_handler(410)
    async def of_a_status(request: Request, exc: HTTPException) -> JSONResponse:
        return JSONResponse({}, 404)

    class OfAnObject:
        async def __call__(self, request: Request, exc: Exception) -> JSONResponse:
            return JSONResponse({}, 418)

    app.add_exception_handler(KeyError, OfAnObject())

    @app.get("/storm")
    def storm() -> None:
        raise Storm

    @app.get("/status")
    async def status() -> None:
        raise HTTPException(410)

    @app.get("/teapot")
    async def teapot() -> None:
        raise KeyError

    @app.get("/item/{item}")
    async def item(item: int) -> int:
        return item

    answers = [get(app, path) for _ in range(3)]
    expected = {"/storm": 503, "/status": 404, "/item/notanumber": 422, "/teapot": 418}[path]
    assert [answer.status for answer in answers] == [expected, expected, 429]
    assert [answer["x-ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]
    assert [answer["x-ratelimit-limit"] for answer in answers] == ["2"] * 3
    # A route without a limit has no fields, though the handler is the same.
    assert "x-ratelimit-limit" not in get(app, "/nowhere")


def test_an_exception_of_on_refused_has_the_fields_of_the_limit_that_refused() -> None:
    """And none of a limit that was given back."""
    instead = limit("1/minute", on_refused=lambda request, decision: HTTPException(418))
    app = FastAPI(dependencies=[limit("9/minute")])

    @app.get("/", dependencies=[instead])
    async def route() -> str:
        return "ok"

    assert get(app).status == 200
    answer = get(app)
    assert answer.status == 418
    assert answer["x-ratelimit-limit"] == "1"
    assert answer["retry-after"] == "60"


def test_on_refused_may_return_an_exception() -> None:
    app = FastAPI()
    instead = limit("1/minute", on_refused=lambda request, decision: HTTPException(418))

    @app.get("/", dependencies=[instead])
    async def route() -> str:
        return "ok"

    assert [get(app).status for _ in range(2)] == [200, 418]


def test_exempt_requests_get_no_fields() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[limit("1/minute", exempt_when=lambda request: True)])
    async def route() -> str:
        return "ok"

    answers = [get(app) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert "x-ratelimit-limit" not in answers[0]


def test_invalid_options_are_refused() -> None:
    with pytest.raises(tg.ConfigurationError, match="scope"):
        RateLimit("5/minute", scope="")
    with pytest.raises(tg.ConfigurationError):
        RateLimit("5/fortnight")


def test_requests_are_limited_under_a_real_server() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[limit("3/hour", clock=None)])
    def route() -> StreamingResponse:
        return StreamingResponse(iter([b"a", b"b"]))

    with asgi_server(app) as client:
        answers = [client("/") for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert [answer["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0", "0"]


def test_a_task_that_inherits_a_context_sends_no_fields_of_another_request() -> None:
    app = FastAPI()
    clock = tg.ManualClock(1_700_000_000 * 10**9)
    once = RateLimit("1/hour", clock=clock)

    @app.get("/other", dependencies=[limit("9/hour", clock=clock)])
    async def other() -> JSONResponse:
        return JSONResponse({})

    async def softly(request: Request, response: Response) -> str:
        try:
            await once(request, response)
        except RateLimitExceeded:
            return "refused"
        return "allowed"

    depends_on_softly = Depends(softly)

    @app.get("/soft")
    async def soft(how: Any = depends_on_softly) -> JSONResponse:
        return JSONResponse(how)

    async def told() -> list[dict[str, str]]:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return [
                {name: value for name, value in answer.headers.items() if name.startswith("x-")}
                for answer in [await client.get(path) for path in ("/other", "/soft") * 2]
            ]

    first, allowed, second, refused = asyncio.run(told())
    assert (first["x-ratelimit-remaining"], second["x-ratelimit-remaining"]) == ("8", "7")
    assert allowed["x-ratelimit-limit"] == "1"
    assert refused == {}


class Model(BaseModel):
    raw_headers: Any = None


@pytest.mark.parametrize("raw", [None, {}, "text"])
def test_a_value_named_raw_headers_is_left_alone(raw: Any) -> None:
    app = FastAPI()

    @app.get("/depends", dependencies=[limit()])
    async def depends() -> Model:
        return Model(raw_headers=raw)

    @app.get("/decorated")
    @tg.rate_limit("2/minute")
    async def decorated() -> Model:
        return Model(raw_headers=raw)

    for path in ("/depends", "/decorated"):
        answer = get(app, path)
        assert answer.json() == {"raw_headers": raw}
        assert answer["x-ratelimit-remaining"] == "1"


def test_responses_of_routers_carry_the_fields_wherever_they_are_included() -> None:
    router = APIRouter()

    @router.get("/route", dependencies=[limit("9/minute")])
    async def route() -> JSONResponse:
        return JSONResponse({})

    outer = APIRouter()
    outer.include_router(router, prefix="/inner")
    app = FastAPI()
    app.include_router(router)
    app.include_router(router, prefix="/again")
    app.include_router(outer)
    paths = ("/route", "/again/route", "/inner/route") * 2
    remaining = [get(app, path)["x-ratelimit-remaining"] for path in paths]
    assert remaining == ["8", "7", "6", "5", "4", "3"]


class Mistake(Exception):
    pass


@pytest.mark.parametrize("raised", [Mistake, ValueError])
def test_answers_to_other_exceptions_carry_the_fields(raised: type[Exception]) -> None:
    app = FastAPI()

    @app.exception_handler(Mistake)
    async def of_mistakes(request: Request, exc: Mistake) -> JSONResponse:
        return JSONResponse("a mistake", 500)

    @app.exception_handler(Exception)
    def of_anything(request: Request, exc: Exception) -> JSONResponse:
        return JSONResponse("anything", 500)

    @app.get("/depends", dependencies=[limit("9/minute")])
    async def depends() -> None:
        raise raised

    @app.get("/decorated")
    @tg.rate_limit("9/minute", clock=tg.ManualClock())
    async def decorated() -> None:
        raise raised

    client = TestClient(app, raise_server_exceptions=False)
    for path in ("/depends", "/decorated"):
        for left in (8, 7):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["x-ratelimit-remaining"]) == (500, str(left))


@pytest.mark.parametrize("is_response", [False, True])
def test_a_request_that_a_decorator_refuses_is_not_charged_to_a_dependency(
    is_response: bool,
) -> None:
    whole = RateLimit("5/minute", key=lambda request: "all", clock=tg.ManualClock())
    app = FastAPI(dependencies=[Depends(whole)])
    answer = JSONResponse({}) if is_response else {}

    @app.get("/async")
    @tg.rate_limit("1/minute", clock=tg.ManualClock())
    async def one() -> Any:
        return answer

    @app.get("/sync")
    @tg.rate_limit("1/minute", clock=tg.ManualClock())
    def other() -> Any:
        return answer

    for path, left in (("/async", 4), ("/sync", 3)):
        allowed, refused = get(app, path), get(app, path)
        assert (allowed.status, allowed["ratelimit"]) == (200, '"1/minute";r=0;t=60')
        assert (refused.status, refused["ratelimit"]) == (429, '"1/minute";r=0;t=60')
        assert refused["retry-after"] == "60"
        assert whole.limiter is not None
        assert whole.limiter.peek("all").remaining == left
