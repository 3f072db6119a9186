"""Error messages for calls with too many or too few arguments."""

from __future__ import annotations

import functools

from tidegate.limiter.errors import ArgumentTypeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Callable, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["OF_LIMITERS", "OF_LIMITERS_TEXT", "explains_arguments"]

# The options of a Limiter that do not belong to its storage.
OF_LIMITERS = ("limit", "storage", "algorithm", "prefix", "clock")
OF_LIMITERS_TEXT = "limit=, storage=, algorithm=, prefix= and clock="


def explains_arguments(
    name: str, options: Iterable[str] = (), others: Iterable[str] = ()
) -> Callable[[Function], Function]:
    """A decorator that explains the arguments of the function, which users know as `name`.

    Python only says how many arguments are surplus or missing. The error names them, and the option
    that a misspelled one may mean. The function takes `options` and `others` by ``**options``;
    messages list only `options`.
    """

    def decorate(function: Function) -> Function:
        code = function.__code__
        positional = code.co_varnames[: code.co_argcount]
        by_name = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        own = positional[:1] == ("self",)
        # The default `...` is only for type checkers.
        optional = sum(default is not ... for default in function.__defaults__ or ())
        required = [*positional[: len(positional) - optional]]
        required += [each for each in by_name if each not in (function.__kwdefaults__ or {})]
        accepted = list(dict.fromkeys([*positional[own:], *by_name, *options]))
        takes_any = bool(code.co_flags & 0x04)  # *args
        takes_options = bool(code.co_flags & 0x08)  # **options

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            if len(args) > len(positional) and not takes_any:
                extra = args[len(positional)]
                raise ArgumentTypeError(
                    f"{name}() was given {extra!r} without the name of an option; expected "
                    f"{_call(name, positional[own:], accepted)}"
                )
            missing = [each for each in required if each not in positional[: len(args)]]
            missing = [each for each in missing if each not in given]
            if missing:
                raise ArgumentTypeError(
                    f"{name}() was called without {' and '.join(missing)}"
                    f"{_unknown(given, [*accepted, *others])}; expected "
                    f"{_call(name, positional[own:], accepted)}"
                )
            if not takes_options and not given.keys() <= {*accepted}:
                raise ArgumentTypeError(
                    f"{name}() was called{_unknown(given, accepted)[4:]}; expected "
                    f"{_call(name, positional[own:], accepted)}"
                )
            return function(*args, **given)

        result: Function = checked  # type: ignore[assignment]
        return result

    return decorate


def _call(name: str, positional: Sequence[str], accepted: Sequence[str]) -> str:
    rest = [f"{each}=" for each in accepted if each not in positional]
    return f"{name}({', '.join([*positional, *rest])})"


def _unknown(given: Iterable[str], accepted: Sequence[str]) -> str:
    from tidegate.limiter.storage.hints import unknown_options

    unknown = set(given) - set(accepted)
    return f" and with the unknown option {unknown_options(unknown, accepted)}" if unknown else ""
