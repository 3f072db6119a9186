"""Reads logs from tables: Parquet, Arrow, pandas, polars."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np

from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.replay import LAST_NS
from tidegate.tuning.keys import Keys
from tidegate.tuning.logs import _logs
from tidegate.tuning.logs.detect import ReadOptions
from tidegate.tuning.logs.layout import Layout
from tidegate.tuning.logs.log import BadLine
from tidegate.tuning.logs.names import MOST_DOTS, end_stamped, meanings
from tidegate.tuning.logs.parts import Parts, keys_of
from tidegate.tuning.optional import needed

__all__ = ["is_table", "parquet", "table"]

_DURATION_NS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_REQUEST = re.compile(r"[A-Z_-]+ (.+?)(?: HTTP/[\d.]+)?")
_ORIGIN = re.compile(r"\w+://[^/?#]*")
_PORT = re.compile(r"^(?:\[([^\]]+)\].*|([\d.]+):\d+)$")
# Instants of 1973 and later, the same bound as in the reader of text logs.
_LEAST = 10**8
_TIME = "a time such as 2026-01-31T13:05:00Z"
_RANGE = "a time from 1970 to the year 2116"
_EXACT = Context(prec=100)  # the longest decimals of Arrow have 76 digits
_SAMPLE = 100
_NO_TIME = np.iinfo(np.int64).min


def is_table(given: Any) -> bool:
    """Whether `given` is a table of Arrow, pandas or polars."""
    return hasattr(given, "__arrow_c_stream__") or (
        hasattr(given, "columns") and hasattr(given, "to_numpy")
    )


def parquet(path: str, options: ReadOptions) -> Parts:
    """Reads a Parquet file with pyarrow."""
    module = needed("pyarrow.parquet", "reading Parquet")
    with _refusals("a Parquet file", path):
        return _parts(module.read_table(path), options, "parquet")


def table(given: Any, options: ReadOptions) -> Parts:
    """Reads a table."""
    pa, _ = _arrow()
    with _refusals("a table", type(given).__name__):
        if not isinstance(given, pa.Table):
            is_arrow = hasattr(given, "__arrow_c_stream__")
            given = pa.table(given) if is_arrow else pa.Table.from_pandas(given)
        return _parts(given, options, "table")


@contextlib.contextmanager
def _refusals(what: str, name: str) -> Iterator[None]:
    """Turns Arrow's errors about reading and converting into ConfigurationError."""
    pa, _ = _arrow()
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"{name} cannot be read ({error}); expected {what} that Arrow can read as a log"
        ) from error


def _arrow() -> tuple[Any, Any]:
    return needed("pyarrow", "reading a table"), needed("pyarrow.compute", "reading a table")


def _parts(arrow: Any, options: ReadOptions, name: str) -> Parts:
    pa, pc = _arrow()

    if not arrow.num_rows:
        raise ConfigurationError("the table has no rows; expected a log")
    named = _named(arrow)
    found = {field: _sample(values) for field, values in named.items()}
    chosen, notes = meanings(found, options.columns, options.duration_unit)
    columns = {}
    wrong = []
    for field, (kind, column) in chosen.items():
        values = _plain(named[field])
        texts, no_text = _decoded(values)
        columns[column] = kind, texts
        wrong.append(("text in UTF-8", values, no_text))
    instants = columns.pop("time")[1]
    times = _times(instants, options)
    wrong += [(_TIME, instants, times.missing), (_RANGE, instants, times.far)]
    result: dict[str, Any] = {}
    for column, (kind, values) in columns.items():
        if kind in _DURATION_NS:
            result["duration_ns"], too_long = _durations(values, kind)
            wrong.append(("a duration such as 0.123", values, too_long))
        elif kind in ("status", "bytes"):
            numbers = pc.fill_null(pc.cast(values, pa.int64()), 0).to_numpy()
            most = np.iinfo(np.int32 if kind == "status" else np.int64).max
            expected = "a status such as 200" if kind == "status" else "a number of bytes"
            wrong.append((expected, values, (numbers < 0) | (numbers > most)))
            result[kind] = numbers.astype(np.int32 if kind == "status" else np.int64)
        elif kind in ("path", "address", "key", "request"):
            result["path" if kind == "request" else column] = _keys(values, kind, options)
    keep = ~np.logical_or.reduce([mask for _, _, mask in wrong])
    result = {column: values[keep] for column, values in result.items()}
    layout = Layout(name, name, (), end_stamped=end_stamped(found, chosen), notes=tuple(notes))
    bad = len(keep) - int(keep.sum())
    if bad == len(keep):
        raise ConfigurationError(
            f"no row of the table can be read; of the first: {_reason(wrong, 0)}"
        )
    lines = [
        BadLine(int(at) + 1, "", _reason(wrong, int(at)), name) for at in np.flatnonzero(~keep)[:10]
    ]
    said = [f"Times are numbers, taken as {times.unit} since the epoch."] if times.unit else []
    if bad:
        said.append(
            f"{bad:,} of {len(keep):,} rows could not be read and were left out; bad_lines has the "
            "first."
        )
    if times.zoneless:
        said.append("Times have no zone and are taken as UTC; time_zone= names another zone.")
    return Parts(times.ns[keep], result, layout, bad, lines, said, times.zoneless)


def _named(arrow: Any) -> dict[str, Any]:
    """The columns by their names. A field of a struct is one with dots, as in JSON, unless a column
    has this name."""
    names = arrow.schema.names
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise ConfigurationError(
            f"the table has two columns {twice[0]!r}; expected names that tell them apart"
        )
    columns: dict[str, Any] = {}
    for column, values in zip(names, arrow.columns):
        for name, part in _leaves(column, values):
            if name == column or name not in names:
                columns.setdefault(name, part)
    return columns


def _leaves(name: str, values: Any) -> Iterator[tuple[str, Any]]:
    pa, _ = _arrow()

    if not pa.types.is_struct(values.type):
        yield name, values
    elif name.count(".") < MOST_DOTS:
        for field, part in zip(values.type, values.flatten()):
            yield from _leaves(f"{name}.{field.name}", part)


def _sample(values: Any) -> Any:
    """A value that shows what the column holds: bytes if most of its first are not UTF-8, and the
    type if it holds lists."""
    pa, _ = _arrow()

    kind = values.type
    if pa.types.is_nested(kind):
        return kind
    if pa.types.is_temporal(kind):
        return 0
    if pa.types.is_decimal(kind):
        return 0.0 if kind.scale > 0 else 0
    first = [each for each in values.slice(0, _SAMPLE).to_pylist() if each is not None]
    texts = [_text_of(each) if isinstance(each, bytes) else each for each in first]
    if 2 * texts.count(None) > len(texts):
        return first[0]
    return next((text for text in texts if text not in (None, "", "-")), None)


def _text_of(given: bytes) -> str | None:
    try:
        return given.decode()
    except UnicodeDecodeError:
        return None


def _decoded(values: Any) -> tuple[Any, Any]:
    """Binary as texts, which some writers store so, and the mask of what is not UTF-8."""
    pa, pc = _arrow()

    if "binary" not in str(values.type):  # there are four types, of which old releases know three
        return values, np.zeros(len(values), dtype=bool)
    try:
        return pc.cast(values, pa.large_string()), np.zeros(len(values), dtype=bool)
    except pa.ArrowInvalid:
        given = values.to_pylist()
    texts = [None if each is None else _text_of(each) for each in given]
    no_text = [text is None and each is not None for each, text in zip(given, texts)]
    return pa.chunked_array([pa.array(texts, pa.large_string())]), np.array(no_text)


def _plain(values: Any) -> Any:
    """The column without dictionaries, of which each chunk may have its own, and with texts that
    Arrow computes with: those of polars are views."""
    pa, pc = _arrow()

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if str(kind) == "string_view":  # which old releases of Arrow do not know
        kind = pa.large_string()
    if not pa.types.is_dictionary(values.type):
        return values if kind == values.type else pc.cast(values, kind)
    chunks = [pc.cast(each.dictionary, kind).take(each.indices) for each in values.chunks]
    return pa.chunked_array(chunks, kind)


def _reason(wrong: list[tuple[str, Any, Any]], at: int) -> str:
    """Says what was expected of a row, and what it has."""
    expected, values, _ = next(each for each in wrong if each[2][at])
    try:
        given = values[at].as_py()
    except (ValueError, OverflowError):  # a time that Python cannot represent
        given = values[at]
    return f"the row has {'nothing' if given in (None, '') else given}; expected {expected}"


@dataclass
class _Times:
    ns: Any
    missing: Any
    far: Any
    """The mask of times that cannot be replayed."""
    unit: str = ""
    """The unit of numeric times."""
    zoneless: bool = False


def _scaled(numbers: Any, scale: int, missing: Any) -> tuple[Any, Any]:
    """Returns nanoseconds and the mask of numbers out of range, without integer overflow."""
    far = ~missing & ((numbers < 0) | (numbers > LAST_NS // scale))
    return np.where(far | missing, 0, numbers).astype(np.int64) * scale, far


def _times(values: Any, options: ReadOptions) -> _Times:
    pa, pc = _arrow()

    missing = np.asarray(pc.is_null(values).to_numpy(), dtype=bool)
    kind = values.type
    if pa.types.is_date(kind):
        raise ConfigurationError("the times are dates; expected instants")
    if pa.types.is_timestamp(kind):
        ns, far = _scaled(_filled(pc.cast(values, pa.int64())), _UNIT_NS[kind.unit], missing)
        return _Times(ns, missing, far, zoneless=kind.tz is None)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = ["" if text is None else text for text in values.to_pylist()]
        times, zoneless = _logs.read_times(texts)
        unread = times == _NO_TIME
        return _Times(times, unread, ~unread & (times < 0), zoneless=zoneless)
    if pa.types.is_decimal(kind):
        decimals = np.array([each or Decimal(0) for each in values.to_pylist()], dtype=object)
        scale, unit = _unit_of(decimals[~missing], options)
        with localcontext(_EXACT):
            ns = np.array([int(each * scale) for each in decimals], dtype=object)
        far = np.asarray(~missing & ((decimals < 0) | (ns > LAST_NS)), dtype=bool)
        return _Times(np.where(far, 0, ns).astype(np.int64), missing, far, unit)
    if pa.types.is_floating(kind):
        numbers = np.asarray(pc.fill_null(values, float("nan")).to_numpy(), dtype=np.float64)
        missing = missing | ~np.isfinite(numbers)
        scale, unit = _unit_of(numbers[~missing], options)
        whole = np.floor(np.where(missing, 0, numbers))
        part = np.where(missing, 0, numbers) - whole
        rounding = 1000 if scale == 10**9 else 1
        ns, far = _scaled(whole, scale, missing)
        ns += np.round(part * scale / rounding).astype(np.int64) * rounding
        return _Times(ns, missing, far, unit)
    if pa.types.is_integer(kind):
        numbers = _filled(pc.cast(values, pa.int64()))
        scale, unit = _unit_of(numbers[~missing], options)
        ns, far = _scaled(numbers, scale, missing)
        return _Times(ns, missing, far, unit)
    raise ConfigurationError(f"the times are of type {kind}; expected timestamps, numbers or texts")


def _filled(values: Any) -> Any:
    _, pc = _arrow()

    return pc.fill_null(values, 0).to_numpy().astype(np.int64)


def _unit_of(numbers: Any, options: ReadOptions) -> tuple[int, str]:
    names = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
    if options.time_unit:
        return _UNIT_NS[options.time_unit], names[options.time_unit]
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


def _durations(values: Any, kind: str) -> tuple[Any, Any]:
    """Returns nanoseconds (-1 if missing) and the mask of impossibly long durations."""
    pa, pc = _arrow()

    if pa.types.is_duration(values.type):
        whole = pc.cast(pc.cast(values, pa.duration("ns")), pa.int64())
        ns = pc.fill_null(whole, -1).to_numpy()
        return ns, np.zeros(len(ns), dtype=bool)
    numbers = pc.fill_null(pc.cast(values, pa.float64()), float("nan")).to_numpy()
    missing = ~(numbers >= 0)
    ns = np.round(np.where(missing, 0, numbers) * _DURATION_NS[kind])
    too_long = ns > LAST_NS
    return np.where(missing, -1, np.where(too_long, 0, ns)).astype(np.int64), too_long


def _path_of(text: str, keep_query: bool) -> str:
    """The path in a URL, or in a request line such as "GET /path HTTP/1.1"."""
    request = _REQUEST.fullmatch(text)
    path = request[1] if request else text
    origin = _ORIGIN.match(path)
    if origin:
        path = path[origin.end() :] or "/"
    return path if keep_query else path.split("?", 1)[0].split("#", 1)[0] or "-"


def _keys(values: Any, kind: str, options: ReadOptions) -> Keys:
    pa, pc = _arrow()

    values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    values = pc.dictionary_encode(values)
    names = ["-" if name in (None, "") else str(name) for name in values.dictionary.to_pylist()]
    if kind in ("path", "request"):
        names = [_path_of(name, options.keep_query) for name in names]
    elif kind == "address":
        names = [_PORT.sub(r"\1\2", name) for name in names]
    codes = pc.fill_null(pc.cast(values.indices, pa.int64()), len(names)).to_numpy()
    return keys_of(codes, [*names, "-"])
