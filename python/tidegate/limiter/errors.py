"""The exceptions that tidegate raises, and the error of a module whose extra is missing."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidegate._core import Decision

__all__ = [
    "ArgumentTypeError",
    "ConfigurationError",
    "LimiterClosedError",
    "RateLimitExceeded",
    "ReservationError",
    "StorageError",
    "TidegateError",
    "missing",
    "without_extra",
]


class TidegateError(Exception):
    """The base class of all exceptions of tidegate."""


class ConfigurationError(TidegateError, ValueError):
    """An invalid value; the message says what was given and what is expected."""


class ArgumentTypeError(ConfigurationError, TypeError):
    """A value of the wrong type."""


class StorageError(TidegateError, ConnectionError):
    """A store that cannot be opened or reached."""


class LimiterClosedError(TidegateError, RuntimeError):
    """A call to a limiter after its close()."""


class ReservationError(TidegateError):
    """A call of a reservation that is not open: nothing was charged or given back.

    `settled` is whether it is known to have been settled before. If not, it was refused, or its
    `ttl` is over, or the storage lost it; then it stays at its estimate.
    """

    def __init__(self, message: str, settled: bool = False) -> None:
        super().__init__(message)
        self.settled = settled

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.settled), self.__dict__


class RateLimitExceeded(TidegateError):
    """A call was refused where no decision can be returned, such as on entering a slot.

    `decision` is the refusal.
    """

    def __init__(self, decision: Decision) -> None:
        advice = f"retry after {decision.retry_after} s"
        if decision.retry_after == float("inf"):  # the cost is beyond the capacity
            advice = "it never lets so much through"
        super().__init__(f"rate limit {decision.rule} exceeded; {advice}")
        self.decision = decision

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision,), self.__dict__


for _public in (TidegateError, *TidegateError.__subclasses__(), ArgumentTypeError):
    _public.__module__ = "tidegate"  # where users import them; tracebacks and pickles name it


_FEW = 12  # names that a message lists


def missing(module: str, name: str, elsewhere: dict[str, str]) -> Exception:
    """The error to raise where `module` has no `name`.

    `elsewhere` says how to import what callers look for there. It is an ImportError in
    ``from ... import``, which does not show the message of an AttributeError. To be called by the
    module's ``__getattr__``.
    """
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    import difflib
    import dis  # only an error message needs them

    names: list[str] = sys.modules[module].__all__
    near = {each.lower() for each in difflib.get_close_matches(name.lower(), map(str.lower, names))}
    message = f"{module} has no {name}"
    if name in elsewhere:
        message += f"; expected `{elsewhere[name]}`"
    elif _is_module(f"{module}.{name}"):
        message += f" before it is imported; expected `import {module}.{name}`"
    elif near:
        meant = " or ".join(sorted(each for each in names if each.lower() in near))
        message += f"; expected perhaps {meant}"
    elif len(names) <= _FEW:
        message += f"; expected one of {', '.join(names)}"

    caller = sys._getframe(2)
    if dis.opname[caller.f_code.co_code[caller.f_lasti]] == "IMPORT_FROM":
        return ImportError(message, name=module)
    return AttributeError(message)


def _is_module(name: str) -> bool:
    """Returns whether a package has a module of this name, which nothing has imported yet."""
    if not hasattr(sys.modules[name.rpartition(".")[0]], "__path__"):
        return False
    import importlib.util

    found = importlib.util.find_spec(name)
    # Those of _elsewhere only raise an error.
    return found is not None and "/_elsewhere/" not in (found.origin or "")


def without_extra(module: str, extra: str, error: ImportError) -> ModuleNotFoundError:
    """The error to raise where `module` cannot import a package that `extra` installs."""
    package = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(
        f"{module} needs the package {package}; expected `pip install 'tidegate[{extra}]'`",
        name=error.name,
    )
