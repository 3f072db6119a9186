"""The pages about one user: usage, quotas, and the page of a user without a role."""

from __future__ import annotations

import csv
import datetime as dt
import io
import secrets
import urllib.parse
from collections import Counter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from tidegate.limiter.errors import StorageError
from tidegate.rules.sql import service_tables
from tidegate.server.admin import quota_routes
from tidegate.server.admin.audit_routes import neutral_cell
from tidegate.server.admin.bodies import NewTopUp
from tidegate.server.admin.left_to_user import enforced_on, quotas_of, rate_limits_of
from tidegate.server.admin.problems import ProblemError
from tidegate.server.admin.rule_routes import tiers_of
from tidegate.server.dashboard import usage, user_routes
from tidegate.server.dashboard.app import signed_in
from tidegate.server.dashboard.charts import bar_chart
from tidegate.server.dashboard.session import PATH

if TYPE_CHECKING:
    from tidegate.server.dashboard.app import Visit

__all__ = ["ROUTES"]

_MOST_ROWS = 200
_HOUR = dt.timedelta(hours=1)
_LATELY = dt.timedelta(days=30)
_MOST_OF_USER = 255


def user_usage(visit: Visit) -> Response:
    """Shows a user's requests by hour or by day, and what remains of the user's limits."""
    user = _requested_user(visit)
    if not user:
        return visit.page("usage.html", user="", by=_by(visit), periods=[])
    return visit.page("usage.html", **_usage_values(visit, user), **_left_values(visit, user))


def _requested_user(visit: Visit) -> str:
    return visit.query.get("user", "")[:_MOST_OF_USER]


def _by(visit: Visit) -> str:
    return "day" if visit.query.get("by") == "day" else "hour"


def _usage_values(visit: Visit, user: str) -> dict[str, Any]:
    by = _by(visit)
    periods = _periods(visit, user, by)
    allowed, refused = [each.allowed for each in periods], [each.refused for each in periods]
    label = (
        f"Requests by {by} in UTC: {sum(allowed)} allowed, {sum(refused)} refused since "
        f"{periods[0].begin:%Y-%m-%d %H:%M}"
    )
    with visit.dashboard.admin.database.connect() as connection:
        endpoints = usage.by_endpoint(connection, user)
    chart = bar_chart(allowed, refused, label)
    return {"user": user, "by": by, "periods": periods, "endpoints": endpoints, "chart": chart}


def _left_values(visit: Visit, user: str) -> dict[str, Any]:
    admin = visit.dashboard.admin
    tier = _tier_of(visit, user)
    now = admin.now().timestamp()
    return {"tier": tier, "limits": rate_limits_of(admin, user, tier), "now": now}


def _tier_of(visit: Visit, user: str) -> str | None:
    with visit.dashboard.admin.database.connect() as connection:
        return visit.dashboard.admin.tier_of(connection, user)


def _periods(visit: Visit, user: str, by: str) -> list[usage.Period]:
    admin = visit.dashboard.admin
    now = admin.now()
    with admin.database.connect() as connection:
        if by == "day":
            today = now.replace(hour=0, minute=0, second=0, microsecond=0)
            return usage.days_of(connection, user, today - dt.timedelta(days=29), now)
        hour = now.replace(minute=0, second=0, microsecond=0)
        return usage.hours_of(connection, user, hour - 47 * _HOUR, hour + _HOUR)


def usage_csv(visit: Visit) -> Response:
    """Returns the same numbers as a CSV file."""
    user, by = _requested_user(visit), _by(visit)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["user", by, "allowed", "refused"])
    for each in _periods(visit, user, by):
        writer.writerow([neutral_cell(user), each.begin.isoformat(), each.allowed, each.refused])
    headers = {"Content-Disposition": 'attachment; filename="usage.csv"'}
    return Response(text.getvalue(), 200, headers, "text/csv")


def quotas(visit: Visit) -> Response:
    """Shows the quotas of a user, and the rows of quotas and top-ups in the database."""
    user = _requested_user(visit)
    table = service_tables.user_quotas
    asked = sa.select(table).order_by(table.c.user_id, table.c.name).limit(_MOST_ROWS)
    if user:
        asked = asked.where(table.c.user_id == user)
    with visit.dashboard.admin.database.connect() as connection:
        configured = list(connection.execute(asked).all())
        top_ups = quota_routes.top_ups_of(connection, user or None)
    return visit.page(
        "quotas.html",
        configured=configured,
        top_ups=top_ups,
        is_added="added" in visit.query,
        today=visit.dashboard.admin.now().date(),
        once=secrets.token_urlsafe(24),
        **_quota_values(visit, user),
    )


def live_quotas(visit: Visit) -> Response:
    """Returns the user's quotas as they are now."""
    return visit.parts("quotas", ("now",), _quota_values(visit, _requested_user(visit)))


def _quota_values(visit: Visit, user: str) -> dict[str, Any]:
    """Returns a user's quotas, or the reason why the storage does not answer."""
    if not user:
        return {"user": "", "tier": None, "quotas": [], "problem": None}
    tier = _tier_of(visit, user)
    try:
        found = quotas_of(visit.dashboard.admin, user, tier)
    except StorageError as error:
        return {"user": user, "tier": tier, "quotas": [], "problem": str(error).partition("\n")[0]}
    return {"user": user, "tier": tier, "quotas": found, "problem": None}


def top_up(visit: Visit) -> Response:
    """Gives a user units of a quota."""
    new = _top_up_of(visit.form)
    once = visit.form.get("once") or None
    quota_routes.add_top_up(visit.dashboard.admin, visit.actor, new, once)
    query = urllib.parse.urlencode({"user": new.user, "added": "1"})
    return RedirectResponse(f"{PATH}/quotas?{query}", 303)


def _top_up_of(form: dict[str, str]) -> NewTopUp:
    numbers: dict[str, int] = {}
    for name, default in (("units", ""), ("priority", "0")):
        text = form.get(name, "").strip() or default
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 16:
            raise ProblemError(422, f"The {name} are {text!a:.40}; expected a whole number.")
        numbers[name] = int(text)
    try:
        return NewTopUp(
            user=form.get("user", ""),
            quota=form.get("quota") or None,
            reason=form.get("reason", "").strip()[:2000] or None,
            expires_at=_end_of(form.get("expires", "").strip()),
            **numbers,
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProblemError(422, f"{where} is not accepted: {first['msg']}.") from None


def _end_of(day: str) -> dt.datetime | None:
    """Returns the end of a day in UTC."""
    if not day:
        return None
    try:
        return dt.datetime.combine(
            dt.date.fromisoformat(day) + dt.timedelta(days=1), dt.time(), dt.timezone.utc
        )
    except (ValueError, OverflowError):
        raise ProblemError(
            422, f"The day is {day!a:.40}; expected a date such as 2030-01-31."
        ) from None


def me(visit: Visit) -> Response:
    """Shows a user what concerns that user alone."""
    user = _own_user(visit)
    requests = user_routes.requests_of(visit.dashboard.admin, user)
    newest = requests[0] if requests else None
    rules = visit.dashboard.admin.limiter.rules
    return visit.page(
        "me.html",
        requests=requests,
        pending=newest if newest is not None and newest.status == "PENDING" else None,
        decided=newest if _was_decided_lately(visit, newest) else None,
        other_tiers=sorted(tiers_of(rules) - {_tier_of(visit, user) or rules.default_tier}),
        **{**_usage_values(visit, user), **_me_values(visit, user)},
    )


def _was_decided_lately(visit: Visit, request: Any) -> bool:
    if request is None or request.status not in ("APPROVED", "REJECTED"):
        return False
    decided: dt.datetime | None = request.decided_at
    return decided is not None and decided >= visit.dashboard.admin.now() - _LATELY


def live_me(visit: Visit) -> Response:
    """Returns the parts of that page that change."""
    names = ("state", "limits", "quotas", "refusals")
    return visit.parts("me", names, _me_values(visit, _own_user(visit)))


def _own_user(visit: Visit) -> str:
    user = visit.actor.user
    if user is None:
        raise ProblemError(404, "Your token belongs to no user; expected the token of a user.")
    return user


def _me_values(visit: Visit, user: str) -> dict[str, Any]:
    refusals: Counter[tuple[str, str]] = Counter()
    allowed = degraded = 0
    for recorded in visit.dashboard.recent():
        for row in recorded.rows:
            if row.user != user or row.is_rest:
                continue
            allowed += row.allowed
            degraded += row.degraded
            if row.refused:
                refusals[(row.rule or "", row.endpoint or "")] += row.refused
    return {
        **_left_values(visit, user),
        **_quota_values(visit, user),
        "enforced": enforced_on(visit.dashboard.admin, user, _tier_of(visit, user)),
        "allowed": allowed,
        "degraded": degraded,
        "refusals": refusals.most_common(20),
        "refused": sum(refusals.values()),
    }


def ask_for_tier(visit: Visit) -> Response:
    """Requests another tier for the visitor."""
    user = _own_user(visit)
    tier = visit.form.get("tier", "").strip()
    if not 1 <= len(tier) <= 50:
        raise ProblemError(422, "The tier is missing; expected an existing tier.")
    reason = visit.form.get("reason", "").strip()[:2000]
    wish = user_routes.TierUpgrade(requestedTier=tier, reason=reason)
    user_routes.request_upgrade(visit.dashboard.admin, visit.actor, user, wish)
    return RedirectResponse(f"{PATH}/me", 303)


def withdraw(visit: Visit) -> Response:
    """Withdraws the visitor's request for another tier."""
    user_routes.withdraw_request(
        visit.dashboard.admin, visit.actor, _own_user(visit), visit.path_id()
    )
    return RedirectResponse(f"{PATH}/me", 303)


ROUTES = [
    signed_in("/usage", user_usage),
    signed_in("/usage.csv", usage_csv),
    signed_in("/quotas", quotas),
    signed_in("/live/quotas", live_quotas, is_use=False),
    signed_in("/quotas/top-up", top_up, role="operator", post=True),
    signed_in("/me", me, role=None),
    signed_in("/live/me", live_me, role=None, is_use=False),
    signed_in("/me/tier", ask_for_tier, role=None, post=True),
    signed_in("/me/requests/{id}/withdraw", withdraw, role=None, post=True),
]
