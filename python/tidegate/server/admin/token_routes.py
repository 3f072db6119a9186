"""Routes of tokens, for administrators only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from tidegate.server.admin.bodies import NewToken, Token, TokenText
from tidegate.server.admin.context import AdminRoute, AnActor, TheAdmin, role
from tidegate.server.records.api_tokens import create_token, list_tokens

__all__ = ["router"]

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin/tokens", tags=["tokens"])


@router.get("", openapi_extra=role("admin"), response_model=list[Token])
def read_tokens(admin: TheAdmin) -> Any:
    """Lists all tokens, including those that have ended."""
    with admin.database.connect() as connection:
        return [row._mapping for row in list_tokens(connection)]


@router.post("", openapi_extra=role("admin"), response_model=TokenText, status_code=201)
def add_token(admin: TheAdmin, actor: AnActor, new: NewToken) -> Any:
    """Makes a token. Only this answer holds its text."""
    with admin.database.change(actor) as change:
        made = create_token(
            change.connection, new.name, new.role, expires_at=new.expires_at, now=change.now
        )
        after = new.model_dump(mode="json")
        change.record("token.create", f"token:{made.id}", after=after)
    admin.tokens_changed()
    return {"id": made.id, "token": made.text}


@router.delete("/{id}", openapi_extra=role("admin"), status_code=204)
def end_token(
    admin: TheAdmin, actor: AnActor, id: Annotated[int, Path(ge=1, le=2**63 - 1)]
) -> None:
    """Revokes a token. The next request with it is refused.

    Even if the database takes no write, such as on a full disk: this is in force at once in this
    process and in those that come after, and is written later.
    """
    admin.database.late.end_token(actor, id)
    admin.tokens_changed()
