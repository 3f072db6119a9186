"""Adds the dashboard to the application of the admin port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse

from tidegate.server.admin.authentication import Credentials
from tidegate.server.dashboard.app import Dashboard, create_pages
from tidegate.server.dashboard.routes import ROUTES
from tidegate.server.dashboard.user_routes import create_user_api

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

    from tidegate.server.admin.context import Admin
    from tidegate.server.admin.oidc import Oidc

__all__ = ["mount_dashboard"]


def mount_dashboard(app: Starlette, admin: Admin, oidc: Oidc | None, **options: Any) -> Dashboard:
    """Adds /v1/dashboard and /dashboard to `app`; `options` are those of Dashboard."""
    of_users = Credentials(admin.database, oidc, now=admin.now, needs_role=False)
    dashboard = Dashboard(admin, of_users, **options)
    app.mount("/v1/dashboard", create_user_api(admin, of_users))
    app.add_route("/dashboard", _to_overview)
    app.mount("/dashboard", create_pages(dashboard, ROUTES))
    return dashboard


async def _to_overview(request: Request) -> RedirectResponse:
    return RedirectResponse("/dashboard/", 308)
