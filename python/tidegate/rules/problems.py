"""Problems of a document of rules, with their places."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.limiter.errors import ConfigurationError

__all__ = ["Problem", "RulesError", "problem_at"]

_MOST_SHOWN = 20


class Problem(NamedTuple):
    """One mistake in a document of rules."""

    source: str
    """The file, or ``<dict>`` or ``<text>`` for rules that come from no file."""
    line: int | None
    """Counted from 1; None if the document has no lines."""
    where: str
    """The field, such as ``rules[3].limits.free``."""
    message: str
    """A text that says what was given and what is expected."""

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        where = f"{self.where}: " if self.where else ""
        return f"{self.source}{line}: {where}{self.message}"


class RulesError(ConfigurationError):
    """Rules that are not accepted. `problems` lists every mistake that was found."""

    def __init__(self, problems: list[Problem]) -> None:
        shown = [str(problem) for problem in problems[:_MOST_SHOWN]]
        if len(problems) > _MOST_SHOWN:
            shown.append(f"and {len(problems) - _MOST_SHOWN} more")
        super().__init__("\n".join(shown))
        self.problems = problems

    def __reduce__(self) -> tuple[type, tuple[list[Problem]]]:
        return type(self), (self.problems,)


def problem_at(source: str, line: int | None, message: str) -> RulesError:
    """The error of a document that cannot be read."""
    return RulesError([Problem(source, line, "", message)])
