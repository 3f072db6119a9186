"""Sessions of the pages. The server keeps them; a browser knows only a random name."""

from __future__ import annotations

import datetime as dt
import hmac
import secrets
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Callable

from tidegate.server.records.api_tokens import ROLES, hash_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from tidegate.server.records.audit import Actor

__all__ = ["FORM_COOKIE", "SESSION_COOKIE", "Session", "Sessions", "is_same", "set_cookie"]

SESSION_COOKIE = "tidegate_session"
# Proves that the browser that sent the form of sign-in is the one that loaded it.
FORM_COOKIE = "tidegate_form"
PATH = "/dashboard"
_LONGEST = dt.timedelta(hours=8)
_IDLE = dt.timedelta(hours=1)
_MOST = 1000
# The most sessions of one person, so that signing in repeatedly ends no other's session.
_MOST_EACH = 100


class Session:
    """A visitor who has signed in. The token is looked up again for each request."""

    def __init__(self, token: str, actor: Actor, now: dt.datetime) -> None:
        self.token = token
        self.owner = actor.name
        self.is_staff = actor.role in ROLES
        self.csrf = secrets.token_urlsafe(32)
        self.begun = now
        self.used = now

    def is_over(self, now: dt.datetime) -> bool:
        """Returns whether the session is too old, or was not used for too long."""
        return now - self.begun >= _LONGEST or now - self.used >= _IDLE


class Sessions:
    """All sessions of this process, at most a thousand. Thread-safe.

    Beyond that the oldest session ends, first those of users, then those of visitors with a role.
    """

    def __init__(self, now: Callable[[], dt.datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        # The keys are hashes of the names, so the time of a look-up tells nothing about a name.
        self._open: OrderedDict[str, Session] = OrderedDict()

    def open(self, token: str, actor: Actor) -> str:
        """Opens a session. Returns its name, for the cookie."""
        name = secrets.token_urlsafe(32)
        made = Session(token, actor, self._now())
        with self._lock:
            own = [key for key, each in self._open.items() if each.owner == made.owner]
            if len(own) >= _MOST_EACH:
                del self._open[own[0]]
            if len(self._open) >= _MOST:
                users = (key for key, each in self._open.items() if not each.is_staff)
                del self._open[next(users, next(iter(self._open)))]
            self._open[hash_of(name)] = made
        return name

    def find(self, name: str | None, *, is_used: bool = True) -> Session | None:
        """Returns the session of that name. A page's own fetches do not count as use."""
        if not name:
            return None
        now = self._now()
        key = hash_of(name)
        with self._lock:
            session = self._open.get(key)
            if session is None:
                return None
            if session.is_over(now):
                del self._open[key]
                return None
            if is_used:
                session.used = now
            return session

    def close(self, name: str | None) -> None:
        """Ends a session."""
        with self._lock:
            self._open.pop(hash_of(name or ""), None)


def is_same(given: str | None, expected: str | None) -> bool:
    """Returns whether a form has the secret that its page was given."""
    if not given or not expected:
        return False
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Sets a cookie that scripts cannot read and other sites cannot send."""
    response.set_cookie(
        name,
        value,
        path=PATH,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
