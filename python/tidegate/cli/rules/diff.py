"""``tidegate rules diff``: what changes from one document of rules to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.rules.compile import compile_rules, validate
from tidegate.rules.diff import differences
from tidegate.rules.document import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules import model

__all__ = ["diff"]


def diff(old: str, new: str) -> Iterator[str]:
    """The lines of differences(), or one that says that there are none."""
    yield from differences(_read(old), _read(new)) or ["The rules say the same."]


def _read(file: str) -> model.Rules:
    document = read_file(Path(file))
    rules = validate(document)
    compile_rules(document, rules)
    return rules
