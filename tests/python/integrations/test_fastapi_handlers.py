"""Where a handler of FastAPI ends, every response gets its fields, and places come back."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Callable

import fastapi
import pytest
import tidegate as tg
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import ResponseValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import BaseModel
from tidegate import rate_limit
from tidegate.asgi import RateLimitMiddleware
from tidegate.fastapi import RateLimit, exempt

CLOCK = tg.ManualClock(10**18)


class Body(BaseModel):
    number: int


def limited(limit: str = "2/hour", **options: Any) -> Any:
    return rate_limit(limit, clock=CLOCK, **options)


def depends(limit: str = "2/hour", **options: Any) -> Any:
    return Depends(RateLimit(limit, clock=CLOCK, **options))


def status_and_remaining(answer: Any) -> tuple[int, list[str]]:
    return answer.status_code, answer.headers.get_list("x-ratelimit-remaining")


def raises(error: BaseException) -> Any:
    def dependency() -> None:
        raise error

    return Depends(dependency)


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def app_with_handlers(around: Callable[[Handler, Request], Coroutine[Any, Any, Response]]) -> Any:
    """An application with a class of routes that passes FastAPI's handler to `around`."""

    class OwnRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def answer(request: Request) -> Response:
                return await around(handle, request)

            return answer

    app = FastAPI()
    app.router.route_class = OwnRoute
    return app


def test_a_route_class_that_answers_exceptions_itself_finds_the_fields_on_them() -> None:
    async def answering(handle: Handler, request: Request) -> Response:
        try:
            return await handle(request)
        except HTTPException as exc:
            return JSONResponse("mine", exc.status_code, exc.headers)

    app = app_with_handlers(answering)

    @app.get("/")
    @limited()
    async def page() -> str:
        raise HTTPException(409, headers={"x-own": "1"})

    answer = TestClient(app).get("/")
    assert status_and_remaining(answer) == (409, ["1"])
    assert answer.headers["x-own"] == "1"


@pytest.mark.parametrize("how", ["a decorator", "a dependency"])
def test_an_answer_of_another_shape_than_declared_has_the_fields(how: str) -> None:
    app = FastAPI()

    @app.exception_handler(ResponseValidationError)
    async def answer(request: Request, exc: Any) -> JSONResponse:
        return JSONResponse("wrong shape", 500)

    async def page() -> str:
        return "ok"

    if how == "a decorator":
        app.get("/", response_model=Body)(limited()(page))
    else:
        app.get("/", response_model=Body, dependencies=[depends()])(page)
    assert status_and_remaining(TestClient(app).get("/")) == (500, ["1"])


@pytest.mark.parametrize("answer", [{"slow": 1}, JSONResponse("mine", 429), HTTPException(429)])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_dependencys_own_refusal_shows_its_limit(answer: Any, is_first: bool) -> None:
    app = FastAPI()
    refusing = depends("0/hour" if is_first else "1/hour", on_refused=lambda *_: answer)

    @app.get("/", dependencies=[refusing])
    @limited("100/hour")
    async def page() -> str:
        return "ok"

    client = TestClient(app)
    found = [status_and_remaining(client.get("/")) for _ in range(3)]
    assert found[1:] == [(429, ["0"])] * 2
    assert found[0] == ((429, ["0"]) if is_first else (200, ["0"]))


def test_a_limit_that_code_finds_exceeded_is_not_answered_with_the_fields_of_another() -> None:
    app = FastAPI()
    inner = tg.Limiter("1/hour", clock=CLOCK)

    @app.get("/")
    @limited("9/hour")
    async def page() -> str:
        decision = inner.hit("k")
        if not decision.allowed:
            raise tg.RateLimitExceeded(decision)
        return "ok"

    client = TestClient(app)
    assert status_and_remaining(client.get("/")) == (200, ["8"])
    for _ in range(2):
        refused = client.get("/")
        assert status_and_remaining(refused) == (429, [])
        assert refused.headers["retry-after"] == "3600"


class WithSlots(HTTPException):
    __slots__ = ("code",)

    def __init__(self) -> None:
        super().__init__(418)
        self.code = "teapot"


class WithFixedHeaders(HTTPException):
    @property
    def headers(self) -> Any:
        return {"x-own": "1"}

    @headers.setter
    def headers(self, value: Any) -> None:
        if value is not None:
            raise AttributeError("fixed")


class WithPairs(HTTPException):
    def __init__(self) -> None:
        super().__init__(418)
        self.headers: Any = [("set-cookie", "a=1"), ("set-cookie", "b=2")]


@pytest.mark.parametrize("kind", [WithSlots, lambda: WithFixedHeaders(418), WithPairs])
@pytest.mark.parametrize("where", ["route", "dependency"])
def test_exceptions_of_unusual_classes_are_answered_by_their_handlers(
    kind: Callable[[], HTTPException], where: str
) -> None:
    error = kind()
    app = FastAPI()
    seen: list[Any] = []

    @app.exception_handler(type(error))
    async def answer(request: Request, exc: Any) -> JSONResponse:
        seen.append((getattr(exc, "code", None), exc.headers))
        return JSONResponse("mine", exc.status_code)

    @app.get("/", dependencies=[raises(error)] if where == "dependency" else [])
    @limited()
    async def page() -> str:
        raise error

    assert status_and_remaining(TestClient(app).get("/")) == (418, ["1"])
    assert seen[0][0] == getattr(error, "code", None)
    if not isinstance(error, WithSlots):
        assert seen[0][1] == error.headers


def test_a_response_with_headers_of_another_kind_is_sent_without_the_fields() -> None:
    class Fixed(Response):
        @property
        def raw_headers(self) -> Any:
            return ((b"content-length", b"2"),)

        @raw_headers.setter
        def raw_headers(self, value: Any) -> None:
            pass

    app = FastAPI()
    app.get("/")(limited()(lambda: Fixed("ok")))
    app.get("/dependency", dependencies=[depends()])(lambda: Fixed("ok"))
    client = TestClient(app)
    for path in ("/", "/dependency"):
        assert status_and_remaining(client.get(path)) == (200, [])


def test_on_refused_may_return_the_exception_of_an_exceeded_limit() -> None:
    app = FastAPI()

    @app.get("/")
    @limited("0/hour", on_refused=lambda request, decision: tg.RateLimitExceeded(decision))
    async def page() -> str:
        return "ok"

    assert status_and_remaining(TestClient(app).get("/")) == (429, ["0"])


@pytest.mark.skipif(
    not hasattr(fastapi.params.Depends(), "scope"), reason="FastAPI 0.121 added the scope"
)
@pytest.mark.parametrize("how", ["a decorator", "a dependency"])
def test_what_a_dependency_raises_after_the_function_is_answered_with_the_fields(how: str) -> None:
    def late() -> Iterator[None]:
        yield
        raise HTTPException(409)

    app = FastAPI()
    ends = Depends(late, scope="function")
    if how == "a decorator":
        app.get("/", dependencies=[ends])(limited()(lambda: "ok"))
    else:
        app.get("/", dependencies=[depends(), ends])(lambda: "ok")
    assert status_and_remaining(TestClient(app).get("/")) == (409, ["1"])


async def ask(app: Any, path: str = "/", body: bytes = b"") -> int:
    status = 0
    unread = [{"type": "http.request", "body": body}]

    async def receive() -> Any:
        if not unread:
            await asyncio.Event().wait()
        return unread.pop()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "client": ("192.0.2.1", 1),
        "headers": [(b"content-type", b"application/json")],
    }
    await app(scope, receive, send)
    return status


@pytest.mark.parametrize("what", ["answers", "refuses its body", "streams"])
def test_a_request_that_is_cancelled_while_its_cost_is_found_gives_its_place_back(
    what: str,
) -> None:
    app = FastAPI()
    begun = asyncio.Event()
    is_slow = True

    async def slow(request: Any, answer: Any) -> int:
        if is_slow:
            begun.set()
            await asyncio.Event().wait()
        return 1

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x"

    @app.post("/")
    @limited("1 at once")
    @limited("9/hour", cost_after=slow)
    async def page(body: Body) -> Any:
        return StreamingResponse(chunks()) if what == "streams" else "ok"

    async def talk() -> int:
        nonlocal is_slow
        sent = b"{}" if what == "refuses its body" else b'{"number": 1}'
        request = asyncio.ensure_future(ask(app, body=sent))
        await begun.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        is_slow = False
        return await ask(app, body=sent)

    assert asyncio.run(talk()) == (422 if what == "refuses its body" else 200)


def test_a_route_that_another_limited_route_calls_leaves_its_cost_to_be_settled() -> None:
    app = FastAPI()
    outer = RateLimit("20/hour", clock=CLOCK, cost_after=lambda request, answer: 5)
    inner = FastAPI()

    @inner.get("/")
    @limited("50/hour")
    async def page() -> str:
        return "ok"

    @app.get("/", dependencies=[Depends(outer)])
    async def forwards(request: Request) -> str:
        async def send(message: Any) -> None:
            pass

        await inner(request.scope, request.receive, send)
        return "ok"

    assert status_and_remaining(TestClient(app).get("/")) == (200, ["15"])
    assert outer.limiter is not None
    assert outer.limiter.peek("testclient").remaining == 15


def test_a_route_made_before_an_override_limits_it_answers_with_the_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing() -> None:
        pass

    handlers = inspect.unwrap(fastapi.routing.get_request_handler)
    app = FastAPI()
    with monkeypatch.context() as patched:
        patched.setattr(fastapi.routing, "get_request_handler", handlers)
        app.get("/", dependencies=[Depends(nothing)])(lambda: JSONResponse("ok"))
    app.dependency_overrides[nothing] = RateLimit("2/hour", clock=CLOCK)
    assert status_and_remaining(TestClient(app).get("/")) == (200, ["1"])


def test_one_exception_that_is_raised_for_every_request_does_not_grow() -> None:
    missing = HTTPException(404)
    missing.__cause__ = cause = ValueError("no row")
    app = FastAPI()
    seen: list[Any] = []

    @app.exception_handler(404)
    async def answer(request: Request, exc: Any) -> JSONResponse:
        seen.append(exc.__cause__)
        return JSONResponse("mine", 404)

    @app.get("/")
    @limited("9/hour")
    async def page() -> str:
        raise missing

    client = TestClient(app)
    for _ in range(3):
        assert client.get("/").status_code == 404
    assert missing.__traceback__ is None
    assert seen == [cause] * 3


@pytest.mark.parametrize("is_cost_async", [False, True])
def test_the_result_of_an_object_that_is_called_settles_the_cost(is_cost_async: bool) -> None:
    class Page:
        async def __call__(self) -> int:
            return 5

    async def cost_later(request: Any, answer: Any) -> int:
        return int(answer)

    plain = FastAPI()
    plain.get("/")(Page())
    if TestClient(plain, raise_server_exceptions=False).get("/").status_code != 200:
        pytest.skip("this FastAPI awaits no object that is called")
    cost_after: Any = cost_later if is_cost_async else lambda request, answer: answer
    app = FastAPI()
    app.get("/", dependencies=[depends("9/hour", cost_after=cost_after)])(Page())
    assert status_and_remaining(TestClient(app).get("/")) == (200, ["4"])


def test_a_dependencys_on_refused_may_return_the_exception_of_an_exceeded_limit() -> None:
    app = FastAPI()
    refusing = depends("0/hour", on_refused=lambda request, found: tg.RateLimitExceeded(found))
    app.get("/", dependencies=[refusing])(lambda: "ok")
    assert status_and_remaining(TestClient(app).get("/")) == (429, ["0"])


def test_an_exemption_without_effect_is_named_though_other_dependencies_stand_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI(dependencies=[Depends(lambda: "of another kind")])
    app.add_middleware(RateLimitMiddleware, limit="2/hour")
    app.get("/tides")(exempt(lambda: "ok"))
    with caplog.at_level(logging.WARNING):
        assert TestClient(app).get("/tides").status_code == 200
    assert [line for line in caplog.messages if "is under @exempt" in line]


def test_an_object_that_generates_is_refused_as_a_view() -> None:
    class Streams:
        async def __call__(self) -> AsyncIterator[str]:
            yield "x"

    with pytest.raises(tg.ConfigurationError, match="is a generator"):
        limited()(Streams())


@pytest.mark.parametrize("dependencies", [[], [depends()]], ids=["decorator", "dependency"])
def test_what_answers_for_a_file_that_is_gone_has_the_fields(dependencies: list[Any]) -> None:
    app = FastAPI()

    async def page() -> FileResponse:
        return FileResponse("/nonexistent")

    app.get("/", dependencies=dependencies)(page if dependencies else limited()(page))

    @app.exception_handler(RuntimeError)
    async def gone(request: Request, exc: RuntimeError) -> Response:
        return JSONResponse("gone", 404)

    assert status_and_remaining(TestClient(app).get("/")) == (404, ["1"])


def test_a_route_class_that_raises_after_the_handler_is_answered_with_the_fields() -> None:
    async def raising(handle: Handler, request: Request) -> Response:
        await handle(request)
        raise HTTPException(409)

    app = app_with_handlers(raising)

    @app.get("/decorator")
    @limited()
    async def decorated() -> str:
        return "never"

    @app.get("/dependency", dependencies=[depends()])
    async def plain() -> str:
        return "never"

    client = TestClient(app)
    assert status_and_remaining(client.get("/decorator")) == (409, ["1"])
    assert status_and_remaining(client.get("/dependency")) == (409, ["1"])
