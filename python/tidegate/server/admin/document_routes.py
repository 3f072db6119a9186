"""Routes that read, validate, compare and replace the whole document, with its history."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, Optional

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from tidegate.rules.advice import advise, advise_of_overrides
from tidegate.rules.diff import differences
from tidegate.rules.document import Document, read_text
from tidegate.rules.problems import RulesError
from tidegate.rules.sql import schema
from tidegate.rules.sql.read import EVERYBODY
from tidegate.rules.sql.stored_rules import StoredRules, compiled_model
from tidegate.server.admin.bodies import (
    ChangedRules,
    Differences,
    Validity,
    Version,
    VersionDocument,
)
from tidegate.server.admin.context import AChange, AdminRoute, TheAdmin, role
from tidegate.server.admin.problems import ProblemError, problems_of
from tidegate.server.admin.rule_edits import put_document, stored_or_none
from tidegate.server.records.rule_versions import list_versions, version_of

__all__ = ["router"]

router = APIRouter(route_class=AdminRoute, prefix="/v1/admin/ratelimit", tags=["documents"])

_EXAMPLE = {"rules": [{"id": "api", "by": "user", "limits": "100/minute"}]}
_BODY = {
    "requestBody": {
        "required": True,
        "description": "A document of rules (docs/rules.md): JSON, YAML or TOML.",
        "content": {
            "application/json": {"schema": {"type": "object"}, "example": _EXAMPLE},
            "application/yaml": {"schema": {}},
            "application/toml": {"schema": {}},
        },
    }
}

# Compiling a document of this many characters takes seconds and tens of megabytes; compiling few at
# a time leaves threads and memory to other requests.
_LARGE = 256 * 1024
_LARGE_ONES = threading.BoundedSemaphore(2)

VersionId = Annotated[int, Path(ge=1, le=2**63 - 1)]


def _takes_document(least: str) -> dict[str, Any]:
    return {**role(least), **_BODY}


async def _document_of(request: Request) -> tuple[str, str]:
    """Returns the text of the body, and its format."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    for format in ("json", "yaml", "toml"):
        if kind.endswith(format):
            return (await request.body()).decode(), format
    raise ProblemError(415, "the body is missing; expected a document as application/json")


GivenText = Annotated[tuple[str, str], Depends(_document_of)]


@contextlib.contextmanager
def _in_turn(text: str) -> Iterator[None]:
    """Raises ProblemError if too many large documents are being compiled."""
    if len(text) < _LARGE:
        yield
        return
    if not _LARGE_ONES.acquire(blocking=False):
        raise ProblemError(
            503,
            "other large documents are being read; expected a new try in a while",
            headers={"Retry-After": "5"},
        )
    try:
        yield
    finally:
        _LARGE_ONES.release()


@router.get("/document", openapi_extra=role("viewer"))
def read_document(admin: TheAdmin, response: Response) -> dict[str, Any]:
    """Returns the rules in force as one document, without overrides."""
    admin.check_own_rules()
    with admin.database.snapshot() as connection:
        stored = StoredRules(connection, admin.database.name)
    response.headers["ETag"] = f'"{stored.etag}"'
    return stored.plain


@router.put("/document", openapi_extra=_takes_document("admin"), response_model=ChangedRules)
def replace_document(asked: AChange, response: Response, text: GivenText) -> Any:
    """Replaces all rules, tiers, costs and lists, and the overrides if the document has some.

    The tiers and limits of single users stay. If the tables hold rules that are not accepted,
    `If-Match: *` replaces them.
    """
    admin = asked.admin
    admin.check_own_rules()
    with _in_turn(text[0]):
        document = read_text(*text, "body")
        rules = compiled_model(document)
    with admin.any_change_of_rules(asked.actor) as change:
        stored = stored_or_none(change, admin.database.name)
        asked.check_read(stored.etag if stored else "", is_required=True)
        done = put_document(
            change,
            admin.database.name,
            rules,
            with_overrides="overrides" in document.data,
            comment=asked.comment,
            action="document.replace",
            target="document",
        )
    response.headers["ETag"] = f'"{done.etag}"'
    return done


@router.post("/document/validate", openapi_extra=_takes_document("viewer"), response_model=Validity)
def validate_document(text: GivenText) -> Any:
    """Lists what is wrong with a document, or likely to be, and where. Saves nothing."""
    with _in_turn(text[0]):
        try:
            document = read_text(*text, "body")
            rules = compiled_model(document)
        except RulesError as error:
            return {"valid": False, "problems": problems_of(error.problems)}
        likely = chain(advise(document, rules), advise_of_overrides(document, rules))
        return {"valid": True, "rules": len(rules.rules), "advice": problems_of(likely)}


@router.post("/document/diff", openapi_extra=_takes_document("viewer"), response_model=Differences)
def compare_document(admin: TheAdmin, text: GivenText) -> Any:
    """Lists what a document would change of the rules in force. Saves nothing."""
    with _in_turn(text[0]):
        document = read_text(*text, "body")
        compiled_model(document)
        return _compared(admin, document)


def _compared(admin: TheAdmin, document: Document) -> dict[str, Any]:
    admin.check_own_rules()
    with admin.database.snapshot() as connection:
        stored = StoredRules(connection, admin.database.name, EVERYBODY)
        asked = sa.select(sa.func.count()).select_from(schema.overrides)
        own = connection.execute(asked).scalar_one()
    # Overrides of single users come last, and stay in any case.
    kept = stored.document.data.get("overrides", [])
    given: Mapping[str, Any] = document.data
    overrides = [*given["overrides"], *kept[own:]] if "overrides" in given else kept
    whole = Document({**given, "overrides": overrides}, document.source, lambda where: None)
    changes = differences(stored.model, compiled_model(whole))
    return {"same": not changes, "changes": changes, "etag": stored.etag}


@router.get("/versions", openapi_extra=role("viewer"), response_model=list[Version])
def read_versions(
    admin: TheAdmin,
    before: Annotated[Optional[int], Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Any:
    """Lists the documents that were in force, the newest first."""
    with admin.database.connect() as connection:
        rows = list_versions(connection, before, limit)
    return [row._mapping for row in rows]


@router.get("/versions/{version}", openapi_extra=role("viewer"), response_model=VersionDocument)
def read_version(admin: TheAdmin, version: VersionId) -> Any:
    """Returns a version with its document."""
    with admin.database.connect() as connection:
        return _known(version_of(connection, version), version)._mapping


@router.get("/versions/{version}/diff", openapi_extra=role("viewer"), response_model=Differences)
def compare_version(admin: TheAdmin, version: VersionId) -> Any:
    """Lists what a rollback to a version would change of the rules in force."""
    with admin.database.connect() as connection:
        row = _known(version_of(connection, version), version)
    return _compared(admin, _document_in(row))


@router.post(
    "/versions/{version}/rollback", openapi_extra=role("admin"), response_model=ChangedRules
)
def roll_back(asked: AChange, response: Response, version: VersionId) -> Any:
    """Puts a version into force again, as a new one. Overrides and users stay as they are."""
    admin = asked.admin
    with admin.any_change_of_rules(asked.actor) as change:
        row = _known(version_of(change.connection, version), version)
        stored = stored_or_none(change, admin.database.name)
        asked.check_read(stored.etag if stored else "", is_required=False)
        done = put_document(
            change,
            admin.database.name,
            compiled_model(_document_in(row)),
            with_overrides=False,
            comment=asked.comment or f"rollback to version {version}",
            action="version.rollback",
            target=f"version:{version}",
        )
    response.headers["ETag"] = f'"{done.etag}"'
    return done


def _known(row: Any, version: int) -> Any:
    if row is None:
        raise ProblemError(404, f"there is no version {version}")
    return row


def _document_in(row: Any) -> Document:
    return Document(row.document, f"version {row.id}", lambda where: None)
