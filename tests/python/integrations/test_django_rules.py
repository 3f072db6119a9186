"""Django with rules: the middleware, its settings, and limits of views beside them."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("django")

from django.core import checks
from django.http import HttpResponse
from django.test import Client as DjangoClient
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django_project import AUTHENTICATION, MIDDLEWARE, ProjectClient, page, project
from tidegate.django import SettingsError, rate_limit
from tidegate.load import LoadShedding
from tidegate.rules import RuleSet, Tiers

NOW = 1_700_000_000 * 10**9
USERS = {"rules": [{"id": "users", "by": "user", "limit": "5/minute"}]}


def user_of(request):
    return request.META.get("HTTP_X_USER")


async def later_user_of(request):
    return request.META.get("HTTP_X_USER")


class Ask(ProjectClient):
    def __call__(self, path, user="42"):
        return super().__call__(path, headers={"X-User": user})


@pytest.fixture(params=["sync", "async"])
def ask(request):
    return Ask(request.param)


def by_user(**more):
    return {"RULES": USERS, "ATTRIBUTES": {"user": user_of}, **more}


def remaining(answer):
    told = answer.headers.get("RateLimit", "")
    members = [member.split(";") for member in told.split(", ") if member]
    return {name.strip('"'): int(value[2:]) for name, value, *_ in members}


def test_a_project_is_limited_by_rules(clock, ask):
    with project(clock, **by_user()):
        answer = ask("/page/1")
        assert answer.headers["RateLimit-Policy"] == '"users";q=5;w=60'
        assert ask.statuses(*["/page/1"] * 5) == [200] * 4 + [429]
        refusal = ask("/page/2")
        assert refusal.headers["Retry-After"] == "12"
        assert refusal.json()["violated-policies"] == ["users"]
        assert ask.statuses("/page/1", user="43") == [200]


def test_the_path_and_the_address_need_no_function(clock, ask):
    document = {"rules": [{"id": "a", "by": "ip+endpoint", "endpoint": "/page/*", "limit": "1/s"}]}
    with project(clock, RULES=document):
        assert ask.statuses("/page/1", "/page/2", "/page/1", "/else") == [200, 200, 429, 404]


def test_a_request_that_a_view_refuses_is_not_charged_to_rules(clock, ask):
    with project(clock, **by_user()):

        @rate_limit("1/minute", key=user_of)
        def login(request):
            return HttpResponse("in")

        @rate_limit("1/minute", key=user_of)
        async def later(request):
            return HttpResponse("in")

        @method_decorator(rate_limit("1/minute", key=user_of), name="dispatch")
        class Export(View):
            def get(self, request):
                return HttpResponse("out")

        urls = (path("login", login), path("later", later), path("export", Export.as_view()))
        with override_settings(ROOT_URLCONF=(path("page/<str:rest>", page), *urls)):
            for number, view in enumerate(("/login", "/later", "/export"), 1):
                assert remaining(ask(view)) == {"users": 5 - number, "1/minute": 0}
                for _ in range(6):
                    refusal = ask(view)
                    assert refusal.status_code == 429
                    assert refusal.json()["violated-policies"] == ["1/minute"]
                    assert remaining(refusal) == {"users": 5 - number, "1/minute": 0}
                    assert refusal.headers["Retry-After"] == "60"
            assert ask.statuses(*["/page/1"] * 3) == [200, 200, 429]
            # A request that the rules refuse is not charged to the view.
            assert ask.statuses("/login", "/login", user="43") == [200, 429]


def test_rules_refuse_before_a_view_is_asked(clock, ask):
    with project(clock, RULES={"rules": [{"id": "a", "by": "global", "limit": "1/minute"}]}):
        view = rate_limit("2/hour")(page)
        with override_settings(ROOT_URLCONF=(path("own", view),)):
            assert ask.statuses(*["/own"] * 4) == [200, 429, 429, 429]
            clock.advance(60)
            assert ask.statuses("/own") == [200], "one of two is left"
            clock.advance(60)
            assert ask("/own").json()["violated-policies"] == ["2/hour"]


def test_settings_may_name_functions_and_objects(clock, ask, tmp_path):
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(USERS))
    for rules in (str(file), file, f"{__name__}:RULES", f"{__name__}.RULES", RuleSet(USERS)):
        attributes = {"user": f"{__name__}:user_of"}
        with project(clock, RULES=rules, ATTRIBUTES=attributes, TIERS=f"{__name__}:TIERS"):
            assert ask.statuses(*["/page/1"] * 6) == [200] * 5 + [429]


RULES = RuleSet(USERS)
TIERS = Tiers({})


def test_settings_set_violations_load_shadow_and_enabled(clock, ask):
    refused = []

    class Refusals:
        def record(self, decision, attributes):
            refused.append((decision.rule, attributes["user"]))

    document = {
        "rules": [*USERS["rules"], {"id": "trial", "by": "ip", "limit": "1/hour", "shadow": True}]
    }
    with LoadShedding(lambda: 0.9, smoothing=0, interval=3600, clock=lambda: 0.0) as shedding:
        with project(
            clock,
            **by_user(
                RULES=document, VIOLATIONS=Refusals(), LOAD=shedding, HEADERS=["ietf", "shadow"]
            ),
        ):
            assert "X-RateLimit-Shadow" not in ask("/page/1").headers
            answer = ask("/page/1")
            assert answer.headers["X-RateLimit-Shadow"] == '"trial";q=1;w=3600;t=3600'
            assert "X-RateLimit-Limit" not in answer.headers
        with project(clock, **by_user(VIOLATIONS=Refusals(), LOAD=shedding)):
            assert ask.statuses("/page/1") == [200]
            shedding.refresh()
            # A client keeps its loaded middleware; here each client has its own.
            assert ask.statuses(*["/page/1"] * 3) == [200, 200, 429]
        with project(clock, **by_user(ENABLED=False)):
            assert ask.statuses(*["/page/1"] * 9) == [200] * 9
    assert refused == [("users", "42")]


def test_async_attributes_need_asgi(clock):
    with project(clock, RULES=USERS, ATTRIBUTES={"user": later_user_of}):
        assert Ask("async").statuses(*["/page/1"] * 6) == [200] * 5 + [429]
        with pytest.raises(SettingsError, match=r"ATTRIBUTES\['user'\] is the async function"):
            Ask("sync")("/page/1")


@pytest.mark.parametrize(
    ("tidegate", "message"),
    [
        ({"RULES": USERS, "LIMIT": "1/s"}, r"TIDEGATE\['LIMIT'\] was given with rules"),
        ({"RULES": USERS, "KEY": "ip"}, r"TIDEGATE\['KEY'\] was given with rules"),
        ({"ATTRIBUTES": {}}, r"TIDEGATE\['ATTRIBUTES'\] was given without rules"),
        ({"LOAD": LoadShedding(lambda: 0.0)}, r"TIDEGATE\['LOAD'\] was given without rules"),
        ({"RULES": "none.yaml"}, r"TIDEGATE\['RULES'\]: the file 'none.yaml' cannot be read"),
        ({"RULES": {"rules": 5}}, r"TIDEGATE\['RULES'\]: <dict>: rules: is 5"),
        ({"RULES": USERS, "ATTRIBUTES": {"user": 5}}, r"TIDEGATE\['ATTRIBUTES'\]: the attribute u"),
        ({"RULES": USERS, "TIERS": 5}, r"TIDEGATE\['TIERS'\]: the tiers are 5"),
        ({"RULES": USERS, "VIOLATIONS": 5}, r"TIDEGATE\['VIOLATIONS'\]: the violations are 5"),
        ({"LIMIT": "1/s", "HEADERS": ["shadow"]}, r"TIDEGATE\['HEADERS'\]: the headers include"),
    ],
)
def test_check_names_mistakes(tidegate, message):
    with override_settings(TIDEGATE=tidegate, MIDDLEWARE=[MIDDLEWARE]):
        (found,) = checks.run_checks(tags=["tidegate"])
        assert found.id == "tidegate.E001"
        assert re.search(message, found.msg)
        with pytest.raises(SettingsError, match=message):
            DjangoClient().get("/")


def test_check_knows_that_rules_need_the_user():
    of_user = {"RULES": USERS, "ATTRIBUTES": {"user": "user"}}
    for order, id in (
        ([MIDDLEWARE, AUTHENTICATION], "tidegate.E002"),
        ([MIDDLEWARE], "tidegate.W004"),
        ([AUTHENTICATION], "tidegate.W003"),
    ):
        with override_settings(TIDEGATE=of_user, MIDDLEWARE=order):
            (found,) = checks.run_checks(tags=["tidegate"])
            assert found.id == id
            assert "TIDEGATE['ATTRIBUTES']" in found.msg or id == "tidegate.W003"
    with override_settings(TIDEGATE=of_user, MIDDLEWARE=[AUTHENTICATION, MIDDLEWARE]):
        assert checks.run_checks(tags=["tidegate"]) == []


def test_cost_after_settles_what_rules_charged(clock, ask):
    def cost_after(request, answer):
        return {"output": 3} if request.path == "/usage" else answer.status_code - 495

    urls = (
        path("usage", lambda request: HttpResponse("text")),
        path("502", lambda request: HttpResponse(status=502)),
        path("500", lambda request: HttpResponse(status=500)),
    )
    rules = {
        "rules": [{"id": "r", "limit": "100/minute"}],
        "costs": [{"endpoint": "/usage", "cost": {"estimate": 50, "usage": {"output": 5}}}],
    }
    with project(clock, urls, RULES=rules, COST_AFTER=cost_after):
        left = [remaining(ask(each))["r"] for each in ("/usage", "/502", "/500")]
    assert left == [85, 78, 73]
