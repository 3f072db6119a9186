"""The report of ``tidegate doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["UNUSABLE", "Report", "in_words"]

FINE, WARNINGS, UNUSABLE = range(3)
_VERDICTS = ("fine", "usable, with warnings", "cannot be used")
_MARKS = {"ok": "ok", "note": "note", "warning": "WARN", "problem": "FAIL"}


class Finding(NamedTuple):
    """One sentence of the report. `level` is ok, note, warning or problem."""

    level: str
    topic: str
    text: str


class Report:
    """The findings, and the figures behind them."""

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


_WORDS = {
    "NOAUTH": "the server requires a password, and none was given",
    "WRONGPASS": "the user or the password is wrong",
    "Connection refused": "no server listens there",
    "READONLY": "this server is a replica, which may not be written to",
    "OOM": "the server's memory is full",
    "MISCONF": "the server cannot save its data, and refuses writes",
    "MOVED": "this is a node of a cluster",
    "DENIED": "the server is in protected mode",
}


def in_words(problem: str) -> str:
    """`problem` with its meaning, if that is known."""
    for sign, words in _WORDS.items():
        if sign in problem:
            return f"{words} ({problem})"
    return problem
