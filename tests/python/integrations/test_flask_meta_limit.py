"""Flask: a limit on refusals, and the command that lists the limits of routes."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg

flask = pytest.importorskip("flask")

from flask.views import MethodView  # noqa: E402
from tidegate.flask import RateLimiter  # noqa: E402

START = 1_700_000_000 * 10**9


def service(clock: tg.ManualClock, **options: Any) -> Any:
    app = flask.Flask("service")
    limiter = RateLimiter(app, clock=clock, **options)
    for name in ("a", "b"):
        app.add_url_rule(f"/{name}", name, lambda: "ok")
    app.add_url_rule("/own", "own", limiter.limit("1/second")(lambda: "ok"))
    return app


def statuses(app: Any, *paths: str, **options: Any) -> list[int]:
    client = app.test_client()
    return [client.get(path, **options).status_code for path in paths]


def test_a_client_that_is_refused_too_often_is_refused_everything() -> None:
    clock = tg.ManualClock(START)
    app = service(clock, endpoint_limit="2/second", meta_limit="3/hour")
    assert statuses(app, *["/a"] * 5) == [200, 200, 429, 429, 429]
    clock.advance(10)  # the limits allow requests again, the limit on refusals does not
    refused = app.test_client().get("/b")
    assert refused.status_code == 429
    assert refused.get_json()["violated-policies"] == ["3/hour"]
    assert int(refused.headers["Retry-After"]) == 1190
    assert statuses(app, "/a", "/own", "/nowhere") == [429, 429, 429]
    # Other clients are not affected, and its own refusals do not prolong it.
    assert statuses(app, "/a", environ_overrides={"REMOTE_ADDR": "192.0.2.9"}) == [200]
    clock.advance(1190)
    assert statuses(app, "/b") == [200]


def test_refusals_of_limits_on_views_count_too() -> None:
    app = service(tg.ManualClock(START), meta_limit="1/hour")
    assert statuses(app, "/own", "/own", "/a") == [200, 429, 429]


@pytest.mark.parametrize(("on_no_key", "status"), [("open", 200), ("closed", 429)])
def test_clients_without_a_key_are_not_counted(on_no_key: str, status: int) -> None:
    options: dict[str, Any] = {"limit": "1/hour", "meta_limit": "1/hour", "on_no_key": on_no_key}
    app = service(tg.ManualClock(START), key=lambda request: None, **options)
    assert statuses(app, "/a", "/a", "/a") == [status] * 3


def test_a_refusal_charges_no_other_limit() -> None:
    clock = tg.ManualClock(START)
    app = service(clock, limit="10/hour", endpoint_limit="1/second", meta_limit="1/minute")
    assert statuses(app, "/a", "/a", "/a", "/b") == [200, 429, 429, 429]
    clock.advance(60)
    assert int(app.test_client().get("/a").headers["X-RateLimit-Remaining"]) in (0, 8)
    assert statuses(app, "/b") == [200]


def test_a_meta_limit_is_read_from_the_configuration() -> None:
    app = flask.Flask("service")
    app.config.update(TIDEGATE_META_LIMIT="1/hour", TIDEGATE_LIMIT="1/second")
    clock = tg.ManualClock(START)
    RateLimiter(app, clock=clock)
    app.add_url_rule("/", "index", lambda: "ok")
    assert statuses(app, "/", "/") == [200, 429]
    clock.advance(5)
    assert statuses(app, "/") == [429]
    app.config["TIDEGATE_ENABLED"] = False
    assert statuses(app, "/") == [200]


@pytest.mark.parametrize("wrong", ["often", 5, "3/fortnight"])
def test_an_invalid_meta_limit_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match="expected"):
        RateLimiter(flask.Flask("service"), meta_limit=wrong)


def test_the_name_of_flask_limiter_leads_to_the_name_here() -> None:
    with pytest.raises(tg.ConfigurationError, match=r"meta_limits \(here it is meta_limit="):
        RateLimiter(flask.Flask("service"), meta_limits=["3/hour"])


# ------------------------------------------------------------------- command


def listed(app: Any) -> dict[str, str]:
    """Returns what `flask tidegate limits` prints for each route."""
    result = app.test_cli_runner().invoke(args=["tidegate", "limits"])
    assert result.exit_code == 0, result.output
    lines = [line.split(None, 3) for line in result.output.splitlines()]
    return {f"{method} {path} {endpoint}": limits for method, path, endpoint, limits in lines}


def chooses(request: Any) -> str:
    return "5/minute"


def test_the_command_lists_the_limits_of_routes() -> None:
    app = flask.Flask("service")
    limiter = RateLimiter(app, "1000/hour", endpoint_limit="10/minute")
    blueprint = flask.Blueprint("harbour", __name__, url_prefix="/harbour")
    limiter.limit("30/minute")(blueprint)
    blueprint.add_url_rule("/berths", "berths", lambda: "ok")
    app.register_blueprint(blueprint)
    app.add_url_rule("/tides", "tides", lambda: "ok")
    own = limiter.limit(["5/minute", "50/day"], methods=["POST"], scope="writes")
    app.add_url_rule("/ships", "ships", own(lambda: "ok"), methods=["GET", "POST"])
    app.add_url_rule("/chosen", "chosen", limiter.limit(chooses, scope="plan")(lambda: "ok"))
    app.add_url_rule("/health", "health", limiter.exempt(lambda: "ok"))

    @limiter.limit("2/minute", scope="class")
    class Above(MethodView):
        def get(self) -> str:
            return "ok"

    app.add_url_rule("/above", view_func=Above.as_view("above"))
    preflight = limiter.limit("3/minute", scope="preflight", methods=["OPTIONS"])
    app.add_url_rule("/fetched", "fetched", preflight(lambda: "ok"))
    found = listed(app)
    everywhere = "1000/hour (application)"
    assert found["GET /static/<path:filename> static"] == "no limit"
    assert found["GET /tides tides"] == f"{everywhere}; 10/minute (endpoint)"
    assert found["GET /harbour/berths harbour.berths"] == (
        f"{everywhere}; 30/minute (blueprint:harbour)"
    )
    assert found["GET /ships ships"] == f"{everywhere}; 10/minute (endpoint)"
    assert found["POST /ships ships"] == f"{everywhere}; 5/minute, 50/day (writes)"
    assert found["GET /chosen chosen"] == f"{everywhere}; chosen by chooses (plan)"
    assert found["GET /health health"] == "no limit"
    assert found["GET /fetched fetched"] == f"{everywhere}; 10/minute (endpoint)"
    assert found["OPTIONS /fetched fetched"] == "3/minute (preflight)"
    assert found["GET /above above"] == f"{everywhere}; 2/minute (class)"


def test_the_listed_limits_are_those_that_apply() -> None:
    app = service(tg.ManualClock(START), limit="100/hour", endpoint_limit="9/minute")
    for route, limits in listed(app).items():
        method, path, endpoint = route.split()
        if endpoint == "static":
            continue
        policy = app.test_client().open(path, method=method).headers["RateLimit-Policy"]
        told = [one.partition(" (")[0] for one in limits.split("; ")]
        assert [member.split('"')[1] for member in policy.split(", ")] == told


def test_limits_without_the_extension_are_listed_too() -> None:
    app = flask.Flask("service")
    limiter = RateLimiter(app, "1000/hour")
    both = limiter.limit("5/minute", scope="own")
    posts = tg.rate_limit("2/minute", methods=["POST"])
    methods = ["GET", "OPTIONS", "POST"]
    app.add_url_rule("/one", "one", posts(both(lambda: "ok")), methods=methods)
    app.add_url_rule("/two", "two", both(posts(lambda: "ok")), methods=methods)
    for_all = tg.rate_limit(["1/second", "9/minute"])
    app.add_url_rule("/all", "all", for_all(tg.rate_limit(chooses)(lambda: "ok")), methods=methods)

    @tg.rate_limit("4/minute")
    class Above(MethodView):
        def get(self) -> str:
            return "ok"

        @tg.rate_limit("3/minute")
        def post(self) -> str:
            return "ok"

    app.add_url_rule("/above", view_func=Above.as_view("above"))
    found = listed(app)
    everywhere = "1000/hour (application)"
    for name in ("one", "two"):
        assert found[f"GET /{name} {name}"] == f"{everywhere}; 5/minute (own)"
        assert found[f"POST /{name} {name}"] == (
            f"{everywhere}; 5/minute (own); 2/minute (@rate_limit)"
        )
        assert f"OPTIONS /{name} {name}" not in found
    own = "1/second, 9/minute (@rate_limit); chosen by chooses (@rate_limit)"
    assert found["GET,POST /all all"] == f"{everywhere}; {own}"
    assert found["OPTIONS /all all"] == own
    assert found["GET /above above"] == f"{everywhere}; 4/minute (@rate_limit)"
    assert found["POST /above above"] == (
        f"{everywhere}; 4/minute (@rate_limit); 3/minute (@rate_limit)"
    )


def test_several_extensions_are_listed_together() -> None:
    app = flask.Flask("service")
    RateLimiter(app, "1000/hour")
    RateLimiter(app, "10/second", storage=tg.Limiter("1/s").storage)
    app.add_url_rule("/", "index", lambda: "ok")
    assert listed(app)["GET / index"] == "1000/hour (application); 10/second (application)"


def test_an_application_without_routes_has_an_empty_list() -> None:
    app = flask.Flask("service", static_folder=None)
    RateLimiter(app, "1000/hour")
    result = app.test_cli_runner().invoke(args=["tidegate", "limits"])
    assert (result.exit_code, result.output) == (0, "")
