"""Jitter on the wait of refused clients: it only adds, and all fields agree."""

from __future__ import annotations

import pytest
import tidegate as tg
import tidegate.wsgi
from servers import Answer, ask, limited

NOW = 1_700_000_000 * 10**9


def refusal(**options) -> Answer:
    app = limited("1/minute", **options)
    ask(app)
    return ask(app)


def wait(answer):
    """The waits in the three fields."""
    assert answer.status == 429
    told = {int(answer["retry-after"]), answer.json()["retry_after"]}
    told.add(int(answer["ratelimit"].rpartition(";t=")[2]))
    assert f"Try again in {min(told)} s." in answer.json()["detail"]
    assert len(told) == 1
    return told.pop()


def test_jitter_may_be_a_function_of_the_wait():
    asked = []
    answer = refusal(retry_jitter=lambda exact: asked.append(exact) or exact / 8)
    assert wait(answer) == 68  # 60 and 7.5, rounded up
    assert asked == [60.0]
    # The reset is the limit's own.
    assert answer["x-ratelimit-reset"] == "1700000060"


def test_seconds_are_drawn_for_each_refusal_and_only_add():
    app = limited("1/minute", retry_jitter=40)
    ask(app)
    waits = {wait(ask(app)) for _ in range(50)}
    assert min(waits) >= 60
    assert max(waits) <= 100
    assert len(waits) > 5


def test_there_is_no_jitter_by_default_or_on_allowed_requests():
    def never(exact):
        raise AssertionError

    assert wait(refusal()) == 60
    assert "retry-after" not in ask(limited("1/minute", retry_jitter=never))


def test_a_refusal_that_no_wait_helps_gets_no_jitter():
    app = limited("1/minute", cost=lambda scope: 2, retry_jitter=lambda exact: 1 / 0)
    answer = ask(app)
    assert "retry-after" not in answer
    assert answer.json()["retry_after"] is None


@pytest.mark.parametrize("jitter", [lambda exact: -1, lambda: 1, lambda exact: float("nan")])
def test_a_function_that_fails_adds_nothing(jitter, caplog):
    assert wait(refusal(retry_jitter=jitter)) == 60
    assert "retry_jitter" in caplog.text


@pytest.mark.parametrize("jitter", [-1, float("inf"), float("nan"), True, "10%", None, 86401])
@pytest.mark.parametrize("middleware", [limited, tidegate.wsgi.RateLimitMiddleware])
def test_invalid_values_raise_at_construction(middleware, jitter):
    with pytest.raises(tg.ConfigurationError, match=r"retry_jitter is .*expected 0 to 86400"):
        middleware(app=None, limit="1/minute", retry_jitter=jitter)


def told_by_flask(answer):
    return int(answer.headers["Retry-After"]), answer.get_json()["retry_after"]


def test_jitter_applies_in_flask():
    from flask import Flask
    from tidegate.flask import RateLimiter

    app = Flask(__name__)
    app.config["TIDEGATE_RETRY_JITTER"] = lambda exact: 5
    limiter = RateLimiter(app, endpoint_limit="1/minute", clock=tg.ManualClock(NOW))

    @app.get("/a")
    def usual():
        return "a"

    @app.get("/b")
    @limiter.limit("1/minute", retry_jitter=lambda exact: 7)
    def own():
        return "b"

    client = app.test_client()
    for path, waits in (("/a", (65, 65)), ("/b", (67, 67))):
        assert client.get(path).status_code == 200
        assert told_by_flask(client.get(path)) == waits
