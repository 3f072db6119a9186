"""tidegate.testing and the switches: no limit applies, in any adapter, and none is charged."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from types import SimpleNamespace

import fastapi
import flask
import pytest
import tidegate as tg
import tidegate.asgi
import tidegate.fastapi
import tidegate.flask
from starlette.testclient import TestClient
from tidegate.testing import (
    assert_allowed,
    assert_refused,
    limits_off,
    limits_on,
    reset_all,
)
from tidegate.web.switch import Switch, switch


def asgi(**options):
    app = fastapi.FastAPI()
    app.get("/")(lambda: "ok")
    app.add_middleware(tidegate.asgi.RateLimitMiddleware, limit="1/minute", **options)
    return TestClient(app)


def decorated(**options):
    app = fastapi.FastAPI()
    app.get("/")(tg.rate_limit("1/minute", **options)(lambda: "ok"))
    return TestClient(app)


def dependency(**options):
    app = fastapi.FastAPI()
    limited = fastapi.Depends(tidegate.fastapi.RateLimit("1/minute", **options))
    app.get("/", dependencies=[limited])(lambda: "ok")
    return TestClient(app)


def extension(**options):
    app = flask.Flask(__name__)
    tidegate.flask.RateLimiter(app, "1/minute", **options)
    app.get("/")(lambda: "ok")
    return app.test_client()


@pytest.fixture(params=[asgi, decorated, dependency, extension], ids=lambda make: make.__name__)
def make(request):
    return lambda **options: request.param(clock=tg.ManualClock(), **options)


def test_limits_can_be_switched_off_and_on(make):
    client = make()
    with limits_off():
        for _ in range(3):
            response = client.get("/")
            assert_allowed(response)
            assert "RateLimit" not in response.headers
        with limits_on():
            # Nothing was charged.
            assert_allowed(client.get("/"))
            assert_refused(client.get("/"), limit="1/minute", retry_after=60)
        assert_allowed(client.get("/"))
    assert_refused(client.get("/"), limit=tg.Limit("1/minute"))


def test_enabled_switches_limits(make):
    client = make(enabled=False)
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 200]
    assert make(enabled=True).get("/").status_code == 200


def test_invalid_values_of_enabled_raise():
    for wrong in ("no", 0):
        with pytest.raises(tg.ConfigurationError, match=f"enabled is {wrong!r}"):
            tg.rate_limit("1/minute", enabled=wrong)(lambda: None)


def test_failed_assertions_show_the_response():
    response = SimpleNamespace(status_code=200, headers={"RateLimit": '"9/minute";r=8;t=7'})
    with pytest.raises(AssertionError, match=r"is a 200 \(RateLimit: \"9/minute\";r=8"):
        assert_refused(response)
    response.status_code = 429
    with pytest.raises(AssertionError, match="expected no refusal"):
        assert_allowed(response)
    with pytest.raises(AssertionError, match="; expected the limit '5/hour'"):
        assert_refused(response, limit="5/hour")
    with pytest.raises(AssertionError, match="the wait is None s; expected 5 s"):
        assert_refused(response, retry_after=5)
    with pytest.raises(AssertionError, match="expected one with a status"):
        assert_refused("no response")


@pytest.mark.parametrize(("text", "on"), [(None, True), ("1", True), ("off", False), ("0", False)])
def test_the_environment_variable(text, on):
    assert Switch(text).on is on


def test_a_process_with_the_environment_variable_limits_nothing():
    code = (
        "import tidegate.wsgi as w; app = w.RateLimitMiddleware(lambda e, s: ['ok'], '1/minute');"
        "e = {'REQUEST_METHOD': 'GET', 'REMOTE_ADDR': '203.0.113.9'};"
        "print([app(dict(e), lambda *a: None) for _ in range(3)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TIDEGATE_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[['ok'], ['ok'], ['ok']]"
    assert "rate limiting is off" in done.stderr


def test_another_value_of_the_environment_variable_is_refused():
    with pytest.raises(tg.ConfigurationError, match="TIDEGATE_ENABLED is 'maybe'; expected "):
        Switch("maybe")


def test_reset_all_gives_every_client_its_limit_again(make):
    client = make()
    assert_allowed(client.get("/"))
    assert_refused(client.get("/"))
    reset_all()
    assert_allowed(client.get("/"))
    assert_refused(client.get("/"))


@pytest.mark.parametrize(
    "algorithm", ["token-bucket", "fixed-window", "sliding-window", "sliding-log", "concurrency"]
)
def test_reset_all_is_for_limiters_without_requests_too(algorithm):
    limits = [tg.Limit("1/hour", algorithm=algorithm), tg.Limit("2/day", algorithm=algorithm)]
    small = tg.Limiter(limits, storage="memory://?capacity=1000")
    shared = tg.Limiter(limits, storage=small.storage, prefix="other")
    for limiter in (small, shared):
        assert [limiter.allow("key") for _ in range(2)] == [True, False]
    reset_all()
    for limiter in (small, shared):
        assert [limiter.allow("key") for _ in range(2)] == [True, False]


def test_reset_all_clears_the_fallback_of_a_redis_that_does_not_answer():
    limiter = tg.Limiter("1/hour", storage="redis://127.0.0.1:1", timeout=0.01)
    assert [limiter.allow("key") for _ in range(2)] == [True, False]
    reset_all()
    assert [limiter.allow("key") for _ in range(2)] == [True, False]


def test_reset_all_keeps_no_store_alive():
    storage = weakref.ref(tg.Limiter("1/hour").storage)
    gc.collect()
    assert storage() is None


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("second", [limits_off, limits_on])
@pytest.mark.parametrize("first", [limits_off, limits_on])
def test_blocks_that_overlap_leave_the_switch_as_it_was(first, second, before, monkeypatch):
    monkeypatch.setattr(switch, "on", before)
    one, two = first(), second()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert switch.on == (second is limits_on)  # the block that is still open decides
    two.__exit__(None, None, None)
    assert switch.on == before


def test_a_block_within_another_ends_first(monkeypatch):
    monkeypatch.setattr(switch, "on", True)
    with limits_off():
        with limits_on(), limits_off():
            assert not switch.on
        assert not switch.on
    assert switch.on


SUITE = """
import pytest
import tidegate as tg
import tidegate.testing
from tidegate.web.switch import switch

limiter = tg.Limiter("1/day")

@pytest.mark.parametrize("run", range(2))
def test_each_run_has_the_whole_limit(run, tidegate_reset):
    assert limiter.allow("key")
    assert not limiter.allow("key")

def test_nothing_is_left_behind():
    assert limiter.peek("key").allowed

def test_off(tidegate_limits_off):
    assert not switch.on

def test_on(tidegate_limits_on):
    assert switch.on

def test_the_clock_stands_still_where_windows_begin(tidegate_clock):
    limiter = tg.Limiter("1/month", algorithm="fixed-window", clock=tidegate_clock)
    assert limiter.allow("key")
    assert limiter.hit("key").retry_after == 31 * 86400
    tidegate_clock.advance(31 * 86400)
    assert limiter.allow("key")
"""


def test_the_fixtures_of_the_plugin(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tidegate.pytest_plugin"]')
    (tmp_path / "test_service.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "TIDEGATE_ENABLED": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip().splitlines()[-1].startswith("6 passed"), done.stdout
