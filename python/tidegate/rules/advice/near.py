"""Whether one name is likely to be meant for another."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["is_slip_of", "is_spelling_of", "meant_by"]

# With fewer letters, names that differ by one are names of different things.
_FEWEST_LETTERS = 4
_MOST_REMEMBERED = 4096


@lru_cache(_MOST_REMEMBERED)
def is_slip_of(name: str, other: str) -> bool:
    """Whether a letter of `other` is missing, doubled or too many, or two are swapped.

    `name1` and `name2` are names of two things, as are names that differ in a short part.
    """
    if name == other or max(len(name), len(other)) < _FEWEST_LETTERS:
        return False
    shorter, longer = sorted((name, other), key=len)
    start = 0
    while start < len(shorter) and shorter[start] == longer[start]:
        start += 1
    if len(longer) == len(shorter) + 1:
        return shorter[start:] == longer[start + 1 :] and not longer[start].isdigit()
    if len(longer) != len(shorter):
        return False
    swapped = shorter[start + 1 : start + 2] + shorter[start]
    return longer[start : start + 2] == swapped and shorter[start + 2 :] == longer[start + 2 :]


def is_spelling_of(name: str, other: str) -> bool:
    """Whether they differ in case, white space, hyphens and underscores alone."""
    return name != other and _letters(name) == _letters(other)


def meant_by(name: str, known: Iterable[str]) -> str | None:
    """The one of the `known` names that `name` is a spelling or a slip of; None without one."""
    names = sorted(known)
    found = [other for other in names if is_spelling_of(name, other)]
    found += [other for other in names if is_slip_of(name, other)]
    return found[0] if found else None


@lru_cache(_MOST_REMEMBERED)
def _letters(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()
