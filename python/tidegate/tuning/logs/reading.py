"""read_log(): reads files into a log in the order of its times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.keys import Keys
from tidegate.tuning.logs import notes, tables, text
from tidegate.tuning.logs.detect import ReadOptions
from tidegate.tuning.logs.layout import DURATION_KINDS
from tidegate.tuning.logs.log import Log
from tidegate.tuning.logs.parts import Parts
from tidegate.tuning.logs.sources import named_again, sources_of

__all__ = ["read_log"]

_SECOND = 10**9


def read_log(
    source: Any,
    *,
    format: str | None = None,
    columns: Mapping[str, str | int] | None = None,
    keep_query: bool = False,
    end_stamped: bool | None = None,
    time_unit: str | None = None,
    time_zone: str | None = None,
    duration_unit: str | None = None,
    delimiter: str | None = None,
) -> Log:
    """Reads the log of a server into columns, sorted by time.

    `source` is a path, a glob, "-" for standard input, a stream, a list of these, or a table of
    pandas, polars or Arrow. Files may be compressed by gzip, bzip2 or xz; several are one log.

    `format` is common, combined, vhost-combined, nginx-main, json, csv, tsv, alb, cloudfront, w3c,
    envoy, parquet, a log_format of nginx, a LogFormat of Apache or a format string of Envoy; it is
    detected by default. `columns` says which field fills which column: `{"time": "ts",
    "tenant": "org.id"}`; fields of CSV without a header are numbers. `keep_query` keeps what
    follows "?" in paths. `end_stamped` says whether times are those at which requests ended, so
    that durations are subtracted; by default the format decides. `time_unit` (s, ms, us, ns) is
    the unit of numeric times, `duration_unit` the unit of durations, `time_zone`
    ("Europe/Berlin", "+02:00"; default UTC) the zone of times without one, and `delimiter` the
    delimiter of CSV.

    Lines that cannot be read are left out and counted. Raises ConfigurationError if most lines
    cannot be read, if there are no lines, or if a column cannot be found.
    """
    options = _checked_options(format, columns, keep_query, time_unit, duration_unit, delimiter)
    zone = None if time_zone is None else _zone(time_zone)
    if tables.is_table(source):
        parts = tables.table(source, options)
    else:
        sources = sources_of(source)
        if not sources:
            raise ConfigurationError("the list of logs is empty; expected at least one")
        paths = [path for each in sources if (path := each.path()) is not None]
        if format == "parquet" or (len(sources) == 1 and paths and _is_parquet(paths[0])):
            if len(paths) != 1 or len(sources) != 1:
                raise ConfigurationError(
                    f"{len(sources)} sources were given; expected one Parquet file, or the tables "
                    "that pyarrow.dataset reads of several"
                )
            parts = tables.parquet(paths[0], options)
        else:
            parts = text.read(sources, options, time_zone)
        parts.notes[:0] = [
            f"{path} was named more than once: its requests count as often."
            for path in named_again(sources)
        ]
    return _log_of(parts, zone, time_zone, end_stamped)


def _checked_options(
    format: str | None,
    columns: Mapping[str, str | int] | None,
    keep_query: bool,
    time_unit: str | None,
    duration_unit: str | None,
    delimiter: str | None,
) -> ReadOptions:
    for name, unit in (("time_unit", time_unit), ("duration_unit", duration_unit)):
        if unit is not None and unit not in DURATION_KINDS:
            raise ConfigurationError(f"{name} is {unit!r}; expected s, ms, us or ns")
    if delimiter is not None and (
        len(delimiter) != 1 or ord(delimiter) > 127 or delimiter in '"\r\n'
    ):
        raise ConfigurationError(f"the delimiter is {delimiter!r}; expected one character")
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigurationError(
            f'the columns are {columns!r:.80}; expected a dict such as {{"time": "ts"}}'
        )
    if format is not None and not isinstance(format, str):
        raise ConfigurationError(f"the format is {format!r}; expected its name as str")
    return ReadOptions(
        format, dict(columns or {}), delimiter, duration_unit, time_unit or "", keep_query
    )


def _zone(name: str) -> tzinfo:
    try:
        if name[:1] in "+-" and name:
            hours, _, minutes = name[1:].partition(":")
            offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
            return timezone(-offset if name[0] == "-" else offset)
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise ConfigurationError(
            f'time_zone is {name!r}; expected a name such as "Europe/Berlin" or an offset such as '
            '"+02:00"'
        ) from None


def _is_parquet(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PAR1" and os.path.getsize(path) > 8
    except OSError:
        return False


def _log_of(
    parts: Parts, zone: tzinfo | None, time_zone: str | None, end_stamped: bool | None
) -> Log:
    times, columns = parts.times, parts.columns
    said = [*parts.layout.notes, *parts.notes]
    if zone is not None and parts.has_no_zones:
        times = _as_utc(times, zone)
        said.append(f"Times have no zone and are taken as those of {time_zone}.")
    if len(times) and not bool(np.any(times % _SECOND)):
        said.append("Times are whole seconds; requests of one second are in the order of the file.")
    ended = parts.layout.end_stamped if end_stamped is None else end_stamped
    durations = columns.get("duration_ns")
    if ended and durations is not None:
        times = times - np.maximum(durations, 0)
    said += notes.of_stamps(parts.layout, ended, durations is not None)
    order, about = _order_of(times, parts.starts, bool(ended and durations is not None))
    said += about
    if order is not None:
        times = times[order]
        columns = {name: column[order] for name, column in columns.items()}
    if "status" in columns:
        said += notes.of_refusals(columns["status"], len(times))
    if isinstance(columns.get("ip"), Keys):
        said += notes.of_shares(columns["ip"])
    return Log(
        times,
        columns,
        format=parts.layout.name,
        bad=parts.bad,
        bad_lines=parts.bad_lines,
        notes=said,
    )


def _order_of(times: Any, starts: tuple[int, ...], subtracted: bool) -> tuple[Any, list[str]]:
    """Returns the stable order of the times (None if they are sorted), and notes about it."""
    if not bool(np.any(times[1:] < times[:-1])):
        return None, []
    # Names of rotated files sort in reverse: the oldest file comes first, even within a second.
    pieces = [
        np.arange(first, last)
        for first, last in zip(starts, [*starts[1:], len(times)])
        if last > first
    ]
    pieces.sort(key=lambda piece: int(times[piece[0]]))
    files = np.concatenate(pieces)
    order = files[np.argsort(times[files], kind="stable")]
    breaks = set(starts)
    back = np.flatnonzero(times[1:] < times[:-1]) + 1
    inside = [at for at in back.tolist() if at not in breaks] if len(back) < 1000 else back
    if len(inside) == 0 or subtracted:
        return order, []
    highest = np.maximum.accumulate(times)
    late = float((highest - times).max()) / _SECOND
    return order, [
        f"The log was not in the order of its times ({len(back):,} lines came after later ones, by "
        f"up to {late:,.3g} s) and was sorted, stably."
    ]


def _as_utc(times: Any, zone: tzinfo) -> Any:
    """Converts local times of a zone to instants; an ambiguous hour is taken as the first one."""
    quarter = 900 * _SECOND
    quarters, places = np.unique(times // quarter, return_inverse=True)
    epoch = datetime(1970, 1, 1)
    offsets = [
        (epoch + timedelta(seconds=int(each) * 900)).replace(tzinfo=zone).utcoffset()
        for each in quarters
    ]
    ns = np.asarray([round(each.total_seconds()) * _SECOND for each in offsets if each is not None])
    return times - ns[places] if len(ns) else times
