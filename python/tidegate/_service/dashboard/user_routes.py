"""Routes of users: what is left to them, what they used, and a request for another tier."""

from __future__ import annotations

import datetime as dt
import math
from typing import Annotated, Any, Optional

import sqlalchemy as sa
from fastapi import APIRouter, Depends, FastAPI, Query
from pydantic import BaseModel, ConfigDict, StringConstraints

from tidegate._database import service_tables, users
from tidegate._database.api_tokens import ROLES
from tidegate._database.stored_rules import StoredRules
from tidegate._rules.problems import RulesError
from tidegate._service.admin.authentication import FAILED_ATTEMPTS, Authentication, Credentials
from tidegate._service.admin.bodies import UserId
from tidegate._service.admin.context import Admin, AnActor, TheAdmin
from tidegate._service.admin.guard import Guard
from tidegate._service.admin.problems import ProblemError, add_handlers
from tidegate._service.admin.rule_routes import tiers_of
from tidegate._service.dashboard import usage

__all__ = ["create_user_api", "rate_limits_of"]

router = APIRouter(tags=["dashboard"])

_LONGEST_RANGE = 366
_MOST_RULES = 100
_DAY = dt.timedelta(days=1)


def _user_of(
    actor: AnActor,
    user: Annotated[Optional[UserId], Query(description="For operators: whom to look at.")] = None,
) -> str:
    """Whom a request is about: the token's own user, or any for who has a role."""
    if user is not None and user != actor.user and actor.role not in ROLES:
        raise ProblemError(403, "the token is of a user; expected a look at that user alone")
    found = user or actor.user
    if found is None:
        raise ProblemError(422, "user is missing; expected it, since the token is of no user")
    return found


AUser = Annotated[str, Depends(_user_of)]


class TierUpgrade(BaseModel):
    """A wish for another tier."""

    model_config = ConfigDict(extra="forbid")

    currentTier: Optional[Annotated[str, StringConstraints(max_length=50)]] = None
    requestedTier: Annotated[str, StringConstraints(min_length=1, max_length=50)]
    reason: Annotated[str, StringConstraints(max_length=2000)] = ""


@router.get("/status")
def status(admin: TheAdmin, user: AUser) -> Any:
    """What the user used, and what is left to the user now."""
    now = admin.now()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    last_day = now.replace(minute=0, second=0, microsecond=0) - dt.timedelta(hours=23)
    with admin.database.connect() as connection:
        row = users.user_of(connection, user)
        stats = {
            "totalRequests": usage.requests_since(connection, user, None),
            "requestsToday": usage.requests_since(connection, user, today),
            "requestsThisMonth": usage.requests_since(connection, user, today.replace(day=1)),
            "requestsByEndpoint": usage.by_endpoint(connection, user),
            "hourlyUsage": [
                {"timestamp": int(hour.begin.timestamp()), "value": hour.requests}
                for hour in usage.hours_of(connection, user, last_day, last_day + _DAY)
            ],
        }
        quota = connection.execute(
            sa.select(service_tables.user_quotas.c.name, service_tables.user_quotas.c.document)
            .where(service_tables.user_quotas.c.user_id == user)
            .order_by(service_tables.user_quotas.c.name)
        ).first()
    return {
        "userId": user,
        "tier": row and row.tier,
        "quota": quota and {**quota.document, "name": quota.name},
        "usageStats": stats,
        "rateLimits": rate_limits_of(admin, user, row and row.tier),
    }


def rate_limits_of(admin: Admin, user: str, tier: Optional[str]) -> list[dict[str, Any]]:
    """The limits of rules that count by user, at the first endpoint of each rule."""
    now = admin.now().timestamp()
    found = []
    for rule in list(admin.limiter.rules.rules)[:_MOST_RULES]:
        if not rule.enabled or "user" not in rule.by:
            continue
        endpoint = rule.endpoints[0] if rule.endpoints else "*"
        asked = {"user": user, "endpoint": endpoint, **rule.when}
        if rule.methods:
            asked["method"] = rule.methods[0]
        if tier is not None:
            asked["tier"] = tier
        for each in admin.limiter.explain(**asked):  # type: ignore[arg-type]
            if each.rule != rule.id or not each.applies:
                continue
            found += [
                {
                    "endpoint": endpoint,
                    "rule": rule.id,
                    "limit": state.limit,
                    "remaining": state.remaining,
                    "resetTime": math.ceil(now + state.reset_after)
                    if math.isfinite(state.reset_after)
                    else None,
                }
                for state in each.states
                if state is not None
            ]
    return found


@router.get("/usage/history")
def history(
    admin: TheAdmin,
    user: AUser,
    startDate: dt.date,
    endDate: dt.date,
) -> Any:
    """Requests of each day of UTC, from the first to the last, both included."""
    since, until = span_of(startDate, endDate)
    with admin.database.connect() as connection:
        days = usage.days_of(connection, user, since, until)
    return {
        "userId": user,
        "startDate": startDate,
        "endDate": endDate,
        "days": [
            {
                "date": day.begin.date(),
                "requests": day.requests,
                "allowed": day.allowed,
                "refused": day.refused,
            }
            for day in days
        ],
    }


def span_of(first: dt.date, last: dt.date) -> tuple[dt.datetime, dt.datetime]:
    """From the beginning of the first day to the end of the last, in UTC."""
    if not 0 <= (last - first).days < _LONGEST_RANGE or last == dt.date.max:
        raise ProblemError(
            422,
            f"the days are {first} to {last}; expected the first before the last, and at most "
            f"{_LONGEST_RANGE} of them",
        )
    since = dt.datetime.combine(first, dt.time(), dt.timezone.utc)
    until = dt.datetime.combine(last + dt.timedelta(days=1), dt.time(), dt.timezone.utc)
    return since, until


@router.post("/tier/upgrade")
def request_upgrade(admin: TheAdmin, actor: AnActor, user: AUser, wish: TierUpgrade) -> Any:
    """Asks for another tier. An operator decides; until then there is one request at most."""
    if user != actor.user and actor.role not in ("operator", "admin"):
        raise ProblemError(403, f"the token's role is {actor.role}; expected operator")
    with admin.database.change(actor) as change:
        _check_tier(admin, change.connection, wish.requestedTier)
        row = users.user_of(change.connection, user)
        tier = row.tier if row is not None else wish.currentTier
        if tier == wish.requestedTier:
            raise ProblemError(409, f"the tier is {tier!a:.60} already; expected another one")
        if users.list_requests(change.connection, status="PENDING", user=user, before=None, most=1):
            raise ProblemError(409, "a request is pending already; expected a decision first")
        fields = {
            "user_id": user,
            "current_tier": tier,
            "requested_tier": wish.requestedTier,
            "reason": wish.reason or None,
        }
        key = change.connection.execute(
            sa.insert(service_tables.upgrade_requests),
            {**fields, "status": "PENDING", "created_at": change.now},
        ).inserted_primary_key
        assert key is not None
        change.record("request.create", f"request:{key[0]}", after=fields)
    return {
        "id": int(key[0]),
        "userId": user,
        "currentTier": tier,
        "requestedTier": wish.requestedTier,
        "reason": wish.reason,
        "status": "PENDING",
        "createdAt": change.now,
    }


def _check_tier(admin: Admin, connection: sa.Connection, tier: str) -> None:
    try:
        rules = admin.foreign_rules or StoredRules(connection, admin.database.name).model
    except RulesError:  # an operator looks at the request anyway
        return
    known = tiers_of(rules)
    if known and tier not in known:
        raise ProblemError(422, f"requestedTier is {tier!a:.80}; expected one that there is")


def create_user_api(admin: Admin, credentials: Credentials, *, limit: str = FAILED_ATTEMPTS) -> Any:
    """The JSON for users as an ASGI application, to be mounted at /v1/dashboard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.admin = admin
    app.include_router(router)
    app.state.admin_routes = list(router.routes)
    add_handlers(app)
    app.add_middleware(Guard, most_bytes=65_536, seconds=30.0)
    app.add_middleware(Authentication, credentials=credentials, limit=limit)
    return app
