"""The admin API as an ASGI application."""

from __future__ import annotations

import datetime as dt
import functools
from typing import TYPE_CHECKING, Any, Callable, Optional

from fastapi import APIRouter, FastAPI

from tidegate._core import __version__
from tidegate.server.admin import (
    anomaly_routes,
    audit_routes,
    document_routes,
    entry_routes,
    operation_routes,
    quota_routes,
    rule_routes,
    token_routes,
    user_routes,
)
from tidegate.server.admin.authentication import FAILED_ATTEMPTS, Authentication, Credentials
from tidegate.server.admin.bodies import Problem
from tidegate.server.admin.context import Admin
from tidegate.server.admin.database import AdminDatabase
from tidegate.server.admin.guard import Guard
from tidegate.server.admin.problems import MEDIA_TYPE, add_handlers

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.rules.source import RuleSource
    from tidegate.rules.sql.connection import DatabaseLike
    from tidegate.server.admin.oidc import Oidc
    from tidegate.server.enforcement import Enforcement
    from tidegate.server.late_file import LateFile

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
    anomaly_routes.router,
)
_ANSWERS = {
    400: "The request is malformed.",
    401: "The token is missing or not valid.",
    403: "The token's role may not do this.",
    404: "Nothing is stored under this name or id.",
    409: "The request conflicts with the present state.",
    412: "Somebody else has changed the resource since it was read.",
    413: "The body is too large.",
    415: "The content type of the body is not supported.",
    422: "A value is not accepted; `problems` says which and why.",
    428: "If-Match is missing.",
    429: "Too many requests from this address had a wrong token.",
    503: "The database does not answer.",
}


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


@functools.cache
def _routes() -> list[BaseRoute]:
    """Returns the routes of every admin API of the process, which find their data in a request.

    FastAPI takes a tenth of a second and more to prepare them.
    """
    answers: Any = {
        status: {"description": text, "model": Problem, "content": {MEDIA_TYPE: {}}}
        for status, text in _ANSWERS.items()
    }
    together = APIRouter(responses=answers)
    for router in _ROUTERS:
        together.include_router(router)
    return together.routes


def create_admin(
    database: DatabaseLike,
    *,
    rules: Optional[RuleSource] = None,
    limiter: Optional[RuleLimiter] = None,
    tiers: Any = None,
    oidc: Optional[Oidc] = None,
    enforcement: Optional[Enforcement] = None,
    on_change: Optional[Callable[[str, Optional[str]], object]] = None,
    settings: Optional[dict[str, Any]] = None,
    tier_seen: Callable[[str], Optional[str]] = lambda user: None,
    late: Optional[LateFile] = None,
    failed_attempts: str = FAILED_ATTEMPTS,
    most_body_bytes: int = 8 * 2**20,
    body_timeout: float = 30.0,
    database_timeout: float = 5.0,
    now: Callable[[], dt.datetime] = _utc_now,
) -> FastAPI:
    """Creates the admin API on a database whose tables upgrade() has created.

    `rules` is the source that limiters follow; if it is not a SqlRules, the API lists rules but
    does not change them. `limiter` answers explain and reset. `tiers` (a SqlTiers) forgets users
    whose tier was changed. `enforcement` holds the penalties of anomalies. After a change was
    committed, `on_change` is called with ``"rules"`` and None, or with ``"tiers"`` and the user or
    None. `tier_seen` returns the tier of a user's last check, for users whom the database does not
    know. `late` keeps changes that the database does not take. GET /settings returns `settings`,
    which hold no secrets. The limit `failed_attempts` says how often an address may fail to
    authenticate. Raises ConfigurationError and StorageError.
    """
    app = FastAPI(
        title="tidegate admin",
        version=__version__,
        description="Rules, users, tokens and the audit log. `x-tidegate-role` is the least role "
        "that may call a route: viewer, operator or admin.",
        openapi_url="/v1/admin/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    data = AdminDatabase(database, timeout=database_timeout, now=now, late=late)
    app.state.admin = Admin(
        data,
        rules=rules,
        limiter_or_none=limiter,
        tiers=tiers,
        on_change=on_change,
        settings=settings,
        now=now,
        enforcement=enforcement,
        tier_seen=tier_seen,
    )
    app.routes.extend(_routes())
    app.state.admin_routes = [route for router in _ROUTERS for route in router.routes]
    add_handlers(app)
    _describe_credentials(app)
    # The middleware that is added last sees a request first.
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
