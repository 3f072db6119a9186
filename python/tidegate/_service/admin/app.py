"""The admin API as an ASGI application."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Callable, Optional

from fastapi import FastAPI

from tidegate._core import __version__
from tidegate._service.admin import (
    audit_routes,
    document_routes,
    entry_routes,
    operation_routes,
    quota_routes,
    rule_routes,
    token_routes,
    user_routes,
)
from tidegate._service.admin.authentication import FAILED_ATTEMPTS, Authentication, Credentials
from tidegate._service.admin.bodies import Problem
from tidegate._service.admin.context import Admin
from tidegate._service.admin.database import AdminDatabase
from tidegate._service.admin.guard import Guard
from tidegate._service.admin.problems import MEDIA_TYPE, add_handlers

if TYPE_CHECKING:
    from tidegate._database.connection import DatabaseLike
    from tidegate._rule_limiter import RuleLimiter
    from tidegate._rules.source import RuleSource
    from tidegate._service.admin.oidc import Oidc

__all__ = ["create_admin"]

_ROUTERS = (
    rule_routes.router,
    document_routes.router,
    entry_routes.router,
    user_routes.router,
    quota_routes.router,
    operation_routes.router,
    token_routes.router,
    audit_routes.router,
)
_ANSWERS = {
    400: "The request is malformed.",
    401: "There is no token, or it is not good.",
    403: "The token's role may not do this.",
    404: "There is no such thing.",
    409: "What is there does not allow it.",
    412: "Somebody else has changed it.",
    413: "The body is too large.",
    415: "The body is of another type.",
    422: "A value is not accepted; `problems` says which and why.",
    428: "If-Match is missing.",
    429: "Too many tokens from this address were wrong.",
    503: "The database does not answer.",
}


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


def create_admin(
    database: DatabaseLike,
    *,
    rules: Optional[RuleSource] = None,
    limiter: Optional[RuleLimiter] = None,
    tiers: Any = None,
    oidc: Optional[Oidc] = None,
    on_change: Optional[Callable[[str, Optional[str]], object]] = None,
    settings: Optional[dict[str, Any]] = None,
    failed_attempts: str = FAILED_ATTEMPTS,
    most_body_bytes: int = 8 * 2**20,
    body_timeout: float = 30.0,
    database_timeout: float = 5.0,
    now: Callable[[], dt.datetime] = _utc_now,
) -> FastAPI:
    """The admin API on a database that upgrade() has made the tables of.

    `rules` is the source that limiters follow; with a source other than SqlRules, rules are
    listed here but not changed. `limiter` answers explain and reset, `tiers` (a SqlTiers) forgets
    users whose tier was changed. `on_change` is called with ``"rules"`` and None, or ``"tiers"``
    and the user or None, after such a change was committed. `settings` is what GET /settings
    answers: without secrets. An address may fail to authenticate as
    often as the limit `failed_attempts` says. Raises ConfigurationError and StorageError.
    """
    described: Any = {
        status: {
            "description": text,
            "model": Problem,
            "content": {MEDIA_TYPE: {}},
        }
        for status, text in _ANSWERS.items()
    }
    app = FastAPI(
        title="tidegate admin",
        version=__version__,
        description="Rules, users, tokens and the audit log. Each route names the least role that "
        "may ask it as `x-tidegate-role`: viewer, operator or admin.",
        openapi_url="/v1/admin/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=described,
        redirect_slashes=False,
    )
    data = AdminDatabase(database, timeout=database_timeout, now=now)
    app.state.admin = Admin(
        data,
        rules=rules,
        limiter=limiter,
        tiers=tiers,
        on_change=on_change,
        settings=settings,
        now=now,
    )
    for router in _ROUTERS:
        app.include_router(router)
    app.state.admin_routes = [route for router in _ROUTERS for route in router.routes]
    add_handlers(app)
    _describe_credentials(app)
    # The last that is added sees a request first.
    app.add_middleware(Guard, most_bytes=most_body_bytes, seconds=body_timeout)
    app.add_middleware(
        Authentication, credentials=Credentials(data, oidc, now=now), limit=failed_attempts
    )
    return app


def _describe_credentials(app: FastAPI) -> None:
    describe = app.openapi

    def with_credentials() -> dict[str, Any]:
        schema = describe()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["bearer"] = {"type": "http", "scheme": "bearer"}
        schema["security"] = [{"bearer": []}]
        return schema

    app.openapi = with_credentials  # type: ignore[method-assign]
