"""@rate_limit where no request is: in unit tests, and in frameworks that it does not know."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import pytest
import tidegate as tg
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tidegate import rate_limit
from tidegate.testing import limits_off

SOURCE = """
from tidegate import rate_limit

@rate_limit("5/minute")
async def handler(request):
    return "ok"
"""


def test_a_limited_function_can_be_called_in_a_unit_test_while_limits_are_off() -> None:
    app = FastAPI()

    @app.get("/double")
    @rate_limit("1/hour", clock=tg.ManualClock(10**18))
    async def double(number: int) -> int:
        return 2 * number

    @rate_limit("1/hour")
    def half(number: int) -> int:
        return number // 2

    with limits_off():
        assert asyncio.run(double(4)) == 8
        assert half(4) == 2
    assert half.__wrapped__(4) == 2  # type: ignore[attr-defined]
    with pytest.raises(tg.TidegateError, match=r"limits_off\(\)"):
        half(4)
    client = TestClient(app)
    assert [client.get("/double?number=1").status_code for _ in range(2)] == [200, 429]
    with limits_off():
        assert client.get("/double?number=1").json() == 2


def module_with(**members: Any) -> dict[str, Any]:
    return {"__name__": "handlers", **members}


def of(package: str) -> Any:
    """An object of a framework, as its application is."""
    return type("App", (), {"__module__": f"{package}.app"})()


@pytest.mark.parametrize(
    ("framework", "way_out"),
    [
        ("sanic", "hit_async"),
        ("aiohttp", "hit_async"),
        ("falcon", "tidegate.wsgi.RateLimitMiddleware"),
        ("litestar", "DefineMiddleware"),
        ("quart", "app.asgi_app"),
        ("bottle", "tidegate.wsgi.RateLimitMiddleware"),
    ],
)
@pytest.mark.parametrize("how", ["an object", "a module", "a function"])
def test_a_handler_of_an_unknown_framework_is_refused_with_the_way_out(
    framework: str, way_out: str, how: str
) -> None:
    def get() -> None: ...

    get.__module__ = framework
    member = {"an object": of(framework), "a module": types.ModuleType(framework)}.get(how, get)
    with pytest.raises(tg.ConfigurationError) as refused:
        exec(SOURCE, module_with(member=member))
    assert f"for {framework} " in str(refused.value)
    assert way_out in str(refused.value)


def test_real_modules_of_litestar_and_quart_are_refused() -> None:
    for lines in ("from litestar import get", "from quart import Quart, request\napp = Quart('a')"):
        with pytest.raises(tg.ConfigurationError, match=r"for (litestar|quart) "):
            exec(f"{lines}\n{SOURCE}", module_with())


def test_a_module_that_uses_a_known_framework_too_is_not_refused() -> None:
    exec(SOURCE, module_with(app=FastAPI(), other=of("aiohttp")))
    exec(SOURCE, module_with(app=of("shop")))
