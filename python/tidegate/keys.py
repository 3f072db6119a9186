"""Key functions for the middleware and the decorators, which say whom a request is charged to.

::

    from tidegate import keys

    keys.first_of(keys.api_key(known=accounts), keys.user(), keys.client_ip())
    keys.all_of(keys.client_ip(), user_name)  # each name, apart for each address

Each function here returns a key function, which takes a request and returns a key, or None
if the request has none. A request is an ASGI scope, a WSGI environ, or a request object
of Starlette, FastAPI, Flask, Django, Litestar or Quart. Key functions never raise, whatever a
request contains, and are thread-safe.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Awaitable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Callable, Union
from uuid import UUID

from tidegate._core import peer_of
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, missing
from tidegate.limiter.storage.arguments import explains_arguments
from tidegate.web.addresses import (
    address_of,
    forwarded_nodes,
    grouped,
    listed_nodes,
    networks_of,
    peer_network,
)
from tidegate.web.callables import check_function, wrong_result
from tidegate.web.request_access import connection_of, fields_of, source_of

__all__ = [
    "KeyFunction",
    "all_of",
    "api_key",
    "client_ip",
    "cookie",
    "first_of",
    "header",
    "jwt_claim",
    "peer",
    "user",
]

Key = Union[str, bytes]
KeyFunction = Callable[[Any], Any]
"""A function of a request that returns the key it counts by: a text, bytes, or None for none."""
Known = Union[Container[str], Callable[[str], Any]]


# The longest text of an address, with brackets and a port.
_LONGEST_NODE = 64

# The address that waitress reports for clients of a Unix socket.
_OF_WAITRESS = "localhost"

# No valid credential is longer. Strangers must not make us hash or verify more.
_LONGEST_CREDENTIAL = 8192

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@explains_arguments("client_ip")
def client_ip(
    *,
    trusted_proxies: Iterable[str] = (),
    hops: int | None = None,
    header: str = "x-forwarded-for",
    ipv6_prefix: int = 64,
) -> KeyFunction:
    """Returns a key function for the client's address, from a forwarding header of trusted proxies.

    `trusted_proxies` are addresses and networks (``"10.0.0.0/8"``), and ``"unix"`` for
    connections that have no address. The header is read from right to left, starting with the
    connection's own address: as long as an address is a trusted proxy's, the next entry is read;
    the first address that is not trusted is the client's. At most `hops` entries are believed. If
    the addresses of the proxies are not known, and nobody else can connect, pass
    ``trusted_proxies=["0.0.0.0/0", "::/0", "unix"]`` and the number of proxies as `hops`: the
    result is the address that the outermost proxy saw. Without `trusted_proxies` no header is read,
    and `hops` or another `header` is refused: anybody could send the header.

    `header` is the header that the proxies write: a list of addresses as in X-Forwarded-For, or
    ``"forwarded"`` of RFC 7239. Only one header is read, since a proxy forwards the other as a
    stranger sent it. If the next entry is missing, malformed, unknown or obfuscated, the result is
    the address of the proxy that wrote it. IPv6 addresses count by networks of `ipv6_prefix` bits,
    since one customer has a whole network; IPv4-mapped ones count as IPv4.

    The key is None for clients without an address. Raises ConfigurationError at construction.
    """
    if isinstance(trusted_proxies, Iterable) and not isinstance(trusted_proxies, (str, bytes)):
        trusted_proxies = list(trusted_proxies)  # an iterator is read twice
    networks, trusts_unix = networks_of(trusted_proxies)
    name = _field_name(header)
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 0):
        raise ConfigurationError(f"hops is {hops!r}; expected a number of proxies, or None")
    if isinstance(ipv6_prefix, bool) or not isinstance(ipv6_prefix, int):
        raise ArgumentTypeError(f"ipv6_prefix is {ipv6_prefix!r}; expected an int, 1 to 128")
    if not 1 <= ipv6_prefix <= 128:
        raise ConfigurationError(f"ipv6_prefix is {ipv6_prefix}; expected 1 to 128")
    read = forwarded_nodes if name == "forwarded" else listed_nodes
    if hops and not networks and not trusts_unix:
        raise ConfigurationError(
            f"hops is {hops} without trusted_proxies, so that any client could choose its "
            "address; expected the addresses of the proxies, or trusted_proxies="
            "['0.0.0.0/0', '::/0', 'unix'] if only they can connect"
        )
    if name != "x-forwarded-for" and not networks and not trusts_unix:
        raise ConfigurationError(
            f"header is {header!r} without trusted_proxies, so that it would not be read; expected "
            "the addresses of the proxies that send it, such as trusted_proxies=['10.0.0.0/8']"
        )
    anyone = hops is not None and {each.version for each in networks if each.prefixlen == 0} == {
        4,
        6,
    }

    if ipv6_prefix == 64:
        alone = client_ip(
            trusted_proxies=trusted_proxies, hops=hops, header=header, ipv6_prefix=128
        )

    @functools.lru_cache(maxsize=4096)
    def known(node: str) -> tuple[str, bool] | None:
        """Returns the key of an address, and whether the address is a trusted proxy's."""
        address = address_of(node)
        if address is None:
            return None
        return grouped(address, ipv6_prefix), any(address in network for network in networks)

    def forwarded(request: Any, direct: str | None) -> str | None:
        fields = fields_of(request, name)
        nodes = read(", ".join(fields)) if fields else ()
        if anyone:
            assert hops is not None
            node = nodes[-hops] if len(nodes) >= hops else ""
            found = known(node) if len(node) <= _LONGEST_NODE else None
            return direct if found is None else found[0]
        believed = direct
        for passed, node in enumerate(reversed(nodes)):
            if hops is not None and passed >= hops:
                break
            found = known(node) if len(node) <= _LONGEST_NODE else None
            if found is None:
                break
            believed, is_proxy = found
            if not is_proxy:
                break
        return believed

    def key(request: Any) -> str | None:
        address = connection_of(request)
        if not address or address == _OF_WAITRESS:
            return forwarded(request, None) if hops != 0 and (trusts_unix or anyone) else None
        found = known(address.partition("%")[0]) if len(address) <= _LONGEST_NODE else None
        direct, is_proxy = found or (address, False)
        if hops != 0 and (is_proxy or anyone):
            return forwarded(request, direct)
        return direct

    if ipv6_prefix == 64:
        # Rules count by this prefix themselves, and their lists hold for the address.
        key.address = alone  # type: ignore[attr-defined]
    return key


def peer(request: Any) -> str | None:
    """Returns the address of the connection as a key, IPv6 by networks of 64 bits, or None."""
    address = peer_of(request)
    if address is not None:
        return address
    address = connection_of(request)
    if address is None or ":" not in address:
        return address
    return peer_network(address)


peer.address = connection_of  # type: ignore[attr-defined]


@explains_arguments("api_key")
def api_key(known: Known, *, header: str = "x-api-key") -> KeyFunction:
    """Reads the API key from `header` (for Authorization, the text after ``Bearer``).

    `known` says which keys exist, since anybody can invent one: a container of them, or a function
    of the key, async or not, that returns its account (a text, bytes, an int or a UUID), or whether
    it exists. All keys of an account count together. None, False and an empty text mean that the
    key is unknown; an int is an account even if it is 0 or 1, so a function that returns a number
    for whether a key exists needs a ``bool()`` around it. The limiter gets the account or a digest,
    and never the API key itself. The result is None if the request has no key, or an unknown one.
    """
    check = _known(known)
    name = _field_name(header)

    def key(request: Any) -> Any:
        return _verified("key", _credential(request, name), check)

    return key


@explains_arguments("cookie")
def cookie(name: str, known: Known) -> KeyFunction:
    """Reads the cookie `name`, if `known` accepts its value; see api_key()."""
    check = _known(known)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"the cookie is {name!r}; expected the name of a cookie")

    def key(request: Any) -> Any:
        values = [
            value.strip(" \t").strip('"')
            for field in fields_of(request, "cookie")
            for found, _, value in (pair.partition("=") for pair in field.split(";"))
            if found.strip(" \t") == name
        ]
        # Several cookies of one name come from different paths or domains: none can be preferred.
        return _verified("cookie", values[0] if len(values) == 1 else None, check)

    return key


@explains_arguments("header")
def header(name: str, *, trusted_proxies: Iterable[str]) -> KeyFunction:
    """Reads a header that a gateway sets, such as X-Tenant.

    The header is believed only if the connection comes from `trusted_proxies`, see client_ip();
    ``["0.0.0.0/0", "::/0", "unix"]`` believes everybody. The key is None if the header is missing,
    empty, longer than 8 KiB, or repeated. A value with a comma is that of a repeated header, which
    WSGI servers join.
    """
    name = _field_name(name)
    networks, trusts_unix = networks_of(trusted_proxies)
    if not networks and not trusts_unix:
        raise ConfigurationError(
            "trusted_proxies is empty, so that the header would never be believed; expected "
            "addresses and networks such as '10.0.0.0/8', and 'unix'"
        )

    @functools.lru_cache(maxsize=4096)
    def is_trusted(text: str) -> bool:
        address = address_of(text)
        return address is not None and any(address in network for network in networks)

    def key(request: Any) -> str | None:
        address = connection_of(request)
        if not (is_trusted(address.partition("%")[0]) if address else trusts_unix):
            return None
        fields = fields_of(request, name)
        value = fields[0].strip(" \t") if len(fields) == 1 else ""
        if "," in value or not 0 < len(value) <= _LONGEST_CREDENTIAL:
            return None
        return f"header:{value}"

    return key


def user() -> KeyFunction:
    """Reads the user that the framework has authenticated; None for anonymous users.

    The user is `user` of the request or the scope (Django, Starlette's AuthenticationMiddleware,
    Litestar), Flask-Login's `current_user`, REMOTE_USER of a WSGI server, or what the service has
    put into `request.state.user` (FastAPI, Starlette): a text, an int, a UUID, or an object or
    mapping with pk, id, sub, identity, username or display_name. What authenticates must run
    before.
    """

    def key(request: Any) -> Any:
        source = source_of(request)
        # Django's `user` queries the database, which async views may do only with this method.
        later = getattr(request, "auser", None)
        if later is not None and _in_event_loop():
            return _user_later(later)
        found = source.get("user")
        if found is None and not isinstance(request, Mapping) and "user" not in source:
            try:
                found = getattr(request, "user", None)
            except Exception:  # Litestar raises where no middleware sets it
                found = None
        login = sys.modules.get("flask_login")
        if found is None and login is not None and sys.modules["flask"].has_request_context():
            found = login.current_user
        if found is None:
            found = source.get("REMOTE_USER")
        if found is None:
            state = source.get("state")
            found = state.get("user") if isinstance(state, Mapping) else None
        return _user_key(found)

    key.finds_user = True  # type: ignore[attr-defined]
    return key


@explains_arguments("jwt_claim")
def jwt_claim(
    claim: str = "sub",
    *,
    key: Any,
    algorithms: Iterable[str],
    audience: str | Iterable[str] | None = None,
    issuer: str | None = None,
    leeway: float = 0.0,
    header: str = "authorization",
) -> KeyFunction:
    """Reads a claim of the bearer token, if its signature, expiry, audience and issuer are valid.

    `key` is the secret or public key, or a function of the token that returns it (such as
    ``lambda token: jwks.get_signing_key_from_jwt(token).key`` with PyJWT's PyJWKClient).
    `algorithms` are accepted, never ``"none"``. `leeway` is in seconds. The key is None for
    invalid tokens, and for claims other than str and int. Needs ``tidegate[jwt]``.
    """
    try:
        import jwt
    except ImportError:
        raise ConfigurationError(
            "jwt_claim needs the package PyJWT; expected `pip install 'tidegate[jwt]'`"
        ) from None
    if not isinstance(claim, str) or not claim:
        raise ConfigurationError(f"the claim is {claim!r}; expected a name such as 'sub'")
    if key is None or (isinstance(key, (str, bytes)) and not key):
        raise ConfigurationError(
            "jwt_claim has no key to verify tokens with; expected a secret, a public key, or "
            "a function of the token that returns one"
        )
    accepted = [] if isinstance(algorithms, (str, bytes)) else list(algorithms)
    known = jwt.get_algorithm_by_name
    if not accepted:
        raise ConfigurationError(
            f"the algorithms are {algorithms!r}; expected a list such as ['HS256']"
        )
    for algorithm in accepted:
        try:
            if algorithm.lower() == "none":
                raise ValueError
            known(algorithm)
        except Exception:
            raise ConfigurationError(
                f"the algorithms have {algorithm!r}; expected algorithms of PyJWT other than 'none'"
            ) from None
    name = _field_name(header)
    audiences = audience if audience is None or isinstance(audience, str) else list(audience)

    def read(request: Any) -> str | None:
        token = _credential(request, name)
        if token is None:
            return None
        try:
            claims = jwt.decode(
                token,
                key(token) if callable(key) else key,
                algorithms=accepted,
                audience=audiences,
                issuer=issuer,
                leeway=leeway,
            )
        # The library may raise any exception for a stranger's token, which then has no key.
        except Exception:
            return None
        value = claims.get(claim)
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            return None
        return f"jwt:{value}"

    return read


def first_of(*functions: KeyFunction) -> KeyFunction:
    """Returns the first key that one of `functions` returns, in their order; None if none does."""
    if not functions:
        raise ConfigurationError("first_of() was given no function; expected key functions")
    for function in functions:
        check_function("a function of first_of()", function, ("the request",))

    def key(request: Any) -> Any:
        for number, function in enumerate(functions, 1):
            found = function(request)
            if inspect.isawaitable(found):
                return _first_later(found, functions[number:], request)
            if _is_key(found):
                return found
        return None

    return key


def all_of(*functions: KeyFunction) -> KeyFunction:
    """Returns a key made of the keys of all `functions`: requests count together if all of them are
    equal. None if one of the functions returns none.

    ::

        keys.all_of(keys.client_ip(), lambda request: request.query_params.get("name"))
    """
    if len(functions) < 2:
        raise ConfigurationError(
            f"all_of() was given {len(functions)} functions; expected two key functions or more"
        )
    for function in functions:
        check_function("a function of all_of()", function, ("the request",))

    def key(request: Any) -> Any:
        found = [function(request) for function in functions]
        if any(map(inspect.isawaitable, found)):
            return _joined_later(found)
        return _joined(found)

    return key


async def _joined_later(found: list[Any]) -> Key | None:
    return _joined([await each if inspect.isawaitable(each) else each for each in found])


def _joined(found: list[Any]) -> Key | None:
    """Returns one key for several, which no other keys have."""
    parts = []
    for each in found:
        if each is None or each in ("", b""):
            return None
        if isinstance(each, (int, UUID)) and not isinstance(each, bool):
            each = str(each)
        if not isinstance(each, (str, bytes)):
            raise wrong_result("a function of all_of()", each)
        raw = each if isinstance(each, bytes) else each.encode("utf-8", "surrogatepass")
        parts.append(raw.replace(b"%", b"%25").replace(b"+", b"%2B"))
    joined = b"+".join(parts)
    try:
        return joined.decode()
    except UnicodeDecodeError:
        return joined


async def _first_later(
    first: Awaitable[Any], functions: tuple[KeyFunction, ...], request: Any
) -> Any:
    found = await first
    for function in functions:
        if _is_key(found):
            break
        found = function(request)
        if inspect.isawaitable(found):
            found = await found
    return found if _is_key(found) else None


def _is_key(found: Any) -> bool:
    """Returns whether first_of() goes no further. The number 0 is a key, unlike False."""
    return bool(found) or (isinstance(found, int) and not isinstance(found, bool))


def _field_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"the header is {name!r}; expected a name such as 'x-api-key'")
    return name.lower()


def _credential(request: Any, name: str) -> str | None:
    fields = fields_of(request, name)
    if len(fields) != 1 or len(fields[0]) > _LONGEST_CREDENTIAL:
        return None
    value = fields[0].strip(" \t")
    if name == "authorization":
        scheme, _, value = value.partition(" ")
        if scheme.lower() != "bearer":
            return None
        value = value.strip(" ")
    return value or None


def _known(known: Known) -> Callable[[str], Any]:
    if callable(known):
        return known
    if isinstance(known, (str, bytes)) or not hasattr(known, "__contains__"):
        # The message never shows the value: it may be a secret.
        raise ArgumentTypeError(
            f"known is of type {type(known).__name__}; expected a container of the keys that "
            "exist, or a function that says whether one does"
        )
    return known.__contains__


def _verified(kind: str, value: str | None, check: Callable[[str], Any]) -> Any:
    if value is None or not 0 < len(value) <= _LONGEST_CREDENTIAL:
        return None
    verdict = check(value)
    if inspect.isawaitable(verdict):
        return _verified_later(kind, value, verdict)
    return _credential_key(kind, value, verdict)


async def _verified_later(kind: str, value: str, verdict: Awaitable[Any]) -> Key | None:
    return _credential_key(kind, value, await verdict)


def _credential_key(kind: str, value: str, verdict: Any) -> Key | None:
    is_number = isinstance(verdict, int) and not isinstance(verdict, bool)
    if not verdict and not is_number:
        return None
    if isinstance(verdict, bytes):
        return b"account:" + verdict
    if is_number or isinstance(verdict, (str, UUID)):
        return f"account:{verdict}"
    digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"{kind}:{digest.hexdigest()}"


def _user_key(found: Any) -> str | None:
    if found is None or found == "":
        return None
    if isinstance(found, (str, int, UUID)) and not isinstance(found, bool):
        return f"user:{found}"
    if not getattr(found, "is_authenticated", True):
        return None
    for name in ("pk", "id", "sub", "identity", "username", "display_name"):
        try:
            identity = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
        except NotImplementedError:  # Starlette's BaseUser need not implement it
            continue
        if identity is not None and identity != "":
            return f"user:{identity}"
    get_id = getattr(found, "get_id", None)  # Flask-Login's
    identity = get_id() if callable(get_id) else None
    return None if identity is None else f"user:{identity}"


async def _user_later(later: Callable[[], Awaitable[Any]]) -> str | None:
    return _user_key(await later())


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# Type checkers are to find names that do not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        of_address = ("ip", "remote_address", "get_remote_address", "ip_address")
        of_several = ("both", "combine", "combined", "join")
        elsewhere = {
            **dict.fromkeys(of_address, "tidegate.keys.client_ip()"),
            **dict.fromkeys(of_several, "tidegate.keys.all_of()"),
            **dict.fromkeys(("bearer", "jwt", "token"), "tidegate.keys.jwt_claim()"),
            **dict.fromkeys(("current_user", "user_id"), "tidegate.keys.user()"),
            "from_header": "tidegate.keys.header()",
        }
        raise missing(__name__, name, elsewhere)
