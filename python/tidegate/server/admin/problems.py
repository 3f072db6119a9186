"""Answers that name what is wrong, as problem+json (RFC 9457)."""

from __future__ import annotations

import http
import json
import logging
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from tidegate.limiter.errors import ConfigurationError, StorageError
from tidegate.rules.document import as_text
from tidegate.rules.problems import Problem, RulesError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastapi import FastAPI
    from starlette.requests import Request

__all__ = ["ProblemError", "add_handlers", "problem_response", "problems_of"]

log = logging.getLogger("tidegate")

MEDIA_TYPE = "application/problem+json"
_MOST_PROBLEMS = 100


class ProblemError(Exception):
    """Ends a request with a status and a reason. `more` holds further members of the answer."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.more = more


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """Returns the answer of a ProblemError with these arguments."""
    title = http.HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    # A client may have sent text that is not UTF-8; the answer is always ASCII.
    return Response(json.dumps(body), status, dict(headers or {}), MEDIA_TYPE)


def problems_of(found: Iterable[Problem]) -> list[dict[str, Any]]:
    """Returns what is wrong, or likely to be, in a document of rules, each with its place."""
    return [
        {
            "source": each.source,
            "line": each.line,
            "where": each.where,
            "message": each.message,
        }
        for each in islice(found, _MOST_PROBLEMS)
    ]


def add_handlers(app: FastAPI) -> None:
    """Adds handlers that answer each error of `app` as problem+json."""
    app.add_exception_handler(ProblemError, _of_problem)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RulesError, _of_rules)
    app.add_exception_handler(ConfigurationError, _of_configuration)
    app.add_exception_handler(StorageError, _of_storage)
    app.add_exception_handler(Exception, _of_anything)


async def _of_problem(request: Request, error: Any) -> Response:
    return problem_response(error.status, error.detail, error.headers, **error.more)


async def _of_validation(request: Request, error: Any) -> Response:
    problems = []
    for each in error.errors()[:_MOST_PROBLEMS]:
        place, *where = each["loc"]
        # Where a value may be of several types, Pydantic adds them to the place.
        where = [part for part in where if not (isinstance(part, str) and "[" in part)]
        kind, message = each["type"], str(each["msg"])
        if kind == "extra_forbidden":
            message = "is not a field here; expected the fields that the documentation names"
        elif kind == "missing":
            message = "is missing"
        else:
            message = message.removeprefix("Value error, ")
            message = re.sub(r"^\w+ should ", "expected to ", message)
            message = f"is {each.get('input')!a:.80}; {message}"
        problems.append({"source": str(place), "where": as_text(tuple(where)), "message": message})
    first = problems[0]
    detail = f"{first['where'] or first['source']} {first['message']}"
    return problem_response(422, detail, problems=problems)


async def _of_http(request: Request, error: Any) -> Response:
    details = {
        404: "nothing exists at this path",
        405: f"this path does not accept {request.method}",
        400: "the request is malformed",
    }
    detail = details.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods_at(request)))
    return problem_response(error.status_code, detail, headers)


def _methods_at(request: Request) -> set[str]:
    """Returns the methods that the path accepts; a single route knows only its own."""
    root = request.scope.get("root_path", "")
    scope = {"type": "http", "method": "", "path": request.scope["path"], "root_path": root}
    found: set[str] = set()
    for route in request.app.state.admin_routes:
        if route.matches(scope)[0] is not Match.NONE:
            found.update(route.methods)
    return found


async def _of_rules(request: Request, error: Any) -> Response:
    detail = f"the rules are not accepted: {error.problems[0]}"
    return problem_response(422, detail, problems=problems_of(error.problems))


async def _of_configuration(request: Request, error: Any) -> Response:
    return problem_response(422, str(error))


async def _of_storage(request: Request, error: Any) -> Response:
    cause = error.__cause__
    if isinstance(cause, sa.exc.DataError):
        return problem_response(422, "a value is too large for the database")
    if isinstance(cause, sa.exc.IntegrityError):
        return problem_response(409, "another request changed the same thing; expected a new try")
    log.warning("admin: %s", error)
    return problem_response(503, str(error), {"Retry-After": "1"})


async def _of_anything(request: Request, error: Exception) -> Response:
    # The server logs the error with its traceback.
    return problem_response(500, "the service failed; its log names the error")
