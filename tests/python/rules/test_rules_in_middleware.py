"""Middleware with rules: the attributes of requests, and the header fields of responses."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest
import tidegate as tg
from servers import ask
from tidegate import asgi, keys, wsgi
from tidegate.load import LoadShedding
from tidegate.rules import RuleSet, Tiers
from tidegate.web.execution import AWAITING, BLOCKING
from tidegate.web.request_access import fields_of
from tidegate.web.rule_requests import RuleRequests

API = {
    "rules": [
        {"id": "user", "by": "user", "endpoint": "/api/*", "limits": ["2/minute", "9/hour"]},
        {"id": "address", "by": "ip", "limit": "5/minute"},
        {"id": "secret", "by": "global", "limit": "100/minute", "headers": False},
        {"id": "trial", "by": "user+ip", "limit": "1/minute", "shadow": True},
    ],
    "block": [{"user": "mallory"}],
}


def user_of(request: Any) -> str | None:
    found = fields_of(request, "x-user")
    return found[0] if found else None


ATTRIBUTES = {"user": user_of}


def get(
    app: Any, path: str = "/api/x", client: str = "203.0.113.9", method: str = "GET", **fields: str
) -> tuple[int, dict[str, str], bytes]:
    """Sends one ASGI request."""
    headers = [(n.replace("_", "-").encode(), v.encode()) for n, v in fields.items()]
    answer = ask(app, path, method, client=(client, 1), headers=headers)
    return answer.status, dict(answer.fields), answer.body


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def middleware(document: Any = API, **options: Any) -> Any:
    options.setdefault("attributes", ATTRIBUTES)
    return asgi.RateLimitMiddleware(
        hello, rules=RuleSet(document), clock=tg.ManualClock(0), **options
    )


def test_responses_show_the_limits_that_apply() -> None:
    app = middleware()
    status, headers, _ = get(app, x_user="42")
    assert status == 200
    assert headers["ratelimit-policy"] == (
        '"user:2/minute";q=2;w=60, "user:9/hour";q=9;w=3600, "address";q=5;w=60'
    )
    assert headers["ratelimit"].startswith('"user:2/minute";r=1')
    assert headers["x-ratelimit-limit"] == "2"
    status, headers, _ = get(app, "/other")
    assert headers["ratelimit-policy"] == '"address";q=5;w=60'


def test_a_refusal_names_the_limit_and_the_wait() -> None:
    app = middleware()
    for _ in range(2):
        get(app, x_user="42")
    status, headers, body = get(app, x_user="42")
    assert (status, headers["retry-after"]) == (429, "30")
    assert b'"violated-policies":["user:2/minute"]' in body
    assert b'"retry_after":30' in body


def test_a_blocked_request_is_refused_without_a_wait() -> None:
    status, headers, body = get(middleware(), x_user="mallory")
    assert status == 429
    assert "retry-after" not in headers
    assert b'"violated-policies":["block[0]"]' in body


def test_hidden_limits_and_those_in_shadow_are_not_shown() -> None:
    document = {"rules": [API["rules"][2], API["rules"][3]]}  # type: ignore[index]
    document["rules"][0] = {**document["rules"][0], "limit": "3/minute"}
    app = middleware(document)
    for _ in range(3):
        status, headers, _ = get(app, x_user="42")
        assert (status, headers) == (200, {})
    status, headers, _ = get(app, x_user="42")
    assert (status, headers["retry-after"]) == (429, "20")
    assert not [name for name in headers if "ratelimit" in name]


def test_a_response_has_no_fields_if_no_rule_applies() -> None:
    app = middleware({"rules": [{"id": "a", "by": "user", "limit": "1/minute"}]})
    for _ in range(3):
        assert get(app) == (200, {}, b"hello")


def test_a_failing_attribute_function_lifts_no_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plans = {"free": "1"}

    def user(scope: Any) -> str:
        return plans[dict(scope["headers"])[b"x-user"].decode()]

    app = middleware(
        {"rules": [{"id": "a", "by": "user", "limit": "1/minute"}]}, attributes={"user": user}
    )
    with caplog.at_level(logging.ERROR, "tidegate"):
        assert get(app, x_user="zzz")[0] == 200
        assert get(app, x_user="yyy")[0] == 429, "the client's address counts"
    assert get(app, x_user="yyy", client="203.0.113.10")[0] == 200
    assert "the attribute user is unknown" in caplog.text


def test_async_attributes_costs_and_exemptions() -> None:
    async def user(scope: Any) -> str:
        await asyncio.sleep(0)
        return "42"

    async def cost(scope: Any) -> int:
        return 2

    rules = {"rules": [{"id": "a", "by": "user", "limit": "5/minute"}]}
    app = middleware(
        rules,
        attributes={"user": user},
        cost=cost,
        exempt_when=lambda scope: scope["path"] == "/health",
    )
    assert [get(app)[0] for _ in range(3)] == [200, 200, 429]
    assert get(app, "/health")[0] == 200
    plain = middleware(rules, attributes={"user": user})
    assert [get(plain)[0] for _ in range(6)] == [200] * 5 + [429]


def test_a_failing_async_attribute_does_not_lift_a_limit() -> None:
    async def user(scope: Any) -> str:
        raise LookupError

    app = middleware(
        {"rules": [{"id": "a", "by": "user", "limit": "1/minute"}]}, attributes={"user": user}
    )
    assert [get(app)[0] for _ in range(2)] == [200, 429]
    assert get(app, client="203.0.113.10")[0] == 200


def test_a_disabled_middleware_limits_nothing() -> None:
    app = middleware(enabled=False)
    for _ in range(6):
        assert get(app, x_user="mallory") == (200, {}, b"hello")


def test_plans_take_no_more_memory_however_many_limits_apply_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.web.rule_requests._MOST_PLANS", 2)
    app = middleware(
        {
            "rules": [
                {"id": f"a{n}", "by": "ip", "endpoint": f"/{n}", "limit": "2/minute"}
                for n in range(5)
            ]
        }
    )
    for n in [*range(5), *range(5)]:
        status, headers, _ = get(app, f"/{n}")
        assert (status, headers["ratelimit-policy"]) == (200, f'"a{n}";q=2;w=60')
    plans = app.limiter.check(ip="203.0.113.11", endpoint="/0")._owner.plans
    assert len(plans) <= 2


def test_tiers_are_found_for_requests() -> None:
    document = {
        "tiers": ["free", "gold"],
        "default_tier": "free",
        "rules": [{"id": "a", "by": "user", "limits": {"free": "1/minute", "gold": "2/minute"}}],
    }
    app = middleware(document, tiers=Tiers({"42": "gold"}))
    assert [get(app, x_user="42")[0] for _ in range(3)] == [200, 200, 429]
    assert [get(app, x_user="43")[0] for _ in range(2)] == [200, 429]


def test_a_middleware_follows_changed_rules() -> None:
    limiter = tg.Limiter(
        rules=RuleSet({"rules": [{"id": "a", "by": "ip", "limit": "1/minute"}]}),
        clock=tg.ManualClock(0),
    )
    app = asgi.RateLimitMiddleware(hello, limiter=limiter)
    assert [get(app)[0] for _ in range(2)] == [200, 429]
    limiter.use(RuleSet({"rules": [{"id": "a", "by": "ip", "limit": "3/minute"}]}))
    status, headers, _ = get(app)
    assert (status, headers["ratelimit-policy"]) == (200, '"a";q=3;w=60')


def test_networks_match_ipv6_addresses_too() -> None:
    app = middleware(
        {
            "rules": [{"id": "a", "by": "global", "limit": "1/hour"}],
            "allow": [{"network": "2001:db8::/32"}],
        }
    )
    for _ in range(3):
        assert get(app, client="2001:db8::1")[0] == 200


def test_wsgi_middleware_decides_by_rules() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b"hello"]

    wrapped = wsgi.RateLimitMiddleware(
        app, rules=RuleSet(API), attributes=ATTRIBUTES, clock=tg.ManualClock(0)
    )
    answers: list[Any] = []
    environ = {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "/service",
        "PATH_INFO": "/api/x",
        "REMOTE_ADDR": "203.0.113.9",
        "HTTP_X_USER": "42",
    }
    for _ in range(3):
        wrapped(dict(environ), lambda status, headers, *rest: answers.append((status, headers)))
    assert [status[:3] for status, _ in answers] == ["200", "200", "429"]
    assert dict(answers[2][1])["Retry-After"] == "30"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": RuleSet(API), "limit": "1/s"}, "expected one of them"),
        ({"rules": RuleSet(API), "key": keys.peer}, "expected attributes="),
        ({"rules": RuleSet(API), "attributes": ["user"]}, "expected a mapping"),
        ({"rules": RuleSet(API), "attributes": {"user": "42"}}, "expected a function"),
        ({"rules": RuleSet(API), "attributes": {"cost": keys.peer}}, "expected a name"),
        ({"rules": "rules.yaml"}, "expected a RuleSet"),
        ({"limit": "1/s", "attributes": {}}, "without rules"),
        ({"limit": "1/s", "tiers": Tiers({})}, "without rules"),
        ({"limit": "1/s", "violations": []}, "violations= was given without rules"),
        ({"limit": "1/s", "load": 5}, "load= was given without rules"),
        ({"rules": RuleSet(API), "violations": 5}, "expected tidegate.rules.violations"),
        ({"rules": RuleSet(API), "load": 5}, "expected tidegate.load"),
        ({"limiter": tg.Limiter(rules=RuleSet(API)), "load": 5}, "expected limiter= without"),
        ({"rules": RuleSet(API), "headers": ["shadows"]}, "'ietf-11', 'shad"),
        ({"limit": "1/s", "headers": ["shadow"]}, "'shadow' is for rules"),
        ({"rules": RuleSet(API), "messages": "1/s"}, "expected attributes="),
    ],
)
def test_mistakes_say_what_was_given_and_what_is_expected(options: Any, message: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=message):
        asgi.RateLimitMiddleware(hello, **options)


def test_metrics_count_refusals_by_rule_and_refusals_in_shadow_apart() -> None:
    from prometheus_client import CollectorRegistry
    from tidegate.prometheus import RateLimitCollector

    document = {
        "rules": [
            {"id": "user", "by": "user", "limit": "1/minute"},
            {"id": "trial", "by": "ip", "limit": "1/minute", "shadow": True},
            *({"id": f"r{i}", "by": f"a{i}", "limit": "1/minute"} for i in range(300)),
        ]
    }
    app = middleware(document)
    for user in ("1", "1", "2"):
        get(app, x_user=user)
    registry = CollectorRegistry()
    registry.register(RateLimitCollector({"api": app}))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"tidegate_{name}_total", {"limiter": "api", **labels})

    assert value("refused", rule="user") == 1
    assert value("refused_in_shadow", rule="trial") == 2
    assert value("decisions", outcome="allowed") == 2
    rules = [
        sample.labels["rule"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "tidegate_refused_total"
    ]
    assert len(rules) == 201
    assert "other" in rules


@pytest.mark.parametrize(
    ("rule", "attribute"),
    [
        ({"by": "ip", "limits": {"free": "1/hour", "gold": "9/hour"}}, "tier"),
        ({"by": "ip", "limits": "1/hour", "when": {"plan": "trial"}}, "plan"),
    ],
)
def test_a_failing_function_of_a_condition_raises(rule: Any, attribute: str) -> None:
    def broken(scope: Any) -> str:
        return dict(scope["headers"])[b"x-none"].decode()

    app = middleware({"rules": [{"id": "a", **rule}]}, attributes={attribute: broken})
    with pytest.raises(KeyError):
        get(app)


def test_a_condition_of_a_wrong_type_raises() -> None:
    rule = {"id": "a", "by": "ip", "limits": "1/hour", "when": {"plan": "trial"}}
    with pytest.raises(tg.ConfigurationError, match="attribute plan returned a float"):
        get(middleware({"rules": [rule]}, attributes={"plan": lambda scope: 4.2}))


def test_a_user_whose_id_is_an_int_is_counted_and_blocked_by_its_text() -> None:
    rules = {"rules": [{"id": "a", "by": "user", "limits": "1/hour"}], "block": [{"user": "7"}]}
    app = middleware(rules, attributes={"user": lambda scope, ids=[7, 1, 2, 1]: ids.pop()})
    assert [get(app)[0] for _ in range(4)] == [200, 200, 429, 429]


def test_clients_without_an_address_share_one_limit() -> None:
    app = middleware({"rules": [{"id": "a", "by": "ip", "limit": "1/hour"}]})

    async def ask() -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "client": None, "headers": []}
        await app(scope, None, send)
        status: int = sent[0]["status"]
        return status

    assert [asyncio.run(ask()) for _ in range(2)] == [200, 429]


def test_one_address_of_ipv6_can_be_blocked() -> None:
    app = middleware(
        {
            "rules": [{"id": "a", "by": "ip", "limit": "9/hour"}],
            "block": [{"ip": "2001:db8::1"}],
        }
    )
    assert get(app, client="2001:db8::1")[0] == 429
    assert get(app, client="2001:db8::2")[0] == 200


def of_kind(kind: str, **options: Any) -> Any:
    """A function that calls a middleware of this kind and returns status and header fields."""
    options = {
        "rules": RuleSet(API), "attributes": ATTRIBUTES, "clock": tg.ManualClock(0), **options
    }  # fmt: skip
    if kind == "asgi":
        app: Any = asgi.RateLimitMiddleware(hello, **options)

        def ask(user: str) -> tuple[int, dict[str, str]]:
            status, headers, _ = get(app, x_user=user)
            return status, headers

        return ask

    def inner(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b"hello"]

    wrapped: Any = wsgi.RateLimitMiddleware(inner, **options)

    def ask_wsgi(user: str) -> tuple[int, dict[str, str]]:
        answers: list[Any] = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/api/x",
            "REMOTE_ADDR": "203.0.113.9",
            "HTTP_X_USER": user,
        }
        wrapped(environ, lambda status, headers, *rest: answers.append((status, headers)))
        status, headers = answers[0]
        return int(status[:3]), {name.lower(): value for name, value in headers}

    return ask_wsgi


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_the_shadow_header_names_rules_in_shadow_that_would_have_refused(
    kind: str,
) -> None:
    ask = of_kind(kind, headers=["ietf", "shadow"])
    answers = [ask("42") for _ in range(3)]
    assert [status for status, _ in answers] == [200, 200, 429]
    fields = [headers.get("x-ratelimit-shadow") for _, headers in answers]
    assert fields == [None, '"trial";q=1;w=60;t=60', '"trial";q=1;w=60;t=60']
    assert "x-ratelimit-limit" not in answers[1][1]
    silent = of_kind(kind)
    assert ["x-ratelimit-shadow" in silent("42")[1] for _ in range(3)] == [False] * 3


def test_a_websocket_gets_the_field_of_rules_in_shadow() -> None:
    async def accepting(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    app = asgi.RateLimitMiddleware(
        accepting, rules=RuleSet(API), attributes=ATTRIBUTES, clock=tg.ManualClock(0),
        headers="shadow",
    )  # fmt: skip
    scope = {
        "type": "websocket",
        "path": "/api/x",
        "client": ("203.0.113.9", 1),
        "headers": [(b"x-user", b"42")],
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    for _ in range(2):
        asyncio.run(app(dict(scope), None, send))
    assert [dict(each.get("headers", ())) for each in sent] == [
        {},
        {b"x-ratelimit-shadow": b'"trial";q=1;w=60;t=60'},
    ]


def test_the_shadow_header_replaces_that_of_an_earlier_decision() -> None:
    limiter: Any = tg.Limiter(rules=RuleSet(API), clock=tg.ManualClock(0))
    requests = RuleRequests(limiter, attributes=ATTRIBUTES, headers=["shadow"])
    scope = {
        "type": "http", "method": "GET", "path": "/api/x",
        "client": ("203.0.113.9", 1), "headers": [(b"x-user", b"42")],
    }  # fmt: skip
    requests.check(scope, BLOCKING)
    told = requests.check(scope, BLOCKING)
    field = (b"x-ratelimit-shadow", b'"trial";q=1;w=60;t=60')
    assert told is not None
    assert told.merged([(b"x-mine", b"1")]) == [(b"x-mine", b"1"), field]
    headers = [(b"x-ratelimit-shadow", b'"other";q=1;w=60;t=1'), (b"x-mine", b"1")]
    told.put(headers)
    assert headers == [(b"x-mine", b"1"), field]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_the_shadow_header_shows_no_hidden_rule_and_no_endless_wait(kind: str) -> None:
    document = {
        "rules": [
            {"id": "hidden", "by": "ip", "limit": "1/hour", "shadow": True, "headers": False},
            {"id": "never", "by": "user", "limit": "0/hour", "shadow": True},
            {"id": "last", "by": "global", "limits": ["1/hour", "1/day"], "shadow": True},
        ]
    }
    ask = of_kind(kind, rules=RuleSet(document), headers="shadow")
    ask("42")
    status, headers = ask("42")
    assert status == 200
    assert headers == {
        "x-ratelimit-shadow": '"never";q=0;w=3600, "last:1/hour";q=1;w=3600;t=3600, '
        '"last:1/day";q=1;w=86400;t=86400'
    }


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_responses_of_the_service_itself_have_the_shadow_header_too(kind: str) -> None:
    def refused(request: Any, decision: Any) -> Any:
        def of_wsgi(environ: Any, start_response: Any) -> Any:
            start_response("418 no", [])
            return []

        async def of_asgi(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 418})
            await send({"type": "http.response.body", "body": b""})

        return of_asgi if kind == "asgi" else of_wsgi

    ask = of_kind(kind, headers=["shadow"], on_refused=refused)
    answers = [ask("42") for _ in range(3)]
    assert answers[2][0] == 418
    assert answers[2][1]["x-ratelimit-shadow"] == '"trial";q=1;w=60;t=60'


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_refusals_reach_violations_and_costs_follow_the_load(kind: str) -> None:
    refused: list[Any] = []

    class Refusals:
        def record(self, decision: Any, attributes: Any) -> None:
            refused.append((decision.rule, attributes["user"]))

    document = {"rules": [{"id": "a", "by": "user", "limit": "4/minute"}]}
    with LoadShedding(lambda: 0.9, smoothing=0, interval=3600, clock=lambda: 0.0) as shedding:
        ask = of_kind(kind, rules=RuleSet(document), violations=Refusals(), load=shedding)
        shedding.refresh()
        assert [ask("42")[0] for _ in range(3)] == [200, 200, 429]
    assert refused == [("a", "42")]


def test_async_attributes_are_refused_by_synchronous_middleware() -> None:
    async def later(request: Any) -> str:
        return "42"

    with pytest.raises(tg.ConfigurationError, match=r"attributes\['user'\] is the async function"):
        of_kind("wsgi", attributes={"user": later})


def test_a_middleware_is_freed_with_its_limiter_after_requests() -> None:
    def served() -> weakref.ref[Any]:
        app = middleware()
        assert get(app, x_user="ann")[0] == 200
        return weakref.ref(app.limiter)

    limiter = served()
    gc.collect()
    assert limiter() is None


def test_what_a_request_was_charged_can_be_given_back_once() -> None:
    """Requests of one user have an attribute function, and the others are read by the core."""

    async def undone(scope: Any, receive: Any, send: Any) -> None:
        for earlier in scope["tidegate.granted"]:
            await earlier.undo(AWAITING)
            assert earlier.charges is earlier.charges
        await hello(scope, receive, send)

    rules = RuleSet({"rules": [{"id": "a", "by": "ip+endpoint+method", "limit": "5/minute"}]})
    for attributes in (None, ATTRIBUTES):
        app = asgi.RateLimitMiddleware(
            undone, rules=rules, clock=tg.ManualClock(1), cost=3, attributes=attributes
        )
        for _ in range(4):
            assert get(app)[0] == 200
        state = app.limiter.peek(ip="203.0.113.9", endpoint="/api/x", method="GET")
        assert state.remaining == 5


def test_a_decision_of_replaced_rules_stands() -> None:
    rules = RuleSet({"rules": [{"id": "a", "by": "ip", "limit": "5/minute"}]})
    limiter: Any = tg.Limiter(rules=rules, clock=tg.ManualClock(0))
    scope = {"type": "http", "method": "GET", "path": "/", "client": ("203.0.113.9", 1)}
    made = RuleRequests(limiter, headers=["ietf"]).check({**scope, "headers": []}, BLOCKING)
    assert made is not None
    (charge,) = made.charges
    assert limiter.check(ip="203.0.113.9", endpoint="/").allowed
    assert BLOCKING.run(charge.standing(BLOCKING)).remaining == 3
    limiter.use(RuleSet({"rules": [{"id": "b", "by": "ip", "limit": "1/minute"}]}))
    assert BLOCKING.run(charge.standing(BLOCKING)) is made.decision


def test_no_decision_stays_in_a_scope_after_the_response() -> None:
    """A server keeps a scope until the next request of its connection."""
    scopes: list[Any] = []

    async def kept(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await hello(scope, receive, send)

    get(asgi.RateLimitMiddleware(kept, rules=RuleSet(API), clock=tg.ManualClock(1)))
    assert "tidegate.granted" not in scopes[0]
    assert not gc.is_tracked(scopes[0]["tidegate.decision"])


def test_outcomes_are_made_once() -> None:
    limiter: Any = tg.Limiter(rules=RuleSet(API), clock=tg.ManualClock(1))
    decision = limiter.check(user="ann", endpoint="/api/x", ip="203.0.113.9")
    assert decision.outcomes is decision.outcomes
    assert [outcome.rule for outcome in decision.outcomes].count("user") == 2
    assert limiter.check(user="mallory").outcomes == ()
