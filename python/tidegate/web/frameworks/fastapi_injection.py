"""Makes FastAPI pass the request and a response to functions that ask for neither.

FastAPI passes a function what its signature asks for. A limited function keeps its signature, so
FastAPI's reading of signatures adds the two parameters.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from typing import Any, Callable

from tidegate.limiter.errors import ConfigurationError
from tidegate.web.frameworks.fastapi_openapi import MARK, mark_of

__all__ = ["Injection", "inject", "injection_for", "watch_signatures"]


class Injection:
    """The parameters by which FastAPI passes the request and a response.

    A parameter of type Request or Response requires no input, so it does not show in the OpenAPI
    schema. If the function has such parameters, they are used, since FastAPI fills only one of
    each.
    """

    def __init__(self, view: Callable[..., Any]) -> None:
        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.websockets import WebSocket

        signature, self.has_text = _signature(view)
        self.request = "tidegate_request"
        self.response = "tidegate_response"
        self._added = {self.request: Request, self.response: Response}
        for parameter in signature.parameters.values():
            kind = parameter.annotation
            if typing.get_origin(kind) is getattr(typing, "Annotated", None):
                kind = typing.get_args(kind)[0]
            if not isinstance(kind, type):
                continue
            if issubclass(kind, WebSocket):
                raise ConfigurationError(f"{view!r} is a WebSocket route; expected HTTP routes")
            if issubclass(kind, Request):
                self.request = parameter.name
                self._added.pop("tidegate_request", None)
            elif issubclass(kind, Response):
                self.response = parameter.name
                self._added.pop("tidegate_response", None)
        self.added = tuple(self._added)

    def signature(self, call: Callable[..., Any]) -> inspect.Signature:
        """Returns the signature of `call`, which ends in a call of the function, with the added
        parameters."""
        signature, _ = _signature(call)
        parameters = list(signature.parameters.values())
        end = len(parameters)
        if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
            end -= 1
        parameters[end:end] = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
            for name, kind in self._added.items()
            if name not in signature.parameters
        ]
        return signature.replace(parameters=parameters)


def injection_for(view: Callable[..., Any]) -> Injection | None:
    """Returns how FastAPI must call `view`, or None if FastAPI cannot be in use."""
    if "starlette.requests" not in sys.modules:
        # A service of Flask or Django must not pay for importing another framework.
        if "flask" in sys.modules or "django.http" in sys.modules:
            return None
        try:
            import starlette.requests  # noqa: F401
        except ImportError:
            return None
    return Injection(view)


def inject(function: Any, injection: Injection) -> None:
    """Makes FastAPI pass to `function` what it needs, if FastAPI is installed."""
    try:
        # The service may import FastAPI later.
        import fastapi.dependencies.utils as utils
    except ImportError:
        return
    read = getattr(utils, "get_typed_signature", None)
    if read is None:
        # An unknown version of FastAPI has to read the function's own signature.
        function.__signature__ = injection.signature(function)
        return
    watch_signatures()
    if injection.has_text and not _unwraps(utils):
        function.__signature__, _ = _signature(function)


def watch_signatures() -> None:
    """Makes FastAPI read the signatures of limited functions with the added parameters."""
    import fastapi.dependencies.utils as utils

    read = getattr(utils, "get_typed_signature", None)
    if read is not None and not hasattr(read, MARK):
        setattr(utils, "get_typed_signature", _reading(read))  # noqa: B010


def _unwraps(utils: Any) -> bool:
    """Returns whether FastAPI evaluates annotations among the globals of the wrapped function.

    Older versions use those of the wrapper, which are this package's.
    """
    read = getattr(utils, "get_typed_return_annotation", None)
    return "unwrap" in getattr(getattr(read, "__code__", None), "co_names", ())


def _reading(read: Callable[..., Any]) -> Callable[..., Any]:
    """Reads a signature as FastAPI does, with the parameters that limited functions need."""

    @functools.wraps(read)
    def reading(call: Any) -> Any:
        if inspect.isclass(call) and hasattr(call, MARK):
            raise ConfigurationError(
                f"Depends() was given the class {call.__name__}; expected a limit: "
                f'Depends({call.__name__}("5/minute"))'
            )
        injection: Injection | None = getattr(mark_of(call), "injection", None)
        return read(call if injection is None else _Asking(call, injection))

    setattr(reading, MARK, None)
    return reading


class _Asking:
    """A stand-in for `call` that shows other parameters."""

    def __init__(self, call: Callable[..., Any], injection: Injection) -> None:
        self.__signature__ = injection.signature(call)
        # FastAPI reads the globals of the wrapped function.
        self.__wrapped__ = inspect.unwrap(call)

    def __call__(self) -> None:
        """Never called."""


def _signature(call: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    """Returns the signature of `call`, its annotations evaluated if possible, and whether any of
    them was text."""
    if sys.version_info >= (3, 14):
        import annotationlib

        signature = inspect.signature(call, annotation_format=annotationlib.Format.FORWARDREF)
    else:
        signature = inspect.signature(call)
    parameters = list(signature.parameters.values())
    annotations = [parameter.annotation for parameter in parameters]
    if not any(isinstance(kind, str) for kind in [*annotations, signature.return_annotation]):
        return signature, False
    namespace = _globals_of(call)

    def evaluated(kind: Any) -> Any:
        # Each is evaluated alone: a name that only type checkers have must not hide the others.
        if not isinstance(kind, str):
            return kind
        try:
            value = eval(kind, namespace)
        except Exception:
            return kind
        return type(None) if value is None else value  # as typing evaluates it

    evaluated_signature = signature.replace(
        parameters=[p.replace(annotation=evaluated(p.annotation)) for p in parameters],
        return_annotation=evaluated(signature.return_annotation),
    )
    return evaluated_signature, True


def _globals_of(call: Any) -> dict[str, Any]:
    while isinstance(call, functools.partial):
        call = call.func
    function = inspect.unwrap(call)
    if not hasattr(function, "__globals__"):
        function = inspect.unwrap(type(function).__call__)
    found: dict[str, Any] = getattr(function, "__globals__", {})
    return found
