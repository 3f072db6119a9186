"""Keys: whom or what the requests of a log were counted by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    Names = Union[list[Any], NDArray[Any]]

__all__ = ["Keys"]


class Keys:
    """A column of keys, dictionary-encoded: ``names[codes[i]]`` is the key of event i."""

    __slots__ = ("codes", "names")
    codes: NDArray[np.uint32]
    names: Names

    def __init__(self, codes: NDArray[np.uint32], names: Names) -> None:
        """`codes` are uint32 below the number of `names`, which are all different."""
        self.codes = codes
        self.names = names

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, at: slice | NDArray[Any] | list[Any]) -> Keys: ...
    def __getitem__(self, at: Any) -> Any:
        """The key of one event, by its position; or Keys, by a slice, a mask or positions."""
        if isinstance(at, (int, np.integer)):
            return self.names[self.codes[at]]
        return Keys(self.codes[at], self.names)

    def __iter__(self) -> Iterator[Any]:
        names = self.names
        return (names[code] for code in self.codes.tolist())

    def to_numpy(self) -> NDArray[Any]:
        """The key of each event: an array of ints, or of objects."""
        if isinstance(self.names, np.ndarray):
            return self.names[self.codes]
        names = np.empty(len(self.names), dtype=object)
        names[:] = self.names
        return names[self.codes]

    def __repr__(self) -> str:
        some = ", ".join(repr(each) for each in self.names[:3])
        more = ", ..." if len(self.names) > 3 else ""
        return f"Keys({len(self):,} of {len(self.names):,} names: {some}{more})"
