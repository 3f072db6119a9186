"""Finds out what the rules in force leave to a user, of limits and of quotas."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from tidegate.limiter.errors import StorageError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from tidegate.limiter.quotas.status import QuotaStatus
    from tidegate.rules.model import Rule
    from tidegate.server.admin.context import Admin

__all__ = [
    "QuotaOfUser",
    "bring_forward",
    "enforced_on",
    "quota_as_json",
    "quotas_of",
    "rate_limits_of",
]

log = logging.getLogger("tidegate")

_MOST_RULES = 100


class QuotaOfUser(NamedTuple):
    """A quota that counts a user, and its present state."""

    rule: str
    name: str
    """The limiter's name of the quota: the rule, with the text of the limit if it has many."""
    attributes: dict[str, str]
    """The attributes of a request that is charged to the quota."""
    status: QuotaStatus


def rate_limits_of(admin: Admin, user: str, tier: Optional[str]) -> list[dict[str, Any]]:
    """Returns the limits of rules that count by user, at the first endpoint of each rule.

    Rules in shadow are left out, since they limit nobody.
    """
    now = admin.now().timestamp()
    found = []
    for rule, asked in _requests_of(admin, user, tier):
        if rule.shadow:
            continue
        for each in admin.limiter.explain(**asked):  # type: ignore[arg-type]
            if each.rule != rule.id or not each.applies:
                continue
            found += [
                {
                    "endpoint": asked["endpoint"],
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


def enforced_on(admin: Admin, user: str, tier: Optional[str]) -> Optional[dict[str, Any]]:
    """Returns a user's penalty because of an anomaly, in the form of `Status` over REST."""
    asked = {"user": user} if tier is None else {"user": user, "tier": tier}
    penalty = admin.enforced_against(asked)
    if penalty is None:
        return None
    until = math.ceil(admin.now().timestamp() + penalty.left)
    return {"action": penalty.action.value, "until": until, "reason": penalty.reason}


def quotas_of(admin: Admin, user: str, tier: Optional[str]) -> list[QuotaOfUser]:
    """Returns the present state of the quotas of rules that count by user. Raises StorageError."""
    found = []
    for rule, asked in _requests_of(admin, user, tier):
        names = _quotas_named(admin, rule, asked)
        if not names:
            continue
        statuses = admin.limiter.quota_status(**asked)
        found += [
            QuotaOfUser(rule.id, name, asked, status)
            for name, status in statuses.items()
            if name in names  # quotas of other rules apply to the request too
        ]
    return found


def bring_forward(admin: Admin, user: str, tier: Optional[str]) -> None:
    """Records the present state of a user's quotas, right before or after the tier changes.

    So the change counts from this instant, and not from the user's next request. If the storage
    does not answer, the tier changes all the same.
    """
    if admin.limiter_or_none is None:
        return
    try:
        for rule, asked in _requests_of(admin, user, tier):
            if _quotas_named(admin, rule, asked):
                admin.limiter.bring_forward(**asked)
    except StorageError as error:
        log.warning("the change of a tier counts from the next request of %r: %s", user, error)


def _requests_of(
    admin: Admin, user: str, tier: Optional[str]
) -> Iterator[tuple[Rule, dict[str, str]]]:
    """Yields, for each rule that counts by user, a request of the user to which it applies."""
    for rule in list(admin.limiter.rules.rules)[:_MOST_RULES]:
        if not rule.enabled or "user" not in rule.by:
            continue
        endpoint = rule.endpoints[0] if rule.endpoints else "*"
        asked = {"user": user, "endpoint": endpoint, **rule.when}
        if rule.methods:
            asked["method"] = rule.methods[0]
        if tier is not None:
            asked["tier"] = tier
        yield rule, asked


def _quotas_named(admin: Admin, rule: Rule, asked: dict[str, str]) -> set[str]:
    """Returns the names of the quotas by which a rule counts such a request."""
    return {
        limit.name
        for each in admin.limiter.explain(**asked)  # type: ignore[arg-type]
        if each.rule == rule.id and each.applies
        for limit in each.limits
        if limit.algorithm == "quota"
    }


def _seconds(at: Optional[dt.datetime]) -> Optional[int]:
    return None if at is None else int(at.timestamp())


def quota_as_json(quota: QuotaOfUser) -> dict[str, Any]:
    """Returns the JSON that users see of the quota; instants are seconds since 1970."""
    status = quota.status
    return {
        "rule": quota.rule,
        "name": quota.name,
        "limit": status.limit,
        "base": status.base,
        "toppedUp": status.topped_up,
        "used": status.used,
        "available": status.available,
        "rollover": status.carried,
        "resetsAt": _seconds(status.resets_at),
        "grants": [
            {
                "kind": grant.kind,
                "units": grant.units,
                "left": grant.left,
                "expiresAt": _seconds(grant.expires_at),
                "priority": grant.priority,
            }
            for grant in status.grants
        ],
    }
