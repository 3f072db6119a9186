"""Sessions of the pages: kept by the server, known to the browser by a random name alone."""

from __future__ import annotations

import datetime as dt
import hmac
import secrets
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Callable

from tidegate._database.api_tokens import ROLES, hash_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from tidegate._database.audit import Actor

__all__ = ["FORM_COOKIE", "SESSION_COOKIE", "Session", "Sessions", "is_same", "set_cookie"]

SESSION_COOKIE = "tidegate_session"
# Proves that a form of sign-in was filled in where it was shown.
FORM_COOKIE = "tidegate_form"
PATH = "/dashboard"
_LONGEST = dt.timedelta(hours=8)
_IDLE = dt.timedelta(hours=1)
_MOST = 1000
# Of one person: who signs in again and again puts nobody else out.
_MOST_EACH = 100


class Session:
    """Somebody who has signed in. The token is looked up anew with each request."""

    def __init__(self, token: str, actor: Actor, now: dt.datetime) -> None:
        self.token = token
        self.owner = actor.name
        self.is_staff = actor.role in ROLES
        self.csrf = secrets.token_urlsafe(32)
        self.begun = now
        self.used = now

    def is_over(self, now: dt.datetime) -> bool:
        """Whether it has lasted, or was not used, for too long."""
        return now - self.begun >= _LONGEST or now - self.used >= _IDLE


class Sessions:
    """All sessions of this process, at most a thousand. Thread-safe.

    Beyond that the oldest ends, first of users, who are many, then of those who have a role.
    """

    def __init__(self, now: Callable[[], dt.datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        # By a hash of the name: looking one up takes as long whatever is guessed.
        self._open: OrderedDict[str, Session] = OrderedDict()

    def open(self, token: str, actor: Actor) -> str:
        """Begins a session. Returns its name, for the cookie."""
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
        """The session of that name; what a page fetches by itself is no use of it."""
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
    """Whether a form has the secret that it was shown with."""
    if not given or not expected:
        return False
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Sets a cookie that no script reads and no other site has sent."""
    response.set_cookie(
        name,
        value,
        path=PATH,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
