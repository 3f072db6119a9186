"""JSON routes of users: what remains, what they used, and a request for another tier."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Annotated, Any, Optional

import sqlalchemy as sa
from fastapi import APIRouter, Depends, FastAPI, Path, Query
from pydantic import BaseModel, ConfigDict, StringConstraints

from tidegate.rules.problems import RulesError
from tidegate.rules.sql import service_tables
from tidegate.rules.sql.stored_rules import StoredRules
from tidegate.server.admin.authentication import FAILED_ATTEMPTS, Authentication, Credentials
from tidegate.server.admin.bodies import UserId
from tidegate.server.admin.context import Admin, AnActor, TheAdmin
from tidegate.server.admin.guard import Guard
from tidegate.server.admin.left_to_user import (
    enforced_on,
    quota_as_json,
    quotas_of,
    rate_limits_of,
)
from tidegate.server.admin.problems import ProblemError, add_handlers
from tidegate.server.admin.rule_routes import tiers_of
from tidegate.server.dashboard import usage
from tidegate.server.records import users
from tidegate.server.records.api_tokens import ROLES
from tidegate.server.records.audit import Actor

__all__ = ["TierUpgrade", "create_user_api", "request_upgrade", "requests_of", "withdraw_request"]

log = logging.getLogger("tidegate")

router = APIRouter(tags=["dashboard"])

_LONGEST_RANGE = 366
_MOST_REQUESTS = 100
_DAY = dt.timedelta(days=1)


def _user_of(
    actor: AnActor,
    user: Annotated[Optional[UserId], Query(description="Only for tokens with a role.")] = None,
) -> str:
    """Returns the user of the token, or any user if the token has a role."""
    if user is not None and user != actor.user and actor.role not in ROLES:
        raise ProblemError(403, "the token belongs to a user; expected a request about that user")
    found = user or actor.user
    if found is None:
        raise ProblemError(422, "user is missing; expected it, since the token belongs to no user")
    return found


AUser = Annotated[str, Depends(_user_of)]


class TierUpgrade(BaseModel):
    """A request for another tier."""

    model_config = ConfigDict(extra="forbid")

    currentTier: Optional[Annotated[str, StringConstraints(max_length=50)]] = None
    requestedTier: Annotated[str, StringConstraints(min_length=1, max_length=50)]
    reason: Annotated[str, StringConstraints(max_length=2000)] = ""


@router.get("/status")
def status(admin: TheAdmin, user: AUser) -> Any:
    """Returns what the user used, and what remains for the user now."""
    now = admin.now()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    last_day = now.replace(minute=0, second=0, microsecond=0) - dt.timedelta(hours=23)
    with admin.database.connect() as connection:
        tier = admin.tier_of(connection, user)
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
        configured = connection.execute(
            sa.select(service_tables.user_quotas.c.name, service_tables.user_quotas.c.document)
            .where(service_tables.user_quotas.c.user_id == user)
            .order_by(service_tables.user_quotas.c.name)
        ).first()
    quotas = [quota_as_json(each) for each in quotas_of(admin, user, tier)]
    stored = configured and {**configured.document, "name": configured.name}
    return {
        "userId": user,
        "tier": tier,
        "quota": quotas[0] if quotas else stored,
        "quotas": quotas,
        "usageStats": stats,
        "rateLimits": rate_limits_of(admin, user, tier),
        "enforced": enforced_on(admin, user, tier),
    }


@router.get("/usage/history")
def history(
    admin: TheAdmin,
    user: AUser,
    startDate: dt.date,
    endDate: dt.date,
) -> Any:
    """Returns the requests of each day of UTC, from the first to the last, both included."""
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
    """Returns the beginning of the first day and the end of the last, in UTC."""
    if last == dt.date.max:  # it has no end that a datetime can hold
        raise ProblemError(422, f"endDate is {last}; expected a day before it")
    if not 0 <= (last - first).days < _LONGEST_RANGE:
        raise ProblemError(
            422,
            f"the days are {first} to {last}; expected the first not after the last, and at most "
            f"{_LONGEST_RANGE} of them",
        )
    since = dt.datetime.combine(first, dt.time(), dt.timezone.utc)
    until = dt.datetime.combine(last + dt.timedelta(days=1), dt.time(), dt.timezone.utc)
    return since, until


@router.post("/tier/upgrade")
def request_upgrade(admin: TheAdmin, actor: AnActor, user: AUser, wish: TierUpgrade) -> Any:
    """Requests another tier. An operator decides; until then the user cannot request another."""
    _check_may_act_for(actor, user)
    with admin.database.change(actor) as change:
        _check_tier(admin, change.connection, wish.requestedTier)
        row = users.user_of(change.connection, user)
        # An operator reads it, so a user does not choose it.
        stated = wish.currentTier if actor.role in ROLES else None
        tier = row.tier if row is not None else stated
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
    log.info(
        "%r requests the tier %s: request %d",
        user,
        wish.requestedTier,
        key[0],
        extra={"upgrade_request": {"id": int(key[0]), "status": "PENDING", **fields}},
    )
    return {
        "id": int(key[0]),
        "userId": user,
        "currentTier": tier,
        "requestedTier": wish.requestedTier,
        "reason": wish.reason,
        "status": "PENDING",
        "createdAt": change.now,
    }


@router.get("/tier/upgrade")
def list_requests(admin: TheAdmin, user: AUser) -> Any:
    """Lists the user's requests for other tiers with the decisions, the newest first."""
    return {"userId": user, "requests": [_body_of(row) for row in requests_of(admin, user)]}


def requests_of(admin: Admin, user: str) -> list[Any]:
    """Returns the rows of a user's requests, the newest first."""
    with admin.database.connect() as connection:
        return users.list_requests(
            connection, status=None, user=user, before=None, most=_MOST_REQUESTS
        )


def _body_of(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "currentTier": row.current_tier,
        "requestedTier": row.requested_tier,
        "reason": row.reason or "",
        "status": row.status,
        "createdAt": row.created_at,
        "decidedAt": row.decided_at,
        "note": row.note,
    }


@router.post("/tier/upgrade/{id}/withdraw")
def withdraw_request(
    admin: TheAdmin, actor: AnActor, user: AUser, id: Annotated[int, Path(ge=1, le=2**63 - 1)]
) -> Any:
    """Withdraws a request that is not decided yet."""
    _check_may_act_for(actor, user)
    with admin.database.change(actor) as change:
        row = users.request_of(change.connection, id)
        if row is None or row.user_id != user:
            raise ProblemError(404, f"there is no request {id} of this user")
        if not users.decide_request(
            change.connection, id, "WITHDRAWN", decided_by=actor.name, note=None, now=change.now
        ):
            raise ProblemError(409, f"request {id} is {row.status}; expected one that is PENDING")
        change.record("request.withdraw", f"request:{id}", before={"status": "PENDING"})
    return {"id": id, "userId": user, "status": "WITHDRAWN"}


def _check_may_act_for(actor: Actor, user: str) -> None:
    if user != actor.user and actor.role not in ("operator", "admin"):
        raise ProblemError(403, f"the token's role is {actor.role}; expected operator")


def _check_tier(admin: Admin, connection: sa.Connection, tier: str) -> None:
    try:
        rules = admin.foreign_rules or StoredRules(connection, admin.database.name).model
    except RulesError:  # an operator decides on the request anyway
        return
    known = tiers_of(rules)
    if known and tier not in known:
        raise ProblemError(422, f"requestedTier is {tier!a:.80}; expected an existing tier")


def create_user_api(admin: Admin, credentials: Credentials, *, limit: str = FAILED_ATTEMPTS) -> Any:
    """Returns the JSON for users as an ASGI application, to be mounted at /v1/dashboard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.admin = admin
    app.routes.extend(router.routes)
    app.state.admin_routes = list(router.routes)
    add_handlers(app)
    app.add_middleware(Guard, most_bytes=65_536, seconds=30.0)
    app.add_middleware(Authentication, credentials=credentials, limit=limit)
    return app
