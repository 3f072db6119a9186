"""Checks of the service's own functions, before the first request."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
import types
import typing
from typing import Any

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

# Both see the mark of a function that is not async and returns a coroutine, as that of Django's
# as_view() for a class of async views.
if sys.version_info >= (3, 12):
    from inspect import iscoroutinefunction
else:
    from asyncio import iscoroutinefunction

__all__ = [
    "check_application",
    "check_function",
    "check_result",
    "check_synchronous",
    "imported",
    "is_async",
    "is_generator",
    "refuse_misuse",
    "wrong_result",
]

_EXPECTED = "expected a str, bytes, int, UUID or None"
# The options that name a function of the service.
_FUNCTIONS = ("key", "cost", "cost_after", "exempt_when", "on_refused")
# What a scope has once a route is found.
_SET_BY_ROUTERS = ("path_params", "endpoint", "route")
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))
# Of these no text is made: those who write such a function have one in mind, and which is unknown.
_NO_KEYS = (tuple, list, dict, set, frozenset, float, bool, bytearray)


def check_function(name: str, function: Any, takes: tuple[str, ...]) -> None:
    """Raises ArgumentTypeError if `function` cannot be called with the arguments `takes`."""
    wanted = f"a function of {' and '.join(takes or ('the request',))}"
    maker = _maker_of_keys(function)
    if maker is not None:
        raise ArgumentTypeError(
            f"{name} is tidegate.keys.{maker}, which makes key functions; expected one that it "
            f"makes: {maker}(...)"
        )
    if not callable(function):
        ours = ", such as those of tidegate.keys" if name == "key" else ""
        raise ArgumentTypeError(
            f"{name} is {function!r} of type {type(function).__name__}; "
            f"expected {wanted}{ours}, or None"
        )
    other = _other_signature(function, takes)
    if other is not None:
        raise ArgumentTypeError(f"{name} is {function!r}, which takes {other}; expected {wanted}")
    filled = _filled_by_fastapi(function)
    if filled is not None:
        raise ArgumentTypeError(
            f"{name} is {function!r}, which takes {filled}, as only functions that FastAPI calls "
            f"do; expected {wanted}, which finds in request.state what a dependency has put there"
        )


def _filled_by_fastapi(function: Any) -> inspect.Parameter | None:
    """Returns a parameter whose default is one of FastAPI's, such as ``Depends(current_user)``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of functions in C
        return None
    for each in parameters:
        if type(each.default).__module__.partition(".")[0] == "fastapi":
            return each
    return None


def refuse_misuse(name: str, request: Any, exc: Exception) -> None:
    """Raises ConfigurationError if `exc`, which the function `name` raised, shows that it would
    fail for each request: it takes a scope or an environ for a request of a framework, looks for
    what is not there yet, or does not await a coroutine."""
    if isinstance(exc, ConfigurationError):  # of tidegate itself
        raise exc
    said = str(exc)
    if isinstance(exc, (AttributeError, TypeError)) and "'coroutine' object" in said:
        raise ArgumentTypeError(
            f"{name} uses the result of an async function without `await` ({said}); expected "
            "`async def`, and `await` in it"
        ) from exc
    if not isinstance(request, dict):
        return
    is_asgi = "REQUEST_METHOD" not in request
    if type(exc) is KeyError and exc.args[0] in _SET_BY_ROUTERS and is_asgi:
        raise ConfigurationError(
            f"{name} reads scope[{exc.args[0]!r}], which the router sets after the middleware; "
            "expected a limit of the route, such as @rate_limit"
        ) from exc
    read = re.search(r"'dict' object has no attribute '(\w+)'", said)
    # Python 3.9 does not say whose attribute it was.
    if type(exc) is AttributeError and read and getattr(exc, "obj", request) is request:
        given, way_out = "the ASGI scope", "starlette.requests.Request(scope)"
        if not is_asgi:
            given, way_out = "the WSGI environ", "werkzeug.Request(environ)"
        raise ArgumentTypeError(
            f"{name} reads .{read[1]} of {given}, which is a dict; expected a function of that "
            f"dict, or of {way_out}"
        ) from exc


def _other_signature(function: Any, takes: tuple[str, ...]) -> inspect.Signature | None:
    """Returns the signature of a function that cannot be called with the arguments `takes`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of functions in C
        return None
    try:
        signature.bind(*takes)
    except TypeError:
        return signature
    return None


def check_result(name: str, function: Any) -> None:
    """Raises ArgumentTypeError for a function that is annotated to return what cannot be a key."""
    if isinstance(function, type) or not callable(function):
        return
    made = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        returned = typing.get_type_hints(made).get("return")
    except Exception:  # of names that are there for type checkers alone
        return
    kinds = typing.get_args(returned) if typing.get_origin(returned) in _UNIONS else (returned,)
    for kind in kinds:
        plain = typing.get_origin(kind) or kind
        if isinstance(plain, type) and issubclass(plain, _NO_KEYS):
            raise ArgumentTypeError(
                f"{name} is {function!r}, which returns a {plain.__name__}; {_EXPECTED}, such as "
                "f'{tenant}:{user}' for a key of two parts"
            )


def wrong_result(what: str, value: Any) -> ArgumentTypeError:
    """Returns the error of a function that returned what cannot be a key."""
    given = f"{value!r:.80}"
    return ArgumentTypeError(f"{what} returned a {type(value).__name__}, {given}; {_EXPECTED}")


def _maker_of_keys(function: Any) -> str | None:
    """Returns the name of `function` if it is a maker of key functions in tidegate.keys, given in
    place of its result."""
    name = getattr(function, "__qualname__", "")
    made = getattr(function, "__module__", None) != "tidegate.keys" or "." in name
    return None if made or name == "peer" else name


def check_application(app: Any, interface: str, takes: tuple[str, ...], other: str) -> None:
    """Raises ArgumentTypeError for an application that is not of `interface`.

    `takes` are its arguments; `other` is the middleware for the other interface.
    """
    if isinstance(app, str):  # a limit in place of the application
        raise ArgumentTypeError(
            f"the application is {app!r} of type {type(app).__name__}; expected one of "
            f"{interface}, which takes {', '.join(takes)}"
        )
    signature = _other_signature(app, takes) if callable(app) else None
    if signature is not None:
        raise ArgumentTypeError(
            f"the application is {app!r}, which takes {signature}; expected one of {interface}, "
            f"which takes {', '.join(takes)} (for the other interface there is {other})"
        )


def imported(name: str, expected: str = "'package.module:function'") -> Any:
    """Imports what `name` names, such as ``package.module:function``."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(
            f"{name!r} cannot be imported ({exc}); expected {expected}"
        ) from exc


def is_async(function: Any) -> bool:
    """Returns whether a call of the object makes a coroutine, as far as can be seen."""
    return iscoroutinefunction(function) or iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )


def is_generator(function: Any) -> bool:
    """Returns whether a call of the object makes a generator, async or not."""
    calls = (function, getattr(type(function), "__call__", None))  # noqa: B004
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in calls
    )


def check_synchronous(given: Any = None, **functions: Any) -> None:
    """Raises ConfigurationError for async functions: of the options `given`, and `functions`."""
    if given is not None:
        functions.update({name: getattr(given, name, None) for name in _FUNCTIONS})
    for name, function in functions.items():
        if is_async(function):
            raise ConfigurationError(
                f"{name} is the async function {function!r}; expected a function that is not async"
            )
