"""Django: the middleware and the decorator, in its test clients and under real servers."""

from __future__ import annotations

import contextlib
import functools
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tidegate as tg

pytest.importorskip("django")

import django
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core import checks
from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django_project import AUTHENTICATION, MIDDLEWARE, ProjectClient, page, project
from tidegate.django import RateLimitMiddleware, SettingsError, rate_limit
from tidegate.web.frameworks import django_views

of_django = rate_limit
NOW = 1_700_000_000 * 10**9


async def page_later(request):
    return HttpResponse("page")


@pytest.fixture(params=["sync", "async"])
def ask(request):
    return ProjectClient(request.param)


def test_a_project_has_one_count_for_each_client(clock, ask):
    with project(clock, LIMIT="2/minute"):
        first = ask("/page/1")
        assert first.status_code == 200
        assert first.headers["X-RateLimit-Limit"] == "2"
        assert first.headers["RateLimit"] == '"2/minute";r=1;t=30'
        assert ask.statuses("/nowhere", "/page/2", "/page/3") == [404, 429, 429]
        refusal = ask("/page/4")
        assert refusal.headers["Content-Type"] == "application/problem+json"
        assert refusal.headers["Retry-After"] == "30"
        assert refusal.json()["violated-policies"] == ["2/minute"]
        assert ask.statuses(*["/page/1"] * 3, method="options") == [200, 200, 200]
        assert ask("/page/1", "head").content == b""
        clock.advance(30)
        assert ask.statuses("/page/1", "/page/1") == [200, 429]


def test_errors_and_streams_carry_the_fields(clock, ask):
    def fault(request):
        raise ZeroDivisionError

    def forbidden(request):
        raise PermissionDenied

    def stream(request):
        return StreamingHttpResponse(iter([b"a", b"b"]))

    urls = [path("fault", fault), path("forbidden", forbidden), path("stream", stream)]
    with project(clock, urls, LIMIT="9/minute"), quiet():
        for where, status in (("/fault", 500), ("/forbidden", 403), ("/nowhere", 404)):
            answer = ask(where)
            assert (answer.status_code, answer.headers["X-RateLimit-Limit"]) == (status, "9")
        if not ask.is_async:
            answer = ask("/stream")
            assert b"".join(answer.streaming_content) == b"ab"
            assert answer.headers["X-RateLimit-Remaining"] == "5"


@contextlib.contextmanager
def quiet():
    """Without Django's own log of errors."""
    logger = logging.getLogger("django.request")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


def test_a_view_has_its_own_limit(clock, ask):
    with project(clock, LIMIT="9/minute"):
        urls = [
            path("plain", rate_limit("1/minute")(page)),
            path("later", rate_limit("1/minute")(page_later)),
        ]
    with project(clock, urls, LIMIT="9/minute"):
        first = ask("/plain")
        assert first.headers["X-RateLimit-Limit"] == "1"
        assert first.headers["RateLimit-Policy"] == '"1/minute";q=1;w=60, "9/minute";q=9;w=60'
        refusal = ask("/plain")
        assert refusal.status_code == 429
        assert refusal.headers["Retry-After"] == "60"
        assert refusal.json()["violated-policies"] == ["1/minute"]
        assert ask.statuses("/later", "/later") == [200, 429]


def test_exceptions_of_a_limited_view_carry_its_fields_through_the_middleware(clock, ask):
    with project(clock):

        @rate_limit("3/minute")
        def missing(request):
            raise Http404

    for middleware, expected in (([MIDDLEWARE], "2"), ([], None)):
        with project(clock, [path("missing", missing)], middleware), quiet():
            answer = ask("/missing")
            assert answer.status_code == 404
            assert answer.headers.get("X-RateLimit-Remaining") == expected


@pytest.mark.parametrize("is_general", [False, True])
def test_classes_of_views_are_limited(clock, ask, is_general):
    # A service of several frameworks uses the general decorator.
    rate_limit = functools.partial(tg.rate_limit, clock=clock) if is_general else of_django
    with project(clock):
        shared = rate_limit("1/minute")

        @method_decorator(shared, name="dispatch")
        class Dispatched(View):
            def get(self, request):
                return HttpResponse("got")

        @method_decorator(shared, name="dispatch")
        class Another(View):
            def get(self, request):
                return HttpResponse("got")

        @method_decorator([noticed, rate_limit("1/minute"), noticed], name="get")
        class Later(View):
            async def get(self, request):
                return HttpResponse("got")

            async def post(self, request):
                return HttpResponse("posted")

        @method_decorator(rate_limit("1/minute", key=key_later), name="dispatch")
        class LaterDispatched(View):
            async def get(self, request):
                return HttpResponse("got")

        @rate_limit("1/minute")
        class Decorated(View):
            def get(self, request):
                return HttpResponse("got")

        @rate_limit("1/minute", key=key_later)
        class LaterDecorated(View):
            async def get(self, request):
                return HttpResponse("got")

        class Method(View):
            @rate_limit("1/minute")
            def get(self, request):
                return HttpResponse("got")

    views = [Dispatched, Another, LaterDispatched, Decorated, LaterDecorated, Method]
    # Before 5.2, method_decorator() does not mark the functions that it makes of async methods.
    marked = [Later] if django.VERSION >= (5, 2) else []
    urls = [path(view.__name__, view.as_view()) for view in [*views, *marked]]
    with project(clock, urls):
        for view in views:
            first, second = (ask(f"/{view.__name__}") for _ in range(2))
            assert (view, first.status_code, second.status_code) == (view, 200, 429)
            assert first.headers["X-RateLimit-Limit"] == "1"
            assert second.headers["Retry-After"] == "60"
        for _ in marked:
            assert ask.statuses("/Later", "/Later") == [200, 429]
            assert ask.statuses("/Later", "/Later", method="post") == [200, 200]


@pytest.mark.parametrize("is_general", [False, True])
@pytest.mark.parametrize(
    "around", [lambda view: view, csrf_exempt, *([never_cache] if django.VERSION >= (5, 0) else [])]
)
def test_the_function_of_a_class_of_async_views_is_limited(clock, ask, is_general, around):
    rate_limit = functools.partial(tg.rate_limit, clock=clock) if is_general else of_django
    settled = []

    class Later(View):
        async def get(self, request):
            return HttpResponse("got")

    def cost(request, answer):
        settled.append(answer.content)
        return 6

    with project(clock):
        above = rate_limit("9/minute", cost=3, cost_after=cost)(around(Later.as_view()))
        below = around(rate_limit("1 at once")(Later.as_view()))
    with project(clock, [path("above", above), path("below", below)]):
        assert ask.statuses(*["/above"] * 3) == [200, 200, 429]
        assert settled == [b"got", b"got"]
        first = ask("/below")
        assert (first.status_code, first.headers["X-RateLimit-Limit"]) == (200, "1")
        assert ask("/below").status_code == 200


def test_methods_are_limited_with_an_unknown_method_decorator(clock, ask, monkeypatch):
    monkeypatch.setattr(django_views, "_knows_methods", False)
    monkeypatch.setattr(django_views, "_DUMMY", "of another name")
    monkeypatch.setattr(django_views, "_is_bound", lambda view: False)

    class Page(View):
        @method_decorator(rate_limit("1/minute", clock=clock))
        def get(self, request):
            return HttpResponse("got")

    with project(clock, [path("methods", Page.as_view())]):
        assert ask.statuses("/methods", "/methods") == [200, 429]


def test_the_method_decorator_of_django_is_known():
    assert django_views._knows_methods


async def key_later(request):
    return "everybody"


def noticed(view):
    """A decorator as other packages write them."""
    from functools import wraps

    if iscoroutinefunction(view):

        @wraps(view)
        async def inner(*args, **kwargs):
            return await view(*args, **kwargs)
    else:

        @wraps(view)
        def inner(*args, **kwargs):
            return view(*args, **kwargs)

    return inner


def test_methods_may_have_stacked_limits_scopes_and_costs(clock, ask):
    with project(clock):
        view = rate_limit("9/minute", scope="both")(
            rate_limit("2/minute", methods=["POST"], cost_after=lambda request, answer: 2)(page)
        )
        other = rate_limit("9/minute", scope="both")(page)
    with project(clock, [path("view", view), path("other", other)]):
        assert ask.statuses(*["/view"] * 3) == [200] * 3
        assert ask.statuses(*["/view"] * 2, method="post") == [200, 429]
        assert ask("/other").headers["X-RateLimit-Remaining"] == "4"


def test_the_user_is_the_key(clock, ask):
    def authenticates(get_response):
        def answer(request):
            name = request.headers.get("x-user")
            request.user = SimpleNamespace(pk=name, is_authenticated=name is not None)
            return get_response(request)

        return answer

    module = SimpleNamespace(authenticates=authenticates)
    sys.modules["tests_django_middleware"] = module
    middleware = ["tests_django_middleware.authenticates", MIDDLEWARE]
    with project(clock, middleware=middleware, LIMIT="1/minute", KEY="user_or_ip"):
        for user, status in (("a", 200), ("b", 200), ("a", 429)):
            assert ask("/page/1", headers={"x-user": user}).status_code == status
        assert ask.statuses("/page/1", "/page/1") == [200, 429]


class TooFast(Exception):
    """A project's own."""


class AnswersTooFast:
    sync_capable = async_capable = True

    def __init__(self, get_response):
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request):
        return self.get_response(request)

    def process_exception(self, request, exception):
        if isinstance(exception, TooFast):
            return HttpResponse(f"too fast for {exception}", status=420)
        return None


def test_the_exception_of_a_project_is_raised_from_the_view(clock, ask):
    on_refused = {"on_refused": lambda request, decision: TooFast(decision.rule)}
    with project(clock):
        own = rate_limit("1/minute", **on_refused)(page_later if ask.is_async else page)
    mine = (path("own", own),)
    middleware = (MIDDLEWARE, f"{__name__}.AnswersTooFast")
    with project(clock, mine, middleware=middleware):
        assert ask("/own").status_code == 200
        refused = ask("/own")
        assert (refused.status_code, refused.content) == (420, b"too fast for 1/minute")
        assert refused.headers["Retry-After"] == "60"


def test_the_exception_of_a_project_is_raised_from_the_middleware(clock, ask, caplog):
    def forbidden(request, decision):
        return PermissionDenied("too fast")

    with project(clock, LIMIT="1/minute", ON_REFUSED=forbidden):
        assert ask.statuses(*["/page/1"] * 2) == [200, 403]
    assert "on_refused" not in caplog.text


def test_an_on_refused_that_raises_is_logged_and_the_usual_429_is_sent(clock, ask, caplog):
    def broken(request, decision):
        raise TooFast

    with project(clock, LIMIT="1/minute", ON_REFUSED=broken):
        assert ask.statuses(*["/page/1"] * 2) == [200, 429]
    assert "on_refused raised; the usual body is sent" in caplog.text


def test_on_refused_answers_and_exempt_requests_pass(clock, ask, caplog):
    options = {
        "LIMIT": "1/minute",
        "EXEMPT_WHEN": lambda request: "free" in request.path,
        "COST": lambda request: 1,
    }
    with project(clock, ON_REFUSED=lambda *_: HttpResponse("slow", status=503), **options):
        assert ask.statuses("/page/1", "/page/1", "/page/free") == [200, 503, 200]
        assert ask("/page/1").headers["Retry-After"] == "60"
    with project(clock, ON_REFUSED=lambda *_: 3, **options):
        assert ask.statuses("/page/1", "/page/1") == [200, 429]
        assert "on_refused returned a int; expected an HttpResponse" in caplog.text


def test_limits_can_be_disabled(clock, ask):
    with project(clock):
        view = rate_limit("1/minute", exempt_when=lambda request: "free" in request.GET)(page)
    urls = [path("view", view)]
    with project(clock, urls, LIMIT="1/minute", ENABLED=False):
        assert ask.statuses(*["/view"] * 3) == [200] * 3
    with project(clock, urls):
        assert ask.statuses("/view", "/view", "/view?free") == [200, 429, 200]


def test_async_functions_are_awaited(clock):
    later = ProjectClient("async")
    with project(clock, LIMIT="1/minute", KEY=key_later):
        assert later.statuses("/page/1", "/page/2") == [200, 429]
        # The test client without a loop loads the middleware for WSGI.
        with pytest.raises(ImproperlyConfigured, match="KEY is the async function"):
            ProjectClient("sync")("/page/1")


def test_the_view_finds_the_decision(clock, ask):
    def left(request):
        return HttpResponse(str(request.META["tidegate.decision"].remaining))

    with project(clock, [path("left", left)], LIMIT="5/minute"):
        assert ask("/left").content == b"4"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIMIT", "five a minute"),
        ("LIMIT", "1/minute, concurrency"),
        ("KEY", "address"),
        ("KEY", "no.such:module"),
        ("COST", 0),
        ("EXEMPT_WHEN", "always"),
        ("EXEMPT_METHODS", "OPTIONS"),
        ("STORAGE", "mongodb://localhost"),
        ("STORAGE_OPTIONS", {"x": 1}),
        ("ALGORITHM", "bucket"),
        ("ON_NO_KEY", "ignore"),
        ("HEADERS", ["draft"]),
        ("ENABLED", "yes"),
        ("LIMITS", "5/minute"),
    ],
)
def test_wrong_settings_raise_when_the_project_is_loaded(clock, name, value):
    with project(clock, **{name: value}):
        with pytest.raises(ImproperlyConfigured, match=name) as caught:
            get_asgi_application()
        assert isinstance(caught.value, tg.ConfigurationError)
        assert "expected" in str(caught.value)
        assert [found.id for found in checks.run_checks(tags=["tidegate"])] == ["tidegate.E001"]


@pytest.mark.parametrize("value", ["5/minute", {"limit": "5/minute"}, {5: "5/minute"}])
def test_settings_other_than_a_dict_in_upper_case_are_refused(value):
    with override_settings(TIDEGATE=value, MIDDLEWARE=[MIDDLEWARE]):
        with pytest.raises(SettingsError, match="expected"):
            RateLimitMiddleware(page)
        with pytest.raises(SettingsError, match="expected"):
            rate_limit("5/minute")


@pytest.mark.parametrize(("name", "value"), [("STORAGE", "mongo://"), ("KEY", "no.such:key")])
def test_a_setting_that_a_decorator_cannot_use_is_named(name, value):
    named = pytest.raises(tg.ConfigurationError, match=f"TIDEGATE has {name}: .*expected")
    with override_settings(TIDEGATE={name: value}), named:
        tg.rate_limit("5/minute")(page)


def test_leftover_settings_of_django_ratelimit_cause_a_warning(clock):
    def found(*names, middleware=(MIDDLEWARE,), **tidegate):
        leftover = dict.fromkeys(names, "x")
        with project(clock, middleware=middleware, **tidegate), override_settings(**leftover):
            return checks.run_checks(tags=["tidegate"])

    assert found() == []
    (warning,) = found("RATELIMIT_VIEW", "RATELIMIT_EXCEPTION_CLASS", "RATELIMIT_IPV6_MASK")
    assert warning.id == "tidegate.W005"
    assert warning.msg.startswith(
        "the settings have RATELIMIT_EXCEPTION_CLASS, RATELIMIT_IPV6_MASK, RATELIMIT_VIEW, which "
        "tidegate does not read; expected keys of TIDEGATE"
    )
    both = found("RATELIMIT_ENABLE", middleware=(), LIMIT="1/minute")
    assert [problem.id for problem in both] == ["tidegate.W005", "tidegate.W003"]
    theirs = "django_ratelimit.middleware.RatelimitMiddleware"
    assert found("RATELIMIT_VIEW", middleware=(MIDDLEWARE, theirs)) == []


def test_a_key_of_the_user_needs_authentication_before_the_middleware(clock):
    def found(middleware, **tidegate):
        with project(clock, middleware=middleware, **tidegate):
            return [problem.id for problem in checks.run_checks(tags=["tidegate"])]

    by_user = {"LIMIT": "1/minute", "KEY": "user_or_ip"}
    assert found([AUTHENTICATION, MIDDLEWARE], **by_user) == []
    assert found([MIDDLEWARE, AUTHENTICATION], LIMIT="1/minute") == []
    assert found([MIDDLEWARE, AUTHENTICATION], **by_user) == ["tidegate.E002"]
    assert found([AUTHENTICATION], **by_user) == ["tidegate.W003"]
    assert found([MIDDLEWARE], **by_user) == ["tidegate.W004"]
    with (
        project(clock, middleware=[MIDDLEWARE, AUTHENTICATION], **by_user),
        pytest.raises(SettingsError, match="below it"),
    ):
        RateLimitMiddleware(page)


def test_invalid_decorators_are_refused(clock):
    with project(clock):
        for options in ({"key": "address"}, {"key": key_later}, {"capacity": 5}, {"cost": 0}):
            with pytest.raises(tg.ConfigurationError, match="expected"):
                rate_limit("5/minute", **options)(page)
        with pytest.raises(tg.ArgumentTypeError, match=r"django\.views\.View"):
            rate_limit("5/minute")(ProjectClient)


PROJECT = """
SECRET_KEY = "for a test"
INSTALLED_APPS = ["tidegate.django"]
TIDEGATE = {"LIMIT": "five a minute"}
MIDDLEWARE = ["tidegate.django.RateLimitMiddleware"]
"""


def test_a_project_is_checked_before_it_runs(tmp_path):
    (tmp_path / "project.py").write_text(PROJECT)
    command = [sys.executable, "-m", "django", "check", f"--pythonpath={tmp_path}"]
    checked = subprocess.run(
        [*command, "--settings=project"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 1
    assert "(tidegate.E001) TIDEGATE['LIMIT']:" in checked.stderr
    assert "expected" in checked.stderr


def test_jitter_is_added_to_the_wait(clock, ask):
    with project(clock, LIMIT="2/minute", RETRY_JITTER=lambda exact: 5):
        views = [rate_limit("1/minute"), rate_limit("1/minute", retry_jitter=lambda exact: 7)]
    urls = [path(f"v{at}", view(page)) for at, view in enumerate(views)]
    with project(clock, urls, RETRY_JITTER=lambda exact: 5):
        for at, wait in enumerate(("65", "67")):
            answers = [ask(f"/v{at}") for _ in range(2)]
            assert answers[1].headers["Retry-After"] == wait
    with project(clock, LIMIT="1/minute", RETRY_JITTER=lambda exact: 5):
        assert [ask("/page/a").headers.get("Retry-After") for _ in range(2)] == [None, "65"]


class RestRequest:
    """A request that wraps Django's, as in Django REST framework."""

    def __init__(self, request):
        self._request = request

    def __getattr__(self, name):
        return getattr(self._request, name)


@pytest.mark.parametrize("is_general", [False, True])
def test_requests_of_rest_framework_are_limited(clock, ask, is_general):
    rate_limit = functools.partial(tg.rate_limit, clock=clock) if is_general else of_django
    with project(clock):

        class Report(View):
            def dispatch(self, request, *args, **kwargs):
                return super().dispatch(RestRequest(request), *args, **kwargs)

            @rate_limit("1/minute", key=lambda request: request._request.path)
            def get(self, request):
                return HttpResponse("got")

            @method_decorator(rate_limit("1/minute"))
            def post(self, request):
                return HttpResponse("posted")

    with project(clock, [path("report", Report.as_view())]):
        for method in ("get", "post"):
            answers = [ask("/report", method) for _ in range(2)]
            assert [each.status_code for each in answers] == [200, 429]
            assert answers[0].headers["X-RateLimit-Remaining"] == "0"


def test_cost_after_gets_the_response_or_the_exception_of_the_view(clock, ask):
    seen = []

    def cost_after(request, answer):
        seen.append(type(answer).__name__)
        return 10 if getattr(answer, "status_code", None) == 200 else 0

    def raises(request):
        raise Http404

    urls = (
        path("raises", raises),
        path("502", lambda request: HttpResponse(status=502)),
        path("streams", lambda request: StreamingHttpResponse([b"x"])),
    )
    with project(clock, urls, LIMIT="10/minute", COST=10, COST_AFTER=cost_after):
        failed = [ask(each) for each in ("/raises", "/502")]
        assert [each.status_code for each in failed] == [404, 502]
        assert {each["x-ratelimit-remaining"] for each in failed} == {"10"}
        stream = ask("/streams")
        stream.close()
        assert ask.statuses("/streams") == [429]
    assert seen == ["Http404", "HttpResponse", "StreamingHttpResponse"]


def test_checks_find_settings_that_nothing_reads(clock):
    with project(clock), override_settings(TIDEGATE={}, TIDEGATE_LIMIT="1/minute"):
        found = {each.id: each.msg for each in checks.run_checks(tags=["tidegate"])}
    assert found.keys() == {"tidegate.W006", "tidegate.W007"}
    assert "TIDEGATE_LIMIT, which tidegate does not read" in found["tidegate.W006"]
    assert "limits nothing" in found["tidegate.W007"]


def test_checks_find_middleware_that_is_named_twice(clock):
    name = "tidegate.django.RateLimitMiddleware"
    with project(clock, LIMIT="1/minute"), override_settings(MIDDLEWARE=[name, name]):
        (found,) = checks.run_checks(tags=["tidegate"])
    assert found.id == "tidegate.W009"
    assert "is 2 times in MIDDLEWARE" in found.msg


def test_cost_after_is_refused_async_under_wsgi(clock):
    async def later(request, answer):
        return 1

    for settings_of_case, problem in (
        ({"LIMIT": "1/minute", "COST_AFTER": later}, "COST_AFTER is the async function"),
        ({"LIMIT": "1/minute", "COST_AFTER": 3}, "COST_AFTER"),
    ):
        with project(clock, **settings_of_case), pytest.raises(SettingsError, match=problem):
            RateLimitMiddleware(page)


def test_middleware_that_limits_nothing_says_so_without_checks(clock, caplog):
    """A server runs none."""
    with project(clock), override_settings(TIDEGATE={}, TIDEGATE_LIMIT="1/minute"):
        RateLimitMiddleware(lambda request: None)
    assert "TIDEGATE_LIMIT, which tidegate does not read" in caplog.text
    assert "so the middleware limits nothing" in caplog.text
