"""Accepts tokens of an OpenID Connect issuer, in addition to those of the database."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Callable

from tidegate.limiter.errors import ConfigurationError
from tidegate.server.admin.guard import check_text
from tidegate.server.admin.problems import ProblemError
from tidegate.server.records.api_tokens import ROLES
from tidegate.server.records.audit import Actor

__all__ = ["USER", "Oidc", "OidcError"]

log = logging.getLogger("tidegate")

# A token signed with a secret that both sides know is never accepted.
ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
# The role of a caller who may see only the caller's own data.
USER = "user"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_OF_DISCOVERY = 1_000_000
# The length of the columns that name a user.
_MOST_OF_USER = 255
# How long a request waits for the issuer, in seconds. The fetch continues after that.
_PATIENCE = 2.0
# How many requests may wait for the issuer at once: each holds a thread that others need, and needs
# no valid token for that.
_MOST_WAITING = 8
# The least time between two fetches: unknown key ids must not cause a fetch each time.
_PAUSE = 30.0


class OidcError(Exception):
    """A token that is not accepted.

    `is_outage` if the issuer could not be reached, `has_no_role` if the token is valid, and its
    owner has no role of this service.
    """

    def __init__(self, message: str, *, is_outage: bool = False, has_no_role: bool = False) -> None:
        super().__init__(message)
        self.is_outage = is_outage
        self.has_no_role = has_no_role


class Oidc:
    """Accepts the tokens of one issuer, for one audience.

    `roles` maps values of the claim `role_claim` to viewer, operator and admin. The claim is a text
    or a list of texts, and ``realm_access.roles`` names a claim inside another. Of several roles
    the highest counts. The claim `user_claim` names the user of the rules to whom a token belongs.
    Keys are fetched when they are needed, on a separate thread, and kept for `keys_ttl` seconds.
    While the issuer does not answer, the keys that were fetched last stay valid. Raises
    ConfigurationError.
    """

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        role_claim: str = "roles",
        user_claim: str = "sub",
        roles: Mapping[str, str] | None = None,
        jwks_url: str | None = None,
        keys_ttl: float = 300.0,
        leeway: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for what, url in (("issuer", issuer), ("jwks_url", jwks_url)):
            if url is not None:
                _check_url(what, url)
        if not audience:
            raise ConfigurationError("the audience is empty; expected the audience of the tokens")
        self._issuer = issuer
        self._audience = audience
        self._claim = role_claim
        self._user_claim = user_claim
        self._roles = {name: name for name in ROLES} if roles is None else dict(roles)
        for value, role in self._roles.items():
            if role not in ROLES:
                raise ConfigurationError(
                    f"the role of {value!r} is {role!r}; expected {', '.join(ROLES)}"
                )
        try:
            import jwt
        except ModuleNotFoundError:
            raise ConfigurationError(
                "OIDC needs the package PyJWT; expected `pip install 'tidegate[server]'`"
            ) from None
        self._jwt = jwt
        self._leeway = leeway
        self._keys = _Keys(issuer, jwks_url, keys_ttl, clock)

    def actor_of(self, token: str, remote: str | None, *, needs_role: bool = True) -> Actor:
        """Returns the owner of a token. Waits only briefly for the issuer. Raises OidcError.

        With `needs_role` false, a caller without a role of this service gets the role USER.
        """
        claims = self._claims_of(token)
        user = _name(claims.get(self._user_claim))
        if user is not None and len(user) > _MOST_OF_USER:
            user = None
        role = self._role_of(claims)
        if role is None and user is not None and not needs_role:
            role = USER
        if role is None:
            raise OidcError(
                f"the token's claim {self._claim!r} has no role of this service", has_no_role=True
            )
        return Actor(f"oidc:{claims['sub']}", role, remote, user)

    def _claims_of(self, token: str) -> dict[str, Any]:
        jwt = self._jwt
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise OidcError("the token is neither one of this service nor a JWT") from None
        if header.get("alg") not in ALGORITHMS:
            raise OidcError("the token's algorithm is not accepted; expected RS256 or the like")
        key = self._keys.key(header.get("kid"))
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            raise OidcError(f"the token is not accepted: {error}") from None
        if _name(claims["sub"]) is None:
            raise OidcError("the token's claim 'sub' is not a text that a database can hold")
        return claims

    def _role_of(self, claims: Any) -> str | None:
        value = claims.get(self._claim)
        if value is None:
            value = claims
            for name in self._claim.split("."):
                value = value.get(name) if isinstance(value, dict) else None
        values = value if isinstance(value, list) else [value]
        found = [
            self._roles[each] for each in values if isinstance(each, str) and each in self._roles
        ]
        return max(found, key=ROLES.index, default=None)


def _name(claim: Any) -> str | None:
    """Returns a claim if it is a text that a database can hold and a page can show."""
    if not isinstance(claim, str) or not claim:
        return None
    try:
        check_text(claim)
    except ProblemError:
        return None
    return claim


def _check_url(what: str, url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    is_near = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or (parts.scheme != "https" and not is_near):
        raise ConfigurationError(f"the {what} is {url!r}; expected an https URL")


class _Fetch:
    """One attempt to read the issuer's keys."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.has_succeeded = False


class _Keys:
    """The issuer's keys by their ids. Thread-safe.

    Only a fetch that has succeeded says that a key does not exist: until then, it may be new.
    """

    def __init__(
        self, issuer: str, url: str | None, ttl: float, clock: Callable[[], float]
    ) -> None:
        self._issuer = issuer
        self._url = url
        self._ttl = ttl
        self._clock = clock
        self._known: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._waiting = threading.Semaphore(_MOST_WAITING)
        self._last: _Fetch | None = None
        self._begun = 0.0
        self._fetched: float | None = None

    def key(self, id: object) -> Any:
        """Raises OidcError."""
        if not isinstance(id, str):
            raise OidcError("the token does not name its key; expected a kid")
        known = self._known.get(id)
        is_old = self._fetched is None or self._clock() - self._fetched >= self._ttl
        if known is not None:
            if is_old:
                self._latest()
            return known
        fetch = self._latest()
        if not self._wait_for(fetch):
            raise OidcError("too many requests wait for the issuer", is_outage=True)
        has_succeeded = fetch.has_succeeded  # first: the keys are known before it is set
        known = self._known.get(id)
        if known is not None:
            return known
        if not has_succeeded:
            raise OidcError("the issuer of the token does not answer", is_outage=True)
        raise OidcError("the token names a key that its issuer does not have")

    def _wait_for(self, fetch: _Fetch) -> bool:
        """Waits briefly for a fetch. Returns False at once if too many others wait."""
        if fetch.ended.is_set():
            return True
        if not self._waiting.acquire(blocking=False):
            return False
        try:
            fetch.ended.wait(_PATIENCE)
        finally:
            self._waiting.release()
        return True

    def _latest(self) -> _Fetch:
        """Returns the last fetch, or starts one if it has ended and began some time ago."""
        with self._lock:
            now = self._clock()
            last = self._last
            if last is not None and (not last.ended.is_set() or now - self._begun < _PAUSE):
                return last
            self._begun = now
            self._last = begun = _Fetch()
        thread = threading.Thread(
            target=self._run, args=(begun,), name="tidegate OIDC keys", daemon=True
        )
        thread.start()
        return begun

    def _run(self, fetch: _Fetch) -> None:
        try:
            self._known = self._read()
        except Exception as error:
            log.warning("the keys of %s could not be read: %s", self._issuer, error)
        else:
            self._fetched = self._clock()
            fetch.has_succeeded = True
        finally:
            fetch.ended.set()

    def _read(self) -> dict[str, Any]:
        from jwt import PyJWKClient

        if self._url is None:
            self._url = self._discovered()
        client = PyJWKClient(self._url, cache_jwk_set=False, timeout=5)
        found = {}
        for each in client.get_signing_keys():
            with contextlib.suppress(AttributeError):
                if each.key_id and each.key_type != "oct":
                    found[each.key_id] = each.key
        return found

    def _discovered(self) -> str:
        address = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
        with urllib.request.urlopen(address, timeout=5) as answer:
            said = json.loads(answer.read(_MOST_OF_DISCOVERY))
        if said.get("issuer") != self._issuer:
            raise ConfigurationError(
                f"{address} is about {said.get('issuer')!r:.200}; expected {self._issuer!r}"
            )
        url = said.get("jwks_uri")
        if not isinstance(url, str):
            raise ConfigurationError(f"{address} names no jwks_uri; expected an address")
        _check_url("jwks_uri", url)
        return url
