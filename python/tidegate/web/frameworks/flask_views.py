"""Limits views of Flask with limits of their own."""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import TYPE_CHECKING, Any

import flask

from tidegate.limiter.errors import ConfigurationError
from tidegate.web.decisions import DECISIONS
from tidegate.web.execution import BLOCKING
from tidegate.web.frameworks.streams import settle_after_flask

if TYPE_CHECKING:
    from tidegate.web.request_limiter import RequestDecision

__all__ = [
    "MARK",
    "UNREACHED",
    "LimitedView",
    "PlacedLimit",
    "limited_app",
    "marks_of",
    "settle_now",
]

MARK = "__tidegate_flask_limit__"
# The key under which a request keeps the decisions, by their extensions, that let it pass to a view
# that is still to be called, and whose cost is known after that.
UNREACHED = "tidegate.unreached"


class PlacedLimit:
    """A limit on a view or a blueprint, in every application."""

    def __init__(self, limit: Any, scope: str, options: dict[str, Any]) -> None:
        self.limit = limit
        self.scope = scope
        self.options = options

    def is_for(self, method: str, exempt_methods: frozenset[str]) -> bool:
        """Returns whether it limits requests with a method: exempt ones only if it names them."""
        methods = self.options["methods"]
        return method not in exempt_methods if methods is None else method in methods


def marks_of(view: Any, method: str, name: str) -> list[Any]:
    """Returns the marks `name` of what answers requests of a method: a view, and its class."""
    answering = [view]
    view_class = getattr(view, "view_class", None)
    if view_class is not None:
        handler = getattr(view_class, method.lower(), None)
        if handler is None and method == "HEAD":
            handler = getattr(view_class, "get", None)
        answering += [getattr(view_class, "dispatch_request", None), handler]
    return [getattr(each, name) for each in answering if hasattr(each, name)]


def limited_app(extension: Any, target: Any) -> Any:
    """What `extension` keeps of the current application, which calls `target`.

    Raises ConfigurationError if there is none, since then nothing limits `target`.
    """
    app = flask.current_app
    known: dict[Any, Any] = app.extensions.get("tidegate", {})
    try:
        return known[extension]
    except KeyError:
        raise ConfigurationError(
            f"{target!r} is limited by an extension that {app.name} does not have; expected a call "
            "of its init_app() with the application"
        ) from None


class LimitedView:
    """A view with limits of its own, which count in every application that calls it."""

    def __init__(self, extension: Any, view: Any, limits: tuple[PlacedLimit, ...]) -> None:
        self.extension = extension
        self.view = view
        self.limits = limits
        costs_after = (each.options["cost_after"] for each in limits)
        self.cost_after = next((each for each in costs_after if each is not None), None)
        self.function = self._wrapped()

    def _wrapped(self) -> Any:
        view = self.view

        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            answer, outcome = self._enter()
            if answer is not None:
                return answer
            try:
                result = view(*args, **kwargs)
            except Exception as exc:
                self._leave(outcome, exc)
                raise
            self._leave(outcome, result)
            return result

        @functools.wraps(view)
        async def limited_async(*args: Any, **kwargs: Any) -> Any:
            answer, outcome = self._enter()
            if answer is not None:
                return answer
            try:
                result = await view(*args, **kwargs)
            except Exception as exc:
                self._leave(outcome, exc)
                raise
            self._leave(outcome, result)
            return result

        chosen: Any = limited_async if inspect.iscoroutinefunction(view) else limited
        setattr(chosen, MARK, self)
        # Decorators above copy the attributes of the function, but they are not limited views.
        self.is_of = weakref.ref(chosen)
        return chosen

    def _enter(self) -> tuple[Any, RequestDecision | None]:
        limited = limited_app(self.extension, self.view)
        request = flask.request._get_current_object()  # type: ignore[attr-defined]
        entered: tuple[Any, RequestDecision | None] = limited.enter(self, request)
        return entered

    def _leave(self, outcome: RequestDecision | None, result: Any) -> None:
        if self.cost_after is not None and outcome is not None:
            request = flask.request._get_current_object()  # type: ignore[attr-defined]
            request.environ.get(UNREACHED, {}).pop(self.extension, None)
            settle = functools.partial(outcome.settle, request, result)
            if not settle_after_flask(flask, result, settle, self.cost_after):
                settle_now(outcome, request, result)


def settle_now(outcome: RequestDecision, request: flask.Request, result: Any) -> None:
    """Corrects the charge of a request to what it costs by `result`, and the fields to that."""
    settled = BLOCKING.run(outcome.settle(request, result, BLOCKING))
    outcomes: list[RequestDecision] = request.environ.get(DECISIONS, [])
    outcomes[:] = [settled if each is outcome else each for each in outcomes]
