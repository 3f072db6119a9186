"""Routes of single users: tiers, limits of their own, overrides, and requests for other tiers."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal, Optional

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query

from tidegate.rules.model import Override
from tidegate.rules.problems import RulesError
from tidegate.rules.sql import schema
from tidegate.rules.sql.read import fields_of_override, times_as_texts
from tidegate.rules.sql.rows import rows_as_shown
from tidegate.rules.sql.stored_rules import StoredRules, compiled_model
from tidegate.rules.sql.write import override_row
from tidegate.server.admin.bodies import (
    Decided,
    Note,
    Status,
    StoredOverride,
    UpgradeRequest,
    User,
    UserId,
    UserTier,
)
from tidegate.server.admin.context import Admin, AdminRoute, AnActor, TheAdmin, role
from tidegate.server.admin.database import Change
from tidegate.server.admin.entry_breadth import FEW_VALUES
from tidegate.server.admin.left_to_user import bring_forward
from tidegate.server.admin.problems import ProblemError
from tidegate.server.admin.rule_edits import Proposal
from tidegate.server.admin.rule_routes import tiers_of
from tidegate.server.records import users

__all__ = ["router"]

log = logging.getLogger("tidegate")

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin", tags=["users"])

RowId = Annotated[int, Path(ge=1, le=2**63 - 1)]
Before = Annotated[Optional[int], Query(ge=1, le=2**63 - 1)]
Most = Annotated[int, Query(ge=1, le=1000)]


@router.get("/users", openapi_extra=role("viewer"), response_model=list[User])
def list_users(
    admin: TheAdmin,
    tier: Optional[str] = None,
    after: Annotated[Optional[str], Query(description="The last user of the page before.")] = None,
    limit: Most = 100,
) -> Any:
    """Lists the users that have a tier, or limits of their own."""
    with admin.database.connect() as connection:
        return users.list_users(connection, tier=tier, after=after, most=limit)


@router.get("/users/{user_id:path}", openapi_extra=role("viewer"), response_model=User)
def read_user(admin: TheAdmin, user_id: str) -> Any:
    """Returns the tier and the limits of a user."""
    with admin.database.connect() as connection:
        row = users.user_of(connection, user_id)
    if row is None:
        raise ProblemError(404, f"user {user_id!a:.80} has the default tier, and no own limits")
    return row


@router.put("/users/{user_id:path}", openapi_extra=role("operator"), response_model=User)
def put_user(
    admin: TheAdmin, actor: AnActor, user_id: Annotated[UserId, Path()], new: UserTier
) -> Any:
    """Sets the tier of a user, and limits of the user's own."""
    more: dict[str, Any] = {}
    if "custom_limits" in new.model_fields_set:
        given = new.model_dump(mode="json", exclude_defaults=True).get("custom_limits")
        more["custom_limits"] = given or None
    with admin.database.change(actor, of_rules=bool(more)) as change:
        _check_tier(change, admin, new.tier)
        before = users.user_of(change.connection, user_id)
        bring_forward(admin, user_id, before and before.tier)
        users.set_tier(change.connection, user_id, new.tier, change.now, **more)
        if more:
            _check_limits_of(change, admin, user_id)
        after = users.user_of(change.connection, user_id)
        change.record("user.set", f"user:{user_id}", before=_body_of(before), after=_body_of(after))
    admin.tier_changed(user_id)
    if more:
        admin.rules_changed()
    bring_forward(admin, user_id, new.tier)
    return after


@router.delete("/users/{user_id:path}", openapi_extra=role("operator"), status_code=204)
def delete_user(admin: TheAdmin, actor: AnActor, user_id: str) -> None:
    """Gives a user the default tier, and removes the user's own limits."""
    with admin.database.change(actor) as change:
        before = users.user_of(change.connection, user_id)
        if before is None:
            raise ProblemError(404, f"there is no user {user_id!a:.80}")
        bring_forward(admin, user_id, before.tier)
        users.delete_user(change.connection, user_id)
        change.record("user.delete", f"user:{user_id}", before=_body_of(before))
    admin.tier_changed(user_id)
    if before.custom_limits is not None:
        admin.rules_changed()
    bring_forward(admin, user_id, None)


def _body_of(row: Any) -> Optional[dict[str, Any]]:
    return None if row is None else {"tier": row.tier, "custom_limits": row.custom_limits}


def _check_limits_of(change: Change, admin: Admin, key: Any) -> None:
    """Raises RulesError if what was written for a key makes the rules unacceptable.

    What is written for one key does not depend on other keys.
    """
    StoredRules(change.connection, admin.database.name, key)


def _check_tier(change: Change, admin: Admin, tier: str) -> None:
    try:
        rules = admin.foreign_rules or StoredRules(change.connection, admin.database.name).model
    except RulesError:  # an operator can help a user even while the rules are broken
        return
    known = tiers_of(rules)
    if known and tier not in known:
        raise ProblemError(422, f"the tier is {tier!a:.80}; expected {', '.join(sorted(known))}")


@router.get(
    "/ratelimit/overrides", openapi_extra=role("viewer"), response_model=list[StoredOverride]
)
def list_overrides(
    admin: TheAdmin,
    rule: Optional[str] = None,
    after: Annotated[Optional[int], Query(ge=0, le=2**63 - 1)] = None,
    limit: Most = 100,
) -> Any:
    """Lists other limits for single keys of rules."""
    table = schema.overrides
    asked: sa.ColumnElement[bool] = sa.true()
    if rule is not None:
        asked = sa.and_(asked, table.c.rule_id == rule)
    if after is not None:
        asked = sa.and_(asked, table.c.id > after)
    with admin.database.connect() as connection:
        return [_override_said(row) for row in rows_as_shown(connection, table, asked, limit)]


@router.post(
    "/ratelimit/overrides",
    openapi_extra=role("operator"),
    response_model=StoredOverride,
    status_code=201,
)
def add_override(admin: TheAdmin, actor: AnActor, new: Override) -> Any:
    """Gives one key of a rule other limits, until a time."""
    admin.check_own_rules()
    with admin.database.change(actor, of_rules=True) as change:
        row = _accepted(change, admin, new)
        times = {"created_at": change.now, "updated_at": change.now}
        key = change.connection.execute(
            sa.insert(schema.overrides), {**row, **times}
        ).inserted_primary_key
        assert key is not None
        _check_limits_of(change, admin, new.key)
        after = _override(change, int(key[0]))
        change.record("override.create", f"override:{key[0]}", after=times_as_texts(after))
    admin.rules_changed()
    return after


@router.put(
    "/ratelimit/overrides/{id}", openapi_extra=role("operator"), response_model=StoredOverride
)
def change_override(admin: TheAdmin, actor: AnActor, id: RowId, new: Override) -> Any:
    """Replaces an override."""
    admin.check_own_rules()
    with admin.database.change(actor, of_rules=True) as change:
        before = _override(change, id)
        table = schema.overrides
        change.connection.execute(sa.delete(table).where(table.c.id == id))
        row = _accepted(change, admin, new)
        times = {"created_at": change.now, "updated_at": change.now}
        change.connection.execute(sa.insert(table), {**row, **times, "id": id})
        _check_limits_of(change, admin, new.key)
        after = _override(change, id)
        change.record(
            "override.update",
            f"override:{id}",
            before=times_as_texts(before),
            after=times_as_texts(after),
        )
    admin.rules_changed()
    return after


@router.delete("/ratelimit/overrides/{id}", openapi_extra=role("operator"), status_code=204)
def delete_override(admin: TheAdmin, actor: AnActor, id: RowId) -> None:
    """Ends an override."""
    admin.check_own_rules()
    with admin.database.change(actor, of_rules=True) as change:
        before = _override(change, id)
        table = schema.overrides
        change.connection.execute(sa.delete(table).where(table.c.id == id))
        change.record("override.delete", f"override:{id}", before=times_as_texts(before))
    admin.rules_changed()


def _accepted(change: Change, admin: TheAdmin, new: Override) -> dict[str, Any]:
    """Returns the row of an override, if the rules are accepted with it."""
    row = override_row(new)
    stored = StoredRules(change.connection, admin.database.name)
    data = {**stored.document.data, "overrides": [new.model_dump(exclude_none=True)]}
    rules = compiled_model(Proposal(data, {("overrides", 0): ()}))
    counts_by = next(rule.by for rule in rules.rules if rule.id == new.rule)
    if change.actor.role != "admin" and FEW_VALUES.issuperset(counts_by):
        raise ProblemError(
            403,
            f"the rule {new.rule!a:.120} counts everybody together; expected a rule that counts by "
            "callers or endpoints, or a token with the role admin",
        )
    until = row["expires_at"]
    if until is not None and until <= change.now:
        raise ProblemError(422, f"until is {until.isoformat()}; expected a time to come")
    if len(row["limits"]) > 1000:
        raise ProblemError(422, "limits has more than 1000 characters; expected fewer")
    return row


def _override(change: Change, id: int) -> dict[str, Any]:
    table = schema.overrides
    rows = rows_as_shown(change.connection, table, table.c.id == id, 1)
    if not rows:
        raise ProblemError(404, f"there is no override {id}")
    return _override_said(rows[0])


def _override_said(row: Any) -> dict[str, Any]:
    return {"id": row.id, **fields_of_override(row)}


@router.get("/upgrade-requests", openapi_extra=role("viewer"), response_model=list[UpgradeRequest])
def list_requests(
    admin: TheAdmin,
    status: Optional[Status] = None,
    user: Optional[str] = None,
    before: Before = None,
    limit: Most = 100,
) -> Any:
    """Lists users' requests for other tiers, the newest first."""
    with admin.database.connect() as connection:
        return users.list_requests(connection, status=status, user=user, before=before, most=limit)


@router.post(
    "/upgrade-requests/{id}/approve", openapi_extra=role("operator"), response_model=Decided
)
def approve(admin: TheAdmin, actor: AnActor, id: RowId, note: Note = Note()) -> Any:  # noqa: B008
    """Gives the user the tier that was requested."""
    return _decide(admin, actor, id, "APPROVED", note.note)


@router.post(
    "/upgrade-requests/{id}/reject", openapi_extra=role("operator"), response_model=Decided
)
def reject(admin: TheAdmin, actor: AnActor, id: RowId, note: Note = Note()) -> Any:  # noqa: B008
    """Leaves the user's tier as it is."""
    return _decide(admin, actor, id, "REJECTED", note.note)


def _decide(
    admin: TheAdmin,
    actor: AnActor,
    id: int,
    status: Literal["APPROVED", "REJECTED"],
    note: Optional[str],
) -> dict[str, Any]:
    with admin.database.change(actor) as change:
        request = users.request_of(change.connection, id)
        if request is None:
            raise ProblemError(404, f"there is no request {id}")
        if request.status != "PENDING":
            raise ProblemError(
                409, f"request {id} is {request.status}; expected one that is PENDING"
            )
        user = request.user_id
        row = users.user_of(change.connection, user)
        before = {"status": "PENDING", "tier": row and row.tier}
        tier = row and row.tier
        is_decided = users.decide_request(
            change.connection, id, status, decided_by=actor.name, note=note, now=change.now
        )
        if not is_decided:
            raise ProblemError(409, f"somebody else has just decided request {id}")
        if status == "APPROVED":
            tier = request.requested_tier
            _check_tier(change, admin, tier)
            bring_forward(admin, user, row and row.tier)
            users.set_tier(change.connection, user, tier, change.now)
        action = "request.approve" if status == "APPROVED" else "request.reject"
        after = {"status": status, "tier": tier, "user": user, "note": note}
        change.record(action, f"request:{id}", before=before, after=after)
    if status == "APPROVED":
        admin.tier_changed(user)
        bring_forward(admin, user, tier)
    log.info(
        "request %d of %r for the tier %s is %s",
        id,
        user,
        request.requested_tier,
        status,
        extra={"upgrade_request": {"id": id, "decided_by": actor.name, **after}},
    )
    return {"id": id, "status": status, "user_id": user, "tier": tier}
