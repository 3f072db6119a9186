"""Logs that are tables: Parquet, Arrow, pandas, polars."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tidegate import _logs
from tidegate._errors import ConfigurationError
from tidegate._tuning.keys import Keys
from tidegate._tuning.logs.detect import Wishes
from tidegate._tuning.logs.layout import Layout
from tidegate._tuning.logs.log import BadLine
from tidegate._tuning.logs.names import end_stamped, meanings
from tidegate._tuning.logs.parts import Parts, keys_of
from tidegate._tuning.optional import needed

__all__ = ["is_table", "parquet", "table"]

_DURATION_NS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_REQUEST = re.compile(r"[A-Z_-]+ (.+?)(?: HTTP/[\d.]+)?")
_ORIGIN = re.compile(r"\w+://[^/?#]*")
_PORT = re.compile(r"^([\d.]+):\d+$")
# Numbers of 1973 and later, as the reader of texts takes them.
_LEAST = 10**8


def is_table(given: Any) -> bool:
    """Whether this is a table of Arrow, pandas or polars."""
    return hasattr(given, "__arrow_c_stream__") or (
        hasattr(given, "columns") and hasattr(given, "to_numpy")
    )


def parquet(path: str, wishes: Wishes) -> Parts:
    """Reads a Parquet file, by way of pyarrow."""
    module = needed("pyarrow.parquet", "reading Parquet")
    return _parts(module.read_table(path), wishes, "parquet")


def table(given: Any, wishes: Wishes) -> Parts:
    """Reads a table."""
    pa, _ = _arrow()
    if not isinstance(given, pa.Table):
        given = (
            pa.table(given) if hasattr(given, "__arrow_c_stream__") else pa.Table.from_pandas(given)
        )
    return _parts(given, wishes, "table")


def _arrow() -> tuple[Any, Any]:
    return needed("pyarrow", "reading a table"), needed("pyarrow.compute", "reading a table")


def _parts(arrow: Any, wishes: Wishes, name: str) -> Parts:
    pa, pc = _arrow()

    found = {}
    for field in arrow.schema:
        values = arrow.column(field.name)
        value = values[0].as_py() if len(values) else None
        found[field.name] = 0 if pa.types.is_temporal(field.type) else value
    chosen, notes = meanings(found, wishes.columns, wishes.duration_unit)
    columns = {column: (kind, arrow.column(name)) for name, (kind, column) in chosen.items()}
    times, missing, unit, zoneless = _times(columns.pop("time")[1], wishes)
    keep = ~missing
    result: dict[str, Any] = {}
    for column, (kind, values) in columns.items():
        if kind in _DURATION_NS:
            result["duration_ns"] = _durations(values, kind)[keep]
        elif kind in ("status", "bytes"):
            dtype = np.int32 if kind == "status" else np.int64
            numbers = pc.fill_null(pc.cast(values, pa.int64()), 0).to_numpy()
            result[kind] = numbers.astype(dtype)[keep]
        elif kind in ("path", "address", "key", "request"):
            result["path" if kind == "request" else column] = _keys(values, kind, wishes)[keep]
    layout = Layout(name, name, (), end_stamped=end_stamped(found, chosen), notes=tuple(notes))
    bad = int(missing.sum())
    lines = [
        BadLine(int(at) + 1, "", "Expected a time, got nothing", name)
        for at in np.flatnonzero(missing)[:10]
    ]
    said = [f"Times are numbers, taken as {unit} since the epoch."] if unit else []
    if zoneless:
        said.append("Times have no zone and are taken as UTC; time_zone= tells otherwise.")
    return Parts(times[keep], result, layout, bad, lines, said, zoneless)


def _times(values: Any, wishes: Wishes) -> tuple[Any, Any, str, bool]:
    """Nanoseconds, which are missing, the unit of numbers, and whether there is no zone."""
    pa, pc = _arrow()

    missing = np.asarray(pc.is_null(values).to_numpy(), dtype=bool)
    kind = values.type
    if pa.types.is_date(kind):
        raise ConfigurationError("the times are dates; expected instants")
    if pa.types.is_timestamp(kind):
        whole = pc.cast(values, pa.timestamp("ns", tz=kind.tz))
        return _filled(pc.cast(whole, pa.int64())), missing, "", kind.tz is None
    if pa.types.is_dictionary(kind):
        values, kind = pc.cast(values, kind.value_type), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = ["" if text is None else text for text in values.to_pylist()]
        times = np.zeros(len(texts), dtype=np.int64)
        read, at, zoneless = _logs.read_times([text for text in texts if text])
        if read is None:
            given = [text for text in texts if text][at]
            raise ConfigurationError(f"Expected a time such as 2026-01-31T13:05:00Z, got {given!r}")
        empty = np.asarray([not text for text in texts], dtype=bool)
        times[~empty] = read
        return times, missing | empty, "", bool(zoneless)
    if pa.types.is_floating(kind):
        numbers = np.asarray(pc.fill_null(values, float("nan")).to_numpy(), dtype=np.float64)
        missing = missing | ~np.isfinite(numbers)
        scale, unit = _unit_of(numbers[~missing], wishes)
        whole = np.floor(np.where(missing, 0, numbers))
        part = np.where(missing, 0, numbers) - whole
        rounding = 1000 if scale == 10**9 else 1
        ns = np.round(part * scale / rounding).astype(np.int64) * rounding
        return whole.astype(np.int64) * scale + ns, missing, unit, False
    if pa.types.is_integer(kind):
        numbers = _filled(pc.cast(values, pa.int64()))
        scale, unit = _unit_of(numbers[~missing], wishes)
        return np.where(missing, 0, numbers) * scale, missing, unit, False
    raise ConfigurationError(f"the times are of type {kind}; expected timestamps, numbers or texts")


def _filled(values: Any) -> Any:
    _, pc = _arrow()

    return pc.fill_null(values, 0).to_numpy().astype(np.int64)


def _unit_of(numbers: Any, wishes: Wishes) -> tuple[int, str]:
    names = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
    if wishes.time_unit:
        return _UNIT_NS[wishes.time_unit], names[wishes.time_unit]
    if not len(numbers):
        return 1, ""
    least, most = numbers.min(), numbers.max()
    for unit, scale in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        if least >= _LEAST * scale and (unit == "ns" or most < _LEAST * scale * 1000):
            return _UNIT_NS[unit], names[unit]
    raise ConfigurationError(
        f"the times are numbers from {least} to {most}; expected those of 1973 or later, in one "
        "unit since the epoch, or time_unit= to say what they are"
    )


def _durations(values: Any, kind: str) -> Any:
    pa, pc = _arrow()

    if pa.types.is_duration(values.type):
        return pc.fill_null(pc.cast(pc.cast(values, pa.duration("ns")), pa.int64()), -1).to_numpy()
    numbers = pc.fill_null(pc.cast(values, pa.float64()), float("nan")).to_numpy()
    missing = ~(numbers >= 0)
    return np.where(
        missing, -1, np.round(np.where(missing, 0, numbers) * _DURATION_NS[kind])
    ).astype(np.int64)


def _path_of(text: str, keep_query: bool) -> str:
    """The path of a URL, or of a request such as "GET /path HTTP/1.1"."""
    request = _REQUEST.fullmatch(text)
    path = request[1] if request else text
    origin = _ORIGIN.match(path)
    if origin:
        path = path[origin.end() :] or "/"
    return path if keep_query else path.split("?", 1)[0].split("#", 1)[0] or "-"


def _keys(values: Any, kind: str, wishes: Wishes) -> Keys:
    pa, pc = _arrow()

    if pa.types.is_dictionary(values.type):  # each chunk may have one of its own
        values = pc.cast(values, values.type.value_type)
    values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    values = pc.dictionary_encode(values)
    names = ["-" if name in (None, "") else str(name) for name in values.dictionary.to_pylist()]
    if kind in ("path", "request"):
        names = [_path_of(name, wishes.keep_query) for name in names]
    elif kind == "address":
        names = [_PORT.sub(r"\1", name) for name in names]
    codes = pc.fill_null(pc.cast(values.indices, pa.int64()), len(names)).to_numpy()
    return keys_of(codes, [*names, "-"])
