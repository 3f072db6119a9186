"""Reads the text of a document: its data, and the line of each field."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import ConfigurationError
from tidegate.rules.lines import json_lines, toml_lines
from tidegate.rules.problems import Problem, problem_at
from tidegate.rules.yaml_reader import read_yaml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path as FilePath

__all__ = ["PLURALS", "Document", "as_where", "read_file", "read_text"]

Where = "tuple[str | int, ...]"

# A document of 100,000 overrides takes about 8 MB.
MOST_BYTES = 32 * 2**20
_FORMATS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
# Fields that may be written in the singular: a rule often has one endpoint and one limit.
PLURALS = {
    "endpoint": "endpoints",
    "method": "methods",
    "tier": "tiers",
    "network": "networks",
    "limit": "limits",
}
_SINGULARS = {many: one for one, many in PLURALS.items()}


class Document:
    """The data of a document, and the lines of its fields."""

    def __init__(
        self, data: Any, source: str, line_of: Callable[[tuple[str | int, ...]], int | None]
    ) -> None:
        self.data = data
        self.source = source
        self.kept: Any = None
        """None, or the RuleSet whose overrides the document has instead of those of `data`."""
        self.overrides_mark: object = None
        """Differs after each change of the overrides in their place; None if it is not known."""
        self.marks: Any = None
        """The Marks of the tables that a document in a database was read from; None of others."""
        self._line_of = line_of
        self.skipped: tuple[Problem, ...] = ()
        """The problems of what was left out, such as rows of single users."""

    def leave_out(self, problems: list[Problem]) -> bool:
        """Drops what has these problems. False where the document stands or falls as a whole."""
        return False

    def problem(self, where: tuple[str | int, ...], message: str) -> Problem:
        """A problem of the field `where`. A missing field has the line of its parent."""
        where = self._as_written(where)
        line = None
        for length in range(len(where), -1, -1):
            line = self._line_of(where[:length])
            if line is not None:
                break
        return Problem(self.source, line, as_text(where), message)

    def _as_written(self, where: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """``rules[0].endpoints[0]`` as ``rules[0].endpoint``, if the document has the latter."""
        data = self.data
        written: list[str | int] = []
        for part in where:
            if isinstance(part, int) and not isinstance(data, list):
                continue  # one text, where a list of texts may be
            if isinstance(data, dict) and isinstance(part, str) and part not in data:
                one = _SINGULARS.get(part, part)
                in_list = part == "networks" and where[0] in ("allow", "block")
                part = "ip" if in_list and "ip" in data else one if one in data else part
            written.append(part)
            if isinstance(data, dict):
                data = data.get(part)
            elif isinstance(data, list) and isinstance(part, int) and part < len(data):
                data = data[part]
            else:
                data = None
        return tuple(written)


def as_text(where: tuple[str | int, ...]) -> str:
    """``rules[3].limits.free``"""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def as_where(text: str) -> tuple[str | int, ...]:
    """The reverse of as_text()."""
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", text)
    return tuple(int(number) if number else name for number, name in parts)


def read_file(path: FilePath, *, keep_texts: bool = False, typed: str | None = None) -> Document:
    """Reads a .yaml, .yml, .toml or .json file.

    With `keep_texts`, all values in YAML but null are texts as they are written, except for those
    in fields with the name `typed`.

    Raises RulesError if the file is not such a document, and OSError if it cannot be read.
    """
    source = str(path)
    format = _FORMATS.get(path.suffix.lower())
    if format is None:
        raise problem_at(
            source, None, f"the file ends in {path.suffix!r}; expected .yaml, .yml, .toml or .json"
        )
    with path.open("rb") as file:
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise problem_at(
            source, None, f"the file has more than {MOST_BYTES} bytes; expected a smaller one"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise problem_at(source, line, f"byte {error.start} is not UTF-8; expected UTF-8") from None
    if keep_texts and format == "yaml":
        return _read_yaml(text, source, keep_texts=True, typed=typed)
    return read_text(text, format, source)


def read_text(text: str, format: str, source: str) -> Document:
    """Reads a text whose `format` is yaml, toml or json."""
    if len(text) > MOST_BYTES:
        raise problem_at(
            source, None, f"the text has more than {MOST_BYTES} characters; expected fewer"
        )
    readers = {"yaml": _read_yaml, "toml": _read_toml, "json": _read_json}
    if format not in readers:
        raise ConfigurationError(f"the format is {format!r}; expected 'yaml', 'toml' or 'json'")
    try:
        return readers[format](text, source)
    except RecursionError:
        raise problem_at(source, None, "the document is nested too deep") from None


def _read_json(text: str, source: str) -> Document:
    has_repeated = False

    def note_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_repeated
        result = dict(pairs)
        has_repeated |= len(result) < len(pairs)
        return result

    try:
        data = json.loads(text, object_pairs_hook=note_repeated)
    except json.JSONDecodeError as error:
        raise problem_at(source, error.lineno, f"the text is not JSON: {error.msg}") from None
    except ValueError as error:  # a number of thousands of digits
        raise problem_at(source, None, f"a value of the text is not accepted: {error}") from None
    repeated = json_lines(text)[1] if has_repeated else None
    if repeated is not None:
        name, line = repeated
        raise problem_at(source, line, f"the field {name!r:.80} is given twice")
    lines: dict[tuple[str | int, ...], int] | None = None

    def line_of(where: tuple[str | int, ...]) -> int | None:
        nonlocal lines
        if lines is None:
            lines = json_lines(text)[0]
        return lines.get(where)

    return Document(data, source, line_of)


def _read_toml(text: str, source: str) -> Document:
    toml = _toml()
    try:
        data = toml.loads(text)
    except toml.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else None
        raise problem_at(source, line, f"the text is not TOML: {error}") from None
    except ValueError as error:  # a number of thousands of digits
        raise problem_at(source, None, f"a value of the text is not accepted: {error}") from None
    lines: dict[tuple[str | int, ...], int] | None = None

    def line_of(where: tuple[str | int, ...]) -> int | None:
        nonlocal lines
        if lines is None:
            lines = toml_lines(text)
        return lines.get(where)

    return Document(data, source, line_of)


def _toml() -> Any:
    for name in ("tomllib", "tomli"):  # the first is there from Python 3.11 on
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ConfigurationError(
        "TOML needs Python 3.11 or the package tomli; expected `pip install 'tidegate[rules]'`"
    )


def _read_yaml(
    text: str, source: str, *, keep_texts: bool = False, typed: str | None = None
) -> Document:
    data, lines = read_yaml(text, source, keep_texts=keep_texts, typed=typed)
    return Document(data, source, lines.get)
