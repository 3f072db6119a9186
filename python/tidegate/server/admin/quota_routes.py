"""Routes that show the quotas of users, and give users units in addition to the period's."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Optional

import sqlalchemy as sa
from fastapi import APIRouter, Header, Query

from tidegate.limiter.errors import ConfigurationError, StorageError
from tidegate.rules.sql.service_tables import quota_top_ups
from tidegate.server.admin.bodies import NewTopUp, QuotasOfUser, TopUp, UserId
from tidegate.server.admin.context import AdminRoute, AnActor, TheAdmin, role
from tidegate.server.admin.left_to_user import QuotaOfUser, quotas_of
from tidegate.server.admin.problems import ProblemError
from tidegate.server.records.idempotency_keys import OnceKey

if TYPE_CHECKING:
    from tidegate.server.admin.context import Admin

__all__ = ["router", "top_ups_of"]

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin/quotas", tags=["quotas"])

_MOST_TOP_UPS = 100
# The length of the column quota_top_ups.quota.
_MOST_OF_NAME = 100


@router.get("", openapi_extra=role("viewer"), response_model=QuotasOfUser)
def read_quotas(admin: TheAdmin, user: Annotated[UserId, Query()]) -> Any:
    """Returns the state of each quota of a user in the rules in force, and the latest top-ups."""
    with admin.database.connect() as connection:
        tier = admin.tier_of(connection, user)
        top_ups = top_ups_of(connection, user)
    quotas = [_body_of(each) for each in quotas_of(admin, user, tier)]
    return {"user": user, "tier": tier, "quotas": quotas, "top_ups": top_ups}


def _body_of(quota: QuotaOfUser) -> dict[str, Any]:
    return {"rule": quota.rule, "name": quota.name, **dataclasses.asdict(quota.status)}


def top_ups_of(connection: sa.Connection, user: Optional[str]) -> list[Any]:
    """Lists the latest top-ups of a user, or of all users."""
    table = quota_top_ups
    asked = sa.select(table).order_by(table.c.id.desc()).limit(_MOST_TOP_UPS)
    if user is not None:
        asked = asked.where(table.c.user_id == user)
    return [row._mapping for row in connection.execute(asked)]


_IdempotencyKey = Annotated[
    Optional[str],
    Header(
        min_length=1,
        max_length=255,
        description="Chosen by the client. A request that is sent again with the same key adds "
        "nothing, and gets the answer to the first.",
    ),
]


@router.post("/top-ups", openapi_extra=role("operator"), response_model=TopUp, status_code=201)
def add_top_up(
    admin: TheAdmin, actor: AnActor, new: NewTopUp, idempotency_key: _IdempotencyKey = None
) -> Any:
    """Gives a user units of a quota. They last until they are spent, or until `expires_at`."""
    once = None
    if idempotency_key is not None:
        end = new.expires_at and new.expires_at.timestamp()
        asked = ("top-up", new.user, new.units, new.quota, end, new.priority, new.reason)
        once = OnceKey(actor, idempotency_key, repr(asked))
        answer = _answer_before(admin, once)
        if answer is not None:
            return answer
    return _give(admin, actor, new, once)


def _answer_before(admin: Admin, once: OnceKey) -> Any:
    """Returns the answer to the same request, if it was sent before."""
    with admin.database.connect() as connection:
        known = once.known(connection, admin.now())
    if known is None:
        return None
    if not known.is_same:
        raise ProblemError(
            422, "the Idempotency-Key was sent with another request; expected a new key"
        )
    if known.answer is None:
        raise ProblemError(
            409,
            "a request with this Idempotency-Key has begun and not ended; if it ended without an "
            "answer, the units may have been given; expected a look at the user's quotas, and a "
            "new key if they were not",
        )
    return known.answer


def _give(admin: Admin, actor: AnActor, new: NewTopUp, once: Optional[OnceKey]) -> Any:
    now = admin.now()
    if new.expires_at is not None and new.expires_at <= now:
        raise ProblemError(
            422, f"expires_at is {new.expires_at.isoformat()}; expected a time to come"
        )
    quota = _chosen(admin, new)
    values = {
        "user_id": new.user,
        "quota": quota.name[:_MOST_OF_NAME],
        "units": new.units,
        "expires_at": new.expires_at,
        "priority": new.priority,
        "reason": new.reason or None,
    }
    said = {**values, "expires_at": new.expires_at and new.expires_at.isoformat()}
    # The audit entry is written first, as for a reset: nobody can take back spent units.
    with admin.database.change(actor) as change:
        if once is not None:
            once.begin(change.connection, change.now)
        key = change.connection.execute(
            sa.insert(quota_top_ups), {**values, "created_at": change.now}
        ).inserted_primary_key
        assert key is not None
        id = int(key[0])
        before = {"available": quota.status.available}
        change.record("quota.top_up", f"user:{new.user}", before=before, after={"id": id, **said})
    try:
        admin.limiter.top_up(
            quota.attributes,
            new.units,
            expires_at=new.expires_at,
            priority=new.priority,
            quota=quota.name,
        )
    except (ConfigurationError, StorageError) as error:
        _undo(admin, actor, id, new.user, error, once)
        raise
    answer = {"id": id, **said, "created_at": now.isoformat()}
    if once is not None:
        # The units are given; if the answer cannot be stored, the next request is refused.
        with contextlib.suppress(StorageError), admin.database.change(actor) as change:
            once.end(change.connection, answer)
    return answer


def _chosen(admin: Admin, new: NewTopUp) -> QuotaOfUser:
    with admin.database.connect() as connection:
        tier = admin.tier_of(connection, new.user)
    quotas = quotas_of(admin, new.user, tier)
    found = [each for each in quotas if new.quota in (None, each.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.name for each in quotas) or "none"
    given = "is missing" if new.quota is None else f"is {new.quota!a:.120}"
    of = "without a tier" if tier is None else f"of the tier {tier!a:.60}"
    raise ProblemError(
        422, f"quota {given}; the quotas that count this user {of}: {names}; expected one"
    )


def _undo(
    admin: Admin, actor: AnActor, id: int, user: str, error: Exception, once: Optional[OnceKey]
) -> None:
    """Reports that giving the units failed. A storage that timed out may have given them."""
    with contextlib.suppress(StorageError), admin.database.change(actor) as change:
        change.connection.execute(sa.delete(quota_top_ups).where(quota_top_ups.c.id == id))
        if once is not None and isinstance(error, ConfigurationError):  # certainly not given
            once.forget(change.connection)
        after = {"id": id, "error": str(error)[:500]}
        change.record("quota.top_up_failed", f"user:{user}", after=after)
