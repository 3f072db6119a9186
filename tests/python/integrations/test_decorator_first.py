"""@rate_limit in FastAPI refuses before a body is read, and before dependencies run."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import pytest
import tidegate as tg
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from tidegate import keys, rate_limit
from tidegate.fastapi import RateLimit, RateLimitExceeded

CLOCK = tg.ManualClock(10**18)


class Body(BaseModel):
    number: int


ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def database() -> str:
    ran.append("database")
    return "rows"


def pool(rows: Annotated[str, Depends(database)]) -> str:
    ran.append("pool")
    return rows


def limited(**options: Any) -> Any:
    return rate_limit("2/hour", clock=CLOCK, **options)


def in_app(is_async: bool, where: str) -> Any:
    """An application with a limited route, whose dependencies are in one of three places."""
    depends = [Depends(pool)]
    app = FastAPI(dependencies=depends if where == "the application" else None)
    router = APIRouter(dependencies=depends if where == "its router" else None)
    of_route = depends if where == "the route" else None

    def plain(body: Body) -> str:
        ran.append("route")
        return "ok"

    async def later(body: Body) -> str:
        return plain(body)

    router.post("/", dependencies=of_route)(limited()(later if is_async else plain))
    app.include_router(router, prefix="/v1")
    return TestClient(app)


@pytest.mark.parametrize("where", ["the application", "its router", "the route"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("content", ['{"number": "x"}', "{", "[]", ""])
def test_invalid_bodies_are_limited(is_async: bool, where: str, content: str) -> None:
    client = in_app(is_async, where)
    answers = [client.post("/v1/", content=content) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [422, 422, 429, 429, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers[:3]] == ["1", "0", "0"]
    assert answers[3].headers["retry-after"] == "1800"
    assert answers[3].headers["content-type"] == "application/problem+json"
    assert ran.count("database") <= 2


@pytest.mark.parametrize("where", ["the application", "its router", "the route"])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_refused_request_runs_no_dependency(is_async: bool, where: str) -> None:
    client = in_app(is_async, where)
    answers = [client.post("/v1/", json={"number": 1}) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429]
    assert ran == ["database", "pool", "route"] * 2
    assert answers[1].headers["x-ratelimit-remaining"] == "0"


def test_several_decorators_decide_first_as_one_plan() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(database)])
    @rate_limit("9/hour", clock=CLOCK, key=lambda request: request.headers["x-user"])
    @limited()
    async def page() -> str:
        return "ok"

    client = TestClient(app)
    answers = [client.get("/", headers={"x-user": "ada"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert ran == ["database"] * 2


def user(request: Request) -> None:
    request.state.user = request.headers["x-user"]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "key",
    [
        lambda request: request.state.user,
        lambda request: getattr(request.state, "user", None),
        keys.first_of(lambda request: getattr(request.state, "user", None), keys.peer),
    ],
)
def test_a_key_that_a_dependency_finds_is_asked_for_after_it(
    is_async: bool, key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()

    def plain() -> str:
        return "ok"

    async def later() -> str:
        return "ok"

    app.get("/", dependencies=[Depends(user)])(limited(key=key)(later if is_async else plain))
    client = TestClient(app)
    with caplog.at_level(logging.INFO, "tidegate"):
        for name in ("ada", "bob"):
            statuses = [client.get("/", headers={"x-user": name}).status_code for _ in range(3)]
            assert statuses == [200, 200, 429]
    assert not [record for record in caplog.records if record.name == "tidegate"]


def test_a_limit_that_a_dependency_chooses_is_asked_for_after_it() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(user)])
    @rate_limit(lambda request: {"ada": "1/hour"}[request.state.user], clock=CLOCK)
    async def page() -> str:
        return "ok"

    client = TestClient(app)
    assert [client.get("/", headers={"x-user": "ada"}).status_code for _ in range(2)] == [200, 429]


def test_a_key_function_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()

    def broken(request: Request) -> str:
        raise LookupError("broken")

    app.get("/")(limited(key=broken)(lambda: "ok"))
    client = TestClient(app)
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    assert len([record for record in caplog.records if record.name == "tidegate"]) == 1


def test_what_a_function_writes_into_the_state_reaches_the_route() -> None:
    app = FastAPI()

    def key(request: Request) -> str:
        request.state.found = "ada"
        return "ada"

    @app.get("/")
    @limited(key=key)
    async def page(request: Request) -> str:
        return str(request.state.found)

    assert TestClient(app).get("/").json() == "ada"


def test_a_body_that_a_key_function_reads_reaches_the_route() -> None:
    app = FastAPI()

    async def key(request: Request) -> str:
        return str((await request.json())["number"])

    @app.post("/")
    @limited(key=key)
    async def page(body: Body) -> int:
        return body.number

    assert TestClient(app).post("/", json={"number": 7}).json() == 7


def test_cost_after_gets_the_exception_that_ends_a_request_before_its_route() -> None:
    app = FastAPI()
    seen: list[Any] = []

    def cost_after(request: Any, answer: Any) -> int:
        seen.append(type(answer).__name__)
        return 0

    def refuses() -> None:
        raise HTTPException(401)

    @app.get("/", dependencies=[Depends(refuses)])
    @limited(cost_after=cost_after)
    async def page() -> str:
        return "ok"

    client = TestClient(app)
    answers = [client.get("/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [401] * 4
    assert seen == ["HTTPException"] * 4
    assert answers[-1].headers["x-ratelimit-remaining"] == "2"


def test_a_dependency_that_refuses_gives_the_decorators_charge_back() -> None:
    app = FastAPI()
    route = rate_limit("9/hour", clock=CLOCK)

    @app.get("/", dependencies=[Depends(RateLimit("1/hour", clock=CLOCK))])
    @route
    async def page() -> str:
        return "ok"

    client = TestClient(app)
    assert [client.get("/").status_code for _ in range(5)] == [200, 429, 429, 429, 429]
    mark: Any = page.__tidegate_rate_limit__  # type: ignore[attr-defined]
    assert mark.limiters[0].limiter.peek("testclient").remaining == 8


def test_a_cache_above_the_limit_answers_without_it() -> None:
    import functools

    app = FastAPI()
    answers: dict[str, str] = {}

    def cached(view: Any) -> Any:
        @functools.wraps(view)
        async def answer(*args: Any, **kwargs: Any) -> str:
            if "page" not in answers:
                answers["page"] = await view(*args, **kwargs)
            return answers["page"]

        return answer

    @app.get("/")
    @cached
    @rate_limit("1/hour", clock=CLOCK)
    async def page() -> str:
        return "ok"

    assert [TestClient(app).get("/").status_code for _ in range(3)] == [200] * 3


def test_on_refused_answers_as_the_routes_class_of_responses() -> None:
    app = FastAPI()

    @app.get("/", response_class=HTMLResponse)
    @rate_limit("0/hour", clock=CLOCK, on_refused=lambda request, decision: "<p>later</p>")
    async def page() -> str:
        return "ok"

    answer = TestClient(app).get("/")
    assert (answer.status_code, answer.text) == (429, "<p>later</p>")
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("kind", [429, HTTPException, StarletteHTTPException, RateLimitExceeded])
@pytest.mark.parametrize("how", ["a decorator", "a dependency"])
def test_handlers_of_the_service_answer_refusals_with_all_fields(kind: Any, how: str) -> None:
    app = FastAPI()

    @app.exception_handler(kind)
    async def answer(request: Request, exc: Any) -> JSONResponse:
        return JSONResponse({"mine": exc.status_code}, 429)

    if how == "a decorator":
        app.get("/")(rate_limit("1/hour", clock=CLOCK)(lambda: "ok"))
    else:
        app.get("/", dependencies=[Depends(RateLimit("1/hour", clock=CLOCK))])(lambda: "ok")
    client = TestClient(app)
    assert client.get("/").status_code == 200
    refused = client.get("/")
    assert (refused.status_code, refused.json()) == (429, {"mine": 429})
    for field in ("retry-after", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit"):
        assert len(refused.headers.get_list(field)) == 1
