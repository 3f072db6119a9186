"""Likely mistakes in rules that are accepted: what was written and cannot be what was meant.

Each kind of mistake is a module with a function from the fields of a document to its findings. No
finding may be made of rules that are right: an operator who is warned without reason reads no
further warnings.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidegate.rules.advice import (
    attributes,
    costs,
    endpoints,
    hidden,
    list_fields,
    methods,
    overrides,
    tiers,
    unlimited,
    values,
)
from tidegate.rules.advice.endpoints import endpoint_names
from tidegate.rules.advice.tiers import named_tiers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tidegate.rules.document import Document
    from tidegate.rules.model import Rules
    from tidegate.rules.problems import Problem

__all__ = ["advise", "advise_of_overrides", "endpoint_names", "hint", "named_tiers", "say"]

log = logging.getLogger("tidegate")

_KINDS = (
    attributes, list_fields, tiers, methods, endpoints, values, costs, hidden, unlimited,
)  # fmt: skip
# The most texts that are remembered as logged.
_MOST_LOGGED = 1000
_logged: set[str] = set()


def advise(document: Document, rules: Rules) -> Iterator[Problem]:
    """Finds likely mistakes in rules that compile_rules() has accepted, each with its place.

    Those of overrides are found by advise_of_overrides().
    """
    for kind in _KINDS:
        for where, message in kind.find(rules):
            yield document.problem(where, message)


def advise_of_overrides(document: Document, rules: Rules) -> Iterator[Problem]:
    """Finds likely mistakes in the overrides of such rules."""
    for where, message in overrides.find(rules):
        yield document.problem(where, message)


def hint(document: Document, rules: Rules) -> Iterator[Problem]:
    """Finds what may be meant or not, which nothing but `tidegate rules check` prints."""
    for where, message in hidden.hints(rules):
        yield document.problem(where, message)


def say(advice: Iterable[Problem]) -> None:
    """Logs each as a warning: one of the same text once in the life of the process."""
    for problem in advice:
        text = str(problem)
        if text in _logged:
            continue
        if len(_logged) >= _MOST_LOGGED:
            _logged.clear()
        _logged.add(text)
        log.warning("rules: %s", text)
