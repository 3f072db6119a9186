"""@rate_limit on routes of Flask."""

from __future__ import annotations

import pytest
from servers import wsgi_server
from tidegate import rate_limit

flask = pytest.importorskip("flask")

from tidegate.flask import RateLimiter  # noqa: E402

NOW = 1_700_000_000 * 10**9


@pytest.fixture
def app():
    return flask.Flask(__name__)


def view():
    return {}


def statuses(app, *paths, **options):
    client = app.test_client()
    return [client.get(path, **options).status_code for path in paths]


def test_every_sort_of_route_sends_the_fields_of_its_limit_under_a_real_server(app, clock):
    @app.get("/dict/<int:number>")
    @rate_limit("1/minute", clock=clock)
    def a_dict(number):
        return {"number": number}

    @app.get("/tuple")
    @rate_limit("1/minute", clock=clock)
    def a_tuple():
        return "made", 201, {"x-own": "1"}

    @app.get("/response")
    @rate_limit("1/minute", clock=clock)
    def a_response():
        return flask.Response("plain", headers={"x-own": "1"})

    @app.get("/stream")
    @rate_limit("1/minute", clock=clock)
    def a_stream():
        return flask.stream_with_context(iter(["a", "b"]))

    @app.get("/error")
    @rate_limit("1/minute", clock=clock)
    def an_error():
        flask.abort(404, "no such ship")

    @app.get("/fault")
    @rate_limit("1/minute", clock=clock)
    def a_fault():
        raise ZeroDivisionError

    app.logger.disabled = True
    with wsgi_server(app) as client:
        for path, status, body in (
            ("/dict/3", 200, b'{"number":3}\n'),
            ("/tuple", 201, b"made"),
            ("/response", 200, b"plain"),
            ("/stream", 200, b"ab"),
            ("/error", 404, None),
            ("/fault", 500, None),
        ):
            answer = client(path)
            assert (path, answer.status) == (path, status)
            assert body in (None, answer.body)
            assert answer["x-ratelimit-limit"] == "1"
            assert answer["x-ratelimit-remaining"] == "0"
            assert answer["x-ratelimit-reset"] == str(clock.now_ns() // 10**9 + 60)
            assert answer["ratelimit-policy"] == '"1/minute";q=1;w=60'
            assert answer["ratelimit"] == '"1/minute";r=0;t=60'
            assert "retry-after" not in answer
            assert ("x-own" in answer) == (path in ("/tuple", "/response"))

            refusal = client(path)
            assert refusal.status == 429
            assert refusal["content-type"] == "application/problem+json"
            assert refusal["retry-after"] == "60"
            assert refusal.json()["violated-policies"] == ["1/minute"]
            assert client(path, "HEAD").body == b""
            clock.advance(60)
            assert client(path).status == status


def test_routes_of_one_name_do_not_share_a_counter(app, clock):
    for path in ("/a", "/b"):

        @app.get(path, endpoint=path)
        @rate_limit("1/minute", clock=clock)
        def get():
            return {}

    assert statuses(app, "/a", "/b", "/a", "/b") == [200, 200, 429, 429]


def test_a_scope_is_shared_across_blueprints(app, clock):
    for name in ("one", "two"):
        blueprint = flask.Blueprint(name, __name__, url_prefix=f"/{name}")

        @blueprint.get("/")
        @rate_limit("1/minute", scope="blueprints", clock=clock)
        def get():
            return {}

        app.register_blueprint(blueprint)
    assert statuses(app, "/one/", "/two/") == [200, 429]


@pytest.fixture
def limited(app, clock):
    """An application whose route / has a limit of one a minute."""
    app.get("/")(rate_limit("1/minute", clock=clock)(view))
    return app


def test_clients_are_distinguished_by_address(limited):
    forged = {"X-Forwarded-For": "198.51.100.7"}
    assert statuses(limited, "/") == [200]
    assert statuses(limited, "/", headers=forged) == [429]
    assert statuses(limited, "/", environ_base={"REMOTE_ADDR": "198.51.100.7"}) == [200]


def test_a_key_function_that_raises_is_logged(app, clock, caplog):
    @app.get("/")
    @rate_limit("1/minute", clock=clock, key=lambda request: request.nothing)
    def route():
        return {}

    assert statuses(app, "/", "/") == [200, 429]
    assert "the key function raised; the client's address is charged" in caplog.text


def test_on_refused_may_return_what_a_route_could(app, clock):
    def too_many(request, decision):
        return {"path": request.path, "wait": decision.retry_after}, 503

    @app.get("/")
    @rate_limit("1/minute", clock=clock, on_refused=too_many)
    def route():
        return {}

    client = app.test_client()
    client.get("/")
    answer = client.get("/")
    assert (answer.status_code, answer.json) == (503, {"path": "/", "wait": 60.0})
    assert answer.headers["Retry-After"] == "60"


@pytest.mark.parametrize("answer", ["later", {"wait": 1}, ("later", {"X-Own": "1"})])
def test_an_answer_without_a_status_is_a_429(app, clock, answer):
    limiter = RateLimiter(app, clock=clock)
    refuse = {"on_refused": lambda request, decision: answer}
    app.add_url_rule("/a", "a", rate_limit("1/minute", clock=clock, **refuse)(view))
    app.add_url_rule("/b", "b", limiter.limit("1/minute", **refuse)(view))
    assert statuses(app, "/a", "/a", "/b", "/b") == [200, 429] * 2


def test_async_routes_are_limited(app, clock):
    pytest.importorskip("asgiref")

    async def user(request):
        return request.view_args["user"]

    @app.get("/<user>")
    @rate_limit("1/minute", clock=clock, key=user)
    async def route(user):
        return {"user": user}

    assert statuses(app, "/a", "/a", "/b") == [200, 429, 200]


def test_options_are_answered_by_flask_and_not_charged(limited):
    client = limited.test_client()
    assert [client.options("/").status_code for _ in range(3)] == [200, 200, 200]
    assert statuses(limited, "/", "/") == [200, 429]


def test_requests_may_have_other_attributes(clock):
    app = flask.Flask(__name__)

    @app.before_request
    def grant():
        flask.request.scope = {"read": True}

    @app.get("/")
    @rate_limit("1/hour", clock=clock)
    def route():
        return "hello"

    client = app.test_client()
    found = [
        client.get("/", environ_base={"REMOTE_ADDR": address}).status_code
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1")
    ]
    assert found == [200, 200, 429]
