"""Adds the fields of the limits to all responses of an application of Flask, and gives places back
at their end."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate._core import HeaderStart
from tidegate.web.decisions import DECISIONS
from tidegate.web.execution import BLOCKING
from tidegate.web.frameworks.streams import Parts
from tidegate.wsgi import WSGIApp

if TYPE_CHECKING:
    from tidegate.web.request_limiter import RequestDecision

__all__ = ["AddHeaders", "leave"]


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
        try:
            body = self._app(environ, HeaderStart(start_response, outcomes))
        except BaseException:
            leave(outcomes)
            raise
        # The outcomes are those of the request, which was decided before its view.
        for each in outcomes:
            if each.limits.lease_ns:
                return Parts(body, functools.partial(leave, outcomes))
        return body


def leave(outcomes: list[RequestDecision]) -> None:
    """Gives the places of a request back, once."""
    for outcome in outcomes:
        BLOCKING.run(outcome.leave(BLOCKING))
