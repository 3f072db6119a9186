"""Adds the fields of the limits to all responses of an application of Flask, and gives places back
at their end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate._core import HeaderStart
from tidegate.web.decisions import DECISIONS
from tidegate.web.execution import BLOCKING
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
                return _Body(body, outcomes)
        return body


class _Body:
    """The body of a response whose request holds places until it has ended or is closed."""

    def __init__(self, body: Iterable[bytes], outcomes: list[RequestDecision]) -> None:
        self._body = body
        self._outcomes = outcomes

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        finally:  # test clients need not close it
            leave(self._outcomes)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            leave(self._outcomes)


def leave(outcomes: list[RequestDecision]) -> None:
    """Gives the places of a request back, once."""
    for outcome in outcomes:
        BLOCKING.run(outcome.leave(BLOCKING))
