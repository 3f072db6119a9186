"""Reads the logs of servers into columns; `tidegate.tuning.read_log()` calls it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

def read_times(texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], bool]:
    """Nanoseconds since the epoch, the least int64 for a text that is no time; and whether the
    times have no zones."""

class Reader:
    """Takes a log in chunks and fills columns. Not for two threads at once."""

    def __init__(
        self,
        format: str,
        fields: Sequence[tuple[str, str, str]],
        *,
        start: str = "",
        open_end: bool = False,
        delimiter: str = ",",
        header: str = "",
        keep_query: bool = False,
        time_unit: str = "",
    ) -> None: ...
    def feed(self, chunk: bytes) -> None:
        """Reads a chunk, without the GIL."""
    def end_source(self, cut_off: bool = False) -> None:
        """Ends a file; one that was cut off lacks the rest of its last line."""
    def take_columns(self) -> dict[str, Any]:
        """Arrays, and (codes, names) of keys. The reader has none of them afterwards."""
    @property
    def rows(self) -> int: ...
    @property
    def bad(self) -> int: ...
    @property
    def bad_lines(self) -> list[tuple[int, int, str, str]]:
        """The first ones: number of the file, number of the line, its beginning, the reason."""
    @property
    def guessed_units(self) -> list[int]:
        """The numbers of the files of whose durations nothing says the unit."""
    @property
    def time_unit(self) -> str: ...
    @property
    def has_no_zones(self) -> bool: ...
    @property
    def has_mixed_zones(self) -> bool: ...
    @property
    def has_fractions(self) -> bool: ...
