"""Runs each example with a real server and real requests."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from servers import Client, asgi_server, gunicorn_server, uvicorn_at, uvicorn_server, wsgi_server
from tidegate.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_a_test():
    names = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")}
    names -= {"gunicorn_workers/app.py"}  # compare.py serves this application
    # serve.py starts these, and test_ride_hailing.py runs it.
    names -= {f"ride_hailing/{part}.py" for part in ("app", "matching", "riders")}
    assert names == {
        "django_app.py",
        "fastapi_app.py",
        "fastapi_redis.py",  # tests/redis/test_redis_web.py runs it
        "flask_app.py",
        "flask_extension.py",
        "gunicorn_workers/compare.py",
        "llm_gateway.py",
        "ride_hailing/serve.py",
        "rules/payments.py",
        "rules/ride_hailing.py",
        "rules/tiers.py",
        "websocket_chat.py",
    }
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in names)


RULES = {
    "payments": ["m-1    5,000 passed", "m-2    4,900 passed", "m-3    6,000 by ceiling"],
    "ride_hailing": ["25,000 rides in ten seconds; 5,950 reach", "5,000 are queued"],
    "tiers": ["ada deletes 10 posts", "bea deletes 1,000 posts", "ada has 50 left"],
}


@pytest.mark.parametrize("name", RULES)
def test_the_examples_of_rules_run(name):
    pytest.importorskip("pydantic")
    pytest.importorskip("yaml")
    command = [sys.executable, EXAMPLES / "rules" / f"{name}.py"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert [part for part in RULES[name] if part not in found.stdout] == []


@pytest.mark.parametrize("name", RULES)
def test_rules_are_checked_and_decide_as_their_cases_expect(name, capsys):
    pytest.importorskip("pydantic")
    pytest.importorskip("yaml")
    rules, cases = EXAMPLES / "rules" / f"{name}.yaml", EXAMPLES / "rules" / f"{name}_cases.yaml"
    assert main(["rules", "check", "--strict", str(rules)]) == 0
    assert main(["rules", "test", str(rules), str(cases)]) == 0, capsys.readouterr().out


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_the_example_of_gunicorn_workers_runs():
    pytest.importorskip("gunicorn")
    command = [sys.executable, EXAMPLES / "gunicorn_workers" / "compare.py"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    memory, shm = (line.split() for line in found.stdout.splitlines()[-2:])
    assert memory[0] == "memory://"
    assert int(memory[1]) > 100  # each worker counts alone
    assert shm[0] == "shm://…"
    assert shm[1] == "100"


def test_the_example_of_fastapi_runs():
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


def check_tides(client, policies):
    """A limit of ten a minute binds at /tides, among these policies."""
    tides = client("/tides")
    assert tides["x-ratelimit-limit"] == "10"
    assert tides["ratelimit-policy"] == policies
    assert [client("/tides").status for _ in range(10)] == [200] * 9 + [429]


def test_the_example_of_flask_runs():
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


def test_the_example_of_the_flask_extension_runs(tmp_path, monkeypatch):
    pytest.importorskip("flask")
    monkeypatch.setenv("FLASK_TIDEGATE_STORAGE", f"shm://{tmp_path}/counts")
    with (
        gunicorn_server("flask_extension:create_app()", EXAMPLES) as address,
        contextlib.closing(Client(address)) as client,
    ):
        check_tides(
            client, '"20/second";q=20;w=1, "1000/hour";q=1000;w=3600, "10/minute";q=10;w=60'
        )
        assert "ratelimit" not in client("/health")

        booked = [client("/harbour/berths", "POST") for _ in range(3)]
        assert [answer.status for answer in booked] == [201, 201, 429]
        assert booked[2].json()["why"].startswith("The limit 2/minute refused this request.")
        assert 0 < booked[2].json()["wait"] <= 30
        assert int(booked[2]["retry-after"]) >= booked[2].json()["wait"]
        assert '"30/minute";q=30;w=60' in client("/harbour/berths")["ratelimit-policy"]

        assert [client("/ships/a/log", "POST").status for _ in range(4)] == [200] * 3 + [429]
        assert client("/ships/b/log", "POST").status == 200
        assert client("/ships/a/log").status == 200


@pytest.mark.parametrize("interface", ["wsgi", "asgi"])
def test_the_example_of_django_runs(interface, tmp_path, monkeypatch):
    pytest.importorskip("django")
    monkeypatch.setenv("TIDEGATE_STORAGE", f"shm://{tmp_path}/counts")
    server = gunicorn_server if interface == "wsgi" else uvicorn_server
    with (
        server(f"django_app:{interface}", EXAMPLES) as address,
        contextlib.closing(Client(address)) as client,
    ):
        check_tides(
            client, '"10/minute";q=10;w=60, "20/second";q=20;w=1, "1000/hour";q=1000;w=3600'
        )
        customer = {"x-api-key": "8f14e45fceea167a"}
        assert client("/tides", headers=customer).status == 200
        assert "ratelimit" not in client("/health")
        assert "ratelimit" in client("/nowhere")

        assert client("/berths").json() == {"free": ["north", "south"]}
        booked = [client("/berths", "POST") for _ in range(3)]
        assert [answer.status for answer in booked] == [201, 201, 429]
        assert 0 < booked[2].json()["wait"] <= 30
        assert int(booked[2]["retry-after"]) >= booked[2].json()["wait"]

        forecasts = [client("/forecast?days=20", headers=customer) for _ in range(4)]
        assert [answer.status for answer in forecasts] == [200, 200, 200, 429]
        assert forecasts[3].json()["violated-policies"] == ["3/minute"]


def test_the_example_of_a_websocket_chat_runs():
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    client = pytest.importorskip("websockets.sync.client")

    app = example("websocket_chat").app
    with uvicorn_at(app, ws="websockets-sansio") as (host, port):
        url = f"ws://{host}:{port}/chat"
        with client.connect(url) as anna, client.connect(url) as bert:
            for number in range(5):
                anna.send(f"tide {number}")
                assert bert.recv(timeout=10) == anna.recv(timeout=10) == f"tide {number}"
            while not (answer := say(anna, "flood")).startswith("slow down"):
                assert bert.recv(timeout=10) == answer == "flood"
            # Both clients have one address here, and so one limit; neither is disconnected.
            anna.ping().wait(10)
            assert bert.ping().wait(10)


def say(opened, text):
    opened.send(text)
    return opened.recv(timeout=10)
