"""Throttles of Django REST framework: they see the user whom it authenticates in the view."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import tidegate as tg

pytest.importorskip("django")

from django.conf import settings

if not settings.configured:
    settings.configure(SECRET_KEY="-")

import django

django.setup()
pytest.importorskip("rest_framework")

from django.core import checks  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from rest_framework.authentication import BaseAuthentication  # noqa: E402
from rest_framework.decorators import api_view, authentication_classes, throttle_classes  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402
from rest_framework.views import exception_handler as usual_handler  # noqa: E402
from tidegate.django import RateThrottle, throttle  # noqa: E402
from tidegate.django import rate_limit as of_django  # noqa: E402

CLOCK = tg.ManualClock(10**18)


class Person:
    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.pk = name


class Token(BaseAuthentication):
    """Authenticates by a header, as tokens do: in the view."""

    def authenticate(self, request: Any) -> Any:
        name = request.META.get("HTTP_X_USER")
        return None if name is None else (Person(name), None)


class Uploads(RateThrottle):
    limit = "2/hour"


class Reads(RateThrottle):
    limit = "5/hour"
    methods = ("GET",)


class View(APIView):
    authentication_classes = (Token,)
    throttle_classes: Any = (Uploads,)

    def get(self, request: Any) -> Response:
        return Response("ok")

    post = get


class Other(View):
    pass


class Both(View):
    throttle_classes = (Reads, Uploads)


@api_view(["GET"])
@authentication_classes([Token])
@throttle_classes([throttle("2/hour")])
def page(request: Any) -> Response:
    return Response("ok")


@api_view(["GET"])
@authentication_classes([Token])
@throttle_classes([throttle("2/hour")])
def second(request: Any) -> Response:
    return Response("ok")


def plain(request: Any) -> HttpResponse:
    return HttpResponse("ok")


def handler(exc: Any, context: Any) -> Any:
    response = usual_handler(exc, context)
    if response is not None:
        response.data = {"mine": response.status_code}
    return response


URLS = (
    path("view", View.as_view()),
    path("other", Other.as_view()),
    path("both", Both.as_view()),
    path("page", page),
    path("second", second),
    path("plain", plain),
)


@contextlib.contextmanager
def project(rest: Any = None, middleware: tuple[str, ...] = (), **tidegate: Any) -> Any:
    with override_settings(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=URLS,
        MIDDLEWARE=middleware,
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, **(rest or {})},
        TIDEGATE={"STORAGE": tg.Limiter("1/second").storage, "CLOCK": CLOCK, **tidegate},
    ):
        yield


def ask(where: str, user: str | None = None, method: str = "get") -> Any:
    headers = {} if user is None else {"x-user": user}
    return getattr(Client(), method)(f"/{where}", headers=headers)


def statuses(*asked: Any) -> list[int]:
    return [ask(*each).status_code for each in asked]


@pytest.mark.parametrize("where", ["view", "page"])
def test_each_user_has_counts_and_strangers_count_by_their_address(where: str) -> None:
    with project():
        assert statuses(*[(where, "ann")] * 3) == [200, 200, 429]
        assert statuses(*[(where, "bob")] * 3) == [200, 200, 429]
        assert statuses(*[(where,)] * 3) == [200, 200, 429]


def test_views_of_one_class_share_counts_and_those_of_the_function_do_not() -> None:
    with project():
        assert statuses(("view",), ("other",), ("view",), ("other",)) == [200, 200, 429, 429]
        assert statuses(("page",), ("page",), ("second",), ("page",)) == [200, 200, 200, 429]


def test_all_responses_carry_the_fields() -> None:
    with project():
        answers = [ask("view") for _ in range(3)]
        assert [each.headers["X-RateLimit-Remaining"] for each in answers] == ["1", "0", "0"]
        assert answers[2].headers["Retry-After"] == "1800"
        assert answers[2].json()["detail"].startswith("Request was throttled.")


def test_the_projects_exception_handler_answers_refusals() -> None:
    with project({"EXCEPTION_HANDLER": handler}):
        answers = [ask("view") for _ in range(3)]
        assert answers[2].json() == {"mine": 429}
        assert answers[2].headers["X-RateLimit-Remaining"] == "0"


def test_if_a_throttle_refuses_none_is_charged() -> None:
    with project(middleware=("tidegate.django.RateLimitMiddleware",), LIMIT="20/hour"):
        assert statuses(*[("both",)] * 6) == [200, 200, 429, 429, 429, 429]
        # 2 of 5 reads were charged, and 2 of 20 requests.
        assert ask("plain").headers["X-RateLimit-Remaining"] == "17"
        assert statuses(*[("both", None, "post")] * 2) == [429, 429]
        assert ask("plain").headers["X-RateLimit-Remaining"] == "16"


def test_a_throttle_may_be_for_some_methods() -> None:
    with project():
        only = {"throttle_classes": [Reads]}
        with override_settings(ROOT_URLCONF=(path("view", type("V", (View,), only).as_view()),)):
            assert statuses(*[("view", None, "post")] * 6) == [200] * 6
            assert statuses(*[("view",)] * 6) == [200] * 5 + [429]


def test_a_project_that_limits_nothing_has_no_throttles() -> None:
    with project(ENABLED=False):
        assert statuses(*[("view",)] * 4) == [200] * 4


@pytest.mark.parametrize("decorator", [tg.rate_limit, of_django])
def test_a_decorator_above_api_view_is_an_error(decorator: Any) -> None:
    with project(), pytest.raises(tg.ConfigurationError, match="below @api_view"):
        decorator("5/minute")(page)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"limit": "5/fortnight"}, "fortnight"),
        ({"limit": "5/minute", "key": "usr"}, "'usr'"),
        ({"limit": "5/minute", "methods": ["GTE"]}, "GTE"),
        ({"limit": "5/minute", "scope": 7}, "scope"),
    ],
)
def test_mistakes_in_a_throttle_raise_when_it_is_made(attributes: Any, message: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=message):
        type("Mistaken", (RateThrottle,), attributes)
    with pytest.raises(tg.ConfigurationError, match=message):
        throttle(**attributes)


def test_a_throttle_without_a_limit_is_an_error() -> None:
    class Empty(RateThrottle):
        pass

    only = {"throttle_classes": [Empty]}
    with (
        project(),
        override_settings(ROOT_URLCONF=(path("view", type("V", (View,), only).as_view()),)),
        pytest.raises(tg.ConfigurationError, match="has no limit"),
    ):
        ask("view")


def test_the_projects_check_says_that_middleware_sees_no_user_of_rest_framework() -> None:
    order = (
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "tidegate.django.RateLimitMiddleware",
    )
    with project(middleware=order, LIMIT="5/hour", KEY="user_or_ip"):
        before = [each.id for each in checks.run_checks(tags=["tidegate"])]
        with override_settings(INSTALLED_APPS=["rest_framework"]):
            after = [each.id for each in checks.run_checks(tags=["tidegate"])]
    assert (before, after) == ([], ["tidegate.W008"])
