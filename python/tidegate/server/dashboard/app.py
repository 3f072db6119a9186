"""The pages as an ASGI application. Decides who may see them, and what a browser may do."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import jinja2
from sqlalchemy.exc import IntegrityError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tidegate.limiter.errors import ConfigurationError, StorageError
from tidegate.server.admin.authentication import FAILED_ATTEMPTS, Attempts, Credentials
from tidegate.server.admin.guard import check_target
from tidegate.server.admin.problems import ProblemError
from tidegate.server.dashboard.filters import FILTERS, with_invisible_shown
from tidegate.server.dashboard.session import (
    FORM_COOKIE,
    SESSION_COOKIE,
    Session,
    Sessions,
    is_same,
)
from tidegate.server.records.api_tokens import ROLES
from tidegate.server.records.audit import Actor
from tidegate.server.state import ServiceState

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tidegate.server.admin.context import Admin
    from tidegate.server.call_times import Taken
    from tidegate.server.recording import Recorded

__all__ = ["Dashboard", "Visit", "create_pages", "open_route", "signed_in"]

log = logging.getLogger("tidegate")

_HERE = Path(__file__).parent
_MOST_FORM_BYTES = 65_536
_FORM_SECONDS = 30.0
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


@dataclass(eq=False)
class Dashboard:
    """The data of the pages, and the sessions of visitors.

    `recent` returns what was recorded in the last five minutes, `times` how long calls took in
    them, `counters` the numbers of the service, and `ping` the reason why the storage does not
    answer, or None. `state` says which version and which configuration run.
    """

    admin: Admin
    credentials: Credentials
    recent: Callable[[], list[Recorded]]
    counters: Callable[[], dict[str, int]]
    ping: Callable[[], str | None]
    times: Callable[[], list[Taken]] = list
    state: ServiceState = field(default_factory=lambda: ServiceState({}))
    clock: Callable[[], float] = time.time
    limit: InitVar[str] = FAILED_ATTEMPTS

    def __post_init__(self, limit: str) -> None:
        self.sessions = Sessions(self.admin.now)
        self.attempts = Attempts(limit, "tg-dashboard")
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "pages"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(FILTERS)

    def sign_in(self, token: str, remote: str | None) -> str:
        """Opens a session and returns its name. Raises ProblemError if the token is not valid."""
        self.attempts.check(token, remote)
        try:
            actor = self.credentials.actor_of(token, remote)
        except ProblemError as error:
            if error.status == 401:
                self.attempts.note_wrong(token, remote)
                self.credentials.warn_if_closed()
            raise
        return self.sessions.open(token, actor)


class Visit(NamedTuple):
    """One request of a visitor who has signed in."""

    dashboard: Dashboard
    request: Request
    session: Session
    actor: Actor
    form: dict[str, str]

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the URL's query, each name once."""
        return dict(self.request.query_params)

    def path_id(self) -> int:
        """Returns the number in the path. Raises ProblemError if no entry can have it."""
        text: str = self.request.path_params["id"]
        if not text.isascii() or not text.isdigit() or len(text) > 19 or not 1 <= int(text) < 2**63:
            raise ProblemError(404, "There is no such entry.")
        return int(text)

    def may(self, role: str) -> bool:
        """Returns whether the visitor has this role, or a higher one."""
        return _has_role(self.actor, role)

    def render(self, page: str, **values: Any) -> str:
        """Returns the text of a page."""
        text = self.dashboard.templates.get_template(page).render(
            actor=self.actor,
            csrf=self.session.csrf,
            path=self.request.scope["path"],
            may_view=self.may("viewer"),
            may_operate=self.may("operator"),
            **values,
        )
        return with_invisible_shown(text)

    def page(self, page: str, *, status: int = 200, **values: Any) -> Response:
        """Returns an answer with a page."""
        return Response(self.render(page, **values), status, media_type="text/html")

    def parts(self, page: str, names: tuple[str, ...], values: dict[str, Any]) -> Response:
        """Returns HTML by the id of the element that holds it, escaped as in the page."""
        return JSONResponse(
            {"parts": {name: self.render(f"parts/{page}_{name}.html", **values) for name in names}}
        )


def _has_role(actor: Actor, role: str) -> bool:
    return actor.role in ROLES and ROLES.index(actor.role) >= ROLES.index(role)


def signed_in(
    path: str,
    handler: Callable[[Visit], Response],
    *,
    role: str | None = "viewer",
    post: bool = False,
    is_use: bool = True,
) -> Route:
    """Returns a route for visitors who are signed in with `role` or a higher one.

    With None, users without a role may call it too. `handler` runs on a thread.
    """

    async def endpoint(request: Request) -> Response:
        form = await _form_of(request) if post else {}
        return await run_in_threadpool(answer, request, form)

    def answer(request: Request, form: dict[str, str]) -> Response:
        dashboard: Dashboard = request.app.state.dashboard
        name = request.cookies.get(SESSION_COOKIE)
        session = dashboard.sessions.find(name, is_used=is_use)
        actor = None if session is None else _actor_of(dashboard, request, session)
        if session is None or actor is None:
            dashboard.sessions.close(name)
            if post or not is_use:
                raise ProblemError(401, "You are not signed in, or no longer. Sign in again.")
            return RedirectResponse("/dashboard/sign-in", 303)
        if post and not is_same(form.get("csrf"), session.csrf):
            raise ProblemError(403, "The form was not made for this session. Load its page again.")
        if role is not None and not _has_role(actor, role):
            raise ProblemError(403, f"Your role is {actor.role}; expected {role}.")
        return handler(Visit(dashboard, request, session, actor, form))

    return Route(path, endpoint, methods=["POST"] if post else ["GET"])


def _actor_of(dashboard: Dashboard, request: Request, session: Session) -> Actor | None:
    """Returns the present owner of the session's token, or None if the token is not valid now."""
    remote = request.client.host if request.client else None
    try:
        return dashboard.credentials.actor_of(session.token, remote)
    except ProblemError as error:
        if error.status == 401:
            return None
        raise


def open_route(
    path: str, handler: Callable[[Request, dict[str, str]], Response], *, post: bool = False
) -> Route:
    """Returns a route for everybody. A form must hold the secret of its cookie."""

    async def endpoint(request: Request) -> Response:
        form = await _form_of(request) if post else {}
        if post and not is_same(form.get("csrf"), request.cookies.get(FORM_COOKIE)):
            raise ProblemError(403, "The form was not made for this browser. Load its page again.")
        return await run_in_threadpool(handler, request, form)

    return Route(path, endpoint, methods=["POST"] if post else ["GET"])


async def _form_of(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ProblemError(
            415, f"The body is of type {kind!a:.80}; expected application/x-www-form-urlencoded."
        )
    try:
        body = await asyncio.wait_for(_body_of(request), _FORM_SECONDS)
        pairs = urllib.parse.parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=50,
            errors="strict",
        )
    except asyncio.TimeoutError:
        raise ProblemError(408, "The form did not arrive in time.") from None
    except ValueError:
        raise ProblemError(400, "The form cannot be read; expected UTF-8.") from None
    if any("\0" in part for pair in pairs for part in pair):
        raise ProblemError(400, "The form has a NUL character; expected none.")
    return dict(pairs)


async def _body_of(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_FORM_BYTES:
            raise ProblemError(
                413, f"The form is too large; expected at most {_MOST_FORM_BYTES} bytes."
            )
    return body


class _SafeHeaders:
    """ASGI middleware that refuses other sites, frames, caches and odd paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                known = {name.lower() for name, _ in given}
                given += [each for each in _HEADERS if each[0] not in known]
                message = {**message, "headers": given}
            await send(message)

        if scope["type"] == "http":
            try:
                check_target(scope)
            except ProblemError as error:
                answer = Response(error.detail, error.status, media_type="text/plain")
                await answer(scope, receive, send_safely)
                return
        await self._app(scope, receive, send_safely)


async def _show_error(request: Request, error: Exception) -> Response:
    status, text, headers = _answer_to(error)
    dashboard: Dashboard = request.app.state.dashboard
    page = dashboard.templates.get_template("error.html").render(
        status=status, text=text, actor=None, path=""
    )
    return Response(with_invisible_shown(page), status, headers, media_type="text/html")


def _answer_to(error: Exception) -> tuple[int, str, dict[str, str]]:
    if isinstance(error, ProblemError):
        return error.status, error.detail, dict(error.headers or {})
    if isinstance(error, HTTPException):
        text = {404: "There is no such page.", 405: "This page does not accept that method."}
        known = text.get(error.status_code, str(error.detail))
        return error.status_code, known, dict(error.headers or {})
    if isinstance(error, ConfigurationError):
        return 422, str(error).partition("\n")[0], {}
    if isinstance(error, StorageError) and isinstance(error.__cause__, IntegrityError):
        return 409, "Another request changed the same thing. Load the page again.", {}
    if isinstance(error, StorageError):
        log.warning("dashboard: %s", error)
        return (
            503,
            "The database or the storage does not answer. Try again in a moment.",
            {"Retry-After": "1"},
        )
    return 500, "The service failed; its log names the error.", {}


_SHOWN: Any = (ProblemError, HTTPException, StorageError, ConfigurationError, Exception)


def create_pages(dashboard: Dashboard, routes: list[Route]) -> Starlette:
    """Returns the pages as an ASGI application, to be mounted at /dashboard."""
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_SafeHeaders)],
        exception_handlers=dict.fromkeys(_SHOWN, _show_error),
    )
    app.router.redirect_slashes = False
    app.state.dashboard = dashboard
    return app
