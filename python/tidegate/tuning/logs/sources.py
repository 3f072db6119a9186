"""The sources of a log: files, globs and streams, compressed or not."""

from __future__ import annotations

import bz2
import glob
import lzma
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

__all__ = ["CutOff", "Source", "named_again", "sources_of"]

_CHUNK = 1 << 20
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "a file compressed by zstd",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"\x7fELF": "a program",
    b"SQLite format 3": "a SQLite database",
}


class CutOff(Exception):
    """A compressed file was cut off."""


class Source:
    """One file or stream, as chunks of bytes."""

    def __init__(self, name: str, stream: Any = None) -> None:
        self.name = name
        self._stream = stream

    def chunks(self) -> Iterator[bytes]:
        """Yields the decompressed content. Raises CutOff if the end is missing."""
        if self._stream is not None:
            yield from _decompressed(_read(self._stream), self.name)
            return
        with open(self.name, "rb", buffering=0) as file:
            yield from _decompressed(_read(file), self.name)

    def path(self) -> str | None:
        """The path, if the source is a file."""
        return self.name if self._stream is None else None

    def file(self) -> str | None:
        """The path of the file, even if it is already open; None for pipes."""
        name = self.name if self._stream is None else getattr(self._stream, "name", None)
        return name if isinstance(name, str) and os.path.isfile(name) else None


def sources_of(given: Any) -> list[Source]:
    """Returns the sources that a caller named: a path, a glob, "-", a stream, or a list of them."""
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if path == "-":
            return [Source("<stdin>", sys.stdin.buffer)]
        return [Source(each) for each in _paths(path)]
    if hasattr(given, "read"):
        return [Source(str(getattr(given, "name", "<stream>")), given)]
    if isinstance(given, (list, tuple)):
        return [source for each in given for source in sources_of(each)]
    raise ArgumentTypeError(
        f"the log is {repr(given)[:80]} of type {type(given).__name__}; expected a path, a glob, a "
        "stream that is open for reading, a list of them, or a table"
    )


def named_again(sources: list[Source]) -> list[str]:
    """Returns the files that are named more than once, as when globs overlap."""
    files = Counter(os.path.realpath(path) for each in sources if (path := each.file()))
    return [path for path, count in files.items() if count > 1]


def _paths(path: str) -> list[str]:
    if os.path.isdir(path):
        raise ConfigurationError(
            f"{path!r} is a directory; expected a file or a glob, such as "
            f"{os.path.join(path, '*')!r} for what is in it"
        )
    if os.path.exists(path):
        return [path]
    if not glob.has_magic(path):
        raise FileNotFoundError(f"there is no file {path!r}; expected a log")
    found = sorted(each for each in glob.glob(path, recursive=True) if not os.path.isdir(each))
    if not found:
        raise FileNotFoundError(f"the glob {path!r} matches no file; expected logs")
    return found


def _read(stream: Any) -> Iterator[bytes]:
    while True:
        chunk = stream.read(_CHUNK)
        if not chunk:
            return
        if isinstance(chunk, str):
            chunk = chunk.encode("utf-8", "surrogateescape")
        if not isinstance(chunk, bytes):
            raise ArgumentTypeError(
                f"the stream gave {type(chunk).__name__}; expected bytes or str from read()"
            )
        yield chunk


def _decompressed(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    start = b""
    for chunk in chunks:
        start += chunk
        if len(start) >= 16:
            break
    if not start:
        return
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            raise ConfigurationError(
                f"{name} is {what}; expected a log as text, or compressed by gzip, bzip2 or xz"
            )
    if start.startswith(b"\x1f\x8b"):
        decompress = _gzip
    elif start.startswith(b"BZh"):
        decompress = _bz2
    elif start.startswith(b"\xfd7zXZ\x00"):
        decompress = _xz
    else:
        yield start
        yield from chunks
        return
    try:
        yield from decompress(_chained(start, chunks))
    except (zlib.error, lzma.LZMAError, OSError) as error:
        raise ConfigurationError(
            f"{name} has damaged data ({error}); expected a compressed log"
        ) from error


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _gzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Reads concatenated members, as gzip -c >> writes them; zeros after the last are padding."""
    member = zlib.decompressobj(31)
    for chunk in chunks:
        data = chunk
        while data:
            if member.eof:
                data = data.lstrip(b"\0")
                if not data:
                    break
                if not data.startswith(b"\x1f"):
                    return  # gzip also ignores what follows if it is not a member
                member = zlib.decompressobj(31)
            out = member.decompress(data, _CHUNK)
            if out:
                yield out
            data = member.unused_data if member.eof else member.unconsumed_tail
    rest = member.flush()
    if rest:
        yield rest
    if not member.eof:
        raise CutOff


def _bz2(chunks: Iterator[bytes]) -> Iterator[bytes]:
    return _streams(chunks, bz2.BZ2Decompressor)


def _xz(chunks: Iterator[bytes]) -> Iterator[bytes]:
    return _streams(chunks, lzma.LZMADecompressor)


def _streams(chunks: Iterator[bytes], make: Any) -> Iterator[bytes]:
    stream = make()
    for chunk in chunks:
        data = chunk
        while data or not (stream.eof or stream.needs_input):
            if stream.eof:
                stream = make()
            out = stream.decompress(data, _CHUNK)
            if out:
                yield out
            data = stream.unused_data if stream.eof else b""
    if not stream.eof:
        raise CutOff
