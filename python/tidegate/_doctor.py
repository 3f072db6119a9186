"""``tidegate doctor``: whether a Redis can hold limits, and how well."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidegate._errors import ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

__all__ = ["UNUSABLE", "Report", "in_words", "register"]

FINE, WARNINGS, UNUSABLE = range(3)
_VERDICTS = ("fine", "usable, with warnings", "cannot be used")
_MARKS = {"ok": "ok", "note": "note", "warning": "WARN", "problem": "FAIL"}
_EXIT_CODES = """\
exit codes:
  0  fine
  1  usable, with warnings
  2  cannot be used: nobody answers, the login or a command is refused, it is a replica ...
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``doctor`` to those of the command line."""
    import argparse

    doctor = commands.add_parser(
        "doctor",
        help="say whether a Redis can hold limits, and how well",
        description="Says in plain words whether a Redis can hold limits, and how well. It makes "
        "a few keys of its own under the prefix, and removes them.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("storage", metavar="URI", help="such as redis://user:password@host:6379/0")
    doctor.add_argument("--prefix", default="tg", help="that of the limiters (default: tg)")
    doctor.add_argument(
        "--samples", type=int, default=200, help="calls to measure (default: %(default)s)"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(run=_run)


class Finding(NamedTuple):
    """One sentence of the report. `level` is ok, note, warning or problem."""

    level: str
    topic: str
    text: str


class Report:
    """What was found, and the figures behind it."""

    def __init__(self, storage: str, secrets: list[str]) -> None:
        self.findings: list[Finding] = []
        self.figures: dict[str, Any] = {"storage": storage}
        self._secrets = secrets

    def add(self, level: str, topic: str, text: str) -> None:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        self.findings.append(Finding(level, topic, text))

    @property
    def code(self) -> int:
        levels = {finding.level for finding in self.findings}
        return UNUSABLE if "problem" in levels else WARNINGS if "warning" in levels else FINE

    def as_json(self) -> str:
        import json

        return json.dumps(
            {
                **self.figures,
                "exit_code": self.code,
                "verdict": _VERDICTS[self.code],
                "findings": [finding._asdict() for finding in self.findings],
            },
            indent=2,
        )

    def lines(self) -> Iterator[str]:
        yield str(self.figures["storage"])
        for level, topic, text in self.findings:
            yield f"  {_MARKS[level]:<5}{topic:<13}{text}"
        yield (
            f"\nThis Redis is {_VERDICTS[self.code]}."
            if self.code != UNUSABLE
            else ("\nThis Redis cannot be used as it is.")
        )


def _run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.samples <= 100_000:
        raise ConfigurationError(f"--samples {arguments.samples}; accepted are 1 to 100000")
    from tidegate._examination import examine

    report = examine(arguments.storage, prefix=arguments.prefix, samples=arguments.samples)
    if arguments.json:
        print(report.as_json())
    else:
        for line in report.lines():
            print(line)
    return report.code


_WORDS = {
    "NOAUTH": "the server wants a password, and none was given",
    "WRONGPASS": "the user or the password is wrong",
    "Connection refused": "nobody listens there",
    "READONLY": "this server is a replica, which may not be written to",
    "OOM": "the server's memory is full",
    "MISCONF": "the server cannot save its data, and refuses writes",
    "MOVED": "this is a node of a cluster",
    "DENIED": "the server is in protected mode",
}


def in_words(problem: str) -> str:
    """`problem` with what it means, where that is known."""
    for sign, words in _WORDS.items():
        if sign in problem:
            return f"{words} ({problem})"
    return problem
