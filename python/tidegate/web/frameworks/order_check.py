"""Checks whether a function was registered with a web framework before it was decorated.

A decorator above `@app.get` wraps a function that nobody calls: the framework keeps the bare
function, and nothing is limited. That must not happen silently.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
from typing import Any, Callable

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.web.callables import is_generator

__all__ = [
    "check_limit",
    "check_view",
    "reference_count",
    "refuse_registered",
    "registration",
    "without_limit",
]

# No function has more decorators; a longer chain is a cycle.
_DEEPEST = 64


def reference_count(function: Callable[..., Any]) -> int:
    """Returns the number of references to `function`, including those of this call."""
    return sys.getrefcount(function)


class _Probe:
    """A decorator of the same form as @rate_limit: a callable object."""

    def __call__(self, function: Callable[..., Any]) -> int:
        return reference_count(function)


@_Probe()
def _FRESH() -> None:
    """Replaced below by the reference count of a function that only its decorator has seen."""


def registration(function: Callable[..., Any], references: int) -> str | None:
    """Returns what `function` is registered with, in words, or None if it is not registered.

    `references` is the result of reference_count() in the `__call__` of the decorator. A registered
    function has more references than a fresh one, so that only suspects cost a search of the heap
    (some tens of milliseconds).
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
        # isinstance() is not used here: a proxy answers for its target, or raises.
        if issubclass(type(candidate), kinds) and _holds(candidate, function):
            return type(candidate).__name__
    return None


def _wrapped_by(function: Any) -> list[Any]:
    """Returns the functions that `function` wraps, the nearest first."""
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
    """A usual decorator, which keeps two references: its own and `__wrapped__`."""

    @functools.wraps(function)
    def wrapper() -> Any:
        return function()

    return wrapper


@_wrapping
def _wrapped() -> None:
    """A function that only a decorator has seen."""


(_FRESH_BELOW,) = _references_of(_wrapped_by(_wrapped))


def refuse_registered(view: Any, references: int) -> None:
    """Raises ConfigurationError for a view that a framework would call without its limit.

    Such a view was registered itself, or wraps a registered function.
    """
    registered = registration(view, references)
    below = _wrapped_by(view) if references else []
    for function, count in zip(below, _references_of(below)):
        # The list that holds the functions adds a reference to each.
        if registered is None and count > _FRESH_BELOW:
            registered = registration(function, sys.maxsize)
    if registered is not None:
        article = "an" if registered[0] in "AEIOU" else "a"
        raise ConfigurationError(
            f"{view.__qualname__} is registered with {article} {registered} already, which calls "
            "it without @rate_limit; expected @rate_limit below the decorator that "
            "registers the route"
        )


def check_limit(limit: Any, name: str) -> None:
    """Raises ConfigurationError if `limit` is not a limit function but a view, under the decorator
    `name` without a limit; or if it is rules."""
    if any(each.__module__.startswith("tidegate.rules.") for each in type(limit).__mro__):
        raise ArgumentTypeError(
            f"{name} was given rules, {limit!r:.80}; expected a limit, and rules in middleware: "
            "RateLimitMiddleware(app, rules=...)"
        )
    if not inspect.isclass(limit):
        if not inspect.isroutine(limit) or getattr(limit, "__name__", None) == "<lambda>":
            return
        with contextlib.suppress(ValueError):  # the function has no signature
            parameters = inspect.signature(limit).parameters.values()
            required = [each for each in parameters if each.default is each.empty]
            # A function that is registered already is a view.
            if len(required) == 1 and registration(limit, sys.maxsize) is None:
                return
    raise without_limit(name, limit)


class NoLimitError(ArgumentTypeError, AttributeError):
    """Also an AttributeError, for code that reads names of all functions where they have one."""


def without_limit(name: str, given: Any) -> NoLimitError:
    """The error for a decorator `name` that was given a view, and no limit."""
    return NoLimitError(
        f'{name} was given {given!r}; expected a limit: {name}("5/minute"), or a '
        "function of the request that returns one"
    )


def check_view(view: Any) -> None:
    """Raises ConfigurationError for a view that cannot be limited."""
    accepted = "expected a function that answers requests"
    if isinstance(view, (staticmethod, classmethod)) or not callable(view):
        raise ArgumentTypeError(f"{view!r} is a {type(view).__name__}; {accepted}")
    if is_generator(view):
        raise ConfigurationError(
            f"{view!r} is a generator, which begins only after the response has begun; "
            f"{accepted}, and which may return a streaming response"
        )


def _holds(candidate: Any, function: Callable[..., Any]) -> bool:
    """Returns whether a route, an application or a blueprint would call `function` itself."""
    attributes = vars(candidate)
    if attributes.get("endpoint") is function:
        return True
    if any(view is function for view in attributes.get("view_functions", {}).values()):
        return True
    # A blueprint keeps its registrations as closures, for the application that it will join.
    return any(
        _content(cell) is function
        for deferred in attributes.get("deferred_functions", ())
        for cell in getattr(deferred, "__closure__", None) or ()
    )


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None
