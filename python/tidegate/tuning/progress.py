"""A progress bar for long work."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.tuning.optional import needed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Progress", "each_shown"]

_Item = TypeVar("_Item")


class Progress:
    """Counts finished items, and shows a bar if that is wanted.

    `wanted` is True, False, or None: with None the bar is shown if the work is `long`, tqdm is
    installed, and the output is a terminal or a notebook.
    """

    def __init__(self, wanted: bool | None, total: int, what: str, *, long: bool) -> None:
        self._done = 0
        self._bar: Any = None
        if wanted or (wanted is None and long and _is_seen() and _has_tqdm()):
            tqdm = needed("tqdm.auto", "a progress bar").tqdm
            self._bar = tqdm(
                total=total, desc=what, unit_scale=True, delay=0 if wanted else 0.5, leave=False
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def reached(self, done: int) -> None:
        """Shows that `done` items are finished."""
        if self._bar is not None:
            self._bar.update(done - self._done)
        self._done = done


def each_shown(
    wanted: bool | None, items: Sequence[_Item], what: str, *, long: bool
) -> Iterator[_Item]:
    """Yields each item, with a bar that counts the finished ones."""
    with Progress(wanted, len(items), what, long=long) as bar:
        for number, item in enumerate(items):
            yield item
            bar.reached(number + 1)


def _is_seen() -> bool:
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def _has_tqdm() -> bool:
    return importlib.util.find_spec("tqdm") is not None
