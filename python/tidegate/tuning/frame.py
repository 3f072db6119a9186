"""Tables of results."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.keys import Keys
from tidegate.tuning.optional import needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    FrameColumn = Union[NDArray[Any], Keys]

__all__ = ["Frame", "Framed"]

_MOST_SHOWN = 10


class Frame:
    """Columns of the same length by name, each an array of NumPy or Keys."""

    __slots__ = ("columns",)
    columns: dict[str, FrameColumn]

    def __init__(self, columns: Mapping[str, FrameColumn]) -> None:
        """Raises ConfigurationError if the lengths differ."""
        self.columns = dict(columns)
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigurationError(f"the columns have the lengths {lengths}; expected one length")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __getitem__(self, name: str) -> FrameColumn:
        if name not in self.columns:
            raise KeyError(f"{name!r} is no column; expected one of {', '.join(self.columns)}")
        return self.columns[name]

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns lists of plain values by column."""
        return {name: list(_plain(column)) for name, column in self.columns.items()}

    def to_pandas(self) -> Any:
        """Returns a DataFrame of pandas; keys are categorical."""
        pandas = needed("pandas", "to_pandas()")
        return pandas.DataFrame(
            {name: _of_pandas(pandas, column) for name, column in self.columns.items()}
        )

    def to_arrow(self) -> Any:
        """Returns a Table of Arrow; keys are dictionary-encoded."""
        pyarrow = needed("pyarrow", "to_arrow()")
        return pyarrow.table(
            {name: _of_arrow(pyarrow, column) for name, column in self.columns.items()}
        )

    def to_polars(self) -> Any:
        """Returns a DataFrame of polars."""
        polars = needed("polars", "to_polars()")
        return polars.DataFrame(
            {name: _of_polars(polars, column) for name, column in self.columns.items()}
        )

    def __repr__(self) -> str:
        rows = self._shown()
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        return "\n".join([*lines, self._left_out()]).rstrip()

    def _repr_html_(self) -> str:
        head, *rows = self._shown()
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        left_out = html.escape(self._left_out())
        return (
            f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table><p>{left_out}</p>"
        )

    def _shown(self) -> list[list[str]]:
        """Renders the names and the first rows."""
        some = [
            [_cell(value) for value in _plain(column[:_MOST_SHOWN])]
            for column in self.columns.values()
        ]
        return [list(self.columns), *([*row] for row in zip(*some))]

    def _left_out(self) -> str:
        return f"... {len(self):,} rows" if len(self) > _MOST_SHOWN else ""


class Framed:
    """What has a row for each request. Base class; a subclass has frame()."""

    __slots__ = ()

    def frame(self) -> Frame:
        raise NotImplementedError

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns frame() as lists of plain values by column."""
        return self.frame().to_dict()

    def to_pandas(self) -> Any:
        """Returns frame() as a DataFrame of pandas; texts and keys are categorical."""
        return self.frame().to_pandas()

    def to_arrow(self) -> Any:
        """Returns frame() as a Table of Arrow; texts and keys are dictionary-encoded."""
        return self.frame().to_arrow()

    def to_polars(self) -> Any:
        """Returns frame() as a DataFrame of polars."""
        return self.frame().to_polars()


def _plain(column: FrameColumn) -> list[Any]:
    if isinstance(column, Keys):
        return list(column)
    if column.dtype.kind == "M":
        return list(column)  # otherwise NumPy would make them ints
    return column.tolist()  # type: ignore[no-any-return]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _of_pandas(pandas: Any, column: FrameColumn) -> Any:
    if not isinstance(column, Keys):
        return column
    missing = [number for number, name in enumerate(column.names) if name is None]
    if not missing:
        return pandas.Categorical.from_codes(column.codes, categories=pandas.Index(column.names))
    return column.to_numpy()


def _of_arrow(pyarrow: Any, column: FrameColumn) -> Any:
    if not isinstance(column, Keys):
        return pyarrow.array(column)
    return pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.ascontiguousarray(column.codes)), pyarrow.array(_encodable(column.names))
    )


def _of_polars(polars: Any, column: FrameColumn) -> Any:
    if not isinstance(column, Keys):
        return polars.Series(column)
    return polars.Series(_encodable(column.names))[np.ascontiguousarray(column.codes)]


def _encodable(names: Any) -> Any:
    """Escapes lone surrogates, which UTF-8 cannot encode, as ``\\ud800``."""
    if isinstance(names, np.ndarray):
        return names
    return [
        name.encode("utf-8", "backslashreplace").decode() if isinstance(name, str) else name
        for name in names
    ]
