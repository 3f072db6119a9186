"""Was this function handed to a web framework already?

A decorator that stands outside `@app.get` wraps a function which nobody will call: the
framework holds the bare one, and the limit is silently no limit. That must not happen.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
from typing import Any, Callable

from tidegate._errors import ArgumentTypeError, ConfigurationError

__all__ = ["check_limit", "check_view", "reference_count", "refuse_registered", "registration"]

# Decorators above one function; more are a cycle.
_DEEPEST = 64


def reference_count(function: Callable[..., Any]) -> int:
    """How many references there are to `function`, those of this call included."""
    return sys.getrefcount(function)


class _Probe:
    """A decorator of the shape of the one that asks: an object that is called."""

    def __call__(self, function: Callable[..., Any]) -> int:
        return reference_count(function)


@_Probe()
def _FRESH() -> None:
    """No function any more, but the count of one that nobody but its decorator has seen."""


def registration(function: Callable[..., Any], references: int) -> str | None:
    """What has `function` for a route, in words; None where nothing has.

    `references` is what reference_count() tells in the `__call__` of the decorator. A function
    that was registered has more of them than a fresh one, so that only suspects cost a search
    of the heap (some tens of milliseconds).
    """
    assert isinstance(_FRESH, int)
    if references <= _FRESH:
        return None
    kinds = tuple(
        getattr(sys.modules[module], name)
        for module, name in (
            ("starlette.routing", "Route"),
            ("starlette.routing", "WebSocketRoute"),
            ("flask.sansio.app", "App"),
            ("flask.app", "Flask"),
            ("flask.blueprints", "Blueprint"),
        )
        if hasattr(sys.modules.get(module), name)
    )
    if not kinds:
        return None
    for candidate in gc.get_objects():
        # Not isinstance(): a proxy answers for what it stands for, or raises.
        if issubclass(type(candidate), kinds) and _holds(candidate, function):
            return type(candidate).__name__
    return None


def _wrapped_by(function: Any) -> list[Any]:
    """What other decorators made `function` of, the nearest first."""
    below: list[Any] = []
    while len(below) < _DEEPEST:
        function = getattr(function, "__wrapped__", None)
        if function is None:
            break
        below.append(function)
    return below


def _references_of(functions: list[Any]) -> list[int]:
    return [sys.getrefcount(functions[at]) for at in range(len(functions))]


def _wrapping(function: Any) -> Any:
    """A decorator as most are, which leaves two references: its own and `__wrapped__`."""

    @functools.wraps(function)
    def wrapper() -> Any:
        return function()

    return wrapper


@_wrapping
def _wrapped() -> None:
    """What nobody but a decorator has seen."""


(_FRESH_BELOW,) = _references_of(_wrapped_by(_wrapped))


def refuse_registered(view: Any, references: int) -> None:
    """Raises ConfigurationError for a view that a framework would call without its limit.

    That is one that was registered itself, and one that another decorator made of such a one.
    """
    registered = registration(view, references)
    below = _wrapped_by(view) if references else []
    for function, count in zip(below, _references_of(below)):
        # The list that they are in has each of them too.
        if registered is None and count > _FRESH_BELOW:
            registered = registration(function, sys.maxsize)
    if registered is not None:
        raise ConfigurationError(
            f"{view.__qualname__} is registered with a {registered} already, which calls it "
            "without @rate_limit; expected @rate_limit below the decorator that "
            "registers the route"
        )


def check_limit(limit: Any, name: str) -> None:
    """Tells a function that chooses a limit from a view under the decorator `name` that was given
    no limit."""
    if not inspect.isclass(limit):
        if not inspect.isroutine(limit) or getattr(limit, "__name__", None) == "<lambda>":
            return
        with contextlib.suppress(ValueError):  # it has no signature
            parameters = inspect.signature(limit).parameters.values()
            required = [each for each in parameters if each.default is each.empty]
            # What is registered already is a view.
            if len(required) == 1 and registration(limit, sys.maxsize) is None:
                return
    raise ArgumentTypeError(
        f'{name} was given {limit!r}; expected a limit: {name}("5/minute"), or a '
        "function of the request that returns one"
    )


def check_view(view: Any) -> None:
    """Raises ConfigurationError for what is no function that can be limited."""
    accepted = "expected a function that answers requests"
    if isinstance(view, (staticmethod, classmethod)) or not callable(view):
        raise ArgumentTypeError(f"{view!r} is a {type(view).__name__}; {accepted}")
    if inspect.isgeneratorfunction(view) or inspect.isasyncgenfunction(view):
        raise ConfigurationError(
            f"{view!r} is a generator, which begins only after the response has begun; "
            f"{accepted}, and which may return a streaming response"
        )


def _holds(candidate: Any, function: Callable[..., Any]) -> bool:
    """Whether a route, an application or a blueprint would call `function` itself."""
    attributes = vars(candidate)
    if attributes.get("endpoint") is function:
        return True
    if any(view is function for view in attributes.get("view_functions", {}).values()):
        return True
    # A blueprint keeps what it was told as closures, for the application it will join.
    return any(
        _content(cell) is function
        for deferred in attributes.get("deferred_functions", ())
        for cell in getattr(deferred, "__closure__", None) or ()
    )


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
