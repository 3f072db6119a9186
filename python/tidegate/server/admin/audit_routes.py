"""Routes that return the audit log: one page, or all of it as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Annotated, Any, Optional

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from tidegate.server.admin.bodies import AuditPage, Instant
from tidegate.server.admin.context import Admin, AdminRoute, TheAdmin, role
from tidegate.server.records.audit import AuditFilter, audit_entries

__all__ = ["neutral_cell", "router"]

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin", tags=["audit"])

_COLUMNS = ("id", "time", "actor", "role", "action", "target", "before", "after", "remote")
_AT_ONCE = 1000
# Spreadsheets take these characters for the beginning of a formula.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def _filter_of(
    actor: Optional[str] = None,
    action: Optional[str] = None,
    target: Optional[str] = None,
    since: Optional[Instant] = None,
    until: Optional[Instant] = None,
) -> AuditFilter:
    return AuditFilter(actor, action, target, since, until)


Wanted = Annotated[AuditFilter, Depends(_filter_of)]


@router.get("/audit", openapi_extra=role("operator"), response_model=AuditPage)
def read_audit(
    admin: TheAdmin,
    wanted: Wanted,
    before: Annotated[Optional[int], Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=_AT_ONCE)] = 100,
) -> Any:
    """Lists who changed what, the newest first."""
    with admin.database.connect() as connection:
        rows = audit_entries(connection, wanted, before=before, most=limit)
    following = rows[-1].id if len(rows) == limit else None
    return {"entries": [row._mapping for row in rows], "next": following}


@router.get(
    "/audit.csv",
    openapi_extra=role("operator"),
    response_class=StreamingResponse,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
def export_audit(admin: TheAdmin, wanted: Wanted) -> StreamingResponse:
    """Returns all entries that agree with the filters, the newest first, as CSV."""
    headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
    return StreamingResponse(
        _lines(admin, wanted), media_type="text/csv; charset=utf-8", headers=headers
    )


def _lines(admin: Admin, wanted: AuditFilter) -> Iterator[str]:
    yield _csv([_COLUMNS])
    before: Optional[int] = None
    while True:
        with admin.database.connect() as connection:
            rows = audit_entries(connection, wanted, before=before, most=_AT_ONCE)
        if rows:
            yield _csv([[_cell(getattr(row, name)) for name in _COLUMNS] for row in rows])
        if len(rows) < _AT_ONCE:
            return
        before = rows[-1].id


def _csv(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    elif hasattr(value, "isoformat"):
        value = value.isoformat()
    return neutral_cell(str(value))


def neutral_cell(text: str) -> str:
    """Returns a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULAS) else text
