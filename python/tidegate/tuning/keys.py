"""Columns of keys: whom or what the requests of a log are counted by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union, overload

import numpy as np
from numpy.typing import NDArray

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.tuning.columns import ArrowColumn, is_missing, opened, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    Names = Union[list[Any], NDArray[Any]]

__all__ = ["Keys", "as_keys"]

_ACCEPTED = "keys: non-empty str or bytes, or ints"


class Keys:
    """A column of keys, dictionary-encoded: ``names[codes[i]]`` is the key of event i."""

    __slots__ = ("codes", "names")
    codes: NDArray[np.uint32]
    names: Names

    def __init__(self, codes: NDArray[np.uint32], names: Names) -> None:
        """`codes` are uint32 and index `names`, which are all different."""
        self.codes = codes
        self.names = names

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, at: slice | NDArray[Any] | list[Any]) -> Keys: ...
    def __getitem__(self, at: Any) -> Any:
        """Returns the key at a position, or the Keys of a slice, a mask or positions."""
        if isinstance(at, (int, np.integer)):
            return self.names[self.codes[at]]
        return Keys(self.codes[at], self.names)

    def __iter__(self) -> Iterator[Any]:
        names = self.names
        return (names[code] for code in self.codes.tolist())

    def to_numpy(self) -> NDArray[Any]:
        """Returns the key of each event as an array of ints or objects."""
        if isinstance(self.names, np.ndarray):
            return self.names[self.codes]
        names = np.empty(len(self.names), dtype=object)
        names[:] = self.names
        return names[self.codes]

    def __repr__(self) -> str:
        some = ", ".join(repr(each) for each in self.names[:3])
        more = ", ..." if len(self.names) > 3 else ""
        return f"Keys({len(self):,} of {len(self.names):,} names: {some}{more})"


def as_keys(column: Any, what: str = "keys", *, optional: bool = False) -> Keys:
    """Returns `column` as Keys. A missing key is None if keys are `optional`.

    Raises ConfigurationError or ArgumentTypeError, with the first position, for a value that is
    not a key.
    """
    if isinstance(column, Keys):
        return _checked(column, what, optional)
    categories = _of_categories(column, what, optional)
    if categories is not None:
        return categories
    given = opened(column, what, _ACCEPTED)
    if isinstance(given, ArrowColumn):
        return _of_arrow(given, what, optional)
    if isinstance(given, list):
        return _of_list(given, what, optional)
    if given.dtype.kind in "iu":
        codes, firsts = _core.number_ints(given)
        return Keys(codes, given[firsts])
    if given.dtype.kind in "SU":
        codes, firsts = _core.number_fixed(given)
        names = given[firsts].tolist()
        if not optional:
            _check_names(codes, names, what)
        return Keys(codes, names)
    if given.size == 0:
        return Keys(np.empty(0, np.uint32), [])
    raise ArgumentTypeError(
        f"the {what} are an array of {given.dtype}, with {shown(given[0].item())} at index 0; "
        f"expected {_ACCEPTED}"
    )


def _checked(keys: Keys, what: str, optional: bool) -> Keys:
    codes: Any = keys.codes
    if not isinstance(codes, np.ndarray) or codes.dtype != np.uint32 or codes.ndim != 1:
        raise ArgumentTypeError(
            f"the codes of the {what} are {shown(codes)}; expected a column of uint32"
        )
    if len(codes) and int(codes.max()) >= len(keys.names):
        at = int((codes >= len(keys.names)).argmax())
        raise ConfigurationError(
            f"the code at index {at} of the {what} is {codes[at]}; expected one below "
            f"{len(keys.names)}, the number of names"
        )
    names = keys.names
    if not isinstance(names, np.ndarray) and len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if names.index(name) < at)
        raise ConfigurationError(
            f"the names of the {what} have {shown(twice)} twice; expected each name once"
        )
    if not optional:
        _check_names(codes, names, what)
    return Keys(np.ascontiguousarray(codes), names)


def _of_categories(column: Any, what: str, optional: bool) -> Keys | None:
    """Returns the Keys of a categorical column of pandas; None for any other column."""
    if getattr(getattr(column, "dtype", None), "name", "") != "category":
        return None
    column = getattr(column, "cat", column)
    given = np.asarray(column.codes)
    names = list(column.categories)
    used = np.flatnonzero(np.bincount(given[given >= 0], minlength=len(names)))
    # Names that no event uses are dropped.
    numbers = np.full(len(names) + 1, len(used), np.uint32)
    numbers[used] = np.arange(len(used), dtype=np.uint32)
    missing = given < 0
    if missing.any() and not optional:
        _refuse(int(missing.argmax()), None, what)
    own = as_keys([names[at] for at in used], what, optional=optional)
    kept = [*own.names, None] if missing.any() else own.names
    code_of = np.append(own.codes, np.uint32(len(own.names))).astype(np.uint32)
    return Keys(code_of[numbers[np.where(missing, len(names), given)]], kept)


def _of_arrow(column: ArrowColumn, what: str, optional: bool) -> Keys:
    if column.kind == "times":
        raise ArgumentTypeError(f"the {what} are timestamps; expected {_ACCEPTED}")
    if column.null_at >= 0 and not optional:
        _refuse(column.null_at, None, what)
    if column.kind == "ints":
        if column.null_at >= 0:
            raise ArgumentTypeError(
                f"the {what} are ints, of which that at index {column.null_at} is missing; "
                "expected texts where some are missing"
            )
        ints = column.items.view(np.uint64) if column.detail else column.items
        codes, firsts = _core.number_ints(ints)
        return Keys(codes, ints[firsts])
    codes, names = column.items, column.detail
    if column.null_at >= 0:
        codes = np.where(codes == 2**32 - 1, np.uint32(len(names)), codes)
        names = [*names, None]
    elif not optional:
        _check_names(codes, names, what)
    return Keys(codes, names)


def _of_list(items: list[Any], what: str, optional: bool) -> Keys:
    other = next((at for at, item in enumerate(items) if not _is_int(item)), -1)
    if items and other < 0:
        try:
            ints = np.array(items, dtype=np.int64)
        except OverflowError:
            at = next(i for i, item in enumerate(items) if not -(2**63) <= item < 2**63)
            raise ConfigurationError(
                f"the {what} have {items[at]} at index {at}; expected ints of 64 bits, or texts"
            ) from None
        codes, firsts = _core.number_ints(ints)
        return Keys(codes, ints[firsts])
    if optional:
        return _with_none(items, what)
    if other > 0:
        _refuse(other, items[other], what)
    codes, firsts, bad = _core.number_objects(items)
    if bad >= 0:
        _refuse(bad, items[bad], what)
    return Keys(codes, [items[at] for at in firsts.tolist()])


def _is_int(item: Any) -> bool:
    return isinstance(item, (int, np.integer)) and not isinstance(item, bool)


def _with_none(items: list[Any], what: str) -> Keys:
    """Replaces missing values, including those of pandas and NumPy, by None; keeps empty texts."""
    numbers: dict[Any, int] = {}
    codes = np.empty(len(items), np.uint32)
    for at, item in enumerate(items):
        name = None if is_missing(item) else item
        if name is not None and not (_is_int(name) or isinstance(name, (str, bytes))):
            _refuse(at, item, what)
        codes[at] = numbers.setdefault(name, len(numbers))
    return Keys(codes, list(numbers))


def _check_names(codes: NDArray[np.uint32], names: Names, what: str) -> None:
    if isinstance(names, np.ndarray):
        return  # every int is a valid key
    for number, name in enumerate(names):
        if not name and not _is_int(name):
            at = np.flatnonzero(codes == number)
            if len(at):
                _refuse(int(at[0]), name, what)


def _refuse(at: int, key: object, what: str) -> None:
    kind = ConfigurationError if isinstance(key, (str, bytes)) else ArgumentTypeError
    raise kind(f"the {what} have {shown(key)} at index {at}; expected {_ACCEPTED}")
