"""Finds the line of each field in a text of JSON or TOML, which their parsers do not report."""

from __future__ import annotations

import json
import re

__all__ = ["json_lines", "toml_lines"]

Lines = dict["tuple[str | int, ...]", int]

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_TOML_KEY = re.compile(r"\s*((?:[\w\-]+|\"[^\"]*\")(?:\s*\.\s*(?:[\w\-]+|\"[^\"]*\"))*)\s*=")
_TOML_TABLE = re.compile(r"\s*(\[\[?)\s*([\w.\-\"]+)\s*\]")


def json_lines(text: str) -> tuple[Lines, tuple[str, int] | None]:
    """The line of each field of a valid text, and the first field that an object has twice."""
    lines: Lines = {(): 1}
    repeated: tuple[str, int] | None = None
    where: list[str | int] = []  # of the value that comes next, or of the key before it
    kinds: list[str] = []
    line = 1
    before = 0
    for token in _JSON_TOKEN.finditer(text):
        line += text.count("\n", before, token.start())
        before = token.start()
        first = token[0][0]
        is_key = first == '"' and bool(kinds) and kinds[-1] == "{" and where[-1] == ""
        if is_key:
            where[-1] = json.loads(token[0])
            if tuple(where) in lines and repeated is None:
                repeated = (str(where[-1]), line)
        if first not in "]},:":
            lines.setdefault(tuple(where), line)
        if first in "[{":
            kinds.append(first)
            where.append(0 if first == "[" else "")
        elif first in "]}":
            kinds.pop()
            where.pop()
        elif first == ",":
            last = where[-1]
            where[-1] = last + 1 if isinstance(last, int) else ""
    return lines, repeated


def toml_lines(text: str) -> Lines:
    """The lines of tables, and of keys at the beginning of a line."""
    lines: Lines = {}
    counts: dict[str, int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _TOML_TABLE.match(line)
        if header:
            name = header[2]
            table = ()
            prefix = ""
            for part in name.split("."):
                prefix = f"{prefix}.{part}" if prefix else part
                table += (part.strip('"'),)
                if header[1] == "[[" and prefix == name:
                    counts[name] = counts.get(name, -1) + 1
                if prefix in counts:
                    table += (counts[prefix],)
            for length in range(1, len(table) + 1):
                lines.setdefault(table[:length], number)
            continue
        key = _TOML_KEY.match(line)
        if key:
            parts = [part.strip('"') for part in re.findall(r'"[^"]*"|[\w\-]+', key[1])]
            for length in range(1, len(parts) + 1):
                lines.setdefault((*table, *parts[:length]), number)
    return lines
