"""Each example, run by a real server, with real requests."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
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
    names = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    names -= {"gunicorn_workers/app.py"}  # what compare.py serves
    assert names == {"fastapi_app.py", "flask_app.py", "gunicorn_workers/compare.py"}
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in names)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_gunicorn_workers():
    pytest.importorskip("gunicorn")
    command = [sys.executable, EXAMPLES / "gunicorn_workers" / "compare.py"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    memory, shm = (line.split() for line in found.stdout.splitlines()[-2:])
    assert memory[0] == "memory://"
    assert int(memory[1]) > 100  # each worker that was asked counts alone
    assert shm[0] == "shm://…"
    assert shm[1] == "100"


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
