"""Routes of the lists of requests to allow or to block, and of the costs of operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Response

from tidegate.rules.sql.stored_rules import StoredRules, etag_of
from tidegate.server.admin.bodies import ChangedRules, Entries
from tidegate.server.admin.context import (
    AChange,
    Admin,
    AdminRoute,
    AnActor,
    Comment,
    RequestedChange,
    TheAdmin,
    role,
)
from tidegate.server.admin.entry_breadth import are_for_everybody, is_for_everybody
from tidegate.server.admin.problems import ProblemError
from tidegate.server.admin.rule_edits import save_entries

__all__ = ["router"]

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin/ratelimit", tags=["lists and costs"])

ListName = Literal["allow", "block"]
_MOST_ENTRIES = 10_000
_ENTRY = {"id": "abuse", "user": "42", "reason": "scrapes"}
_COST = {"endpoints": ["/search/**"], "cost": 10}
AnEntry = Annotated[dict[str, Any], Body(examples=[_ENTRY])]


@router.get("/lists/{name}", openapi_extra=role("viewer"), response_model=Entries)
def read_list(admin: TheAdmin, response: Response, name: ListName) -> Any:
    """Lists the requests that are allowed, or refused, whatever the rules say."""
    return _read(admin, response, name)


@router.put("/lists/{name}", openapi_extra=role("admin"), response_model=ChangedRules)
def replace_list(
    asked: AChange,
    name: ListName,
    entries: Annotated[list[dict[str, Any]], Body(max_length=_MOST_ENTRIES, examples=[[_ENTRY]])],
) -> Any:
    """Replaces all entries of a list."""
    return _replace(asked, name, entries)


@router.post(
    "/lists/{name}", openapi_extra=role("operator"), response_model=ChangedRules, status_code=201
)
def add_entry(
    admin: TheAdmin, actor: AnActor, name: ListName, entry: AnEntry, comment: Comment = None
) -> Any:
    """Adds an entry, whose `id` serves to remove it. One for everybody needs the role admin.

    So does one with which the networks of the list are together for everybody.
    """
    id = entry.get("id")
    if not isinstance(id, str) or not id or "/" in id:
        raise ProblemError(422, f"id is {id!a:.80}; expected the id of the entry, without a slash")
    if actor.role != "admin" and is_for_everybody(entry):
        raise ProblemError(
            403,
            "the entry is for everybody; expected a user, an endpoint or a smaller network, or a "
            "token with the role admin",
        )

    def propose(stored: StoredRules) -> Any:
        known = stored.plain.get(name, [])
        if any(each.get("id") == id for each in known):
            raise ProblemError(409, f"the list has an entry {id!a:.120}; expected another id")
        if actor.role != "admin" and are_for_everybody(known, entry, admin.database.now()):
            raise ProblemError(
                403,
                "with this entry the networks of the list are for everybody together; expected "
                "fewer or smaller ones, or a token with the role admin",
            )
        given: Any = {(name, len(known)): ()}
        return save_entries(
            stored, name, [*known, entry], given, action=f"{name}.add", comment=comment
        )

    return admin.change_rules(actor, propose)


@router.delete("/lists/{name}/{id}", openapi_extra=role("operator"), response_model=ChangedRules)
def delete_entry(
    admin: TheAdmin, actor: AnActor, name: ListName, id: str, comment: Comment = None
) -> Any:
    """Removes an entry from a list."""

    def propose(stored: StoredRules) -> Any:
        known = stored.plain.get(name, [])
        kept = [each for each in known if each.get("id") != id]
        if len(kept) == len(known):
            raise ProblemError(404, f"the list has no entry {id!a:.120}")
        return save_entries(stored, name, kept, {}, action=f"{name}.delete", comment=comment)

    return admin.change_rules(actor, propose)


@router.get("/costs", openapi_extra=role("viewer"), response_model=Entries)
def read_costs(admin: TheAdmin, response: Response) -> Any:
    """Lists the costs of operations, and their priority. An operation without an entry costs 1."""
    return _read(admin, response, "costs")


@router.put("/costs", openapi_extra=role("admin"), response_model=ChangedRules)
def replace_costs(
    asked: AChange,
    costs: Annotated[list[dict[str, Any]], Body(max_length=_MOST_ENTRIES, examples=[[_COST]])],
) -> Any:
    """Replaces the costs of all operations."""
    return _replace(asked, "costs", costs)


def _read(admin: Admin, response: Response, field: str) -> dict[str, Any]:
    admin.check_own_rules()
    with admin.database.snapshot() as connection:
        entries = StoredRules(connection, admin.database.name).plain.get(field, [])
    etag = etag_of(entries)
    response.headers["ETag"] = f'"{etag}"'
    return {"etag": etag, "entries": entries}


def _replace(asked: RequestedChange, field: str, entries: list[dict[str, Any]]) -> ChangedRules:
    def propose(stored: StoredRules) -> Any:
        asked.check_read(etag_of(stored.plain.get(field, [])), is_required=True)
        given: Any = {(field, i): (i,) for i in range(len(entries))}
        action = f"{field}.replace"
        return save_entries(stored, field, entries, given, action=action, comment=asked.comment)

    replaced: ChangedRules = asked.make(propose)
    return replaced
