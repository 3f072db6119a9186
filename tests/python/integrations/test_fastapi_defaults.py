"""FastAPI: default limits for all routes, their exceptions, and mistakes that raise at once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tidegate as tg
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.testclient import TestClient
from servers import Answer, ask
from starlette import testclient
from starlette.websockets import WebSocketDisconnect
from tidegate import rate_limit
from tidegate.asgi import RateLimitMiddleware
from tidegate.fastapi import DefaultRateLimit, RateLimit, exempt
from tidegate.wsgi import RateLimitMiddleware as OfWSGI

# Older versions can only close a refused WebSocket.
REFUSALS = (WebSocketDisconnect, getattr(testclient, "WebSocketDenialResponse", Warning))


def clocked(**options: Any) -> dict[str, Any]:
    return {"clock": tg.ManualClock(1_700_000_000 * 10**9), **options}


def with_defaults(*beside: Any, **options: Any) -> FastAPI:
    default = DefaultRateLimit("2/minute", **clocked(**options))
    return FastAPI(dependencies=[Depends(default), *map(Depends, beside)])


def get(app: FastAPI, path: str) -> Answer:
    return ask(app, path)


def statuses(app: FastAPI, *paths: str) -> list[int]:
    return [get(app, path).status for path in paths]


async def hello() -> dict[str, str]:
    return {"hello": "world"}


def another() -> Any:
    async def route() -> dict[str, str]:
        return {}

    return route


def test_each_route_has_its_own_count() -> None:
    app = with_defaults()
    app.get("/a")(hello)
    app.get("/b")(hello)
    app.get("/items/{number}")(another())
    assert statuses(app, *["/a"] * 3, *["/b"] * 3) == [200, 200, 429] * 2
    assert statuses(app, "/items/1", "/items/2", "/items/3") == [200, 200, 429]
    assert get(app, "/a")["ratelimit-policy"] == '"2/minute";q=2;w=60'


def test_routes_with_one_scope_count_together() -> None:
    app = with_defaults(scope="all of them")
    app.get("/a")(hello)
    app.get("/b")(another())
    assert statuses(app, "/a", "/b", "/a") == [200, 200, 429]


def test_a_limit_of_the_route_replaces_the_default() -> None:
    app = with_defaults()
    app.get("/decorated")(rate_limit("3/minute", **clocked())(another()))
    app.get("/depends", dependencies=[Depends(RateLimit("3/minute", **clocked()))])(another())
    nested = Depends(depends_on(RateLimit("3/minute", **clocked())))
    app.get("/nested", dependencies=[nested])(another())
    for path in ("/decorated", "/depends", "/nested"):
        assert statuses(app, *[path] * 4) == [200, 200, 200, 429], path
        assert get(app, path)["ratelimit-policy"] == '"3/minute";q=3;w=60'


def depends_on(limit: RateLimit) -> Any:
    async def dependency(decision: Any = Depends(limit)) -> None:  # noqa: B008
        assert decision

    return dependency


def test_a_limit_of_a_router_replaces_the_default_but_one_of_the_application_does_not() -> None:
    app = with_defaults(RateLimit("100/minute", **clocked()))
    router = APIRouter(dependencies=[Depends(RateLimit("3/minute", **clocked()))])
    router.get("/routed")(hello)
    plain = APIRouter(prefix="/plain")
    plain.get("/a")(another())
    app.include_router(router)
    app.include_router(plain)
    app.get("/a")(hello)
    assert statuses(app, *["/routed"] * 4) == [200, 200, 200, 429]
    assert statuses(app, *["/a"] * 3, *["/plain/a"] * 3) == [200, 200, 429] * 2
    assert get(app, "/routed")["retry-after"] == "20"


def test_methods_that_the_own_limit_does_not_charge_have_the_default() -> None:
    app = with_defaults()
    own = rate_limit("3/minute", methods=["POST"], **clocked())
    app.api_route("/both", methods=["GET", "POST"])(own(another()))
    off = Depends(RateLimit("3/minute", enabled=False))
    app.get("/off", dependencies=[off])(another())
    assert statuses(app, *["/both"] * 3, *["/off"] * 3) == [200, 200, 429] * 2
    posts = [ask(app, "/both", method="POST").status for _ in range(4)]
    assert posts == [200, 200, 200, 429]


def test_all_paths_of_a_route_share_its_count() -> None:
    app = with_defaults()
    app.get("/files/{rest:path}")(another())
    assert statuses(app, *[f"/files/{n}" for n in range(4)]) == [200, 200, 429, 429]


def test_an_exempt_route_is_not_charged_by_dependencies() -> None:
    whole = RateLimit("2/minute", key=lambda request: "all", **clocked())
    app = with_defaults(whole)
    app.get("/above")(exempt(another()))
    exempt(app.get("/below")(another()))
    app.get("/own")(exempt(rate_limit("1/minute", **clocked())(another())))
    app.get("/charged")(hello)
    assert statuses(app, *["/above"] * 5, *["/below"] * 5) == [200] * 10
    assert "ratelimit" not in get(app, "/above")
    assert statuses(app, "/own", "/own") == [200, 429]
    assert statuses(app, *["/charged"] * 3) == [200, 200, 429]


def test_the_counts_of_routes_are_the_same_in_every_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = tg.Limiter("1/second").storage
    clock = tg.ManualClock(1_700_000_000 * 10**9)

    def worker() -> FastAPI:
        monkeypatch.setattr("tidegate.fastapi._numbers", itertools.count(1))  # a fresh process
        app = FastAPI(
            dependencies=[Depends(DefaultRateLimit("2/minute", storage=storage, clock=clock))]
        )
        for path in ("/a", "/b"):
            app.get(path)(another())
        return app

    first, second = worker(), worker()
    # The order of the first requests does not matter.
    assert statuses(first, "/a", "/b") == [200, 200]
    assert statuses(second, "/b", "/a") == [200, 200]
    assert statuses(first, "/a", "/b") == [429, 429]


def test_websockets_have_the_default_too() -> None:
    app = with_defaults()

    @app.websocket("/ws")
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    with TestClient(app) as client:
        for _ in range(2):
            with client.websocket_connect("/ws"):
                pass
        with pytest.raises(REFUSALS):
            client.websocket_connect("/ws").__enter__()


def test_a_function_may_choose_the_default() -> None:
    app = FastAPI(dependencies=[Depends(DefaultRateLimit(lambda request: "1/minute", **clocked()))])
    app.get("/a")(hello)
    app.get("/b")(another())
    assert statuses(app, "/a", "/a", "/b", "/b") == [200, 429, 200, 429]


# ------------------------------------------------------------------ mistakes


def test_a_decorator_as_a_dependency_raises_at_once() -> None:
    app = FastAPI()
    for decorator in (rate_limit("5/minute"), rate_limit(lambda request: "5/minute")):
        with pytest.raises(tg.ConfigurationError, match=r"Depends\(tidegate.fastapi.RateLimit\("):
            app.get("/", dependencies=[Depends(decorator)])(another())


@pytest.mark.parametrize("kind", [RateLimit, DefaultRateLimit])
def test_a_dependency_as_a_decorator_raises_at_once(kind: Any) -> None:
    app = FastAPI()
    with pytest.raises(tg.ConfigurationError, match=r"expected Depends\(.*@tidegate.rate_limit"):
        app.get("/")(kind("5/minute")(another()))
    with pytest.raises(tg.ConfigurationError, match=r'expected a limit: .*RateLimit\("5/minute"\)'):
        app.get("/")(kind(another()))


def test_a_dependency_without_depends_raises_at_once() -> None:
    with pytest.raises(tg.ConfigurationError, match=r"expected Depends\(RateLimit\(\.\.\.\)\)"):
        FastAPI().get("/", dependencies=[RateLimit("5/minute")])(another())


def test_a_class_as_a_dependency_raises_at_once() -> None:
    for kind in (RateLimit, DefaultRateLimit):
        with pytest.raises(tg.ConfigurationError, match=r'expected a limit: Depends\(\w+\("5/'):
            FastAPI().get("/", dependencies=[Depends(kind)])(another())


def test_exempt_with_parentheses_raises_at_once() -> None:
    with pytest.raises(tg.ConfigurationError, match="without parentheses"):
        exempt("health")  # type: ignore[type-var]


def test_middleware_of_the_other_interface_raises_at_once() -> None:
    flask = pytest.importorskip("flask")
    app = flask.Flask("service")
    for given in (app, app.wsgi_app):
        with pytest.raises(tg.ConfigurationError, match=r"tidegate\.wsgi\.RateLimitMiddleware"):
            RateLimitMiddleware(given, limit="5/minute")
    with pytest.raises(tg.ConfigurationError, match=r"tidegate\.asgi\.RateLimitMiddleware"):
        OfWSGI(FastAPI(), limit="5/minute")  # type: ignore[arg-type]


# ------------------------------------------------------------------- schemas


def schema_of(app: FastAPI) -> dict[str, Any]:
    """Returns the 429 in the schema, or None without one."""
    (path,) = app.openapi()["paths"].values()
    found: dict[str, Any] = path["get"]["responses"].get("429")
    return found


def custom(request: Any, decision: Any) -> Any:
    return {"slow": "down"}


def test_the_schema_describes_the_refusal() -> None:
    for decorated, dependencies in (
        (rate_limit("5/minute")(another()), []),
        (another(), [Depends(RateLimit("5/minute"))]),
    ):
        app = FastAPI()
        app.get("/", dependencies=dependencies)(decorated)
        told = schema_of(app)
        assert list(told["content"]) == ["application/problem+json"]
        assert {"Retry-After", "RateLimit", "X-RateLimit-Limit"} <= set(told["headers"])
        refused = next(each for each in (get(app, "/") for _ in range(6)) if each.status == 429)
        assert refused["content-type"] == "application/problem+json"
        sent = {name for name, _ in refused.fields}
        assert {name.lower() for name in told["headers"]} <= sent
        schema = told["content"]["application/problem+json"]["schema"]
        assert set(refused.json()) == set(schema["properties"])


def test_the_schema_does_not_describe_a_body_of_the_service() -> None:
    for decorated, dependencies in (
        (rate_limit("5/minute", on_refused=custom)(another()), []),
        (rate_limit("5/minute")(rate_limit("9/minute", on_refused=custom)(another())), []),
        (another(), [Depends(RateLimit("5/minute", on_refused=custom))]),
    ):
        app = FastAPI()
        app.get("/", dependencies=dependencies)(decorated)
        assert schema_of(app)["description"] == "Too Many Requests"
        assert "content" not in schema_of(app)


def test_the_schema_lists_the_fields_that_are_sent() -> None:
    app = FastAPI()
    app.get("/")(rate_limit("5/minute", headers=["ietf"])(another()))
    assert set(schema_of(app)["headers"]) == {"Retry-After", "RateLimit", "RateLimit-Policy"}


def test_the_schema_of_an_exempt_route_has_no_429() -> None:
    app = with_defaults()
    app.get("/")(exempt(another()))
    assert schema_of(app) is None
    other = with_defaults()
    other.get("/")(another())
    assert schema_of(other) is not None
