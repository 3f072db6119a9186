"""The extension for Flask with rules: alone, from the configuration, and with limits of views."""

from __future__ import annotations

import contextlib
import json

import pytest
import tidegate as tg
from servers import Client, gunicorn_server
from tidegate.load import LoadShedding
from tidegate.rules import RuleFile, RuleSet, Tiers

flask = pytest.importorskip("flask")

from flask_service import service, statuses  # noqa: E402
from tidegate.flask import RateLimiter, RateLimitExceeded, url_rule  # noqa: E402

USERS = {"rules": [{"id": "users", "by": "user", "limit": "5/minute"}]}


@pytest.fixture
def app():
    return service()


def user_of(request):
    return request.headers.get("x-user")


def of_user(name, **more):
    return {"headers": {"x-user": name}, **more}


def extension(app, document=USERS, **options):
    options.setdefault("attributes", {"user": user_of})
    return RateLimiter(app, rules=RuleSet(document), **options)


def remaining(answer):
    """Returns what remains of each limit in the response."""
    told = answer.headers.get("RateLimit", "")
    members = [member.split(";") for member in told.split(", ") if member]
    return {name.strip('"'): int(value[2:]) for name, value, *_ in members}


def test_requests_are_decided_by_rules(app, clock):
    limiter = extension(app, clock=clock)
    client = app.test_client()
    answer = client.get("/a/1", **of_user("42"))
    assert answer.headers["RateLimit-Policy"] == '"users";q=5;w=60'
    assert statuses(app, *["/b/1"] * 5, **of_user("42")) == [200] * 4 + [429]
    assert statuses(app, "/a/1", **of_user("43")) == [200]
    refusal = client.get("/a/1", **of_user("42"))
    assert (refusal.status_code, refusal.headers["Retry-After"]) == (429, "12")
    assert refusal.json["violated-policies"] == ["users"]
    with app.test_request_context("/a/1", **of_user("44")):
        app.preprocess_request()
        assert limiter.decision.rule == "users"


def test_the_endpoint_is_the_path_or_the_url_rule(app, clock):
    document = {
        "rules": [
            {"id": "endpoints", "by": "endpoint", "limit": "1/minute"},
            {"id": "one", "by": "global", "endpoint": "/b/x", "limit": "9/minute"},
        ]
    }
    RateLimiter(app, rules=RuleSet(document), clock=clock)
    assert statuses(app, "/a/1", "/a/2", "/a/1") == [200, 200, 429]
    by_route = service()
    RateLimiter(by_route, rules=RuleSet(document), attributes={"endpoint": url_rule}, clock=clock)
    assert statuses(by_route, "/a/1", "/a/2", "/b/1", "/x", "/y") == [200, 429, 200, 404, 404]
    assert statuses(by_route, "/a/3") == [429]


def test_a_request_that_a_view_refuses_is_not_charged_to_rules(app, clock):
    limiter = extension(app, clock=clock)
    app.add_url_rule("/login", "login", limiter.limit("1/minute", key=user_of)(lambda: "in"))
    client = app.test_client()
    first = client.get("/login", **of_user("42"))
    assert remaining(first) == {"users": 4, "1/minute": 0}
    for _ in range(9):
        refusal = client.get("/login", **of_user("42"))
        assert refusal.status_code == 429
        assert refusal.json["violated-policies"] == ["1/minute"]
        assert remaining(refusal) == {"users": 4, "1/minute": 0}
        assert refusal.headers["X-RateLimit-Limit"] == "1"
        assert refusal.headers["Retry-After"] == "60"
    assert statuses(app, *["/a/1"] * 5, **of_user("42")) == [200] * 4 + [429]


def test_a_request_that_rules_refuse_is_not_charged_to_a_view(app, clock):
    limiter = extension(
        app, {"rules": [{"id": "all", "by": "global", "limit": "1/minute"}]}, clock=clock
    )
    app.add_url_rule("/login", "login", limiter.limit("2/hour")(lambda: "in"))
    assert statuses(app, *["/login"] * 4) == [200, 429, 429, 429]
    clock.advance(60)
    assert statuses(app, "/login") == [200], "one of two is left"
    clock.advance(60)
    assert statuses(app, "/login") == [429]


def test_limits_of_blueprints_add_to_the_rules(app, clock):
    limiter = extension(app, clock=clock)
    blueprint = flask.Blueprint("shop", __name__, url_prefix="/shop")
    blueprint.add_url_rule("/<item>", "item", lambda item: item)
    limiter.limit("2/minute", key=user_of)(blueprint)
    app.register_blueprint(blueprint)
    assert statuses(app, "/shop/1", "/shop/2", "/shop/3", **of_user("42")) == [200, 200, 429]
    assert statuses(app, *["/a/1"] * 4, **of_user("42")) == [200] * 3 + [429]


def test_a_limit_hidden_by_another_decorator_gives_back_what_rules_charged(app, clock):
    limiter = extension(app, clock=clock)
    inner = limiter.limit("1/minute", key=user_of)(lambda: "in")
    app.add_url_rule("/hidden", "hidden", lambda: inner())
    client = app.test_client()
    answers = [client.get("/hidden", **of_user("42")) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 429, 429, 429]
    assert remaining(answers[3]) == {"users": 4, "1/minute": 0}


def test_async_views_classes_and_cost_after_work_with_rules(app, clock):
    limiter = extension(app, clock=clock)

    async def later():
        return "later"

    app.add_url_rule("/later", "later", limiter.limit("1/minute")(later))
    metered = limiter.limit("10/minute", cost=5, cost_after=lambda request, answer: 2)
    app.add_url_rule("/metered", "metered", metered(lambda: "m"))
    client = app.test_client()
    assert statuses(app, "/later", "/later", **of_user("42")) == [200, 429]
    assert remaining(client.get("/metered", **of_user("42"))) == {"users": 3, "10/minute": 8}


def test_exempt_views_static_files_and_methods_meet_no_rule(app, clock):
    limiter = extension(app, exempt_when=lambda request: "x-free" in request.headers, clock=clock)
    app.add_url_rule("/health", "health", limiter.exempt(lambda: "ok"))
    assert statuses(app, *["/health"] * 9, **of_user("42")) == [200] * 9
    assert statuses(app, *["/static/x"] * 9, **of_user("42")) == [404] * 9
    assert statuses(app, *["/a/1"] * 9, method="OPTIONS", **of_user("42")) == [200] * 9
    free = {"headers": {"x-user": "42", "x-free": "1"}}
    assert statuses(app, *["/a/1"] * 9, **free) == [200] * 9
    app.config["TIDEGATE_ENABLED"] = False
    assert statuses(app, *["/a/1"] * 9, **of_user("42")) == [200] * 9
    app.config["TIDEGATE_ENABLED"] = True
    assert statuses(app, *["/a/1"] * 6, **of_user("42")) == [200] * 5 + [429]


def test_on_refused_and_error_handlers_answer_refusals_by_rules(clock):
    document = {"rules": [{"id": "all", "by": "global", "limit": "1/minute"}]}
    first, second = service(), service()
    RateLimiter(
        first,
        rules=RuleSet(document),
        on_refused=lambda request, decision: {"rule": decision.rule},
        clock=clock,
    )
    statuses(first, "/a/1")
    answer = first.test_client().get("/a/1")
    assert (answer.status_code, answer.json) == (429, {"rule": "all"})
    assert answer.headers["Retry-After"] == "60"
    RateLimiter(second, rules=RuleSet(document), clock=clock)
    second.register_error_handler(RateLimitExceeded, lambda refusal: (refusal.description, 418))
    statuses(second, "/a/1")
    answer = second.test_client().get("/a/1")
    assert answer.status_code == 418
    assert answer.text == "The limit all refused this request. Try again in 60 s."


def test_an_error_handler_may_be_refused_too(app, clock):
    limiter = extension(
        app, {"rules": [{"id": "all", "by": "global", "limit": "1/minute"}]}, clock=clock
    )
    advise = limiter.limit("1/minute")(lambda: "wait a minute")

    def answer(refusal):
        try:
            return advise(), 429
        except RateLimitExceeded as second:
            return second.description, 429

    app.register_error_handler(RateLimitExceeded, answer)
    client = app.test_client()
    texts = [client.get("/a/1").text for _ in range(3)]
    assert texts[1:] == [
        "wait a minute",
        "The limit 1/minute refused this request. Try again in 60 s.",
    ]


def test_a_meta_limit_counts_refusals_by_rules(app, clock):
    document = {"rules": [{"id": "users", "by": "user", "limit": "1/hour"}]}
    extension(app, document, meta_limit="2/hour", clock=clock)
    assert statuses(app, *["/a/1"] * 3, **of_user("42")) == [200, 429, 429]
    assert statuses(app, "/a/1", **of_user("43")) == [429], "the address is refused everything"


def test_the_chosen_families_and_rules_in_shadow_are_sent(clock):
    document = {
        "rules": [
            {"id": "users", "by": "user", "limit": "5/minute"},
            {"id": "trial", "by": "ip", "limit": "1/minute", "shadow": True},
        ]
    }
    app, silent = service(), service()
    limiter = extension(app, document, headers=["x-ratelimit", "shadow"], clock=clock)
    app.add_url_rule("/own", "own", limiter.limit("9/minute")(lambda: "own"))
    client = app.test_client()
    assert "X-RateLimit-Shadow" not in client.get("/a/1", **of_user("1")).headers
    answer = client.get("/own", **of_user("1"))
    assert answer.headers["X-RateLimit-Shadow"] == '"trial";q=1;w=60;t=60'
    assert "RateLimit-Policy" not in answer.headers
    extension(silent, document, clock=clock)
    for _ in range(3):
        answer = silent.test_client().get("/a/1", **of_user("1"))
        assert "X-RateLimit-Shadow" not in answer.headers


def test_a_refusal_of_a_view_gives_a_rule_in_shadow_back_only_its_charge(app, clock):
    trial = {"id": "trial", "by": "user", "limit": "2/minute", "shadow": True}
    limiter = extension(app, {"rules": [trial]}, headers="shadow", clock=clock)
    app.add_url_rule("/own", "own", limiter.limit("1/minute", key=user_of)(lambda: "own"))
    client = app.test_client()

    def is_told(path):
        return "X-RateLimit-Shadow" in client.get(path, **of_user("1")).headers

    assert [is_told(path) for path in ("/own", "/own", "/a/1", "/own", "/a/1")] == [
        False, False, False, True, True,
    ]  # fmt: skip
    clock.advance(30)
    assert [is_told("/a/1") for _ in range(2)] == [False, True]


def test_options_set_tiers_violations_and_load(app, clock):
    refused = []

    class Refusals:
        def record(self, decision, attributes):
            refused.append((decision.rule, attributes["user"], attributes["tier"]))

    document = {
        "default_tier": "free",
        "rules": [{"id": "a", "by": "user", "limits": {"free": "2/minute", "gold": "8/minute"}}],
    }
    with LoadShedding(lambda: 0.9, smoothing=0, interval=3600, clock=lambda: 0.0) as shedding:
        extension(
            app, document, tiers=Tiers({"42": "gold"}), violations=Refusals(), load=shedding,
            clock=clock,
        )  # fmt: skip
        assert shedding.refresh() == 0.5
        assert statuses(app, *["/a/1"] * 5, **of_user("42")) == [200] * 4 + [429]
        assert statuses(app, *["/a/1"] * 2, **of_user("43")) == [200, 429]
    assert refused == [("a", "42", "gold"), ("a", "43", None)]


def named_user(request):
    return request.headers.get("x-user")


RULES = RuleSet(USERS)
NO_RULES = 5


def test_the_configuration_may_have_names_and_dicts(clock):
    by_name = f"{__name__}:named_user"
    for rules in (USERS, RULES, f"{__name__}:RULES", f"{__name__}.RULES"):
        app = service(
            TIDEGATE_RULES=rules, TIDEGATE_ATTRIBUTES={"user": by_name}, TIDEGATE_TIERS={"42": "x"}
        )
        RateLimiter(app, clock=clock)
        assert statuses(app, *["/a/1"] * 6, **of_user("42")) == [200] * 5 + [429]


def test_a_file_is_followed(clock, tmp_path):
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(USERS))
    app = service(TIDEGATE_RULES=str(path), TIDEGATE_ATTRIBUTES={"user": named_user})
    limiter = RateLimiter(clock=clock)
    limiter.init_app(app)
    assert statuses(app, *["/a/1"] * 6, **of_user("42")) == [200] * 5 + [429]
    by_code = service()
    source = RuleFile(path, interval=3600)
    RateLimiter(by_code, rules=source, attributes={"user": named_user}, clock=clock)
    assert statuses(by_code, *["/a/1"] * 6, **of_user("42")) == [200] * 5 + [429]
    path.write_text(json.dumps(USERS).replace("5/minute", "7/minute"))
    assert source.refresh()
    assert statuses(by_code, *["/a/1"] * 3, **of_user("42")) == [200, 200, 429]


def test_rules_count_by_the_user_of_the_framework(clock):
    app = service(TIDEGATE_RULES=USERS, TIDEGATE_ATTRIBUTES={"user": "user"})
    RateLimiter(app, clock=clock)
    ada = {"environ_base": {"REMOTE_USER": "ada"}}
    assert statuses(app, *["/a/1"] * 6, **ada) == [200] * 5 + [429]


async def later_user(request):
    return "42"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "1/s", "rules": RULES}, "limit= was given with rules; expected one of them"),
        ({"endpoint_limit": "1/s", "rules": RULES}, "expected a rule that counts by endpoint"),
        ({"key": "user", "rules": RULES}, "key= was given with rules, .* expected attributes"),
        ({"attributes": {"user": 5}, "rules": RULES}, "the attribute user is 5"),
        (
            {"attributes": {"user": later_user}, "rules": RULES},
            "expected a function that is not async",
        ),
        ({"attributes": {"user": "no.such:name"}, "rules": RULES}, "cannot be imported"),
        ({"rules": 5}, "the rules are 5 of type int; expected a RuleSet"),
        ({"rules": {"rules": [{"id": "a"}]}}, "limits: is missing"),
        ({"rules": RULES, "tiers": 5}, "the tiers are 5"),
        ({"rules": RULES, "violations": "no.such:name"}, "cannot be imported"),
        ({"rules": RULES, "load": 5}, "the load is 5"),
        ({"rules": RULES, "headers": ["shadows"]}, "'ietf-11', 'shadow'"),
    ],
)
def test_mistakes_raise_at_construction(options, message):
    with pytest.raises(tg.ConfigurationError, match=message):
        RateLimiter(**options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ATTRIBUTES": {}}, "TIDEGATE_ATTRIBUTES was given without rules; expected TIDEGATE_RUL"),
        ({"TIERS": {}}, "TIDEGATE_TIERS was given without rules"),
        ({"HEADERS": ["shadow"]}, "TIDEGATE_HEADERS: the headers .*'shadow' is for rules"),
        ({"RULES": USERS, "LIMIT": "1/s"}, "TIDEGATE_LIMIT was given with rules"),
        ({"RULES": USERS, "KEY": "ip"}, "TIDEGATE_KEY was given with rules, which count by"),
        ({"RULES": "none.yaml"}, "TIDEGATE_RULES: the file 'none.yaml' cannot be read"),
        ({"RULES": "no such"}, "TIDEGATE_RULES: 'no such' cannot be imported .*; expected a Rule"),
        ({"RULES": f"{__name__}:NO_RULES"}, "TIDEGATE_RULES: the rules are 5"),
        ({"RULES": {"rules": 5}}, "TIDEGATE_RULES: <dict>: rules: is 5"),
        ({"RULES": USERS, "VIOLATIONS": 5}, "TIDEGATE_VIOLATIONS: the violations are 5"),
    ],
)
def test_mistakes_of_the_configuration_are_named(settings, message):
    app = service(**{f"TIDEGATE_{name}": value for name, value in settings.items()})
    with pytest.raises(tg.ConfigurationError, match=message):
        RateLimiter(app)


def test_options_of_rules_may_come_before_the_configuration(clock):
    limiter = RateLimiter(attributes={"user": user_of}, headers=["ietf", "shadow"], clock=clock)
    limiter.init_app(service(TIDEGATE_RULES=USERS))
    with pytest.raises(tg.ConfigurationError, match="attributes= was given without rules"):
        limiter.init_app(service())


def test_the_command_lists_the_rules(app):
    document = {
        "rules": [
            {"id": "api", "by": "user+ip", "endpoint": "/api/**", "methods": ["POST"],
             "limits": {"free": ["1/second", "9/hour"], "*": "unlimited"}},
            {"id": "trial", "by": "global", "limit": "5/second", "shadow": True},
            {"id": "off", "by": "ip", "limit": "5/second", "enabled": False},
        ],
        "default": "7/second",
    }  # fmt: skip
    limiter = RateLimiter(app, rules=RuleSet(document))
    app.add_url_rule("/own", "own", limiter.limit("9/minute", scope="s")(lambda: "own"))
    app.add_url_rule("/health", "health", limiter.exempt(lambda: "ok"))
    result = app.test_cli_runner().invoke(args=["tidegate", "limits"])
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "GET /own own rules; 9/minute (s)" in lines
    assert "GET /health health no limit" in lines
    at = lines.index("rules of <dict>:")
    assert lines[at + 1 :] == [
        "api by user+ip POST /api/** free: 1/second, 9/hour; *: unlimited",
        "trial in all everywhere 5/second (shadow)",
        "default in all everywhere 7/second",
    ]


FACTORY = """
import json, flask
from tidegate.flask import RateLimiter

def create():
    app = flask.Flask(__name__)
    app.config["TIDEGATE_RULES"] = {rules!r}
    app.config["TIDEGATE_STORAGE"] = "shm://{counts}"
    limiter = RateLimiter(app)
    app.add_url_rule("/", "home", lambda: "home")
    app.add_url_rule("/own", "own", limiter.limit("5/hour")(lambda: "own"))
    return app
"""


def test_gunicorn_workers_count_together_by_rules(tmp_path):
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"rules": [{"id": "a", "by": "ip", "limit": "20/hour"}]}))
    (tmp_path / "service.py").write_text(
        FACTORY.format(counts=tmp_path / "counts", rules=str(rules))
    )
    found = {"/own": [], "/": []}
    with gunicorn_server("service:create()", tmp_path) as address:
        for path, answers in found.items():
            for _ in range(20):
                with contextlib.closing(Client(address)) as client:
                    answers.append(client(path).status)
    assert found == {"/own": [200] * 5 + [429] * 15, "/": [200] * 15 + [429] * 5}
