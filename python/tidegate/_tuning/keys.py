"""Columns of keys, in which each distinct key is kept once."""

from __future__ import annotations

from typing import Any, Union, overload

import numpy as np

__all__ = ["Keys"]

Names = Union[list[str], list[bytes], "np.ndarray[Any, Any]"]


class Keys:
    """A column of keys, dictionary-encoded: names[codes[i]] is the key of event i."""

    __slots__ = ("codes", "names")

    def __init__(self, codes: np.ndarray[Any, Any], names: Names) -> None:
        self.codes = codes
        self.names = names

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice | np.ndarray[Any, Any]) -> Keys: ...
    def __getitem__(self, at: Any) -> Any:
        """Returns the key of one event; or the keys of a slice, a mask or an array of indices."""
        chosen = self.codes[at]
        if isinstance(chosen, np.ndarray):
            return Keys(chosen, self.names)
        return self.names[int(chosen)]

    def __repr__(self) -> str:
        return f"Keys({len(self.codes)} events, {len(self.names)} names)"
