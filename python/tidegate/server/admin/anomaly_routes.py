"""Routes that list and unlock callers who are throttled or blocked."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from tidegate.server.admin.bodies import Enforced, Unlock
from tidegate.server.admin.context import AdminRoute, AnActor, TheAdmin, role
from tidegate.server.admin.problems import ProblemError

__all__ = ["router", "unlock"]

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin/anomalies", tags=["anomalies"])


@router.get("/enforced", openapi_extra=role("viewer"), response_model=list[Enforced])
def enforced(admin: TheAdmin) -> Any:
    """Lists the callers that this process throttles or blocks now."""
    if admin.enforcement is None:
        return []
    return [each.said() for each in admin.enforcement.in_force()]


@router.post("/unlock", openapi_extra=role("operator"), response_model=Enforced)
def unlock(admin: TheAdmin, actor: AnActor, asked: Unlock) -> Any:
    """Ends the penalty of a caller. The caller's present counts are usual from then on."""
    if admin.enforcement is None:
        raise ProblemError(409, "anomalies are not enforced; expected anomalies.enforce: true")
    penalty = admin.enforcement.find(asked.caller)
    if penalty is None:
        raise ProblemError(
            404, f"{asked.caller!a:.80} is neither throttled nor blocked; expected a caller who is"
        )
    said = penalty.said()
    # The audit entry is written first, as for a reset; but a full disk locks nobody out.
    admin.database.late.record_unlock(actor, asked.caller, said)
    admin.enforcement.unlock(asked.caller)
    return said
