"""Whom requests are charged to: what a stranger sends never chooses a key."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

import jwt
import pytest
import tidegate as tg
from hypothesis import given
from hypothesis import strategies as st
from tidegate.keys import api_key, client_ip, cookie, first_of, header, jwt_claim, user

Headers = list[tuple[str, str]]


def scope(headers: Headers = (), peer: str | None = "203.0.113.9") -> dict[str, Any]:  # type: ignore[assignment]
    return {
        "type": "http",
        "method": "GET",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": (peer, 4711) if peer is not None else None,
    }


def environ(headers: Headers = (), peer: str | None = "203.0.113.9") -> dict[str, Any]:  # type: ignore[assignment]
    result: dict[str, Any] = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": peer or ""}
    for name, value in headers:
        known = "HTTP_" + name.upper().replace("-", "_")
        result[known] = f"{result[known]},{value}" if known in result else value
    return result


def starlette(headers: Headers = (), peer: str | None = "203.0.113.9") -> Any:  # type: ignore[assignment]
    from starlette.requests import Request

    return Request(scope(headers, peer))


def flask(headers: Headers = (), peer: str | None = "203.0.113.9") -> Any:  # type: ignore[assignment]
    from werkzeug.wrappers import Request

    return Request(environ(headers, peer))


KINDS = pytest.mark.parametrize("kind", [scope, environ, starlette, flask])
XFF = "X-Forwarded-For"


@KINDS
@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        (None, None),
    ],
)
def test_the_connection(kind: Callable[..., Any], peer: str | None, key: str | None) -> None:
    spoofed = [(XFF, "1.1.1.1"), ("Forwarded", "for=1.1.1.1")]
    assert client_ip()(kind(spoofed, peer)) == key


CHAINS = [
    # headers, peer, key
    ([], "10.0.0.1", "10.0.0.1"),
    ([(XFF, "198.51.100.7")], "10.0.0.1", "198.51.100.7"),
    ([(XFF, "198.51.100.7")], "203.0.113.9", "203.0.113.9"),
    ([(XFF, "1.1.1.1, 198.51.100.7, 10.0.0.2")], "10.0.0.1", "198.51.100.7"),
    ([(XFF, "1.1.1.1"), (XFF, "198.51.100.7,10.0.0.2")], "10.0.0.1", "198.51.100.7"),
    ([(XFF, "198.51.100.7:51234")], "10.0.0.1", "198.51.100.7"),
    ([(XFF, "[2001:db8::7]:443")], "10.0.0.1", "2001:db8::/64"),
    ([(XFF, "2001:db8::7")], "10.0.0.1", "2001:db8::/64"),
    ([(XFF, "10.0.0.3, 10.0.0.2")], "10.0.0.1", "10.0.0.3"),
    ([(XFF, "rubbish")], "10.0.0.1", "10.0.0.1"),
    ([(XFF, "1.1.1.1, rubbish, 10.0.0.2")], "10.0.0.1", "10.0.0.2"),
    ([(XFF, "")], "10.0.0.1", "10.0.0.1"),
    ([(XFF, ",,")], "10.0.0.1", "10.0.0.1"),
    ([(XFF, "\xe4\xf6\xfc")], "10.0.0.1", "10.0.0.1"),
    ([(XFF, "1.1.1.1," * 5000 + "198.51.100.7")], "10.0.0.1", "198.51.100.7"),
    ([("Forwarded", "for=198.51.100.7")], "10.0.0.1", "10.0.0.1"),  # not the one that is set
]


@KINDS
@pytest.mark.parametrize(("headers", "peer", "key"), CHAINS)
def test_x_forwarded_for(kind: Callable[..., Any], headers: Headers, peer: str, key: str) -> None:
    assert client_ip(["10.0.0.0/8"])(kind(headers, peer)) == key


@KINDS
@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("for=198.51.100.7", "198.51.100.7"),
        ('For="198.51.100.7:4711";proto=https;by=10.0.0.2', "198.51.100.7"),
        ('proto=https;for="[2001:db8::7]:443"', "2001:db8::/64"),
        ('for=1.1.1.1, for=198.51.100.7;by="a,b;c", for=10.0.0.2', "198.51.100.7"),
        ("for=_hidden", "10.0.0.1"),
        ("for=unknown", "10.0.0.1"),
        ("for=1.1.1.1, for=_hidden, for=10.0.0.2", "10.0.0.2"),
        ('for="198.51.100.7', "10.0.0.1"),
        ("198.51.100.7", "10.0.0.1"),
        ("proto=https", "10.0.0.1"),
        ("for=198.51.100.7, " * 1000, "10.0.0.1"),
    ],
)
def test_forwarded(kind: Callable[..., Any], value: str, key: str) -> None:
    read = client_ip(["10.0.0.0/8"], header="Forwarded")
    assert read(kind([("Forwarded", value), (XFF, "1.1.1.1")], "10.0.0.1")) == key


@pytest.mark.parametrize(
    ("value", "hops", "key"),
    [
        ("1.1.1.1, 198.51.100.7", 1, "198.51.100.7"),
        ("1.1.1.1, 198.51.100.7, 10.0.0.2", 2, "198.51.100.7"),
        ("198.51.100.7", 2, "203.0.113.9"),
        ("rubbish", 1, "203.0.113.9"),
    ],
)
def test_hops(value: str, hops: int, key: str) -> None:
    assert client_ip(hops=hops)(scope([(XFF, value)])) == key


def test_hops_bound_what_is_trusted() -> None:
    read = client_ip(["10.0.0.0/8"], hops=1)
    assert read(scope([(XFF, "198.51.100.7, 10.0.0.2")], "10.0.0.1")) == "10.0.0.2"


def test_a_proxy_on_a_unix_socket() -> None:
    headers = [(XFF, "198.51.100.7")]
    assert client_ip(["unix"])(scope(headers, None)) == "198.51.100.7"
    assert client_ip(["10.0.0.0/8"])(scope(headers, None)) is None
    assert client_ip(["unix"])(scope(headers, "203.0.113.9")) == "203.0.113.9"


def test_the_prefix_is_a_choice() -> None:
    peer = "2001:db8:1:2:3:4:5:6"
    assert client_ip(ipv6_prefix=48)(scope(peer=peer)) == "2001:db8:1::/48"
    assert client_ip(ipv6_prefix=128)(scope(peer=peer)) == peer


@given(st.text(st.characters(max_codepoint=255), max_size=200))
def test_nothing_that_is_sent_gets_past_an_untrusted_peer(value: str) -> None:
    headers = [(XFF, value), ("Forwarded", value)]
    for name in ("x-forwarded-for", "forwarded"):
        read = client_ip(["10.0.0.0/8"], header=name)
        assert read(scope(headers)) == "203.0.113.9"
        assert read(scope(headers, "10.0.0.1")) is not None


@KINDS
def test_api_keys_are_digested(kind: Callable[..., Any]) -> None:
    first = api_key()(kind([("X-API-Key", "secret")]))
    assert first.startswith("key:")
    assert "secret" not in first
    assert first == api_key("authorization")(kind([("Authorization", "bearer secret")]))
    assert api_key()(kind()) is None
    assert api_key("authorization")(kind([("Authorization", "Basic secret")])) is None


def test_two_api_keys_are_none() -> None:
    assert api_key()(scope([("X-API-Key", "a"), ("X-API-Key", "b")])) is None


@KINDS
def test_headers_and_cookies(kind: Callable[..., Any]) -> None:
    request = kind([("X-Tenant", "acme"), ("Cookie", "theme=dark; session=secret")])
    assert header("X-Tenant")(request) == "header:x-tenant:acme"
    assert header("X-Other")(request) is None
    assert "secret" not in cookie("session")(request)
    assert cookie("session")(request) != cookie("theme")(request)
    assert cookie("other")(request) is None


def test_users() -> None:
    class Someone:
        is_authenticated = True
        pk = 42

    class Nobody:
        is_authenticated = False
        pk = 42

    assert user()({**scope(), "user": Someone()}) == "user:42"
    assert user()({**scope(), "user": Nobody()}) is None
    assert user()(scope()) is None


def test_a_claim_is_verified() -> None:
    key = "k" * 32
    read = jwt_claim("sub", key=key, algorithms=["HS256"], audience="api")

    def request(token: str) -> dict[str, Any]:
        return scope([("Authorization", f"Bearer {token}")])

    claims = {"sub": "alice", "aud": "api"}
    assert read(request(jwt.encode(claims, key, "HS256"))) == "jwt:sub:alice"
    assert read(request(jwt.encode(claims, "x" * 32, "HS256"))) is None
    assert read(request(jwt.encode({**claims, "exp": 1}, key, "HS256"))) is None
    assert read(request(jwt.encode({**claims, "aud": "other"}, key, "HS256"))) is None
    assert read(request("rubbish")) is None
    assert read(scope()) is None
    for wrong in ({"key": "", "algorithms": ["HS256"]}, {"key": key, "algorithms": ["none"]}):
        with pytest.raises(tg.ConfigurationError, match="verified"):
            jwt_claim(**wrong)  # type: ignore[arg-type]


def test_the_first_that_there_is() -> None:
    read = first_of(api_key(), header("x-tenant"), client_ip())
    assert read(scope([("X-API-Key", "secret"), ("X-Tenant", "acme")])).startswith("key:")
    assert read(scope([("X-Tenant", "acme")])) == "header:x-tenant:acme"
    assert read(scope()) == "203.0.113.9"


def test_the_first_may_be_async() -> None:
    async def nobody(request: Any) -> None:
        return None

    async def somebody(request: Any) -> str:
        return "somebody"

    async def ask(*functions: Any) -> Any:
        return await first_of(*functions)(scope())

    assert asyncio.run(ask(nobody, client_ip())) == "203.0.113.9"
    assert asyncio.run(ask(nobody, nobody, somebody, client_ip())) == "somebody"
    assert asyncio.run(ask(nobody)) is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: client_ip(["10.0.0.1/8"]), "trusted_proxies"),
        (lambda: client_ip(["proxy.example"]), "trusted_proxies"),
        (lambda: client_ip(hops=0), "hops"),
        (lambda: client_ip(header="x-real-ip"), "forwarded"),
        (lambda: client_ip(ipv6_prefix=0), "ipv6_prefix"),
        (lambda: header("a b"), "header"),
        (lambda: cookie(""), "cookie"),
        (lambda: first_of(), "first_of"),
        (lambda: first_of("x"), "first_of"),  # type: ignore[arg-type]
    ],
)
def test_wrong_input(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(tg.TidegateError, match=said):
        make()
