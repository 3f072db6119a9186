"""Reads a text of YAML: its data, and the line of each field."""

from __future__ import annotations

import re
from typing import Any

from tidegate.limiter.errors import ConfigurationError
from tidegate.rules.problems import problem_at

__all__ = ["Written", "meant", "meant_number", "read_yaml"]

# The most values that aliases may stand for: a few lines of YAML can stand for billions.
MOST_ALIASED = 100_000
DEEPEST = 50
_TAG = "tag:yaml.org,2002:"
# What YAML may take a name for that somebody wrote without quotes.
_NAME_LIKE = (f"{_TAG}int", f"{_TAG}bool")
_PLAIN = {"str", "int", "float", "bool", "null", "timestamp", "seq", "map"}

Lines = dict["tuple[str | int, ...]", int]


class Written(str):
    """The text of a number or a boolean that is not written as its value is: `0123`, `on`.

    YAML takes the first for 83 and the second for true. A user or a country may be named so, so
    the text is what was written; `meaning` is for fields that hold a number or a boolean.
    """

    meaning: Any

    def __new__(cls, text: str, meaning: Any) -> Written:
        written = super().__new__(cls, text)
        written.meaning = meaning
        return written

    def __reduce__(self) -> tuple[type, tuple[str, Any]]:
        return type(self), (str(self), self.meaning)


def meant(value: Any) -> Any:
    """The same data with each Written replaced by its number or boolean."""
    if isinstance(value, dict):
        return {name: meant(each) for name, each in value.items()}
    if isinstance(value, list):
        return [meant(each) for each in value]
    return value.meaning if isinstance(value, Written) else value


def meant_number(value: Any) -> Any:
    """Like meant() for one value, which is to be a number.

    Raises ValueError for `010` and `1:30`, which YAML takes for 8 and 90, as few people do.
    """
    if isinstance(value, Written) and re.fullmatch(r"[-+]?0[\d_]+|.*:.*", value):
        raise ValueError(
            f"is {str(value)!r}, which YAML takes for {value.meaning}; expected a decimal number, "
            f"such as {value.meaning}"
        )
    return meant(value)


def read_yaml(
    text: str, source: str, *, keep_texts: bool = False, typed: str | None = None
) -> tuple[Any, Lines]:
    """The data of a YAML text and the line of each of its fields. Raises RulesError.

    Values such as `007` and `yes` are a Written; with `keep_texts`, all values but null are the
    texts that were written, except for those in fields with the name `typed`.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigurationError(
            "YAML needs the package PyYAML; expected `pip install 'tidegate[rules]'`"
        ) from None
    try:
        reader = _Reader(yaml, text, source, keep_texts, typed)
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise problem_at(
            source, line, "the text has half of a surrogate pair; expected Unicode"
        ) from None
    try:
        return reader.read()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise problem_at(source, line, "the text has a control character") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise problem_at(
            source, None if mark is None else mark.line + 1, f"the text is not YAML: {problem}"
        ) from None
    finally:
        reader.loader.dispose()


def _shown(value: int | bool) -> str:
    """The usual way to write a number or a boolean in YAML."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


class _Reader:
    """Reads event by event and bounds the depth.

    The loader itself composes nodes by unbounded recursion, which overflows the C stack.
    """

    def __init__(
        self, yaml: Any, text: str, source: str, keep_texts: bool, typed: str | None
    ) -> None:
        self.yaml = yaml
        self.loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        self.source = source
        self.keep_texts = keep_texts
        self.typed = typed
        self.lines: Lines = {}
        self.values = 0
        self.aliased = 0
        # For each anchor: its value, and the number of values in it.
        self.anchors: dict[str, tuple[Any, int]] = {}

    def read(self) -> tuple[Any, Lines]:
        yaml, loader = self.yaml, self.loader
        loader.get_event()  # the stream begins
        if loader.check_event(yaml.StreamEndEvent):
            return None, {}
        loader.get_event()  # a document begins
        data = self.value(())
        loader.get_event()  # it ends
        if not loader.check_event(yaml.StreamEndEvent):
            event = loader.get_event()
            raise self.error(event, "the text has another document; expected one")
        return data, self.lines

    def error(self, event: Any, message: str) -> Exception:
        return problem_at(self.source, event.start_mark.line + 1, message)

    def value(self, where: tuple[str | int, ...]) -> Any:
        yaml = self.yaml
        event = self.loader.get_event()
        self.lines.setdefault(where, event.start_mark.line + 1)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if len(where) > DEEPEST:
            raise self.error(event, f"the document is nested deeper than {DEEPEST} fields")
        before = self.values
        self.values += 1
        if isinstance(event, yaml.ScalarEvent):
            keep_text = self.keep_texts and self.typed not in where
            value = self.scalar(event, keep_text)
        else:
            if event.tag is not None:
                self.check_tag(event, event.tag)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            value = self.sequence(where) if is_list else self.mapping(where)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.values - before)
        return value

    def alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            raise self.error(
                event, f"the alias {event.anchor!r} has no anchor before it; expected one that has"
            )
        value, size = self.anchors[event.anchor]
        self.values += size
        self.aliased += size
        if self.aliased > MOST_ALIASED:
            raise self.error(
                event,
                f"aliases stand for more than {MOST_ALIASED} values; expected fewer",
            )
        return value

    def check_tag(self, event: Any, tag: str) -> None:
        if not tag.startswith(_TAG) or tag[len(_TAG) :] not in _PLAIN:
            shown = tag.replace(_TAG, "!!")
            raise self.error(event, f"the tag {shown!r} is not accepted; expected plain data")

    def scalar(self, event: Any, keep_text: bool) -> Any:
        yaml, loader = self.yaml, self.loader
        tag = event.tag
        if tag is None or tag == "!":
            tag = loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        self.check_tag(event, tag)
        if tag == f"{_TAG}str" or (keep_text and tag != f"{_TAG}null"):
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            value = loader.yaml_constructors[tag](loader, node)
        except (ValueError, KeyError, AttributeError) as error:  # a date such as 2026-13-01
            raise self.error(
                event, f"the value {event.value!r:.80} is not accepted: {error}"
            ) from None
        if tag in _NAME_LIKE and event.tag is None and event.value != _shown(value):
            return Written(event.value, value)
        return value

    def sequence(self, where: tuple[str | int, ...]) -> list[Any]:
        result: list[Any] = []
        while not self.loader.check_event(self.yaml.SequenceEndEvent):
            result.append(self.value((*where, len(result))))
        self.loader.get_event()
        return result

    def mapping(self, where: tuple[str | int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not self.loader.check_event(self.yaml.MappingEndEvent):
            event = self.loader.peek_event()
            key = self.key(event, where)
            if key == "<<" and event.implicit[0]:
                merged = {**self.merged(where), **merged}
                continue
            if key in result:
                raise self.error(event, f"the field {key!r} is given twice")
            self.lines[(*where, key)] = event.start_mark.line + 1
            result[key] = self.value((*where, key))
        self.loader.get_event()
        return {**merged, **result}

    def key(self, event: Any, where: tuple[str | int, ...]) -> str:
        if isinstance(event, self.yaml.ScalarEvent) and event.tag is None:
            self.loader.get_event()
            self.values += 1
            if event.anchor is not None:
                self.anchors[event.anchor] = (event.value, 1)
            is_null = event.implicit[0] and event.value in ("", "~", "null", "Null", "NULL")
            # `on`, `yes`, `no`, `off` and numbers are names here.
            key = None if is_null else event.value
        else:
            key = self.value((*where, "<key>"))
        if not isinstance(key, str):
            raise self.error(event, f"the field name is {key!r:.80}; expected a text")
        return key

    def merged(self, where: tuple[str | int, ...]) -> dict[str, Any]:
        """The fields that ``<<: *other`` brings in."""
        event = self.loader.peek_event()
        value = self.value((*where, "<<"))
        result: dict[str, Any] = {}
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                raise self.error(event, f"'<<' is given {each!r:.80}; expected a mapping")
            result = {**each, **result}
        return result
