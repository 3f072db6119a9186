"""Finds out who makes a request. Every route of the admin API needs a token."""

from __future__ import annotations

import ipaddress
import logging
import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from starlette.concurrency import run_in_threadpool

from tidegate.limiter.errors import StorageError
from tidegate.limiter.limiter import Limiter
from tidegate.server.admin.guard import with_safe_headers
from tidegate.server.admin.oidc import OidcError
from tidegate.server.admin.problems import ProblemError, problem_response
from tidegate.server.records.api_tokens import PREFIX, find_token, has_tokens, hash_of, note_use
from tidegate.server.records.audit import Actor

if TYPE_CHECKING:
    import datetime as dt

    from starlette.types import ASGIApp, Receive, Scope, Send

    from tidegate.server.admin.database import AdminDatabase
    from tidegate.server.admin.oidc import Oidc

__all__ = ["ACTOR", "FAILED_ATTEMPTS", "Attempts", "Authentication", "Credentials", "network_of"]

log = logging.getLogger("tidegate")

# The key under which the scope of a request holds the Actor.
ACTOR = "tidegate.actor"
FAILED_ATTEMPTS = "10/minute"
_LONGEST_TOKEN = 8192
_MOST_WRONG = 10_000
# How long a wrong token counts as one, in seconds. It may become right: the keys of its issuer are
# fetched at most once in this time, and clocks differ.
_WRONG_FOR = 30.0
_WARNED_EVERY = 60.0
_BEARER = {"WWW-Authenticate": 'Bearer realm="tidegate"'}
_INVALID = {"WWW-Authenticate": 'Bearer realm="tidegate", error="invalid_token"'}


@dataclass(eq=False)
class Credentials:
    """Finds the owner of a token: in the database, or by its issuer.

    With `needs_role` false, a token of the issuer without a role belongs to a user.
    """

    database: AdminDatabase
    oidc: Oidc | None
    now: Callable[[], dt.datetime]
    needs_role: bool = True
    _warned: float | None = field(default=None, init=False)

    def actor_of(self, token: str, remote: str | None) -> Actor:
        """Returns the owner of `token`. Blocks. Raises ProblemError."""
        if token.startswith(PREFIX) or self.oidc is None:
            return self._of_database(token, remote)
        try:
            return self.oidc.actor_of(token, remote, needs_role=self.needs_role)
        except OidcError as error:
            if error.is_outage:
                raise ProblemError(503, str(error), headers={"Retry-After": "30"}) from None
            if error.has_no_role:
                raise ProblemError(403, str(error)) from None
            raise ProblemError(401, str(error), headers=_INVALID) from None

    def _of_database(self, token: str, remote: str | None) -> Actor:
        now = self.now()
        revoked = self.database.late.revoked  # first: one that is written leaves it meanwhile
        with self.database.connect() as connection:
            row = find_token(connection, token, now)
        if row is None or row.id in revoked:
            raise ProblemError(
                401, "the token is unknown, revoked or has expired", headers=_INVALID
            )
        self._note(row, now)
        return Actor(f"token:{row.id}:{row.name}", row.role, remote)

    def _note(self, row: Any, now: dt.datetime) -> None:
        try:
            with self.database.connect() as connection:
                if note_use(connection, row, now):
                    connection.commit()
        except StorageError as error:  # for example, somebody else writes to the database
            log.info("the use of token %s was not recorded: %s", row.id, error)

    def warn_if_closed(self) -> None:
        """Logs how to make the first token, once a minute at most."""
        moment = time.monotonic()
        if self.oidc is not None or (
            self._warned is not None and moment - self._warned < _WARNED_EVERY
        ):
            return
        self._warned = moment
        with self.database.connect() as connection:
            if has_tokens(connection, self.now()):
                return
        log.warning(
            "the admin API is closed, since no token exists; make one with "
            "`tidegate tokens create %s NAME --role admin`",
            self.database.name,
        )


class Attempts:
    """Remembers wrong tokens, by token and by address. A right token always passes.

    An address with too many wrong tokens has to wait: a token of it that was wrong a moment before
    is refused unread, and another wrong one gets a 429 too. Thread-safe.
    """

    def __init__(
        self, limit: str, prefix: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = Limiter(limit, storage="memory://?capacity=65536", prefix=prefix)
        self._clock = clock
        self._wrong: OrderedDict[str, float] = OrderedDict()  # when each was found to be wrong
        self._lock = threading.Lock()

    def check(self, token: str, remote: str | None) -> None:
        """Raises ProblemError if the token was just wrong, and its address has to wait."""
        with self._lock:
            since = self._wrong.get(hash_of(token))
        if since is not None and self._clock() - since < _WRONG_FOR:
            self._check_address(network_of(remote))

    def note_wrong(self, token: str, remote: str | None) -> None:
        """Counts a wrong token. Raises ProblemError if its address had to wait already."""
        with self._lock:
            self._wrong[hash_of(token)] = self._clock()
            self._wrong.move_to_end(hash_of(token))
            if len(self._wrong) > _MOST_WRONG:
                self._wrong.popitem(last=False)
        address = network_of(remote)
        self._check_address(address)
        self._failures.hit(address)

    def _check_address(self, address: str) -> None:
        waits = self._failures.peek(address)
        if not waits.allowed:
            seconds = math.ceil(waits.retry_after)
            raise ProblemError(
                429,
                f"too many tokens from this address were wrong; expected {seconds} s of quiet",
                headers={"Retry-After": str(seconds)},
            )


class Authentication:
    """ASGI middleware that lets through only requests with a valid token.

    If too many attempts of an address fail, its further wrong tokens are answered with 429. A valid
    token is accepted nevertheless: others behind the same proxy lock no operator out.
    """

    def __init__(self, app: ASGIApp, credentials: Credentials, limit: str) -> None:
        self._app = app
        self._credentials = credentials
        self._attempts = Attempts(limit, "tg-admin")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        send = with_safe_headers(send)
        try:
            scope[ACTOR] = await self._actor_of(scope)
        except ProblemError as error:
            answer = problem_response(error.status, error.detail, error.headers)
            await answer(scope, receive, send)
            return
        except StorageError as error:
            log.warning("admin: %s", error)
            answer = problem_response(503, "the database does not answer", {"Retry-After": "1"})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _actor_of(self, scope: Scope) -> Actor:
        client = scope.get("client")
        remote = client[0] if client else None
        token = _bearer(scope)
        if token is None:
            await run_in_threadpool(self._credentials.warn_if_closed)
            raise ProblemError(
                401, "the request has no token; expected Authorization: Bearer", headers=_BEARER
            )
        self._attempts.check(token, remote)
        try:
            return await run_in_threadpool(self._credentials.actor_of, token, remote)
        except ProblemError as error:
            if error.status == 401:
                self._attempts.note_wrong(token, remote)
                await run_in_threadpool(self._credentials.warn_if_closed)
            raise


def _bearer(scope: Scope) -> str | None:
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        return None
    if len(given) > 1 or len(given[0]) > _LONGEST_TOKEN:
        raise ProblemError(
            401, "the header Authorization is too long or given twice", headers=_BEARER
        )
    text: str = given[0].decode("latin-1")
    scheme, _, token = text.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return None
    return token.strip()


def network_of(remote: str | None) -> str:
    """Returns the /64 network of an IPv6 address, since one client has all of its addresses."""
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return remote or "unknown"
    if address.version == 6:
        return str(ipaddress.ip_network(f"{address}/64", strict=False))
    return str(address)
