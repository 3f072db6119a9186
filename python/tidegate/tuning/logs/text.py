"""Reads text logs, line by line."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.limiter.errors import ConfigurationError
from tidegate.tuning.logs import _logs, notes
from tidegate.tuning.logs.detect import ReadOptions, layout_of
from tidegate.tuning.logs.layout import Layout
from tidegate.tuning.logs.log import BadLine
from tidegate.tuning.logs.parts import Parts, keys_of
from tidegate.tuning.logs.sources import CutOff, Source

__all__ = ["read"]

_SAMPLE = 1 << 16
_LINES = 1000
_LONGEST = 1 << 20  # the longest line, as kLongestLine of the reader in C++


class _Reading:
    """The reader, created when the first file with lines has shown the layout."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.reader: _logs.Reader | None = None
        self.layout: Layout | None = None
        self.starts: list[int] = []
        self.cut_off: list[str] = []
        self.names: list[str] = []

    def take(self, source: Source) -> None:
        """Reads one file."""
        chunks = _until_cut(source.chunks())
        cut_off = False
        begun = False
        if self.reader is None:
            first, sample, cut_off = _beginning(chunks)
            if not sample.strip(b"\xef\xbb\xbf \t\r\n"):
                if cut_off:
                    self.cut_off.append(source.name)
                return
            self.layout = layout_of(sample, self._options, source.name)
            self.reader = self.layout.make_reader(
                keep_query=self._options.keep_query, time_unit=self._options.time_unit
            )
            self._begin(source)
            begun = True
            self.reader.feed(first)
        if not begun:
            self._begin(source)
        if not cut_off:
            for chunk in chunks:
                if chunk is None:
                    cut_off = True
                    break
                self.reader.feed(chunk)
        if cut_off:
            self.cut_off.append(source.name)
        self.reader.end_source(cut_off)

    def _begin(self, source: Source) -> None:
        assert self.reader is not None
        self.names.append(source.name)
        self.starts.append(self.reader.rows)


def read(sources: list[Source], options: ReadOptions, time_zone: str | None) -> Parts:
    """Reads the files one after the other, all in the layout of the first file with lines."""
    reading = _Reading(options)
    for source in sources:
        reading.take(source)
    names = ", ".join(source.name for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
    reader, layout = reading.reader, reading.layout
    if reader is None or layout is None:
        how = "a compressed file that was cut off" if reading.cut_off else "nothing"
        raise ConfigurationError(f"{names} holds no lines ({how}); expected a log")
    bad_lines = [
        BadLine(number, text, reason, reading.names[at])
        for at, number, text, reason in reader.bad_lines
    ]
    _refuse_foreign(reader, layout, bad_lines)
    said = [
        f"{name} is compressed and was cut off; the log has the part that could be read."
        for name in reading.cut_off
    ]
    said += notes.of_times(reader, time_zone)
    said += notes.of_units([reading.names[at] for at in reader.guessed_units])
    rows, bad = reader.rows, reader.bad
    if bad:
        said.append(
            f"{bad:,} of {rows + bad:,} lines could not be read and were left out; bad_lines has "
            "the first."
        )
    zoneless = reader.has_no_zones
    columns = {
        name: keys_of(*column) if isinstance(column, tuple) else column
        for name, column in reader.take_columns().items()
    }
    times = columns.pop("time")
    return Parts(
        times, columns, layout, bad, bad_lines, said, zoneless, tuple(reading.starts) or (0,)
    )


def _refuse_foreign(reader: _logs.Reader, layout: Layout, bad_lines: list[BadLine]) -> None:
    if reader.rows > reader.bad or not bad_lines:
        if reader.rows:
            return
        raise ConfigurationError(
            "the log has comments or a header, and no line of data; expected a log"
        )
    first = bad_lines[0]
    raise ConfigurationError(
        f"{reader.bad:,} of {reader.rows + reader.bad:,} lines are in another format; expected "
        f"lines in the format {layout.name}; the first other one is line {first.line} of "
        f"{first.source}: {first.text!r}. {first.reason}"
    )


def _until_cut(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    """Yields the chunks, and None at the end if the file was cut off."""
    try:
        yield from chunks
    except CutOff:
        yield None


def _beginning(chunks: Iterator[bytes | None]) -> tuple[bytes, bytes, bool]:
    """Returns the beginning of a file, its complete lines, and whether the file was cut off.

    A line that is too long is kept just far enough that the reader recognizes it as too long.
    """
    held = b""
    in_long = False
    for chunk in chunks:
        if chunk is None:
            return held, _whole_lines(held), True
        if in_long:
            end = chunk.find(b"\n")
            if end < 0:
                continue
            chunk, in_long = chunk[end:], False
        held += chunk
        sample = _whole_lines(held) if len(held) >= _SAMPLE else b""
        if sample.strip() or len(held) > 16 * _LONGEST:
            return held, sample, False
        last = held.rfind(b"\n") + 1
        if len(held) - last > _LONGEST:
            held = held[: last + _LONGEST + 1]
            in_long = True
    return held, _whole_lines(held + b"\n"), False


def _whole_lines(held: bytes) -> bytes:
    """Returns the lines of a beginning that are complete and not too long."""
    lines = held[: held.rfind(b"\n") + 1].split(b"\n", _LINES)[:_LINES]
    return b"".join(line + b"\n" for line in lines if len(line) <= _LONGEST)
