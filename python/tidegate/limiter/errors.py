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


def missing(module: str, name: str, elsewhere: dict[str, str]) -> Exception:
    """The error to raise where `module` has no `name`.

    `elsewhere` says how to import what callers look for there. For these it is an ImportError in
    ``from ... import``, which does not show the message of an AttributeError. To be called by the
    module's ``__getattr__``.
    """
    if name not in elsewhere:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{module} has no {name}; expected `{elsewhere[name]}`"
    import dis  # only an error message needs it

    caller = sys._getframe(2)
    if dis.opname[caller.f_code.co_code[caller.f_lasti]] == "IMPORT_FROM":
        return ImportError(message, name=module)
    return AttributeError(message)


def without_extra(module: str, extra: str, error: ImportError) -> ModuleNotFoundError:
    """The error to raise where `module` cannot import a package that `extra` installs."""
    package = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(
        f"{module} needs the package {package}; expected `pip install 'tidegate[{extra}]'`",
        name=error.name,
    )
