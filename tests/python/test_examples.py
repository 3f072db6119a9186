"""Each example, run by a real server, with real requests."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from servers import asgi_server, wsgi_server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_examples_are_run_here():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {"fastapi_app", "flask_app", "llm_gateway"}
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}.py`" in readme for name in names)


def test_fastapi():
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with asgi_server(example("fastapi_app").app) as client:
        first = client("/tides")
        assert first.status == 200
        assert first["x-ratelimit-limit"] == "20"
        assert first["ratelimit-policy"] == (
            '"10/second burst 20";q=10;w=1, "300/minute";q=300;w=60'
        )
        assert "ratelimit" not in client("/health")

        searches = [client("/search?days=10") for _ in range(4)]
        assert [answer.status for answer in searches] == [200, 200, 200, 429]
        assert searches[0].json() == {"days": 10}
        assert searches[0]["x-ratelimit-remaining"] == "20"

        body = b'{"name": "moon", "password": "ebb and flow"}'
        headers = {"content-type": "application/json"}
        logins = [client("/login", "POST", body=body, headers=headers) for _ in range(6)]
        assert [answer.status for answer in logins] == [200] * 5 + [429]
        assert logins[0].json() == {"welcome": True}
        assert 0 < int(logins[5]["retry-after"]) <= 60


def test_flask():
    pytest.importorskip("flask")
    with wsgi_server(example("flask_app").app) as client:
        assert client("/tides")["x-ratelimit-limit"] == "20"

        assert client("/ships/gannet/log", "POST", body=b"fog").status == 201
        assert [client("/ships/gannet/log").status for _ in range(3)] == [200, 200, 429]
        assert client("/ships/heron/log").status == 200

        logins = [client("/login", "POST") for _ in range(6)]
        assert [answer.status for answer in logins] == [200] * 5 + [429]
        assert logins[5].json()["ok"] is False
        assert 0 < logins[5].json()["wait"] <= 60
        assert int(logins[5]["retry-after"]) >= logins[5].json()["wait"]


def test_llm_gateway():
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")

    def prompt(client, words, most=10, **headers):
        body = json.dumps({"prompt": " ".join(["tide"] * words), "max_tokens": most}).encode()
        headers = {"content-type": "application/json", **headers}
        return client("/v1/completions", "POST", body=body, headers=headers)

    with asgi_server(example("llm_gateway").app) as client:
        anna = {"authorization": "Bearer sk-anna"}
        first = prompt(client, 4, **anna)
        assert (first.status, first.json()["usage"]) == (200, 8)
        assert first["ratelimit-policy"] == '"60/minute";q=60;w=60, "1000/minute";q=1000;w=60'
        # 14 at most, 8 in fact: the rest was given back.
        assert prompt(client, 4, most=988, **anna).status == 200
        refused = prompt(client, 500, most=500, **anna)
        assert refused.status == 429
        assert refused.json()["violated-policies"] == ["1000/minute"]
        # That has cost no request, and others have their own tokens.
        assert prompt(client, 500, most=500, authorization="Bearer sk-bert").status == 200
        assert prompt(client, 500, most=500, authorization="Bearer sk-nobody").status == 429
        assert prompt(client, 4, authorization="Bearer sk-nobody").status == 200
