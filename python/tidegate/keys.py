"""Whom a request is charged to: functions to give as `key`.

    RateLimitMiddleware(app, limit="100/minute", key=first_of(api_key(), user(), client_ip()))

Each takes what the framework calls a request (an ASGI scope, a WSGI environ, or a request of
Starlette, FastAPI, Flask or Django) and returns a key, or None where the request has none,
for the next of first_of() or for the policy `on_no_key`. None of them raises for anything
that a stranger can send. Secrets (API keys, cookies) are digested, so that neither a store
nor a log ever has them. Thread-safe.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import ipaddress
import re
from collections.abc import Awaitable, Iterable
from typing import Any, Callable, Union

from tidegate._errors import ArgumentTypeError, ConfigurationError

__all__ = ["api_key", "client_ip", "cookie", "first_of", "header", "jwt_claim", "user"]

Key = Callable[[Any], Any]
Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

# Longer than any chain of proxies makes it; beyond it a header is a stranger's joke.
_LONGEST_HEADER = 8192
_IPV6_PREFIX = 64
# The connection of a proxy on the same host.
_UNIX = "unix"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# One forwarded-pair of RFC 7239 section 4, and what follows it.
_PAIR = re.compile(
    r"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:\"((?:[^\"\\]|\\.)*)\"|([^,;\" \t]*))[ \t]*([,;]|$)"
)


def client_ip(
    trusted_proxies: Iterable[str] = (),
    *,
    hops: int | None = None,
    header: str = "x-forwarded-for",
    ipv6_prefix: int = _IPV6_PREFIX,
) -> Key:
    """The address of the client; of IPv6 its network, as a subscriber has one of /64.

    Without arguments it is that of the connection, and no header is read. Behind proxies,
    `trusted_proxies` are their networks (CIDR; ``"unix"`` for one that connects through a
    Unix socket): from the connection on, addresses are followed from the right through
    `header` as long as they are trusted, and the first that is not is the client. `hops` is
    how many proxies there are: the client is that many addresses from the right, or with
    `trusted_proxies` too, at most that many.

    `header` is the one that the proxies set, ``"x-forwarded-for"`` or ``"forwarded"``
    (RFC 7239), and no other is ever read: a proxy that sets the one passes on what a
    stranger wrote into the other. Where an address cannot be read (malformed, obfuscated,
    too long) the last one that could be is charged. Raises ConfigurationError for networks,
    hops, headers and prefixes that are not accepted.
    """
    networks, unix = _networks(trusted_proxies)
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 1):
        raise ConfigurationError(f"hops is {hops!r}; accepted is a number of proxies from 1 up")
    if header.lower() not in ("x-forwarded-for", "forwarded"):
        raise ConfigurationError(
            f"the header is {header!r}; accepted are 'x-forwarded-for' and 'forwarded'"
        )
    if isinstance(ipv6_prefix, bool) or ipv6_prefix not in range(1, 129):
        raise ConfigurationError(f"the ipv6_prefix is {ipv6_prefix!r}; accepted is 1 to 128")
    name = header.lower()
    read = _forwarded if name == "forwarded" else _x_forwarded_for

    def key(request: Any) -> str | None:
        peer = _peer(request)
        address = _parse(peer) if peer else None
        if not networks and not unix and hops is None:
            return _grouped(address, ipv6_prefix) if address is not None else peer or None
        # From the connection's end on; None is what cannot be read.
        chain = read(_headers(request, name))
        at = 0
        while at < len(chain) and (hops is None or at < hops):
            if networks or unix:
                trusted = unix if not peer and at == 0 else address and _is_in(address, networks)
                if not trusted:
                    break
            if chain[at] is None:
                break
            address = chain[at]
            at += 1
        if hops is not None and not networks and not unix and at < hops:
            # It did not come through all of them.
            address = _parse(peer) if peer else None
        return _grouped(address, ipv6_prefix) if address is not None else peer or None

    return key


def api_key(header: str = "x-api-key") -> Key:
    """A digest of the API key in `header`; of ``Authorization`` what stands after ``Bearer``."""
    name = _field_name(header)

    def key(request: Any) -> str | None:
        value = _one(request, name)
        if value and name == "authorization":
            scheme, _, value = value.partition(" ")
            value = value.strip() if scheme.lower() == "bearer" else ""
        return f"key:{_digest(value)}" if value else None

    return key


def header(name: str) -> Key:
    """The value of the header `name`. Only for what a trusted proxy sets: anybody can send one."""
    field = _field_name(name)

    def key(request: Any) -> str | None:
        value = _one(request, field)
        return f"header:{field}:{value}" if value else None

    return key


def cookie(name: str) -> Key:
    """A digest of the cookie `name`, such as that of a session."""
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ConfigurationError(f"the cookie is {name!r}; accepted is the name of a cookie")

    def key(request: Any) -> str | None:
        for line in _headers(request, "cookie"):
            for pair in line.split(";"):
                found, _, value = pair.partition("=")
                if found.strip() == name and value.strip():
                    return f"cookie:{name}:{_digest(value.strip())}"
        return None

    return key


def user() -> Key:
    """The authenticated user: of Starlette's AuthenticationMiddleware, Django, or Flask-Login."""

    def key(request: Any) -> str | None:
        found = _user(request)
        if found is None or not getattr(found, "is_authenticated", False):
            return None
        for name in ("pk", "id", "identity", "username", "display_name"):
            try:
                value = getattr(found, name, None)
            except NotImplementedError:  # Starlette's base classes
                continue
            if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
                return f"user:{value}"
        return None

    return key


def jwt_claim(
    claim: str = "sub",
    *,
    key: Any,
    algorithms: Iterable[str],
    header: str = "authorization",
    **options: Any,
) -> Key:
    """A claim of the JSON Web Token in `header`, where its signature and dates hold.

    `key`, `algorithms` and further `options` (`audience`, `issuer`, `leeway`) are those of
    PyJWT's ``decode()``; both are needed, since a token that is not verified says what its
    sender likes. Needs the extra ``tidegate[jwt]``.
    """
    import jwt

    accepted = [algorithms] if isinstance(algorithms, str) else list(algorithms)
    if not key or not accepted or "none" in (name.lower() for name in accepted):
        raise ConfigurationError(
            "a key and algorithms that sign with it are accepted: a token must be verified"
        )
    name = _field_name(header)

    def read(request: Any) -> str | None:
        value = _one(request, name) or ""
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            token = value if name != "authorization" else ""
        if not token or len(token) > _LONGEST_HEADER:
            return None
        try:
            claims = jwt.decode(token.strip(), key, algorithms=accepted, **options)
        except jwt.PyJWTError:
            return None
        found = claims.get(claim)
        if isinstance(found, bool) or not isinstance(found, (str, int)) or found == "":
            return None
        return f"jwt:{claim}:{found}"

    return read


def first_of(*keys: Key) -> Key:
    """The first key that a request has, in this order; functions may be async."""
    for function in keys:
        if not callable(function):
            raise ArgumentTypeError(
                f"first_of() was given {function!r}; accepted are functions of a request"
            )
    if not keys:
        raise ConfigurationError("first_of() was given nothing; accepted are functions")

    def key(request: Any) -> Any:
        for at, function in enumerate(keys):
            found = function(request)
            if inspect.isawaitable(found):
                return _rest(found, request, keys[at + 1 :])
            if found:
                return found
        return None

    return key


async def _rest(found: Awaitable[Any], request: Any, keys: tuple[Key, ...]) -> Any:
    value = await found
    if value or not keys:
        return value
    following = first_of(*keys)(request)
    return await following if inspect.isawaitable(following) else following


# ------------------------------------------------------------------ reading requests


def peer_key(peer: str | None) -> str | None:
    """As client_ip() without arguments, of an address that is read already."""
    if not peer or ":" not in peer:
        return peer or None
    address = _parse(peer)
    return peer if address is None else _grouped(address, _IPV6_PREFIX)


def _environ(request: Any) -> dict[str, Any] | None:
    """What WSGI and Django call a request, of which header fields are HTTP_NAME."""
    if isinstance(request, dict) and "REQUEST_METHOD" in request:
        return request
    for name in ("META", "environ"):
        found = getattr(request, name, None)
        if isinstance(found, dict):
            return found
    return None


def _scope(request: Any) -> Any:
    return getattr(request, "scope", None) if not isinstance(request, dict) else request


def _peer(request: Any) -> str | None:
    environ = _environ(request)
    if environ is not None:
        found = environ.get("REMOTE_ADDR")
        return found if isinstance(found, str) else None
    client = (_scope(request) or {}).get("client")
    return client[0] if client else None


def _headers(request: Any, name: str) -> list[str]:
    """The lines of a field, as they came."""
    environ = _environ(request)
    if environ is not None:
        value = environ.get("HTTP_" + name.upper().replace("-", "_"))
        return [value] if isinstance(value, str) else []
    field = name.encode("latin-1")
    pairs = (_scope(request) or {}).get("headers") or ()
    return [value.decode("latin-1") for known, value in pairs if known.lower() == field]


def _one(request: Any, name: str) -> str | None:
    lines = _headers(request, name)
    # Two where one belongs: nobody can say which is meant.
    value = lines[0].strip() if len(lines) == 1 else ""
    return value if value and len(value) <= _LONGEST_HEADER else None


def _user(request: Any) -> Any:
    environ = _environ(request)
    if environ is None:
        return (_scope(request) or {}).get("user")
    found = getattr(request, "user", None)
    if found is None and hasattr(request, "environ"):
        import sys

        login = sys.modules.get("flask_login")
        found = None if login is None else login.current_user
    return found


# ------------------------------------------------------------------ addresses


def _networks(given: Iterable[str]) -> tuple[tuple[Network, ...], bool]:
    if isinstance(given, str):
        given = (given,)
    networks: list[Network] = []
    unix = False
    for text in given:
        if text == _UNIX:
            unix = True
            continue
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigurationError(
                f"trusted_proxies has {text!r} ({error}); accepted are networks such as "
                "'10.0.0.0/8' and 'fd00::/8', addresses, and 'unix'"
            ) from None
    return tuple(networks), unix


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> Address | None:
    """An address, with or without a port or brackets."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


@functools.lru_cache(maxsize=4096)
def _grouped(address: Address, ipv6_prefix: int) -> str:
    if address.version == 4 or ipv6_prefix == 128:
        return str(address)
    free = 128 - ipv6_prefix
    return f"{ipaddress.IPv6Address(int(address) >> free << free)}/{ipv6_prefix}"


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def _x_forwarded_for(lines: list[str]) -> list[Address | None]:
    """From the right, which is the end that the nearest proxy wrote."""
    text = ",".join(lines)[-_LONGEST_HEADER:]
    return [_parse(part) for part in reversed(text.split(","))] if text else []


def _forwarded(lines: list[str]) -> list[Address | None]:
    text = ", ".join(lines)
    if not text or len(text) > _LONGEST_HEADER:
        return []
    chain: list[Address | None] = []
    current: Address | None = None
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            return []  # where an element ends cannot be told
        if pair[1].lower() == "for":
            value = re.sub(r"\\(.)", r"\1", pair[2]) if pair[2] is not None else pair[3]
            current = _parse(value)
        if pair[4] != ";":
            chain.append(current)
            current = None
        at = pair.end()
    return chain[::-1]


def _field_name(name: object) -> str:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ConfigurationError(f"the header is {name!r}; accepted is the name of a header")
    return name.lower()


def _digest(secret: str) -> str:
    return hashlib.blake2b(secret.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
