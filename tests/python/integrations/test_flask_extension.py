"""The extension for Flask: whole applications, endpoints, blueprints and views."""

from __future__ import annotations

import contextlib

import pytest
import tidegate as tg
from servers import Client, gunicorn_server, waitress_server, wsgi_server

flask = pytest.importorskip("flask")

from flask.views import MethodView, View  # noqa: E402
from flask_service import nothing, service, statuses  # noqa: E402
from tidegate import ConfigurationError  # noqa: E402
from tidegate.flask import RateLimiter, RateLimitExceeded  # noqa: E402


@pytest.fixture
def app():
    return service()


def test_a_client_has_one_count_for_the_whole_application(app, clock):
    RateLimiter(app, "2/minute", clock=clock)
    assert statuses(app, "/a/1", "/b/1", "/a/1", "/b/2") == [200, 200, 429, 429]
    assert statuses(app, "/a/1", environ_base={"REMOTE_ADDR": "198.51.100.7"}) == [200]
    clock.advance(30)
    assert statuses(app, "/nowhere", "/nowhere") == [404, 429]


def test_endpoints_have_separate_counts_by_template(app, clock):
    RateLimiter(app, endpoint_limit="2/minute", clock=clock)
    assert statuses(app, "/a/1", "/a/2", "/a/3", "/b/1") == [200, 200, 429, 200]
    assert statuses(app, "/x", "/y", "/z") == [404, 404, 429]


def test_a_million_paths_take_no_more_memory(app, clock):
    limiter = RateLimiter(app, "1000000000/minute", endpoint_limit="1000000000/minute", clock=clock)
    limited = app.extensions["tidegate"][limiter]
    client = app.test_client()

    def visit(number):
        client.get(f"/a/{number}")
        client.get(f"/nowhere/{number}")
        client.open(f"/nowhere/{number}", method="M" + "xyz"[number % 3] * (number % 7))

    for number in range(3):
        visit(number)
    known = len(limited._plans)
    for number in range(100):
        visit(number)
    assert len(limited._plans) == known == 2
    # One key for the application, one for each of two endpoints.
    assert limited._everywhere.limiter.stats().keys == 3


def test_a_request_that_one_limit_refuses_is_charged_by_none(app, clock):
    limiter = RateLimiter(app, "10/minute", clock=clock)
    blueprint = flask.Blueprint("ships", __name__, url_prefix="/ships")
    limiter.limit("4/minute")(blueprint)

    @blueprint.get("/")
    @limiter.limit("2/minute")
    def ships():
        return {}

    app.register_blueprint(blueprint)
    client = app.test_client()
    first = client.get("/ships/")
    assert first.headers["RateLimit-Policy"] == (
        '"10/minute";q=10;w=60, "4/minute";q=4;w=60, "2/minute";q=2;w=60'
    )
    assert first.headers["X-RateLimit-Limit"] == "2"
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert statuses(app, *["/ships/"] * 5) == [200, 429, 429, 429, 429]
    # Two of ten were charged.
    assert client.get("/a/1").headers["X-RateLimit-Remaining"] == "7"


def test_a_view_s_own_limit_replaces_only_that_of_endpoints(app, clock):
    limiter = RateLimiter(app, "6/minute", endpoint_limit="1/minute", clock=clock)

    @app.route("/own", methods=["GET", "POST"])
    @limiter.limit("3/minute", methods=["POST"])
    def own():
        return {}

    assert statuses(app, *["/own"] * 2) == [200, 429]
    assert statuses(app, *["/own"] * 4, method="POST") == [200, 200, 200, 429]
    assert statuses(app, "/a/1", "/b/1", "/own") == [200, 200, 429]


def test_a_method_that_a_limit_names_is_limited_though_it_is_exempt(app, clock):
    limiter = RateLimiter(app, "9/minute", meta_limit="1/minute", clock=clock)
    blueprint = flask.Blueprint("blue", __name__, url_prefix="/blue")
    limiter.limit("1/minute", methods=["OPTIONS"])(blueprint)
    blueprint.add_url_rule("/", "page", lambda: "ok")
    app.register_blueprint(blueprint)
    own = limiter.limit("1/minute", methods=["OPTIONS"])
    methods = ["GET", "OPTIONS"]
    app.add_url_rule("/own", "own", own(lambda: "ok"), methods=methods)
    app.add_url_rule("/hidden", "hidden", lambda: hidden(), methods=methods)
    hidden = own(lambda: "ok")
    app.add_url_rule("/all", "all", limiter.limit("1/minute")(lambda: "ok"), methods=methods)
    for path in ("/blue/", "/own", "/hidden"):
        assert statuses(app, *[path] * 3, method="OPTIONS") == [200, 429, 429]
        assert statuses(app, path) == [200]
    assert statuses(app, "/all", "/all", "/nowhere", method="OPTIONS") == [200, 200, 404]
    # The application's limit has counted the three requests with GET, and this one.
    assert app.test_client().get("/a/1").headers["X-RateLimit-Remaining"] == "5"


def test_decorators_above_each_other_are_one_plan(app, clock):
    limiter = RateLimiter(app, clock=clock)

    @app.get("/<user>")
    @limiter.limit("3/minute")
    @limiter.limit("1/minute", key=lambda request: request.view_args["user"])
    def page(user):
        return {}

    assert statuses(app, "/x", "/x", "/x", "/y", "/z", "/w") == [200, 429, 429, 200, 200, 429]


def views_with_a_limited_post(limit):
    """A class of views, of which only that of POST has a limit."""

    class Methods(MethodView):
        def get(self):
            return {}

        @limit
        def post(self):
            return {}

    return Methods


def test_views_of_every_kind_are_limited(app, clock):
    limiter = RateLimiter(app, clock=clock)

    class Listed(View):
        decorators = [limiter.limit("1/minute")]  # noqa: RUF012

        def dispatch_request(self):
            return {}

    @limiter.limit("1/minute")
    class Decorated(MethodView):
        def get(self):
            return {}

    methods = views_with_a_limited_post(limiter.limit("1/minute"))
    app.add_url_rule("/listed", view_func=Listed.as_view("listed"))
    app.add_url_rule("/decorated", view_func=Decorated.as_view("decorated"))
    app.add_url_rule("/methods", view_func=methods.as_view("methods"))

    @app.get("/async")
    @limiter.limit("1/minute")
    async def later():
        return {}

    for path in ("/listed", "/decorated", "/async"):
        assert statuses(app, path, path) == [200, 429]
    assert statuses(app, *["/methods"] * 3) == [200, 200, 200]
    assert statuses(app, *["/methods"] * 2, method="POST") == [200, 429]


def test_a_limit_above_a_class_is_one_of_its_endpoint(app, clock):
    limiter = RateLimiter(app, "9/minute", endpoint_limit="8/minute", clock=clock)

    methods = views_with_a_limited_post(limiter.limit("2/minute"))
    above = limiter.limit("3/minute")(methods)
    app.add_url_rule("/above", view_func=above.as_view("above"))
    client = app.test_client()
    first = client.post("/above")
    assert first.headers["RateLimit-Policy"] == (
        '"9/minute";q=9;w=60, "3/minute";q=3;w=60, "2/minute";q=2;w=60'
    )
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert statuses(app, *["/above"] * 3) == [200, 200, 429]
    # The application's limit counted the three requests that passed, and this one.
    assert client.get("/a/1").headers["X-RateLimit-Remaining"] == "5"


def test_a_limit_that_another_decorator_hides_still_holds(app, clock):
    limiter = RateLimiter(app, "3/minute", clock=clock)

    def hiding(view):
        return lambda *args: view(*args)

    @hiding
    @limiter.limit("1/minute")
    def page():
        return {}

    app.add_url_rule("/hidden", "hidden", page)

    @app.get("/calls")
    def calls():
        return page()

    client = app.test_client()
    answer = client.get("/hidden")
    assert answer.headers["X-RateLimit-Limit"] == "1"
    assert answer.headers.getlist("RateLimit-Policy") == [
        '"1/minute";q=1;w=60, "3/minute";q=3;w=60'
    ]
    refusal = client.get("/calls")
    assert (refusal.status_code, refusal.headers["Retry-After"]) == (429, "60")
    # The application's limit got back its charge for the refused call.
    assert client.get("/a/1").headers["X-RateLimit-Remaining"] == "1"


def test_exempt_views_and_blueprints_are_not_limited(clock, tmp_path):
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "style.css").write_text("")
    app = flask.Flask(__name__, root_path=str(tmp_path))
    limiter = RateLimiter(app, "1/minute", clock=clock)
    inner = flask.Blueprint("inner", __name__)
    outer = limiter.exempt(flask.Blueprint("outer", __name__))
    inner.add_url_rule("/inner", "page", dict)
    outer.register_blueprint(inner)
    app.register_blueprint(outer)

    @app.get("/below")
    @limiter.exempt
    def below():
        return {}

    @limiter.exempt
    @app.get("/above")
    def above():
        return {}

    @limiter.exempt
    class Exempt(View):
        def dispatch_request(self):
            return {}

    app.add_url_rule("/class", view_func=Exempt.as_view("class"))
    app.add_url_rule("/limited", "limited", dict)
    for path in ("/below", "/above", "/class", "/inner", "/static/style.css"):
        assert statuses(app, path, path) == [200, 200]
    assert statuses(app, "/limited", "/limited") == [200, 429]
    with pytest.raises(tg.ArgumentTypeError, match="expected a view"):
        limiter.exempt("limited")


@pytest.mark.parametrize("of_blueprint", [False, True])
def test_an_extension_without_init_app_is_an_error_of_each_request(of_blueprint):
    app, blueprint, limiter = flask.Flask("forgetful"), flask.Blueprint("b", "b"), RateLimiter()
    view = lambda: "ok"  # noqa: E731
    blueprint.get("/")(view if of_blueprint else limiter.limit("1/hour")(view))
    if of_blueprint:
        limiter.limit("1/hour")(blueprint)
    app.register_blueprint(blueprint)
    app.testing = True
    with pytest.raises(ConfigurationError, match=r"forgetful does not have; .* init_app\(\)"):
        app.test_client().get("/")
    limiter.init_app(app := flask.Flask("other"))
    app.register_blueprint(blueprint)
    answers = [app.test_client().get("/").status_code for _ in range(2)]
    assert answers == [200, 429]


def test_an_extension_that_no_application_has_is_said_once(app, caplog):
    _limiter = RateLimiter(limit="1/hour")
    assert statuses(app, "/a/1", "/a/1") == [200, 200]
    said = [each for each in caplog.messages if "init_app" in each]
    assert len(said) == 1
    assert "RateLimiter(limit='1/hour') has no application and limits nothing" in said[0]


def test_an_extension_that_gets_its_application_later_is_silent(app, caplog):
    limiter, _for_views = RateLimiter(limit="1/hour"), RateLimiter()
    limiter.init_app(app)
    assert statuses(app, "/a/1", "/a/1") == [200, 429]
    assert "init_app" not in caplog.text


def test_the_limit_of_a_blueprint_counts_all_its_endpoints(app, clock):
    limiter = RateLimiter(clock=clock)
    blueprint = flask.Blueprint("one", __name__, url_prefix="/one")
    limiter.limit("2/minute")(blueprint)
    for name in ("x", "y"):
        blueprint.add_url_rule(f"/{name}", name, dict)
    app.register_blueprint(blueprint)
    limiter.init_app(app)
    assert statuses(app, "/one/x", "/one/y", "/one/x", "/a/1") == [200, 200, 429, 200]


def test_views_may_share_a_limit(app, clock):
    limiter = RateLimiter(app, clock=clock)
    shared = limiter.shared_limit("2/minute", scope="both")
    app.add_url_rule("/x", "x", shared(nothing))
    app.add_url_rule("/y", "y", shared(nothing))
    assert statuses(app, "/x", "/y", "/x") == [200, 200, 429]


@pytest.mark.parametrize("decorate", [None, tg.rate_limit])
def test_cost_after_gets_the_exception_of_a_view_that_raises(app, clock, decorate):
    seen = []

    def unless_raised(request, answer):
        seen.append(type(answer).__name__)
        return 0 if isinstance(answer, Exception) else 10

    limit = (decorate or RateLimiter(app, clock=clock).limit)(
        "10/minute", cost=10, cost_after=unless_raised
    )

    @app.get("/up/<int:status>")
    @limit
    def up(status):
        if status != 200:
            flask.abort(status)
        return "up"

    paths = ("/up/502", "/up/502", "/up/200", "/up/200")
    assert statuses(app, *paths) == [502, 502, 200, 429]
    assert seen == ["BadGateway", "BadGateway", "str"]


def test_cost_after_gets_the_exception_of_a_fastapi_route_that_raises():
    fastapi = pytest.importorskip("fastapi")
    client = pytest.importorskip("fastapi.testclient").TestClient
    service = fastapi.FastAPI()

    @service.get("/up/{status}")
    @tg.rate_limit(
        "10/minute", cost=10, cost_after=lambda r, a: 0 if isinstance(a, Exception) else 10
    )
    async def up(status: int):
        if status != 200:
            raise fastapi.HTTPException(status)
        return "up"

    asking = client(service)
    found = [asking.get(f"/up/{status}").status_code for status in (502, 502, 200, 200)]
    assert found == [502, 502, 200, 429]


def test_cost_after_corrects_the_charge(app, clock):
    limiter = RateLimiter(app, clock=clock)

    @app.get("/tokens/<int:count>")
    @limiter.limit(
        "10/minute", cost=5, cost_after=lambda request, answer: answer["tokens"], scope="tokens"
    )
    def tokens(count):
        return {"tokens": count}

    assert statuses(app, "/tokens/1", "/tokens/9", "/tokens/1") == [200, 200, 429]
    clock.advance(60)
    told = app.test_client().get("/tokens/1").headers
    assert (told["X-RateLimit-Remaining"], told["RateLimit"]) == ("9", '"10/minute";r=9;t=6')
    with pytest.raises(tg.ConfigurationError, match="cost_after"):
        limiter.limit("1/minute", cost_after=lambda *_: 1)(flask.Blueprint("x", __name__))


def test_a_refusal_without_an_error_handler_is_problem_json(app, clock):
    RateLimiter(app, "1/minute", clock=clock)
    with wsgi_server(app) as client:
        assert client("/a/1").status == 200
        refusal = client("/a/1")
        assert refusal.status == 429
        assert refusal["content-type"] == "application/problem+json"
        assert refusal["retry-after"] == "60"
        assert refusal["x-ratelimit-remaining"] == "0"
        assert refusal.json()["violated-policies"] == ["1/minute"]
        assert client("/a/1", "HEAD").body == b""
        assert [client("/a/1", "OPTIONS").status for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("handled", [429, RateLimitExceeded, "HTTPException"])
@pytest.mark.parametrize("path", ["/a/1", "/own", "/async"])
def test_error_handlers_answer_refusals(app, clock, handled, path):
    limiter = RateLimiter(app, "1/minute", clock=clock)
    app.add_url_rule("/own", "own", limiter.limit("1/minute")(nothing))

    @app.get("/async")
    @limiter.limit("1/minute")
    async def later():
        return {}

    if handled == "HTTPException":
        from werkzeug.exceptions import HTTPException as handled

    @app.errorhandler(handled)
    def too_many(exc):
        assert isinstance(exc, tg.RateLimitExceeded)
        return {"sorry": exc.description, "wait": exc.decision.retry_after}, exc.code

    client = app.test_client()
    client.get(path)
    answer = client.get(path)
    assert answer.status_code == 429
    assert answer.json == {
        "sorry": "The limit 1/minute refused this request. Try again in 60 s.",
        "wait": 60.0,
    }
    assert answer.headers.getlist("Retry-After") == ["60"]
    assert answer.headers["RateLimit"].startswith('"1/minute";r=0')


def test_on_refused_replaces_the_answer(app, clock, caplog):
    answers = iter([({"slow": "down"}, 503), None, ZeroDivisionError])

    def refuse(request, decision):
        assert not decision
        answer = next(answers)
        if answer is ZeroDivisionError:
            raise answer
        return answer

    RateLimiter(app, "1/minute", clock=clock, on_refused=refuse)
    assert statuses(app, *["/a/1"] * 4) == [200, 503, 429, 429]
    assert "on_refused returned a NoneType" in caplog.text
    assert "on_refused raised" in caplog.text


def test_errors_carry_the_fields(app, clock):
    RateLimiter(app, "5/minute", clock=clock)
    app.add_url_rule("/fault", "fault", lambda: 1 / 0)
    app.logger.disabled = True
    client = app.test_client()
    for path, status in (("/fault", 500), ("/nowhere", 404)):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["X-RateLimit-Limit"]) == (status, "5")
    assert client.delete("/a/1").status_code == 405


def test_fields_that_a_view_sets_stay(app, clock):
    RateLimiter(app, "5/minute", clock=clock)
    app.add_url_rule(
        "/own", "own", lambda: ("", 200, {"X-RateLimit-Limit": "1", "RateLimit": '"own";r=1'})
    )
    headers = app.test_client().get("/own").headers
    assert headers.getlist("X-RateLimit-Limit") == ["1"]
    assert headers.getlist("RateLimit") == ['"own";r=1, "5/minute";r=4;t=12']


def test_middleware_that_copies_the_environ_loses_no_fields(app, clock):
    inner = app.wsgi_app
    app.wsgi_app = lambda environ, start_response: inner(dict(environ), start_response)
    RateLimiter(app, "5/minute", clock=clock)
    assert app.test_client().get("/a/1").headers["X-RateLimit-Remaining"] == "4"


def test_the_view_finds_the_decision(app, clock):
    limiter = RateLimiter(app, "5/minute", clock=clock)
    app.add_url_rule("/left", "left", lambda: {"left": limiter.decision.remaining})
    assert app.test_client().get("/left").json == {"left": 4}
    with app.test_request_context("/left"):
        assert limiter.decision is None


def test_before_request_functions_registered_earlier_run_before_the_limit(app, clock):
    @app.before_request
    def authenticate():
        flask.g.user = flask.request.headers["x-user"]

    RateLimiter(app, "1/minute", clock=clock, key=lambda request: flask.g.user)
    assert statuses(app, "/a/1", headers={"x-user": "ann"}) == [200]
    assert statuses(app, "/a/1", headers={"x-user": "bob"}) == [200]
    assert statuses(app, "/a/1", headers={"x-user": "ann"}) == [429]


FACTORY = """
from flask import Flask
from tidegate.flask import RateLimiter

limiter = RateLimiter(endpoint_limit="20/hour")

def create():
    app = Flask(__name__)
    app.config["TIDEGATE_STORAGE"] = "shm://{path}"
    limiter.init_app(app)

    app.add_url_rule("/", "page", lambda: "page")
    app.add_url_rule("/own", "own", limiter.limit("5/hour")(lambda: "own"))
    return app
"""


@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_gunicorn_workers_count_together(worker, tmp_path):
    (tmp_path / "service.py").write_text(FACTORY.format(path=tmp_path / "counts"))
    found = {"/": [], "/own": []}
    with gunicorn_server("service:create()", tmp_path, worker=worker) as address:
        for path, answers in found.items():
            for _ in range(25):  # each uses its own connection, to any worker
                with contextlib.closing(Client(address)) as client:
                    answers.append(client(path).status)
    assert found == {"/": [200] * 20 + [429] * 5, "/own": [200] * 5 + [429] * 20}


def test_requests_are_limited_under_waitress(app, clock):
    RateLimiter(app, "2/minute", clock=clock)
    with waitress_server(app) as client:
        answers = [client("/a/1") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2]["retry-after"] == "30"


def test_a_decorator_without_parentheses_is_refused(app):
    limiter = RateLimiter(app)
    expected = r'expected a limit: @limiter.limit\("5/minute"\)'

    with pytest.raises(tg.ConfigurationError, match=expected):

        @limiter.limit
        def without_argument():
            return {}

    with pytest.raises(tg.ConfigurationError, match=expected):

        @app.get("/of/<name>")
        @limiter.limit
        def of_one(name):
            return {}

    with pytest.raises(tg.ConfigurationError, match=r'expected a limit: @rate_limit\("5/minute"\)'):

        @app.get("/also/<name>")
        @tg.rate_limit
        def also_of_one(name):
            return {}
