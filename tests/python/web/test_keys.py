"""The key that a request is charged to, whatever strangers send."""

from __future__ import annotations

import asyncio
import random
import sys
from uuid import UUID

import pytest
import tidegate as tg
from servers import limited, statuses
from tidegate import keys

PROXY = "10.0.0.1"
TRUSTED = ["10.0.0.0/8", "2001:db8:ffff::/48"]
EVERYBODY = ["0.0.0.0/0", "::/0", "unix"]


def scope(*lines, peer=PROXY, name="x-forwarded-for", **more):
    headers = [
        (name.encode(), line if isinstance(line, bytes) else line.encode("latin-1"))
        for line in lines
    ]
    return {
        "type": "http",
        "headers": headers,
        "client": None if peer is None else (peer, 5000),
        **more,
    }


def environ(line, peer=PROXY, name="X_FORWARDED_FOR"):
    return {"REQUEST_METHOD": "GET", "REMOTE_ADDR": peer, "HTTP_" + name: line}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.9:4711", "203.0.113.9"),
        (" 203.0.113.9 ", "203.0.113.9"),
        ("1.1.1.1, 203.0.113.9", "203.0.113.9"),
        ("1.1.1.1, 203.0.113.9, 10.2.3.4", "203.0.113.9"),
        ("10.9.9.9, 10.2.3.4", "10.9.9.9"),
        ("2001:db8:1:2:3::9", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:3::9]:443", "2001:db8:1:2::/64"),
        ("203.0.113.9, [2001:db8:ffff::1]", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, ::ffff:10.1.1.1", "203.0.113.9"),
        ("203.0.113.9, _hidden, 10.2.3.4", "10.2.3.4"),
        ("203.0.113.9, unknown", PROXY),
        ("203.0.113.9,", PROXY),
        ("", PROXY),
        ("fe80::1%eth0", PROXY),
        ("999.1.1.1", PROXY),
        ("203.0.113.9:port", PROXY),
        ("[203.0.113.9]:80", PROXY),
        ("[2001:db8::1", PROXY),
        ("[2001:db8::1]x", PROXY),
        ("\xb2\xb3.1.1.1", PROXY),
        ("203.0.113.9\r\nx: y", PROXY),
    ],
)
def test_x_forwarded_for_is_read_behind_trusted_proxies(line, found):
    key = keys.client_ip(trusted_proxies=TRUSTED)
    assert key(scope(line)) == found
    assert key(environ(line)) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("for=203.0.113.9", "203.0.113.9"),
        ('For="203.0.113.9:80";proto=https;by=10.0.0.1', "203.0.113.9"),
        ('for=1.1.1.1, for="[2001:db8:1:2::9]:4711"', "2001:db8:1:2::/64"),
        ('for="[2001:db8:1:2::9]:_port"', "2001:db8:1:2::/64"),
        ("for=203.0.113.9, for=10.2.3.4;by=10.0.0.1", "203.0.113.9"),
        ('for=203.0.113.9;host="a,for=8.8.8.8;b"', "203.0.113.9"),
        (r'for=203.0.113.9;host="a\",for=8.8.8.8"', "203.0.113.9"),
        (r'for="203.0.\113.9"', "203.0.113.9"),
        ('for="x, for=203.0.113.9', "203.0.113.9"),  # a stranger's quotation without an end
        ("for=1.1.1.1, for=_hidden", PROXY),
        ("for=1.1.1.1, for=unknown", PROXY),
        ("for=1.1.1.1, proto=https", PROXY),
        ("for=1.1.1.1, for=8.8.8.8;for=9.9.9.9", PROXY),
        ("203.0.113.9", PROXY),
        (';;;,,=,"', PROXY),
    ],
)
def test_forwarded_is_read_behind_trusted_proxies(line, found):
    key = keys.client_ip(trusted_proxies=TRUSTED, header="forwarded")
    assert key(scope(line, name="forwarded")) == found
    assert key(environ(line, name="FORWARDED")) == found


def test_only_trusted_proxies_are_believed():
    key = keys.client_ip(trusted_proxies=TRUSTED)
    assert key(scope("1.1.1.1", peer="198.51.100.1")) == "198.51.100.1"
    assert key(scope("1.1.1.1", peer=None)) is None
    assert key(scope("1.1.1.1", peer="testclient")) == "testclient"
    assert key(scope("for=1.1.1.1", name="forwarded")) == PROXY
    assert keys.client_ip()(scope("1.1.1.1")) == PROXY
    unix = keys.client_ip(trusted_proxies=["unix"])
    assert unix(scope("1.1.1.1, 203.0.113.9", peer=None)) == "203.0.113.9"
    assert unix(scope("203.0.113.9", peer="localhost")) == "203.0.113.9"  # waitress
    assert unix(scope("1.1.1.1")) == PROXY


@pytest.mark.parametrize("proxies", [["unix", *TRUSTED], [*TRUSTED, "unix"]])
def test_unix_and_networks_are_trusted_in_either_order(proxies):
    key = keys.client_ip(trusted_proxies=proxies)
    assert key(scope("203.0.113.9", peer=None)) == "203.0.113.9"
    assert key(scope("203.0.113.9")) == "203.0.113.9"


@pytest.mark.parametrize("length", [8192, 8193])
def test_a_credential_of_more_than_8192_characters_is_ignored(length):
    key = keys.api_key(known=lambda value: True)
    request = {**scope(""), "headers": [(b"x-api-key", b"k" * length)]}
    assert (key(request) is None) is (length > 8192)


@pytest.mark.parametrize(
    "options", [{"trusted_proxies": TRUSTED}, {"trusted_proxies": EVERYBODY, "hops": 1}]
)
def test_a_node_has_at_most_64_characters(options):
    key = keys.client_ip(**options)
    for length, client in ((63, "192.0.2.1"), (64, "192.0.2.1"), (65, PROXY)):
        assert key(scope("192.0.2.1:_".ljust(length, "a"))) == client, length


def test_lines_of_a_header_are_joined_in_order():
    key = keys.client_ip(trusted_proxies=TRUSTED)
    assert key(scope("1.1.1.1", "203.0.113.9")) == "203.0.113.9"


def test_a_number_of_hops_selects_the_address():
    lines = "1.1.1.1, 203.0.113.9, 10.2.3.4"
    assert keys.client_ip(trusted_proxies=EVERYBODY, hops=1)(scope(lines)) == "10.2.3.4"
    assert keys.client_ip(trusted_proxies=EVERYBODY, hops=2)(scope(lines)) == "203.0.113.9"
    assert (
        keys.client_ip(trusted_proxies=EVERYBODY, hops=2)(scope(lines, peer=None)) == "203.0.113.9"
    )
    assert (
        keys.client_ip(trusted_proxies=EVERYBODY, hops=4)(scope(lines)) == PROXY
    )  # the request did not pass four proxies
    assert keys.client_ip(trusted_proxies=EVERYBODY, hops=0)(scope(lines)) == PROXY
    assert keys.client_ip(trusted_proxies=EVERYBODY, hops=0)(scope(lines, peer=None)) is None
    assert keys.client_ip(trusted_proxies=EVERYBODY, hops=0)(scope(peer=None)) is None
    assert keys.client_ip(trusted_proxies=TRUSTED, hops=1)(scope(lines)) == "10.2.3.4"
    assert keys.client_ip(trusted_proxies=TRUSTED, hops=9)(scope(lines)) == "203.0.113.9"


@pytest.mark.parametrize(
    ("name", "entry"), [("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=1")]
)
def test_only_the_end_of_an_overlong_header_is_read(name, entry):
    key = keys.client_ip(trusted_proxies=EVERYBODY, hops=400, header=name)
    mine = "for=203.0.113.9" if name == "forwarded" else "203.0.113.9"
    assert key(scope(",".join([mine, *[entry] * 399]), name=name)) == "203.0.113.9"
    assert key(scope(",".join(["", mine, *[entry + " " * 9] * 399]), name=name)) == PROXY


@pytest.mark.parametrize(("length", "found"), [(4096, "203.0.113.9"), (4097, "10.2.3.4")])
def test_a_header_of_4096_bytes_is_read_whole(length, found):
    rest = ",10.2.3.4"
    first = "203.0.113.9".ljust(length - len(rest))
    assert keys.client_ip(trusted_proxies=TRUSTED)(scope(first + rest)) == found


def test_entries_of_a_stranger_on_the_left_change_nothing():
    randomness = random.Random(7)
    alphabet = '",;=\\[]:._ for1\xff\x00'
    for name, right in (("x-forwarded-for", "203.0.113.9"), ("forwarded", "for=203.0.113.9")):
        key = keys.client_ip(trusted_proxies=TRUSTED, header=name)
        for length in [*range(300), 4096, 100_000]:
            left = "".join(randomness.choices(alphabet, k=length))
            assert key(scope(f"{left},{right}", name=name)) == "203.0.113.9"
            key(scope(left, name=name))  # no header raises


def test_ipv6_addresses_are_grouped_by_prefix():
    line = "2001:db8:1:2:3:4:5:6"
    assert keys.client_ip(trusted_proxies=EVERYBODY, hops=1, ipv6_prefix=128)(scope(line)) == line
    assert (
        keys.client_ip(trusted_proxies=EVERYBODY, hops=1, ipv6_prefix=48)(scope(line))
        == "2001:db8:1::/48"
    )
    assert keys.client_ip(trusted_proxies=EVERYBODY, hops=1, ipv6_prefix=1)(scope(line)) == "::/1"
    app = limited("1/minute")
    assert statuses(app, 1, client=("2001:db8:1:2::1", 1)) == [200]
    assert statuses(app, 1, client=("2001:db8:1:2:ffff::2", 1)) == [429]
    assert statuses(app, 1, client=("2001:db8:1:3::1", 1)) == [200]


def test_an_api_key_is_recognised_and_never_shown():
    key = keys.api_key({"s3cret"})
    found = key(scope("s3cret", name="x-api-key"))
    assert found.startswith("key:")
    assert "s3cret" not in found
    assert key(scope("guess", name="x-api-key")) is None
    assert key(scope("s3cret", "s3cret", name="x-api-key")) is None
    assert key(scope()) is None
    named = keys.api_key({"s3cret": "acme"}.get, header="authorization")
    assert named(scope("Bearer s3cret", name="authorization")) == "account:acme"
    assert named(scope("Basic s3cret", name="authorization")) is None


@pytest.mark.parametrize(
    ("account", "expected"),
    [
        ("acme", "account:acme"),
        (b"acme\xff", b"account:acme\xff"),
        (7, "account:7"),
        (0, "account:0"),
        (UUID(int=7), f"account:{UUID(int=7)}"),
        (None, None),
        (False, None),
        ("", None),
        (b"", None),
    ],
)
def test_all_api_keys_of_an_account_count_together(account, expected):
    key = keys.api_key({"first": account, "second": account}.get)
    assert key(scope("first", name="x-api-key")) == expected
    assert key(scope("second", name="x-api-key")) == expected


def test_a_cookie_is_the_key():
    key = keys.cookie("session", {"abc"})
    assert key(scope("a=b; session=abc", name="cookie")).startswith("cookie:")
    assert key(scope("session=abc; session=abd", name="cookie")) is None
    assert key(scope("session=abd", name="cookie")) is None


def test_a_header_is_read_only_from_a_gateway():
    key = keys.header("X-Tenant", trusted_proxies=TRUSTED)
    assert key(scope("acme", name="x-tenant")) == "header:acme"
    assert key(scope("a", name="x-tenant")) == "header:a"
    assert key(scope(" ", name="x-tenant")) is None
    assert key(scope("acme", name="x-tenant", peer="198.51.100.1")) is None
    assert key(scope("acme", name="x-tenant", peer=None)) is None
    assert key(scope("acme", "evil", name="x-tenant")) is None
    # As a WSGI server, or a gateway that appends, joins them.
    assert key(scope("evil,acme", name="x-tenant")) is None
    assert key({"REMOTE_ADDR": PROXY, "HTTP_X_TENANT": "evil,acme"}) is None
    assert key({"REMOTE_ADDR": PROXY, "HTTP_X_TENANT": "acme"}) == "header:acme"


class User:
    def __init__(self, pk, is_authenticated=True):
        self.pk = pk
        self.is_authenticated = is_authenticated


def test_the_user_is_the_key():
    key = keys.user()
    assert key(scope(user=User(7))) == "user:7"
    assert key(scope(user=User(7, is_authenticated=False))) is None
    assert key({"REMOTE_USER": "ada"}) == "user:ada"
    assert key(scope("ada", name="remote_user")) is None
    assert key(scope()) is None
    for nobody in ("", None):
        assert key(scope(user=nobody)) is None


class UserOfFlaskLogin:
    def get_id(self):
        return "7"


def test_the_id_of_a_user_may_be_a_method():
    assert keys.user()(scope(user=UserOfFlaskLogin())) == "user:7"


def test_an_object_without_an_id_is_not_a_user():
    assert keys.user()(scope(user=object())) is None


def test_a_name_that_a_user_does_not_implement_is_passed_over():
    from starlette.authentication import BaseUser

    class Named(BaseUser):
        is_authenticated = True
        display_name = "ada"

    with pytest.raises(NotImplementedError):
        Named().identity  # noqa: B018
    assert keys.user()(scope(user=Named())) == "user:ada"


class RequestWithoutAuthentication:
    """As of frameworks that raise where no middleware sets the user."""

    scope = scope()

    @property
    def user(self):
        raise AssertionError("install a middleware")


def test_a_request_whose_user_raises_has_none():
    assert keys.user()(RequestWithoutAuthentication()) is None


def test_what_is_no_request_is_named():
    with pytest.raises(tg.ConfigurationError, match="was given a list; expected an ASGI scope"):
        keys.user()(["203.0.113.9"])


class RequestOfDjango:
    def __init__(self):
        self.META = {"REMOTE_ADDR": PROXY}
        self.user = User("read by a query that blocks")

    async def auser(self):
        return User("awaited")


def test_only_an_event_loop_awaits_the_user_of_django():
    async def in_a_loop():
        return await keys.user()(RequestOfDjango())

    assert keys.user()(RequestOfDjango()) == "user:read by a query that blocks"
    assert asyncio.run(in_a_loop()) == "user:awaited"


def test_without_asyncio_no_user_is_awaited(monkeypatch):
    monkeypatch.delitem(sys.modules, "asyncio")
    assert keys.user()(RequestOfDjango()) == "user:read by a query that blocks"


@pytest.mark.parametrize("slashes", range(6))
def test_a_quote_is_escaped_by_every_other_backslash_before_it(slashes):
    from tidegate.web.addresses import _is_escaped

    for before in ("", "a"):
        text = before + "\\" * slashes + '"'
        assert _is_escaped(text, len(text) - 1) is (slashes in (1, 3, 5))


SECRET = "s" * 32


@pytest.mark.parametrize(
    ("claims", "secret", "algorithm", "found"),
    [
        ({"sub": "ada"}, SECRET, "HS256", "jwt:ada"),
        ({"sub": "ada", "exp": 1}, SECRET, "HS256", None),
        ({"sub": "ada"}, "x" * 32, "HS256", None),
        ({"sub": "ada"}, "", "none", None),
        ({"name": "ada"}, SECRET, "HS256", None),
    ],
)
def test_a_claim_of_a_jwt_is_the_key(claims, secret, algorithm, found):
    import jwt

    token = jwt.encode(claims, secret, algorithm)
    key = keys.jwt_claim(key=SECRET, algorithms=["HS256"])
    assert key(scope(f"Bearer {token}", name="authorization")) == found
    assert key(scope("Bearer " + token[:-2], name="authorization")) is None


@pytest.mark.parametrize(
    ("tenant", "found"),
    [("acme", "jwt:acme"), (7, "jwt:7"), ("", None), (True, None), (["acme"], None), (None, None)],
)
def test_a_claim_is_a_text_or_a_number(tenant, found):
    import jwt

    token = jwt.encode({"tenant": tenant}, SECRET, "HS256")
    key = keys.jwt_claim("tenant", key=SECRET, algorithms=["HS256"])
    assert key(scope(f"Bearer {token}", name="authorization")) == found


def test_a_request_without_a_token_has_no_claim():
    assert keys.jwt_claim(key=SECRET, algorithms=["HS256"])(scope()) is None


def test_a_claim_without_pyjwt_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(tg.ConfigurationError, match=r"pip install 'tidegate\[jwt\]'"):
        keys.jwt_claim(key=SECRET, algorithms=["HS256"])


@pytest.mark.parametrize("key", [0, "0", b"0"])
@pytest.mark.parametrize("is_async", [False, True])
def test_first_of_takes_the_number_0_for_a_key(key, is_async):
    async def later(request):
        return key

    found = keys.first_of(later if is_async else lambda request: key, keys.peer)(scope())
    assert (asyncio.run(found) if is_async else found) == key


@pytest.mark.parametrize("key", [None, "", b"", False])
@pytest.mark.parametrize("is_async", [False, True])
def test_first_of_passes_over_what_is_no_key(key, is_async):
    """False is what `request.user.is_authenticated and request.user.id` has for a visitor."""

    async def later(request):
        return key

    found = keys.first_of(later if is_async else lambda request: key, lambda request: "k")(scope())
    assert (asyncio.run(found) if is_async else found) == "k"
    last = keys.first_of(later if is_async else lambda request: key)(scope())
    assert (asyncio.run(last) if is_async else last) is None


def test_first_of_awaits_each_that_is_async_and_finds_none_where_none_does():
    async def none(request):
        return None

    async def ada(request):
        return "ada"

    assert asyncio.run(keys.first_of(none, ada)(scope())) == "ada"
    assert asyncio.run(keys.first_of(none, keys.user())(scope())) is None
    assert keys.first_of(keys.user(), keys.user())(scope()) is None


def test_all_of_counts_requests_together_that_have_all_keys_in_common():
    key = keys.all_of(keys.client_ip(), lambda request: request.get("login"))
    assert key(scope(login="ada")) == key(scope(login="ada"))
    found = {key(scope(login="ada")), key(scope(login="bob")), key(scope(peer="::1", login="ada"))}
    assert len(found) == 3
    assert key(scope()) is None
    assert key(scope(peer=None, login="ada")) is None


def test_no_two_sets_of_keys_have_one_key_in_common():
    def joined(*parts):
        return keys.all_of(*[lambda request, part=part: part for part in parts])(None)

    pieces = ["a", "b", "a+b", "+", "%", "%2B", b"\xff", "\udcff", 1, "1+"]
    made = [joined(one, other) for one in pieces for other in pieces]
    assert len(set(made)) == len(made)
    assert joined("a", b"b") == "a+b"
    with pytest.raises(tg.ConfigurationError, match=r"all_of\(\) returned a tuple"):
        joined("a", ("b",))


def test_all_of_awaits_its_functions():
    async def ada(request):
        return "ada"

    key = keys.all_of(ada, keys.client_ip())
    assert asyncio.run(key(scope())) == f"ada+{PROXY}"


def test_first_of_tries_keys_in_order_also_async():
    async def lookup(value):
        return value == "s3cret"

    key = keys.first_of(keys.api_key(lookup), keys.user(), keys.client_ip())
    assert asyncio.run(key(scope("s3cret", name="x-api-key"))).startswith("key:")
    guess = scope("guess", name="x-api-key", user=User(7))
    assert asyncio.run(key(guess)) == "user:7"
    assert key(scope()) == PROXY


def test_keys_read_requests_of_all_frameworks():
    import flask
    from django.conf import settings
    from django.http import HttpRequest
    from starlette.requests import Request

    if not settings.configured:
        settings.configure(SECRET_KEY="-")
    key = keys.client_ip(trusted_proxies=TRUSTED)
    assert key(Request(scope("203.0.113.9"))) == "203.0.113.9"
    given = {"X-Forwarded-For": "203.0.113.9"}
    with flask.Flask(__name__).test_request_context(
        headers=given, environ_base={"REMOTE_ADDR": PROXY}
    ):
        assert key(flask.request) == "203.0.113.9"
    django = HttpRequest()
    django.META = environ("203.0.113.9")
    assert key(django) == "203.0.113.9"


@pytest.mark.parametrize(
    "make",
    [
        lambda: keys.client_ip(trusted_proxies="10.0.0.0/8"),
        lambda: keys.client_ip(trusted_proxies=["10.0.0.1/8"]),
        lambda: keys.client_ip(trusted_proxies=[1]),
        lambda: keys.client_ip(hops=1),
        lambda: keys.client_ip(trusted_proxies=[], hops=2),
        lambda: keys.client_ip(hops=-1),
        lambda: keys.client_ip(hops=True),
        lambda: keys.client_ip(ipv6_prefix=0),
        lambda: keys.client_ip(ipv6_prefix=129),
        lambda: keys.client_ip(ipv6_prefix="64"),
        lambda: keys.client_ip(header="a b"),
        lambda: keys.client_ip(header="X-Real-IP"),
        lambda: keys.client_ip(header="forwarded", trusted_proxies=[]),
        lambda: keys.api_key("s3cret"),
        lambda: keys.cookie("", {"a"}),
        lambda: keys.header("x-tenant", trusted_proxies=[]),
        lambda: keys.jwt_claim(key="", algorithms=["HS256"]),
        lambda: keys.jwt_claim("", key="s", algorithms=["HS256"]),
        lambda: keys.jwt_claim(7, key="s", algorithms=["HS256"]),
        lambda: keys.jwt_claim(key="s", algorithms=["none"]),
        lambda: keys.jwt_claim(key="s", algorithms=[]),
        lambda: keys.jwt_claim(key="s", algorithms="HS256"),
        lambda: keys.first_of(),
        lambda: keys.all_of(keys.client_ip()),
        lambda: keys.all_of(keys.client_ip(), "name"),
        lambda: keys.first_of("ip"),
    ],
)
def test_invalid_arguments_raise_at_construction(make):
    with pytest.raises(tg.ConfigurationError, match="expected"):
        make()
