"""From the text of a document to its data, with the line of each field."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from typing import TYPE_CHECKING, Any

from tidegate._errors import ConfigurationError
from tidegate._rules.problems import Problem, RulesError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path as FilePath

__all__ = ["Document", "read_file", "read_text"]

Where = "tuple[str | int, ...]"

# A document of 100,000 overrides takes about 8 MB.
MOST_BYTES = 32 * 2**20
# Of a YAML document with its aliases written out: a few lines can stand for billions of values.
MOST_VALUES = 5_000_000
_DEEPEST = 50
_FORMATS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}


class Document:
    """The data of a document, and where its fields are in the text."""

    def __init__(
        self, data: Any, source: str, line_of: Callable[[tuple[str | int, ...]], int | None]
    ) -> None:
        self.data = data
        self.source = source
        self._line_of = line_of

    def problem(self, where: tuple[str | int, ...], message: str) -> Problem:
        """A mistake in the field `where`; its line is that of the closest field that is there."""
        line = None
        for length in range(len(where), -1, -1):
            line = self._line_of(where[:length])
            if line is not None:
                break
        return Problem(self.source, line, as_text(where), message)


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


def read_file(path: FilePath) -> Document:
    """Reads a file whose format its name says: .yaml, .yml, .toml or .json.

    Raises RulesError for what is no such document, OSError where the file cannot be read.
    """
    source = str(path)
    format = _FORMATS.get(path.suffix.lower())
    if format is None:
        raise _error(
            source, None, f"the file ends in {path.suffix!r}; expected .yaml, .yml, .toml or .json"
        )
    with path.open("rb") as file:
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise _error(
            source, None, f"the file has more than {MOST_BYTES} bytes; expected a smaller one"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _error(source, line, f"byte {error.start} is not UTF-8; expected UTF-8") from None
    return read_text(text, format, source)


def read_text(text: str, format: str, source: str) -> Document:
    """Reads a text of `format`: yaml, toml or json."""
    if len(text) > MOST_BYTES:
        raise _error(source, None, f"the text has more than {MOST_BYTES} characters")
    readers = {"yaml": _read_yaml, "toml": _read_toml, "json": _read_json}
    if format not in readers:
        raise ConfigurationError(f"the format is {format!r}; expected 'yaml', 'toml' or 'json'")
    try:
        return readers[format](text, source)
    except RecursionError:
        raise _error(source, None, "the document is nested too deep") from None


def _error(source: str, line: int | None, message: str) -> RulesError:
    return RulesError([Problem(source, line, "", message)])


def _read_json(text: str, source: str) -> Document:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            raise _error(source, None, f"the field {repeated!r} is given twice in one object")
        return result

    try:
        data = json.loads(text, object_pairs_hook=without_repeats)
    except json.JSONDecodeError as error:
        raise _error(source, error.lineno, f"the text is not JSON: {error.msg}") from None
    # JSON has no marks; YAML reads it too, and has them.
    lines: dict[tuple[str | int, ...], int] | None = None

    def line_of(where: tuple[str | int, ...]) -> int | None:
        nonlocal lines
        if lines is None:
            try:
                lines = _compose_yaml(text, source)[1]
            except (ConfigurationError, RecursionError):
                lines = {}
        return lines.get(where)

    return Document(data, source, line_of)


def _read_toml(text: str, source: str) -> Document:
    toml = _toml()
    try:
        data = toml.loads(text)
    except toml.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else None
        raise _error(source, line, f"the text is not TOML: {error}") from None
    lines: dict[tuple[str | int, ...], int] | None = None

    def line_of(where: tuple[str | int, ...]) -> int | None:
        nonlocal lines
        if lines is None:
            lines = _toml_lines(text)
        return lines.get(where)

    return Document(data, source, line_of)


def _toml() -> Any:
    for name in ("tomllib", "tomli"):  # the first is there from Python 3.11 on
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ConfigurationError(
        "TOML needs Python 3.11 or the package tomli; expected `pip install 'tidegate[rules]'`"
    )


def _toml_lines(text: str) -> dict[tuple[str | int, ...], int]:
    """The lines of tables and of the keys that stand at a line's beginning."""
    lines: dict[tuple[str | int, ...], int] = {}
    counts: dict[str, int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([\w.\-\"]+)\s*\]", line)
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
            lines.setdefault(table, number)
            continue
        key = re.match(r"\s*([\w\-]+|\"[^\"]*\")\s*=", line)
        if key:
            lines.setdefault((*table, key[1].strip('"')), number)
    return lines


def _read_yaml(text: str, source: str) -> Document:
    data, lines = _compose_yaml(text, source)
    return Document(data, source, lines.get)


def _compose_yaml(text: str, source: str) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """The data of a YAML text and the line of each of its fields."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigurationError(
            "YAML needs the package PyYAML; expected `pip install 'tidegate[rules]'`"
        ) from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    lines: dict[tuple[str | int, ...], int] = {}
    values = 0

    def build(node: Any, where: tuple[str | int, ...]) -> Any:
        nonlocal values
        values += 1
        line = node.start_mark.line + 1
        if values > MOST_VALUES:
            raise _error(
                source,
                line,
                f"the document stands for more than {MOST_VALUES} values; expected "
                "fewer, with fewer aliases",
            )
        if len(where) > _DEEPEST:
            raise _error(source, line, f"the document is nested deeper than {_DEEPEST} fields")
        lines.setdefault(where, line)
        if isinstance(node, yaml.SequenceNode):
            return [build(item, (*where, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return mapping(node, where)
        if node.tag.startswith("tag:yaml.org,2002:python/") or node.tag.startswith("!"):
            raise _error(source, line, f"the tag {node.tag!r} is not accepted; expected plain data")
        return loader.construct_object(node)

    def mapping(node: Any, where: tuple[str | int, ...]) -> dict[Hashable, Any]:
        result: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = build(key_node, (*where, "<key>"))
            if isinstance(key, bool):
                key = key_node.value  # `on`, `yes`, `no` and `off` are names here
            if not isinstance(key, (str, int)):
                raise _error(source, line, f"the field name is {key!r}; expected a text")
            key = str(key)
            if key in result:
                raise _error(source, line, f"the field {key!r} is given twice")
            lines[(*where, key)] = line
            result[key] = build(value_node, (*where, key))
        return result

    try:
        node = loader.get_single_node()
        data = None if node is None else build(node, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error)
        raise _error(source, line, f"the text is not YAML: {problem}") from None
    except ValueError as error:  # a date such as 2026-13-01
        raise _error(source, None, f"a value of the text is not accepted: {error}") from None
    finally:
        loader.dispose()
    return data, lines
