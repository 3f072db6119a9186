"""Functions under @rate_limit keep their signature, and FastAPI can still call them."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys

import pytest
from servers import ask
from tidegate import rate_limit

pytest.importorskip("fastapi")

from fastapi import Depends, FastAPI
from fastapi.dependencies import utils
from tidegate.web.frameworks.fastapi_injection import _unwraps

# Older FastAPI evaluates annotations in text among our globals, not the view's, so they are
# evaluated before.
EVALUATED = not _unwraps(utils)


def test_the_signature_is_kept():
    async def items(number: int, *, text: str = "") -> dict[str, int]:
        return {"number": number}

    def of_a_method(self, number: int): ...

    for view in (items, of_a_method):
        limited = inspect.signature(rate_limit("1/minute")(view))
        assert limited == inspect.signature(view, eval_str=EVALUATED)
    app = FastAPI()
    app.get("/{number}")(rate_limit("9/minute")(items))
    assert ask(app, "/5").json() == {"number": 5}


def test_calls_that_end_in_a_limited_function_document_the_429():
    class Report:
        @rate_limit("1/minute")
        def __call__(self, year: int):
            return {}

    @rate_limit("1/minute")
    async def month(year: int, number: int):
        return {}

    app = FastAPI()
    app.get("/object")(Report())
    app.get("/partial")(functools.partial(month, number=1))
    app.get("/dependency", dependencies=[Depends(functools.partial(month, number=1))])(Report)
    paths = app.openapi()["paths"]
    assert all("429" in each["get"]["responses"] for each in paths.values())


BEFORE_FASTAPI = """
from __future__ import annotations
import inspect
from tidegate import rate_limit

def bare(year: int): ...

limited = inspect.signature(rate_limit("1/minute")(bare))
assert limited == inspect.signature(bare, eval_str={evaluated})

class Report:
    @rate_limit("1/minute")
    async def __call__(self, year: int) -> dict[str, int]:
        return {"year": year}

from fastapi import FastAPI
from fastapi.testclient import TestClient

app = FastAPI()
app.get("/")(Report())
client = TestClient(app)
answers = [client.get("/?year=7") for _ in range(2)]
assert [each.status_code for each in answers] == [200, 429], answers
assert answers[0].json() == {"year": 7}
described = app.openapi()["paths"]["/"]["get"]
assert [each["name"] for each in described["parameters"]] == ["year"]
assert "429" in described["responses"]
"""


def test_a_function_limited_before_fastapi_was_imported_works():
    # Older FastAPI does not await objects whose __call__ is async, limited or not.
    source = BEFORE_FASTAPI.replace("{evaluated}", str(EVALUATED))
    if EVALUATED:
        source = source.replace("async def", "def")
    subprocess.run([sys.executable, "-c", source], check=True)


WITHOUT_FASTAPI = """
import sys
sys.modules["fastapi"] = None
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from tidegate import rate_limit

class Mistake(Exception):
    pass

@rate_limit("2/minute")
async def home(request):
    if "mistake" in request.query_params:
        raise Mistake
    return PlainTextResponse("home")

async def of_mistakes(request, exc):
    return PlainTextResponse("a mistake", 400)

app = Starlette(routes=[Route("/", home)], exception_handlers={Mistake: of_mistakes})
client = TestClient(app)
answers = [client.get(path) for path in ("/", "/?mistake", "/")]
assert [each.status_code for each in answers] == [200, 400, 429], answers
assert [each.headers["x-ratelimit-remaining"] for each in answers] == ["1", "0", "0"]
"""


def test_starlette_routes_are_limited_without_fastapi():
    subprocess.run([sys.executable, "-c", WITHOUT_FASTAPI], check=True)
