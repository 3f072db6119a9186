"""The error of calls that are given a Log where they take columns of it."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, TypeVar

from tidegate.limiter.errors import ArgumentTypeError
from tidegate.tuning.logs.log import Log

__all__ = ["takes_columns"]

Function = TypeVar("Function", bound=Callable[..., Any])

_EXAMPLES = {
    "limit": '"100/minute"',
    "limits": '"100/minute"',
    "keys": 'log["ip"]',
    "times": "log.times",
    "period": '"minute"',
}


def takes_columns(function: Function) -> Function:
    """Has `function` say which columns it takes if it is called with a Log."""
    parameters = list(inspect.signature(function).parameters.values())
    needed = [each.name for each in parameters if each.default is each.empty]
    call = f"{function.__name__}({', '.join(_EXAMPLES[name] for name in needed)})"

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for value in (*args, *given.values()):
            if isinstance(value, Log):
                raise ArgumentTypeError(
                    f"{function.__name__}() was given a Log; expected its columns: {call}"
                )
        return function(*args, **given)

    result: Any = checked
    return result  # type: ignore[no-any-return]
