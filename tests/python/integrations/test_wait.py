"""`wait`: requests above a limit wait for their turn, in every framework."""

from __future__ import annotations

import threading
from typing import Any, Callable

import fastapi
import flask
import pytest
import tidegate as tg
from fastapi.testclient import TestClient
from polling import eventually
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tidegate import rate_limit
from tidegate.fastapi import DefaultRateLimit, RateLimit
from tidegate.flask import RateLimiter as FlaskRateLimit
from tidegate.limiter import background
from tidegate.limiter.waiting.queue import WaitingRoom

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path

Ask = Callable[[], Any]


def of_fastapi(how: str, *limits: Any) -> Ask:
    app = fastapi.FastAPI()

    async def route() -> str:
        return "ok"

    def blocking_route() -> str:
        return "ok"

    if how == "dependency":
        depends = [fastapi.Depends(RateLimit(limit, **options)) for limit, options in limits]
        app.get("/", dependencies=depends)(route)
    elif how == "default":
        ((limit, options),) = limits
        app = fastapi.FastAPI(dependencies=[fastapi.Depends(DefaultRateLimit(limit, **options))])
        app.get("/")(route)
    else:
        limited: Any = route if how == "async" else blocking_route
        for limit, options in limits:
            limited = rate_limit(limit, **options)(limited)
        app.get("/")(limited)
    return lambda: TestClient(app).get("/")


def of_starlette(*limits: Any) -> Ask:
    async def route(request: Any) -> Any:
        return PlainTextResponse("ok")

    for limit, options in limits:
        route = rate_limit(limit, **options)(route)
    app = Starlette(routes=[Route("/", route)])
    return lambda: TestClient(app).get("/")


def of_flask(how: str, *limits: Any) -> Ask:
    app = flask.Flask(__name__)
    extension = FlaskRateLimit(app, clock=limits[0][1]["clock"])

    def view() -> str:
        return "ok"

    for limit, options in limits:
        own = {name: value for name, value in options.items() if name != "clock"}
        view = (
            extension.limit(limit, **own)(view)
            if how == "extension"
            else rate_limit(limit, **options)(view)
        )
    app.get("/")(view)
    return lambda: app.test_client().get("/")


def of_django(*limits: Any) -> Ask:
    def view(request: Any) -> Any:
        return HttpResponse("ok")

    for limit, options in limits:
        view = rate_limit(limit, **options)(view)

    # Each thread of the test would have its own settings.
    urls = (path("", view),)
    overridden = override_settings(
        ALLOWED_HOSTS=["*"], ROOT_URLCONF=urls, MIDDLEWARE=[], TIDEGATE={}
    )
    overridden.enable()

    def ask() -> Any:
        return Client().get("/")

    ask.close = overridden.disable  # type: ignore[attr-defined]
    return ask


SERVICES: dict[str, Callable[..., Ask]] = {
    "fastapi, async": lambda *limits: of_fastapi("async", *limits),
    "fastapi, blocking": lambda *limits: of_fastapi("blocking", *limits),
    "fastapi, dependency": lambda *limits: of_fastapi("dependency", *limits),
    "starlette": of_starlette,
    "flask": lambda *limits: of_flask("decorator", *limits),
    "flask, extension": lambda *limits: of_flask("extension", *limits),
    "django": of_django,
}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Any:
    made = []

    def make(*limits: Any) -> Ask:
        made.append(SERVICES[request.param](*limits))
        return made[-1]

    yield make
    for ask in made:
        getattr(ask, "close", lambda: None)()


def waiting() -> int:
    rooms = [each for each in list(background._forked) if isinstance(each, WaitingRoom)]
    return sum(len(line) for room in rooms for line in room.lines.values())


def later(ask: Ask) -> Callable[[], Any]:
    """Begins a request that waits; returns what waits for its answer."""
    answers: list[Any] = []
    before = waiting()
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    eventually(lambda: waiting() > before or not thread.is_alive())

    def answer() -> Any:
        thread.join(30)
        return answers[0]

    return answer


def test_a_request_waits_for_its_turn(service: Any) -> None:
    clock = tg.ManualClock(10**18)
    ask = service(("1/10 seconds", {"wait": 30, "clock": clock}))
    assert ask().status_code == 200
    first = later(ask)
    second = later(ask)
    assert waiting() == 2
    clock.advance(10)
    assert first().status_code == 200
    assert waiting() == 1
    clock.advance(10)
    answer = second()
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-remaining"] == "0"


def test_a_wait_that_would_be_in_vain_is_refused_at_once_with_its_reason(service: Any) -> None:
    clock = tg.ManualClock(10**18)
    ask = service(("1/10 seconds", {"wait": 9, "clock": clock}))
    assert ask().status_code == 200
    answer = ask()
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "10"
    assert waiting() == 0


def test_limits_of_one_route_wait_together_and_charge_all_or_none(service: Any) -> None:
    clock = tg.ManualClock(10**18)
    ask = service(
        ("10/minute", {"clock": clock}),
        ("1/10 seconds", {"wait": 15, "clock": clock}),
    )
    assert ask().status_code == 200
    answer = later(ask)
    clock.advance(10)
    assert answer().headers["x-ratelimit-remaining"] == "0"
    clock.advance(10)
    for _ in range(3):
        answer = later(ask)
        clock.advance(10)
        assert answer().status_code == 200


def test_a_default_limit_waits_too() -> None:
    clock = tg.ManualClock(10**18)
    ask = of_fastapi("default", ("1/10 seconds", {"wait": 30, "clock": clock}))
    assert ask().status_code == 200
    answer = later(ask)
    clock.advance(10)
    assert answer().status_code == 200


def test_a_place_is_waited_for() -> None:
    ask_again = threading.Event()
    inside = threading.Event()
    app = flask.Flask(__name__)

    @app.get("/")
    @rate_limit("1 at once", wait=1000, clock=tg.ManualClock(10**18))
    def view() -> str:
        inside.set()
        assert ask_again.wait(30)
        return "ok"

    def ask() -> int:
        with app.test_client().get("/") as answer:
            return answer.status_code

    first: list[int] = []
    thread = threading.Thread(target=lambda: first.append(ask()), daemon=True)
    thread.start()
    assert inside.wait(30)
    second = later(ask)
    assert waiting() == 1
    ask_again.set()
    assert second() == 200
    thread.join(30)
    assert first == [200]


def test_what_a_cost_was_estimated_too_high_is_given_back_from_the_instant_of_the_charge() -> None:
    clock = tg.ManualClock(10**18)
    app = flask.Flask(__name__)

    @app.get("/")
    @rate_limit(
        "10/10 seconds", cost=10, cost_after=lambda request, answer: 4, wait=30, clock=clock
    )
    def view() -> str:
        return "ok"

    ask = app.test_client().get
    assert ask("/").headers["x-ratelimit-remaining"] == "6"
    answer = later(lambda: app.test_client().get("/"))
    clock.advance(4)
    assert answer().headers["x-ratelimit-remaining"] == "6"


@pytest.mark.parametrize("wait", ["5", True, -1, float("inf"), float("nan"), [1]])
def test_an_invalid_wait_is_refused_where_it_is_given(wait: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match="wait is"):
        rate_limit("1/second", wait=wait)(lambda: None)
    with pytest.raises(tg.ConfigurationError, match="wait is"):
        RateLimit("1/second", wait=wait)
