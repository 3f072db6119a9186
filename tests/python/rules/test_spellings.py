"""No spelling of a request takes it out of the rules: paths, methods, addresses, attributes."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate import ArgumentTypeError, Limiter, ManualClock, keys
from tidegate.asgi import RateLimitMiddleware
from tidegate.rules import RuleSet, Tiers
from tidegate.web.request_access import path_of
from tidegate.wsgi import RateLimitMiddleware as WSGIMiddleware

BY_USER = {"id": "a", "by": "user", "limit": "1/hour"}
LOGIN = {"id": "login", "by": "ip", "endpoint": "/login", "limit": "1/hour"}


async def service(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def made(*rules: Any, app: Any = service, attributes: Any = None, **document: Any) -> Any:
    given = RuleSet({"rules": list(rules), **document})
    return RateLimitMiddleware(app, rules=given, attributes=attributes, clock=ManualClock())


def status(app: Any, path: str = "/login", **scope: Any) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    whole = {
        "type": "http", "method": "GET", "path": path, "headers": [], "client": ("192.0.2.1", 1),
        **scope,
    }  # fmt: skip
    asyncio.run(app(whole, receive, send))
    return int(sent[0].get("status", 0))


@pytest.mark.parametrize("path", ["/login\n", "login", "//login/", "http:/login"])
def test_another_spelling_of_a_path_meets_its_rule(path: str) -> None:
    app = made(LOGIN)
    assert status(app) == 200
    assert status(app, path) == 429


@pytest.mark.parametrize("scope", [{"root_path": "/api"}, {"root_path": "/api", "path": "/login"}])
def test_an_endpoint_is_the_path_inside_the_application(scope: Any) -> None:
    app = made(LOGIN)
    assert status(app) == 200
    assert status(app, **{"path": "/api/login", **scope}) == 429
    assert status(app, "/apilogin", root_path="/api") == 200


def test_the_root_path_of_the_application_that_is_wrapped_counts() -> None:
    class Service:
        root_path = "/api"

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await service(scope, receive, send)

    app = made(LOGIN, app=Service())
    assert [status(app, "/login"), status(app, "/api/login")] == [200, 429]


def test_script_name_is_no_part_of_an_endpoint() -> None:
    def inner(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return []

    app = WSGIMiddleware(inner, rules=RuleSet({"rules": [LOGIN]}), clock=ManualClock())
    told: list[str] = []
    for script in ("", "/v1"):
        environ = {"REQUEST_METHOD": "GET", "SCRIPT_NAME": script, "PATH_INFO": "/login"}
        app({**environ, "REMOTE_ADDR": "192.0.2.1"}, lambda text, *more: told.append(text[:3]))
    assert told == ["200", "429"]


def test_the_path_of_django_is_the_one_that_it_decoded() -> None:
    request = SimpleNamespace(path_info="/shop/大阪", META={"PATH_INFO": "/shop/大阪"})
    assert path_of(request) == "/shop/大阪"


def test_a_websocket_meets_rules_for_get() -> None:
    app = made({**LOGIN, "method": "GET"})
    assert status(app) == 200
    extensions = {"websocket.http.response": {}}
    scope = {"type": "websocket", "path": "/login", "headers": [], "client": ("192.0.2.1", 1)}
    assert status(app, **{**scope, "method": None, "extensions": extensions}) == 429


def test_lists_hold_for_options_and_so_do_rules_that_name_it() -> None:
    app = made(LOGIN, block=[{"ip": "198.51.100.1"}])
    assert [status(app, method="OPTIONS") for _ in range(3)] == [200] * 3
    assert status(app, method="OPTIONS", client=("198.51.100.1", 1)) == 429
    app = made({**LOGIN, "method": "OPTIONS"})
    assert [status(app, method="OPTIONS") for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("how", ["an int", "async", "fails"])
def test_lists_hold_for_options_whatever_the_function_of_their_attribute_is(how: str) -> None:
    async def later(scope: Any) -> str:
        return "7"

    def fails(scope: Any) -> str:
        raise LookupError

    reader: Any = {"an int": lambda scope: 7, "async": later, "fails": fails}[how]
    app = made(LOGIN, attributes={"user": reader}, block=[{"user": "7"}])
    if how == "fails":
        with pytest.raises(LookupError):
            status(app, method="OPTIONS")
    else:
        assert status(app, method="OPTIONS") == 429


@pytest.mark.parametrize(
    ("ip", "plain"),
    [
        ("192.0.2.1:443", "192.0.2.1"),
        ("[2001:db8::7]:443", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("2001:db8::7%eth0", "2001:db8::7"),
        ("[2001:db8::7%eth0]:1", "2001:db8::7"),
        ("[::ffff:192.0.2.1]:1", "192.0.2.1"),
    ],
)
def test_an_address_with_a_port_or_a_zone_is_that_address(ip: str, plain: str) -> None:
    rule = {"id": "a", "by": "ip", "limit": "1/hour"}
    limiter = Limiter(rules=RuleSet({"rules": [rule]}), clock=ManualClock())
    assert limiter.check(ip=ip)
    assert not limiter.check(ip=plain), "they are one count"
    blocking = Limiter(rules=RuleSet({"rules": [], "block": [{"ip": plain}]}), clock=ManualClock())
    assert not blocking.check(ip=ip)


@pytest.mark.parametrize(
    "ip", ["192.0.2.1:443:1", "host:443", "[192.0.2.1", "unix:", "%", ":", "["]
)
def test_what_is_no_address_is_a_text(ip: str) -> None:
    rules = {"rules": [], "block": [{"ip": ["0.0.0.0/0", "::/0"]}]}
    assert Limiter(rules=RuleSet(rules), clock=ManualClock()).check(ip=ip)


def test_behind_a_proxy_lists_hold_for_the_address_itself() -> None:
    ip = keys.client_ip(trusted_proxies=["192.0.2.1"])
    app = made(LOGIN, attributes={"ip": ip}, block=[{"ip": "2001:db8::7"}])

    def asked(address: str) -> int:
        return status(app, headers=[(b"x-forwarded-for", address.encode())])

    assert asked("2001:db8::7") == 429
    assert [asked("2001:db8::8"), asked("2001:db8::9")] == [200, 429]  # one /64
    assert ip({"headers": [(b"x-forwarded-for", b"2001:db8::7")], "client": ("192.0.2.1", 1)}) == (
        "2001:db8::/64"
    )


@pytest.mark.parametrize("ip", ["198.51.100.1:80", "[2001:db8::1]:80", "2001:db8::1%eth0"])
def test_lists_hold_for_an_address_with_a_port_or_a_zone(ip: str) -> None:
    block = [{"ip": ["198.51.100.1", "2001:db8::1"]}]
    assert status(made(attributes={"ip": lambda scope: ip}, block=block)) == 429


def test_endpoints_that_are_no_paths_are_named(caplog: pytest.LogCaptureFixture) -> None:
    named = {"id": "a", "by": "ip", "endpoint": "search", "limit": "1/hour"}
    with caplog.at_level(logging.WARNING, "tidegate"):
        made({**named, "endpoint": "/search"}, {**named, "id": "b", "endpoint": "**"})
        made(named, attributes={"endpoint": lambda scope: "search"})
        made({**named, "enabled": False})
        assert "name the endpoint" not in caplog.text
        app = made(named)
        assert "name the endpoint 'search', and the endpoint of requests here" in caplog.text
        app.limiter.use(RuleSet({"rules": [], "block": [{"endpoint": "export"}]}))
        assert "name the endpoint 'export'" in caplog.text


def test_attributes_that_no_request_has_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidegate"):
        app = made({"id": "a", "by": "usr", "limit": "1/hour"}, attributes={"user": lambda s: "1"})
        assert "look at usr, which no request has here" in caplog.text
        app.limiter.use(RuleSet({"rules": [{"id": "a", "by": "tenant", "limit": "1/hour"}]}))
        assert "look at tenant, which no request has here" in caplog.text


def test_tiers_that_no_request_has_are_named(caplog: pytest.LogCaptureFixture) -> None:
    rule = {"id": "a", "by": "ip", "limits": {"free": "1/hour", "pro": "9/hour"}}
    given = RuleSet({"rules": [rule], "default_tier": "free"})
    said = "name the tiers free, pro, and no request has a tier here, so "
    for more in ({"tiers": Tiers({"7": "pro"})}, {"attributes": {"tier": lambda scope: "pro"}}):
        RateLimitMiddleware(service, rules=given, **more)
    made({**rule, "limits": {"free": "1/hour"}}, default_tier="free")
    made({**rule, "limits": "1/hour"})
    assert "name the tiers" not in caplog.text
    app = made(rule)
    assert said + "those for tiers never apply; expected tiers=" in caplog.text
    app.limiter.use(given)
    assert said + "each has the default tier 'free'; expected tiers=" in caplog.text


def test_an_attribute_without_a_value_in_many_requests_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rule = {"id": "a", "by": "user", "limit": "1/hour"}
    app = made(rule, attributes={"user": lambda scope: None})
    for _ in range(1000):
        app._request_limiter._read({"type": "http", "path": "/", "method": "GET"}, {})
    assert caplog.text.count("the attribute user had no value in 1000 requests") == 1


@pytest.mark.parametrize("reads", [{}, {"user": lambda scope: "7"}], ids=["core", "functions"])
@pytest.mark.parametrize(
    ("endpoint", "lines"), [("/api/login", 1), ("/login", 0), ("/{any}", 0), (None, 0)]
)
def test_rules_whose_endpoints_no_request_has_are_said_once(
    endpoint: str | None, lines: int, reads: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rule = {
        "id": "a",
        "by": "ip",
        "limit": "1/hour",
        **({"endpoint": endpoint} if endpoint else {}),
    }
    app = made(rule, {"id": "b", "by": "global", "limit": "1/hour"}, attributes=reads)
    scope = {"type": "http", "path": "/login", "method": "GET", "client": ("192.0.2.1", 1)}
    for _ in range(2500):
        app._request_limiter.check({**scope, "headers": []})
    assert caplog.text.count("none of the rules of") == lines
    if lines:
        assert "the last of which has the endpoint '/login'" in caplog.text
        app.limiter.use(RuleSet({"rules": [{**rule, "endpoint": "/v2/login"}]}))
        for _ in range(1000):
            app._request_limiter.check({**scope, "headers": []})
        assert caplog.text.count("none of the rules of") == 2


def test_an_async_function_of_tiers_is_refused() -> None:
    async def lookup(user: str) -> str:
        return "premium"

    with pytest.raises(TypeError, match="which is async"):
        Tiers(lookup)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [4.2, ["a"], True, ("acme", 7)])
def test_an_attribute_of_a_wrong_type_raises_where_rules_count_by_it(value: Any) -> None:
    async def later(scope: Any) -> Any:
        return value

    for reader in (lambda scope: value, later):
        app = made(BY_USER, attributes={"user": reader})
        with pytest.raises(ArgumentTypeError, match="attribute user returned a"):
            status(app)


def test_a_function_that_is_annotated_to_return_no_attribute_is_refused() -> None:

    def pair(scope: Any) -> tuple[str, int]:
        return ("acme", 7)

    with pytest.raises(ArgumentTypeError, match=r"attributes\['user'\] .* returns a tuple"):
        made(BY_USER, attributes={"user": pair})
