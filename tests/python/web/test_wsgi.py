"""The WSGI middleware, called directly and under real servers."""

from __future__ import annotations

import contextlib
import sys
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
import tidegate as tg
from servers import (
    Answer,
    Client,
    check_two_a_minute,
    gunicorn_server,
    waitress_server,
    wsgi_server,
)
from tidegate.wsgi import RateLimitMiddleware

NOW = 1_700_000_000 * 10**9


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]


def limited(limit="2/minute", app=hello, **options):
    options.setdefault("clock", tg.ManualClock(NOW))
    return RateLimitMiddleware(app, limit=limit, **options)


def ask(app, method="GET", **environ):
    """Makes one call, which the standard library checks against the protocol."""
    defaults = {"QUERY_STRING": "", "SCRIPT_NAME": "", "PATH_INFO": "/"}
    environ = {**defaults, "REQUEST_METHOD": method, "REMOTE_ADDR": "203.0.113.9", **environ}
    setup_testing_defaults(environ)
    started = []

    def start_response(status, headers, exc_info=None):
        started.append((status, headers))
        return lambda data: None

    body = validator(app)(environ, start_response)
    try:
        content = b"".join(body)
    finally:
        body.close()
    status, headers = started[-1]
    return Answer(int(status[:3]), [(name.lower(), value) for name, value in headers], content)


def statuses(app, times, **options):
    return [ask(app, **options).status for _ in range(times)]


def test_requests_are_allowed_up_to_the_limit_and_then_refused():
    app = limited()
    check_two_a_minute(*(ask(app) for _ in range(3)))


def test_exempt_methods_are_not_charged():
    app = limited("1/minute")
    assert statuses(app, 3, method="OPTIONS") == [200, 200, 200]
    assert statuses(app, 1) == [200]
    refusal = ask(limited("1/minute", cost=lambda environ: 2), method="POST")
    assert "retry-after" not in refusal  # waiting would not help


def test_a_client_without_an_address_is_limited_too():
    app = limited("1/minute")
    assert statuses(app, 2, REMOTE_ADDR="") == [200, 429]


def test_functions_read_the_environ():
    app = limited("1/minute", key=lambda environ: environ["PATH_INFO"])
    assert [ask(app, PATH_INFO=path).status for path in ("/a", "/a", "/b")] == [200, 429, 200]

    app = limited("1/minute", key=lambda environ: later(environ))
    with pytest.raises(tg.ArgumentTypeError, match="one that is not async either"):
        ask(app)


def test_on_refused_replaces_the_answer():
    def teapot(environ, start_response):
        start_response("418 I'm a teapot", [("Content-Type", "a/b"), ("RETRY-AFTER", "99")])
        return [b"short"]

    app = limited("1/minute", on_refused=lambda environ, decision: teapot)
    ask(app)
    answer = ask(app)
    assert (answer.status, answer.body) == (418, b"short")
    assert answer["retry-after"] == "99"
    assert answer["x-ratelimit-remaining"] == "0"


@pytest.mark.parametrize(
    "on_refused", [lambda environ, decision: 3, lambda environ, decision: 1 / 0]
)
def test_on_refused_that_fails_still_refuses(on_refused, caplog):
    app = limited("1/minute", on_refused=on_refused)
    assert statuses(app, 2) == [200, 429]
    assert "the usual body is sent" in caplog.text


def test_an_application_that_fails_after_it_began_keeps_its_error_response():
    def fails(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            raise LookupError
        except LookupError:
            start_response("500 Oh", [("Content-Type", "text/plain")], sys.exc_info())
        return [b""]

    answer = ask(limited(app=fails))
    assert answer.status == 500
    assert answer["x-ratelimit-remaining"] == "1"


def test_the_application_finds_the_decision():
    seen = []

    def app(environ, start_response):
        seen.append(environ["tidegate.decision"].remaining)
        return hello(environ, start_response)

    ask(limited(app=app))
    assert seen == [1]


def test_invalid_options_raise_at_construction():
    for options in ({}, {"limit": "5/minute", "limiter": tg.Limiter("5/minute")}):
        with pytest.raises(tg.ConfigurationError, match="expected"):
            RateLimitMiddleware(hello, **options)


async def later(environ, *decision):
    return "everybody"


@pytest.mark.parametrize("option", ["key", "cost", "exempt_when", "on_refused"])
def test_async_functions_are_refused(option):
    with pytest.raises(tg.ConfigurationError, match=f"{option} is the async function .*expected"):
        RateLimitMiddleware(hello, limit="5/minute", **{option: later})


def test_requests_are_limited_under_werkzeug():
    with wsgi_server(limited()) as client:
        assert [client("/").status for _ in range(3)] == [200, 200, 429]


def test_requests_are_limited_under_waitress():
    with waitress_server(limited()) as client:
        answers = [client("/") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2]["retry-after"]


APP = """
from tidegate.wsgi import RateLimitMiddleware

def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]

app = RateLimitMiddleware(hello, limit="20/hour", storage="shm://{path}")
"""


@pytest.mark.parametrize("worker", ["sync", "gthread", "gevent"])
def test_gunicorn_workers_count_together(worker, tmp_path):
    (tmp_path / "service.py").write_text(APP.format(path=tmp_path / "counts"))
    found = []
    with gunicorn_server("service:app", tmp_path, worker=worker) as address:
        for _ in range(30):  # each uses its own connection, to any worker
            with contextlib.closing(Client(address)) as client:
                found.append(client("/").status)
    assert found == [200] * 20 + [429] * 10


class Text(str):
    """A subclass of str, as frameworks use for enumerations of names and marked texts."""


@pytest.mark.parametrize("name", [Text("X-RateLimit-Limit"), Text("x-ratelimit-limit")])
def test_names_may_be_of_a_subclass_of_str(name):
    def app(environ, start_response):
        start_response("200 OK", [(name, "7")])
        return []

    started = []
    environ = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": "203.0.113.9"}
    limited(app=app)(environ, lambda status, headers: started.extend(headers))
    assert [value for known, value in started if known.lower() == "x-ratelimit-limit"] == ["7"]
    assert len(started) == 5
