"""@rate_limit before registration: scopes, bad input, wrong orders."""

from __future__ import annotations

import functools
import gc

import pytest
import tidegate as tg
from processes import imported_by
from tidegate import rate_limit

fastapi = pytest.importorskip("fastapi")
flask = pytest.importorskip("flask")


def registering(kind):
    """Returns an application or router, and its decorator that registers a route."""
    if kind == "FastAPI":
        owner = fastapi.FastAPI()
    elif kind == "APIRouter":
        owner = fastapi.APIRouter()
    elif kind == "Flask":
        owner = flask.Flask(__name__)
    else:
        owner = flask.Blueprint("blueprint", __name__)
    return owner, owner.get("/route")


KINDS = ("FastAPI", "APIRouter", "Flask", "Blueprint")


@pytest.mark.parametrize("kind", KINDS)
def test_a_decorator_above_the_route_is_refused(kind):
    _owner, register = registering(kind)
    with pytest.raises(tg.ConfigurationError, match="expected @rate_limit below the decorator"):

        @rate_limit("5/minute")
        @register
        def route():
            return {}


def noticed(view):
    """A decorator as other packages write them."""

    @functools.wraps(view)
    def inner(*args, **kwargs):
        return view(*args, **kwargs)

    return inner


@pytest.mark.parametrize("kind", KINDS)
def test_a_decorator_above_the_route_and_others_is_refused(kind):
    _owner, register = registering(kind)
    with pytest.raises(tg.ConfigurationError, match="expected @rate_limit below the decorator"):

        @rate_limit("5/minute")
        @noticed
        @noticed
        @register
        def route():
            return {}


@pytest.mark.parametrize("kind", KINDS)
def test_wrapping_a_registered_function_is_refused(kind):
    _owner, register = registering(kind)

    def route():
        return {}

    register(route)
    with pytest.raises(tg.ConfigurationError, match="registered with a"):
        rate_limit("5/minute")(route)


def test_the_refusal_names_the_route_with_its_article():
    app = fastapi.FastAPI()

    def route():
        return {}

    app.get("/")(route)
    with pytest.raises(tg.ConfigurationError, match="registered with an APIRoute already"):
        rate_limit("5/minute")(route)


def test_a_decorator_below_the_route_does_not_search_the_heap(monkeypatch):
    def searched():
        raise AssertionError("the heap was searched")

    monkeypatch.setattr(gc, "get_objects", searched)
    app = fastapi.FastAPI()

    @app.get("/plain")
    @rate_limit("5/minute")
    def plain():
        return {}

    @app.get("/async")
    @rate_limit("5/minute")
    async def coroutine():
        return {}

    class Routes:
        @rate_limit("5/minute")
        def get(self):
            return {}

    @app.get("/noticed")
    @rate_limit("5/minute")
    @noticed
    @noticed
    def others():
        return {}


def test_a_function_with_other_references_is_accepted():
    registry = []

    @rate_limit("5/minute")
    @lambda function: registry.append(function) or function
    def route():
        return {}

    assert registry[0] is route.__wrapped__


def test_another_decorator_between_two_limits_is_refused():
    def logged(function):
        @functools.wraps(function)
        def logging():
            return function()

        return logging

    with pytest.raises(tg.ConfigurationError, match="directly above each other"):

        @rate_limit("5/minute")
        @logged
        @rate_limit("50/hour")
        def route():
            return {}


def generator():
    yield b""


async def async_generator():
    yield b""


async def asynchronous(request):
    return "key"


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (int, "expected functions that answer requests, classes of"),
        (staticmethod(generator), "expected a function"),
        (3, "expected a function"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
    ],
)
def test_other_objects_than_routes_are_refused(view, message):
    with pytest.raises(tg.ConfigurationError, match=message):
        rate_limit("5/minute")(view)


def test_a_websocket_route_without_annotations_fails_when_it_is_called():
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.testclient import TestClient

    @rate_limit("1/minute")
    async def chat(websocket):
        raise AssertionError

    client = TestClient(Starlette(routes=[WebSocketRoute("/", chat)]))
    with pytest.raises(tg.TidegateError, match="expected HTTP routes"):
        client.websocket_connect("/").__enter__()


def test_websocket_routes_are_refused():
    async def route(websocket: fastapi.WebSocket):
        pass

    route.__annotations__["websocket"] = fastapi.WebSocket
    with pytest.raises(tg.ConfigurationError, match="is a WebSocket route"):
        rate_limit("5/minute")(route)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "many"}, "cannot read the limit 'many'"),
        ({"limit": "5/minute", "cost": 6}, "never lets through"),
        ({"limit": "5/minute", "cost": 0}, "the cost is 0"),
        ({"limit": "5/minute", "key": "address"}, "key is 'address'"),
        ({"limit": "5/minute", "scope": ""}, "the scope is ''"),
        ({"limit": "5/minute", "scope": 3}, "the scope is 3"),
        ({"limit": "5/minute", "headers": ["x"]}, "the headers include 'x'"),
        ({"limit": "5/minute", "storage": "disk://"}, "the storage is 'disk://'"),
        (
            {"limit": "5 at once", "cost_after": lambda request, answer: 1},
            "expected limits on a rate",
        ),
        ({"limit": "5/minute", "key": asynchronous}, "expected a function that is not async"),
        ({"limit": "5/minute", "cost": asynchronous}, "cost is the async function"),
        ({"limit": asynchronous}, "limit is the async function"),
        ({"limit": "5/minute", "cost_after": asynchronous}, "cost_after is the async function"),
        ({"limit": "5/minute", "cost_after": 3}, "cost_after is 3"),
        ({"limit": "5/minute", "methods": "GET"}, "methods is 'GET'"),
        ({"limit": "5/minute", "methods": [3]}, "methods has 3"),
    ],
)
def test_bad_input_raises_at_decoration(options, message):
    with pytest.raises(tg.ConfigurationError, match=message):

        @rate_limit(**options)
        def route():
            return {}


def test_a_decorator_without_parentheses_is_refused():
    with pytest.raises(TypeError, match=r'expected a limit: @rate_limit\("5/minute"\)'):

        @rate_limit
        def route():
            return {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_decorator_without_parentheses_is_refused_on_a_possible_limit_function(kind):
    _owner, register = registering(kind)
    with pytest.raises(TypeError, match=r'expected a limit: @rate_limit\("5/minute"\)'):

        @rate_limit
        @register
        def above(request):
            return {}

    with pytest.raises(tg.ConfigurationError, match="and no view; expected a limit"):

        @register
        @rate_limit
        def below(request):
            return {}


def test_a_call_without_a_request_raises():
    @rate_limit("5/minute")
    def route():
        return {}

    with pytest.raises(tg.TidegateError, match="called without a request"):
        route()


def test_the_function_keeps_its_name_and_documentation():
    @rate_limit("5/minute")
    async def route(number: int, *rest: str, flag: bool = False, **more: str) -> dict[str, int]:
        """What it does."""

    assert route.__name__ == "route"
    assert route.__doc__ == "What it does."
    assert list(route.__wrapped__.__annotations__) == list(route.__annotations__)


def test_importing_tidegate_imports_no_framework():
    found = imported_by("import tidegate, tidegate.asgi; tidegate.rate_limit")
    frameworks = {"fastapi", "starlette", "flask", "uvicorn", "werkzeug", "anyio", "pydantic"}
    assert {name.partition(".")[0] for name in found} & frameworks == set()


def test_a_flask_service_does_not_import_starlette():
    found = imported_by(
        "import flask\nfrom tidegate import rate_limit\n@rate_limit('5/minute')\ndef route(): ..."
    )
    assert "flask" in found
    assert "starlette" not in found
