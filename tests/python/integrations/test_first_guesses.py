"""First guesses of developers of FastAPI services are right, or errors that say what to write."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import tidegate as tg
from tidegate import keys

pytest.importorskip("fastapi")

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from tidegate.asgi import RateLimitMiddleware
from tidegate.fastapi import DefaultRateLimit, RateLimit, exempt
from tidegate.rules import RuleSet


def user(token: str = Header()) -> str:
    return token


def decorated(*args: Any, **options: Any) -> FastAPI:
    app = FastAPI()

    @app.get("/tides")
    @tg.rate_limit(*args, **options)
    async def tides(request: Request) -> str:
        return "ok"

    return app


def depending(*args: Any, **options: Any) -> FastAPI:
    app = FastAPI()

    @app.get("/tides", dependencies=[Depends(RateLimit(*args, **options))])
    async def tides() -> str:
        return "ok"

    return app


def behind(**options: Any) -> FastAPI:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, **options)
    app.get("/tides")(lambda: "ok")
    return app


def statuses(app: FastAPI) -> list[int]:
    client = TestClient(app)
    return [client.get("/tides").status_code for _ in range(2)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: decorated("1/hour"),
        lambda: decorated(limit="1/hour"),
        lambda: decorated(["1/hour", "9/day"]),
        lambda: decorated("1/hour;9/day"),
        lambda: decorated(lambda request: "1/hour"),
        lambda: decorated("2/hour", cost=2),
        lambda: decorated("1/hour", methods=["GET"]),
        lambda: decorated("1/hour", key="ip"),
        lambda: decorated("1/hour", key=lambda request: "a"),
        lambda: decorated("1/hour", key=keys.client_ip(trusted_proxies=["10.0.0.0/8"])),
        lambda: decorated("1/hour", key=keys.all_of(keys.client_ip(), lambda request: "a")),
        lambda: decorated("1/hour", exempt_when=lambda request: False),
        lambda: decorated("1/hour", on_refused=lambda request, decision: {"error": "later"}),
        lambda: depending("1/hour"),
        lambda: depending("1/hour", on_refused=lambda request, decision: {"error": "later"}),
        lambda: behind(limit="1/hour", exempt_paths=["/health"]),
        lambda: behind(limit="1/hour", headers=["ietf"]),
        lambda: behind(limit="1/hour", on_refused=lambda request, decision: {"error": "later"}),
    ],
)
def test_a_guess_is_right(make: Callable[[], FastAPI]) -> None:
    assert statuses(make()) == [200, 429]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: depending(times=1, seconds=60), "times .here it is a limit such as '5/minute'"),
        (lambda: decorated(5, 60), "given 60 without the name of an option"),
        (lambda: decorated("1/hour", "9/day"), "given '9/day' without the name of an option"),
        (lambda: decorated({"free": "1/hour"}), "expected a Limit, a text such as '100/minute'"),
        (lambda: decorated("1/hour", key="X-API-Key"), "expected a function of the request, 'ip'"),
        (lambda: decorated("1/hour", key=[keys.user()]), "expected a function of the request"),
        (lambda: decorated("1/hour", key_func=keys.user()), "key_func .here it is key=.;"),
        (lambda: decorated("1/hour", by="user"), "by .here it is key=.;"),
        (lambda: depending("1/hour", identifier=str), "identifier .here it is key=.;"),
        (lambda: decorated("1/hour", redis_url="redis://h"), "redis_url .here it is storage=.;"),
        (lambda: decorated("1/hour", storage_uri="redis://h"), "storage_uri .here it is storage="),
        (lambda: decorated("1/hour", backend="redis"), "backend .here it is storage=.;"),
        (lambda: decorated("1/hour", namespace="a"), "namespace .here it is prefix=.;"),
        (lambda: decorated("1/hour", fail_open=True), "fail_open .here it is on_error='open'"),
        (lambda: decorated("1/hour", strategy="moving-window"), "strategy .here it is algorithm="),
        (lambda: decorated("1/hour", algorithm="sliding_window"), "expected token-bucket"),
        (lambda: decorated("1/hour", burst=5), "burst .here it is a limit such as '10/second b"),
        (lambda: decorated("1/hour", weight=2), "weight .here it is cost=.;"),
        (lambda: decorated("1/hour", skip_if=bool), "skip_if .here it is exempt_when=.;"),
        (lambda: decorated("1/hour", message="later"), "message .here it is on_refused=.;"),
        (
            lambda: decorated("1/hour", status_code=503),
            "status_code .here it is on_refused=, which",
        ),
        (lambda: depending("1/hour", callback=print), "callback .here it is on_refused=.;"),
        (lambda: decorated("1/hour", trust_proxy=True), "here it is key=keys.client_ip.trusted_pr"),
        (lambda: decorated("1/hour", trusted_proxies=[]), "here it is key=keys.client_ip.trusted"),
        (lambda: statuses(behind(limit="1/hour", exclude=["/a"])), "exclude .here it is exempt_pa"),
        (lambda: statuses(behind(limit="1/hour", whitelist=["::1"])), "whitelist .here it is ex"),
        (lambda: statuses(behind(limit="1/hour", on_exceeded=str)), "on_exceeded .here it is on_r"),
        (lambda: statuses(behind(default_limits=["1/hour"])), "here it is the limit of the mid"),
        (lambda: statuses(behind(limit="1/hour", headers=False)), "the headers are False of type"),
        (lambda: statuses(behind(rules={"rules": []})), "expected a RuleSet, such as tidegate.Rul"),
        (lambda: statuses(behind(calls=5, period=60)), "calls .here it is a limit such as '5/min"),
        (lambda: decorated("1/hour", key_function=str), "key_function .here it is key=.;"),
        (lambda: decorated("1/hour", key=keys.user), "expected one that it makes: user"),
        (lambda: decorated(100), "the limit is 100 of type int; expected a Limit, a text such"),
        (lambda: tg.configure(limit="1/hour"), "limit .here it is the limit of @rate_limit, Def"),
        (lambda: tg.configure(storage="memory://", by="ip"), "by .here it is key=.; expected sto"),
        (lambda: keys.client_ip(trusted_proxies=True), "True; expected a list of addresses and"),
        (
            lambda: keys.client_ip(num_proxies=1),
            "client_ip.. was called with the unknown option num",
        ),
        (lambda: keys.api_key(["a"], name="x-api-key"), "api_key.* unknown option name"),
        (lambda: exempt(), "exempt.. was called without function; expected exempt.function."),
        (lambda: decorated("1/hour", block=True), "block .here it is wait= of @rate_limit"),
        (lambda: decorated("1/hour", max_wait=2), "max_wait .here it is wait= of @rate_limit"),
        (lambda: decorated("1/hour", concurrency=2), "here it is a limit such as '5 at once'"),
        (
            lambda: decorated("1/hour", rules=[]),
            "rules .here it is rules= and tiers= of middleware",
        ),
        (lambda: decorated("1/hour", exempt_paths=["/a"]), "exempt_paths= of middleware"),
        (lambda: decorated("1/hour", handler=str), "handler .here it is on_refused="),
        (lambda: decorated("1/hour", detail="later"), "detail .here it is on_refused="),
        (lambda: decorated("1/hour", tokens=2), "tokens .here it is cost="),
        (lambda: statuses(behind(limit="1/hour", wait=2)), "wait .here it is wait= of @rate_limit"),
        (lambda: statuses(behind(limit="1/hour", methods=["POST"])), "methods .* exempt_methods="),
        (
            lambda: statuses(behind(limit="1/hour", skip_paths=["/a"])),
            "skip_paths .* exempt_paths=",
        ),
        (lambda: statuses(behind(limit="1/hour", allowlist=["::1"])), "an allow list of rules"),
        (lambda: tg.Limiter("1/hour", key="ip"), "key .here it is the key of each call"),
        (lambda: tg.Limiter("1/hour", url="redis://h"), "url .here it is storage="),
        (lambda: tg.configure(enabled=False), "enabled .here it is enabled= of each limit"),
        (lambda: tg.Limiter("1/hour", storage="localhost:6379"), "expected 'memory://' and"),
        (lambda: tg.Limiter("100 requests per minute"), "such as '100/minute', '5 per 2 seconds'"),
        (
            lambda: decorated("1/hour", key=user),
            "takes token.*Header.*; expected a function of the",
        ),
        (
            lambda: decorated(lambda request, user=Depends(user): "1/hour"),  # noqa: B008
            "which takes user=Depends",
        ),
        (
            lambda: decorated(lambda request, key: "1/hour"),
            "which takes .request, key.; expected a",
        ),
        (
            lambda: decorated(lambda key: "1/hour"),
            "which takes .key.; expected a function of the re",
        ),
        (
            lambda: decorated(RuleSet({"rules": []})),
            "@rate_limit was given rules,.*expected a limit",
        ),
        (lambda: depending(RuleSet({"rules": []})), "RateLimit was given rules,.*expected a limit"),
    ],
)
def test_a_wrong_guess_is_an_error_with_the_way_out(
    make: Callable[[], object], expected: str
) -> None:
    with pytest.raises(tg.ConfigurationError, match=expected):
        make()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: behind(limit="1/hour", key=lambda request: request.headers["x-user"]),
            "key reads .headers of the ASGI scope, which is a dict; .*Request.scope.",
        ),
        (
            lambda: behind(limit="1/hour", exempt_when=lambda request: request.url.path == "/a"),
            "exempt_when reads .url of the ASGI scope",
        ),
        (
            lambda: behind(limit="9/hour", cost=lambda r: int(r.state.a)),
            "cost reads .state of the A",
        ),
        (
            lambda: behind(
                rules=RuleSet({"rules": [{"id": "a", "by": "user", "limit": "1/hour"}]}),
                attributes={"user": lambda request: request.state.user},
            ),
            "the attribute user reads .state of the ASGI scope",
        ),
        (
            lambda: behind(limit="1/hour", key=lambda scope: scope["path_params"]["id"]),
            "key reads scope.'path_params'., which the router sets after the middleware",
        ),
        (
            lambda: decorated("1/hour", key=lambda request: request.json()["name"]),
            "key uses the result of an async function without `await`",
        ),
        (
            lambda: decorated("1/hour", key=lambda request: f"{keys.client_ip(request)}:a"),
            "client_ip.. was given .* without the name of an option; expected client_ip.trusted",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*never awaited", "ignore:.*Request.json")
def test_a_function_that_would_fail_for_each_request_is_an_error_of_the_first(
    make: Callable[[], FastAPI], expected: str
) -> None:
    with pytest.raises(tg.ConfigurationError, match=expected):
        TestClient(make()).get("/tides")


def test_what_other_requests_lack_is_none() -> None:
    """A missing header is the client's doing, and what on_no_key is for the service's choice."""
    by_header = decorated("1/hour", key=lambda request: request.headers["x-user"])
    assert statuses(by_header) == [200, 429]
    chosen = depending("1/hour", key=lambda request: request.state.user, on_no_key="open")
    assert statuses(chosen) == [200, 200]


def test_a_state_that_is_not_set_is_said_and_no_error_of_the_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A visitor may have none of what a dependency sets for users."""
    app = depending("1/hour", key=lambda request: request.state.user)
    assert statuses(app) == [200, 429]
    said = "key reads request.state.user, which no dependency has set before; expected that dep"
    assert said in caplog.text


class Account:
    def __init__(self, name: str) -> None:
        self.id = name


@pytest.mark.parametrize("kind", [str, Account, lambda name: {"sub": name}])
@pytest.mark.parametrize("how", ["decorator", "dependency", "middleware"])
def test_the_user_is_found_where_services_put_it(how: str, kind: Callable[[str], Any]) -> None:
    app = FastAPI()

    async def signed_in(request: Request, x_user: str = Header()) -> None:
        request.state.user = kind(x_user)

    if how == "middleware":
        app.add_middleware(RateLimitMiddleware, limit="1/hour", key="user")

        @app.middleware("http")
        async def authenticate(request: Request, answer: Any) -> Any:
            request.state.user = kind(request.headers["x-user"])
            return await answer(request)

        app.get("/tides")(lambda: "ok")
    elif how == "dependency":
        limit = Depends(RateLimit("1/hour", key="user"))
        app.get("/tides", dependencies=[Depends(signed_in), limit])(lambda: "ok")
    else:

        @app.get("/tides", dependencies=[Depends(signed_in)])
        @tg.rate_limit("1/hour", key="user")
        async def tides() -> str:
            return "ok"

    client = TestClient(app)
    answers = [client.get("/tides", headers={"x-user": name}) for name in ("ann", "ann", "bob")]
    assert [answer.status_code for answer in answers] == [200, 429, 200]


def test_rules_by_a_user_whom_nothing_finds_are_named_at_the_first_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rules = RuleSet({"rules": [{"id": "a", "by": "user", "limit": "1/hour"}]})
    app = behind(rules=rules, attributes={"user": keys.user()})
    assert statuses(app) == [200, 200]
    said = [line for line in caplog.messages if "keys.user()" in line]
    assert len(said) == 1
    assert "rules that count by it do not apply" in said[0]


@pytest.mark.parametrize("how", [decorated, depending])
@pytest.mark.parametrize("raises", [False, True])
def test_an_exception_in_place_of_a_body_has_the_fields(how: Any, raises: bool) -> None:
    refusal = HTTPException(429, "later", {"X-Mine": "1"})

    def on_refused(request: Any, decision: tg.Decision) -> HTTPException:
        if raises:
            raise refusal
        return refusal

    client = TestClient(how("1/hour", on_refused=on_refused))
    client.get("/tides")
    answer = client.get("/tides")
    assert (answer.status_code, answer.json()) == (429, {"detail": "later"})
    assert answer.headers["retry-after"] == "3600"
    assert answer.headers["x-ratelimit-remaining"] == "0"
    assert answer.headers["x-mine"] == "1"
    assert refusal.headers == {"X-Mine": "1"}


@pytest.mark.parametrize("how", ["decorator", "dependency", "middleware"])
def test_a_refusal_that_looks_like_a_success_is_named_once(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    options: Any = {"on_refused": lambda request, decision: JSONResponse({"error": "later"})}
    app = {
        "decorator": lambda: decorated("1/hour", **options),
        "dependency": lambda: depending("1/hour", **options),
        "middleware": lambda: behind(limit="1/hour", **options),
    }[how]()
    assert statuses(app) + statuses(app) == [200] * 4
    said = [line for line in caplog.messages if "a response of status 200" in line]
    assert len(said) == 1
    assert "expected one with 429, or a dict, list or text" in said[0]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("from tidegate import limit", "from tidegate import rate_limit"),
        ("from tidegate import RuleFile", "from tidegate.rules import RuleFile"),
        ("from tidegate import client_ip", "from tidegate.keys import client_ip"),
        ("from tidegate.fastapi import Limiter", "from tidegate import Limiter"),
        ("from tidegate.fastapi import FastAPILimiter", "from tidegate import configure"),
        ("from tidegate.fastapi import keys", "from tidegate import keys"),
        (
            "from tidegate.starlette import RateLimitMiddleware",
            "from tidegate.asgi import RateLimitMiddleware",
        ),
        ("from tidegate import ratelimit", "from tidegate import rate_limit"),
        ("from tidegate import Quota", "from tidegate.quotas import Quota"),
        ("from tidegate import setup", "from tidegate import configure"),
        ("from tidegate import reset_all", "from tidegate.testing import reset_all"),
        ("from tidegate.testing import disable", "from tidegate.testing import limits_off"),
        (
            "from tidegate.metrics import RateLimitCollector",
            "from tidegate.prometheus import RateLimitCollector",
        ),
        ("from tidegate.config import configure", "from tidegate import configure"),
        ("from tidegate.dependencies import RateLimit", "from tidegate.fastapi import RateLimit"),
        ("from tidegate.asyncio import Limiter", "from tidegate import Limiter"),
        ("from tidegate.quota import Quota", "from tidegate.quotas import Quota"),
    ],
)
def test_a_wrong_import_says_the_right_one_which_works(statement: str, expected: str) -> None:
    with pytest.raises(ImportError, match=f"expected `{expected}`"):
        exec(statement, {})
    exec(expected, {})


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("from tidegate.keys import clientip", "has no clientip; expected perhaps client_ip"),
        (
            "from tidegate.keys import path",
            "expected one of KeyFunction, all_of, api_key, client_ip",
        ),
        ("from tidegate import Limitr", "expected perhaps Limit or Limiter"),
        ("from tidegate import keys; keys.join", "has no join; expected `tidegate.keys.all_of..`"),
        ("from tidegate.fastapi import Limit", "expected perhaps RateLimit"),
    ],
)
def test_a_name_that_does_not_exist_leads_to_those_that_do(statement: str, expected: str) -> None:
    with pytest.raises((ImportError, AttributeError), match=expected):
        exec(statement, {})


def test_a_module_that_is_not_imported_yet_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tg, "starlette", raising=False)
    with pytest.raises(AttributeError, match=r"before it is imported; expected `import tidegate.s"):
        tg.starlette  # type: ignore[attr-defined]  # noqa: B018
    for absent in ("metrics", "nothing", "__path_of__"):
        with pytest.raises(AttributeError) as said:
            getattr(tg, absent)
        assert "before it is imported" not in str(said.value)


@pytest.mark.parametrize("default", [False, True])
def test_an_exemption_that_middleware_does_not_know_is_named_once(
    default: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing reads it: under a default limit it has its effect."""
    app = FastAPI(dependencies=[Depends(DefaultRateLimit("1/hour"))] if default else [])
    app.add_middleware(RateLimitMiddleware, limit="2/hour")
    app.get("/tides")(exempt(lambda: "ok"))
    assert statuses(app) == [200, 200]
    said = [line for line in caplog.messages if "is under @exempt" in line]
    assert len(said) == (0 if default else 1)
    if said:
        assert "expected exempt_paths=['/tides'] of the middleware" in said[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("try_hit", "hit"),
        ("take", "hit"),
        ("allowed", "allow"),
        ("unlock", "reset"),
        ("try_acquire", "hit"),
        ("consume", "hit"),
        ("is_allowed", "allow"),
        ("test", "peek"),
        ("get_window_stats", "peek"),
        ("clear", "reset"),
    ],
)
def test_a_method_of_another_limiter_names_the_one_here(name: str, expected: str) -> None:
    limiter = tg.Limiter("5/minute")
    with pytest.raises(AttributeError, match=rf"a Limiter has no {name}\(\); expected {expected}"):
        getattr(limiter, name)
    assert not hasattr(limiter, name)
    getattr(limiter, expected)("user:42")
