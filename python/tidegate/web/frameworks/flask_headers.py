"""Adds the fields of the limits to all responses of an application of Flask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.web.decisions import DECISIONS
from tidegate.wsgi import WSGIApp, with_fields

if TYPE_CHECKING:
    from tidegate.web.request_limiter import RequestDecision

__all__ = ["AddHeaders"]


class AddHeaders:
    """A WSGI application that adds the fields of all decisions to the responses of Flask.

    As the outermost application it misses no response, and costs least.
    """

    def __init__(self, app: WSGIApp) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if DECISIONS in environ:  # another extension adds the fields
            return self._app(environ, start_response)
        # The list is added before the call, since middleware in between may copy the environ.
        outcomes: list[RequestDecision] = []
        environ[DECISIONS] = outcomes
        return self._app(environ, with_fields(start_response, outcomes))
