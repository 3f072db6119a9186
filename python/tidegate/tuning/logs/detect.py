"""Finds the format of a log, from its first lines or by the name that a caller gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.logs import apache, cloud, envoy, nginx
from tidegate.tuning.logs.layout import Layout
from tidegate.tuning.logs.structured import array_sniffed, csv_layout, csv_sniffed, json_layout

__all__ = ["FORMATS", "ReadOptions", "layout_of"]

FORMATS = (
    "common",
    "combined",
    "vhost-combined",
    "nginx-main",
    "json",
    "csv",
    "tsv",
    "alb",
    "cloudfront",
    "w3c",
    "envoy",
)
_LINES = 200
_REQUEST_TIME = re.compile(r'[ "]\d+\.\d{3}"?$')
# Layouts to try if the caller did not name $request_time.
_TIMED = {
    f"{name} {more}"
    for name in ("combined", "nginx-main")
    for more in ("$request_time", '"$request_time"')
}


@dataclass(frozen=True)
class ReadOptions:
    """What a caller specifies about a log."""

    format: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    delimiter: str | None = None
    duration_unit: str | None = None
    time_unit: str = ""
    keep_query: bool = False


def layout_of(sample: bytes, options: ReadOptions, source: str) -> Layout:
    """Returns the layout in which the most lines of `sample` can be read."""
    if options.format is not None:
        candidates = _named(options.format, sample, options)
    else:
        candidates = _guessed(sample, options)
    if not _has_request_times(sample):
        candidates = [layout for layout in candidates if layout.name not in _TIMED]
    best, most = None, 0
    for layout in candidates:
        rows = _rows(layout, sample, options)
        if rows > most:
            best, most = layout, rows
    if best is not None:
        return best
    if candidates and (options.format is not None or candidates[0].reader != "text"):
        return candidates[0]  # the reader then says what is wrong with the lines
    lines = _lines(sample)
    raise ConfigurationError(
        f"{source} has the line {lines[0][:200]!r}; expected a log in one of the formats "
        f"{', '.join(FORMATS)}, or format= with one of these names, a log_format of nginx or a "
        "LogFormat of Apache"
    )


def _rows(layout: Layout, sample: bytes, options: ReadOptions) -> int:
    reader = layout.make_reader(keep_query=options.keep_query, time_unit=options.time_unit)
    reader.feed(sample)
    reader.end_source()
    return reader.rows


def _has_request_times(sample: bytes) -> bool:
    """Whether lines end with $request_time as nginx writes it: seconds with three decimals.

    A whole number may be %D of Apache, in microseconds.
    """
    lines = _lines(sample)
    return 2 * sum(_REQUEST_TIME.search(line) is not None for line in lines) > len(lines)


def _lines(sample: bytes) -> list[str]:
    text = sample.decode("utf-8", "backslashreplace").removeprefix("\ufeff")
    return [line.rstrip("\r") for line in text.split("\n")[:_LINES] if line.strip()]


def _guessed(sample: bytes, options: ReadOptions) -> list[Layout]:
    lines = _lines(sample)
    first = lines[0]
    if first.startswith("{"):
        return [json_layout(lines, options.columns, options.duration_unit)]
    if first.startswith(("#Fields:", "#Version:", "#Software:", "#Date:")):
        return [_w3c(lines, options)]
    if options.delimiter is not None:
        return _named("csv", sample, options)
    # A field that the caller names may be in only one of the formats.
    text: list[Layout] = []
    refusal: ConfigurationError | None = None
    for make in [*_TEXT.values(), _open_combined]:
        try:
            text += make(options.columns)
        except ConfigurationError as error:
            refusal = error
    timed = _has_request_times(sample)
    text = [layout for layout in text if timed or layout.name not in _TIMED]
    found = [layout for layout in text if _rows(layout, sample, options)]
    if found:
        return found
    for make in _TEXT.values() if options.columns else ():
        if any(_rows(layout, sample, options) for layout in make({})):
            make(options.columns)  # raises the error that names the missing field
    if array_sniffed(_text(sample)):
        raise ConfigurationError(
            f"the log begins with {first[:100]!r}, which is a JSON array; expected one JSON object "
            "a line, as `jq -c '.[]'` writes them"
        )
    if options.columns or csv_sniffed(_text(sample)):
        return _named("csv", sample, options)
    if refusal is not None and not text:
        raise refusal
    return []


def _text(sample: bytes) -> str:
    return sample.decode("utf-8", "backslashreplace").removeprefix("\ufeff")


def _named(name: str, sample: bytes, options: ReadOptions) -> list[Layout]:
    lines = _lines(sample)
    columns = options.columns
    if name == "json":
        return [json_layout(lines, columns, options.duration_unit)]
    if name in ("csv", "tsv"):
        delimiter = options.delimiter or ("\t" if name == "tsv" else None)
        return [csv_layout(_text(sample), columns, options.duration_unit, delimiter)]
    if name in ("w3c", "cloudfront", "iis"):
        return [_w3c(lines, options)]
    if name in _TEXT:
        layouts = _TEXT[name](columns)
        return [*layouts, *_open_combined(columns)] if name == "combined" else layouts
    if "$" in name:
        return [nginx.layout(name, columns)]
    if "%REQ(" in name or "%START_TIME" in name:
        return [envoy.layout(name, columns)]
    if "%" in name:
        return [apache.layout(name, columns)]
    raise ConfigurationError(
        f"the format is {name!r}; expected one of {', '.join(FORMATS)}, a log_format of nginx such "
        "as '$remote_addr [$time_local] ...', or a LogFormat of Apache such as '%h %l %u %t ...'"
    )


def _w3c(lines: list[str], options: ReadOptions) -> Layout:
    fields = next((line[8:].split() for line in lines if line.startswith("#Fields:")), None)
    if fields is None:
        raise ConfigurationError(
            f"the log begins with {lines[0][:100]!r}; expected a line that begins with #Fields:"
        )
    is_iis = any(line.startswith("#Software:") and cloud.IIS in line for line in lines)
    return cloud.w3c(fields, options.columns, options.duration_unit, is_iis=is_iis)


Columns = Mapping[str, Any]


def _common(columns: Columns) -> list[Layout]:
    return [apache.layout(apache.COMMON, columns, name="common")]


def _combined(columns: Columns) -> list[Layout]:
    """Combined, with fields that are often appended; only variables of nginx reveal the server."""
    plain = nginx.layout(nginx.COMBINED, columns, name="combined")
    timed = [
        nginx.layout(f"{nginx.COMBINED} {more}", columns, name=f"combined {more}")
        for more in ("$request_time", '"$request_time"')
    ]
    return [plain, *timed]


def _main(columns: Columns) -> list[Layout]:
    """The default format of nginx's own configuration."""
    main = f'{nginx.COMBINED} "$http_x_forwarded_for"'
    return [
        nginx.layout(f"{main} $request_time", columns, name="nginx-main $request_time"),
        nginx.layout(f'{main} "$request_time"', columns, name='nginx-main "$request_time"'),
        nginx.layout(main, columns, name="nginx-main"),
    ]


def _open_combined(columns: Columns) -> list[Layout]:
    layout = nginx.layout(f"{nginx.COMBINED} ", columns, name="combined, and more", open_end=True)
    # Restores the blank that rstrip() removed, so that the user agent ends at its quote.
    *fields, (_, kind, name) = layout.fields
    note = (
        "Lines have more fields after the user agent, which were not read. format= takes the "
        "log_format or LogFormat that names them."
    )
    return [
        Layout(
            layout.name,
            "text",
            (*fields, ('" ', kind, name)),
            layout.start,
            open_end=True,
            end_stamped=None,
            notes=(note,),
        )
    ]


_TEXT: dict[str, Callable[[Columns], list[Layout]]] = {
    "common": _common,
    "combined": _combined,
    "nginx-main": _main,
    "vhost-combined": lambda columns: [
        apache.layout(apache.VHOST_COMBINED, columns, name="vhost-combined")
    ],
    "alb": lambda columns: [cloud.alb(columns)],
    "envoy": lambda columns: [envoy.layout(envoy.DEFAULT, columns, name="envoy")],
}
