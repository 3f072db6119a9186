"""`tidegate key` shows and resets the usage of a client of a route."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import flask
import pytest
import tidegate as tg
from redis_server import RedisServer
from tidegate._core import ShmStore
from tidegate.cli.main import main


@pytest.fixture(params=["shm", "redis"])
def storage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "redis":
        with RedisServer(tmp_path_factory.mktemp("redis"), "--unixsocket", "") as server:
            yield server.uri()
        return
    name = f"tidegate-key-{os.getpid()}-{uuid.uuid4().hex}"
    yield f"shm://{name}"
    ShmStore.remove(name)


def test_a_client_of_a_route_is_shown_and_unlocked(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = flask.Flask(__name__)
    limited = tg.rate_limit("2/hour", storage=storage, scope="login", key=lambda request: "ada")
    app.get("/")(limited(lambda: "ok"))
    client = app.test_client()
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    arguments = [storage, "2/hour", "ada", "--scope", "login"]
    assert main(["key", "show", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "ada: 0 of 2 left of 2/hour\nrefused for " in shown
    assert "full again in " in shown
    assert main(["key", "show", storage, "2/hour", "ada"]) == 0
    assert capsys.readouterr().out == "ada: 2 of 2 left of 2/hour\n"
    assert main(["key", "reset", *arguments]) == 0
    assert capsys.readouterr().out == "ada is reset\n"
    assert client.get("/").status_code == 200


def test_a_reset_of_a_quota_leaves_top_ups(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tg.Limiter("quota 10/month", storage=storage) as limiter:
        limiter.top_up("ada", 5)
        assert limiter.hit("ada", 12)
        reset = ["key", "reset", storage, "quota 10/month", "ada"]
        assert main(reset) == 0
        had = "before, it had 3 units left of 10 and 0 carried and 5 topped up, and 12 used"
        assert capsys.readouterr().out == f"ada is reset; {had}\n"
        assert limiter.quota_status("ada").available == 13
        assert main([*reset, "--everything"]) == 0
        assert limiter.quota_status("ada").available == 10


@pytest.mark.parametrize(
    ("storage", "said"), [("memory://", "shm:// or redis://"), ("shm://no-such", "no-such")]
)
def test_a_storage_that_cannot_be_looked_at(
    storage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", "show", storage, "2/hour", "ada"]) == 2
    assert said in capsys.readouterr().err


def test_a_server_that_is_gone_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("show", "reset"):
        assert main(["key", action, "redis://127.0.0.1:1", "2/hour", "ada"]) == 1
        assert "does not answer" in capsys.readouterr().err
