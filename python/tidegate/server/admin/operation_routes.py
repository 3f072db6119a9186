"""Routes of a running service that explain requests, forget counts, and look things up again."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Optional

from fastapi import APIRouter

from tidegate.limiter.errors import StorageError
from tidegate.rules.callers import rules_of_caller
from tidegate.rules.model import NAME, RESERVED
from tidegate.server.admin.bodies import (
    Asked,
    Explained,
    Invalidation,
    ResetAsked,
    ResetRules,
    WhoAmI,
)
from tidegate.server.admin.context import AdminRoute, AnActor, TheAdmin, role
from tidegate.server.admin.problems import ProblemError
from tidegate.server.anomalies.detector import Action
from tidegate.server.enforcement import BLOCK_RULE

if TYPE_CHECKING:
    from tidegate.limiter.rule_limiter import RuleLimiter

__all__ = ["explain", "reset", "router", "units_of"]

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin", tags=["operations"])


@router.get("/whoami", openapi_extra=role("viewer"), response_model=WhoAmI)
def whoami(actor: AnActor) -> Any:
    """Returns the owner of the token, and its role."""
    return {"name": actor.name, "role": actor.role}


@router.get("/settings", openapi_extra=role("operator"))
def read_settings(admin: TheAdmin) -> dict[str, Any]:
    """Returns the settings in effect, of file, environment and defaults, without passwords."""
    if admin.settings is None:
        raise ProblemError(404, "this process has no settings; expected one of `tidegate serve`")
    return admin.settings


@router.post("/ratelimit/explain", openapi_extra=role("viewer"), response_model=Explained)
def explain(admin: TheAdmin, asked: Asked) -> Any:
    """Returns the rules that apply to a request, the reasons, and what remains. Charges nothing."""
    _check_names(asked.attributes)
    attributes: dict[str, Any] = asked.attributes
    considered = admin.limiter.explain(cost=asked.cost, **attributes)
    decision = admin.limiter.peek(cost=asked.cost, **attributes)
    penalty = admin.enforced_against(attributes)
    blocks = penalty is not None and penalty.action is Action.BLOCK
    return {
        "enforced": penalty and penalty.said(),
        "allowed": decision.allowed and not blocks,
        "rule": BLOCK_RULE if blocks else decision.rule,
        "retry_after": penalty.left if penalty and blocks else _finite(decision.retry_after),
        "degraded": decision.degraded,
        "cost": considered.cost,
        "priority": considered.priority,
        "rules": [
            {
                "rule": each.rule,
                "applies": each.applies,
                "why": each.why,
                "key": each.key,
                "limits": [_state(limit, state) for limit, state in zip(each.limits, each.states)],
            }
            for each in considered
        ],
    }


def _state(limit: Any, state: Any) -> dict[str, Any]:
    said = {"limit": str(limit), "algorithm": limit.algorithm, "shadow": limit.shadow}
    if state is None:
        return said
    return {
        **said,
        "allowed": state.allowed,
        "remaining": state.remaining,
        "debt": state.debt,
        "retry_after": _finite(state.retry_after),
        "reset_after": _finite(state.reset_after),
    }


def _finite(seconds: float) -> Optional[float]:
    return seconds if math.isfinite(seconds) else None


def _check_names(attributes: dict[str, str]) -> None:
    for name in attributes:
        if not re.fullmatch(NAME, name) or name in RESERVED:
            raise ProblemError(
                422, f"the attribute is named {name!a:.80}; expected a name such as api_key"
            )


@router.post("/ratelimit/reset", openapi_extra=role("operator"), response_model=ResetRules)
def reset(admin: TheAdmin, actor: AnActor, asked: ResetAsked) -> Any:
    """Forgets what the keys of a request have used by the rules that apply to it.

    Counts that the caller shares with others stay, such as a ceiling for all, unless `rules` names
    them. Top-ups and carried units of quotas stay, unless `everything` is true. The penalty of an
    anomaly of the same caller ends as well. While the storage does not answer, the answer is 503:
    only what was counted without it is forgotten then.
    """
    _check_names(asked.attributes)
    attributes: dict[str, Any] = asked.attributes
    limiter = admin.limiter
    names = asked.rules
    if names is None:
        names = rules_of_caller(limiter.rules, limiter._with_tier(attributes))
    applied = [
        {"rule": each.rule, "key": each.key}
        for each in limiter.explain(**attributes)
        if each.applies and each.rule in names
    ]
    quotas = units_of(limiter, attributes)
    penalty = admin.penalty_of(attributes)
    before = {"attributes": attributes, "everything": asked.everything, "quotas": quotas}
    # The audit entry is written first: a count that was forgotten cannot be restored.
    with admin.database.change(actor) as change:
        change.record("counts.reset", "counts", before=before, after=applied)
        if penalty is not None:
            change.record("anomaly.unlock", penalty.caller, before=penalty.said())
    if asked.everything:
        limiter.forget(rules=names, **attributes)
    else:
        limiter.reset(rules=names, **attributes)
    if penalty is not None and admin.enforcement is not None:
        admin.enforcement.unlock(penalty.caller)
    if limiter.peek(**attributes).degraded:
        raise StorageError(
            "the storage does not answer, so that what it has counted stays; only what was counted "
            "without it was forgotten; expected the same request again once it answers"
        )
    return {"reset": applied, "quotas": quotas}


def units_of(limiter: RuleLimiter, attributes: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Returns the units that the keys of a request have of quotas. Raises StorageError."""
    names = ("used", "base", "carried", "topped_up", "available")
    statuses = limiter.quota_status(**attributes)
    return {
        quota: {name: getattr(status, name) for name in names} for quota, status in statuses.items()
    }


@router.post("/ratelimit/invalidate", openapi_extra=role("operator"), status_code=204)
def invalidate(admin: TheAdmin, actor: AnActor, asked: Invalidation) -> None:
    """Makes this process look up rules, tiers or remembered refusals again."""
    if asked.user is not None and asked.what != "tiers":
        raise ProblemError(422, f"user is given with {asked.what!r}; expected it with 'tiers' only")
    with admin.database.change(actor) as change:
        change.record(f"{asked.what}.invalidate", f"user:{asked.user}" if asked.user else "all")
    if asked.what == "tiers":
        admin.tier_changed(asked.user)
    elif asked.what == "rules":
        admin.rules_changed()
    else:
        forget = getattr(admin.limiter.storage, "_forget_refusals", None)
        if forget is not None:  # only the store in Redis remembers refusals
            forget()
