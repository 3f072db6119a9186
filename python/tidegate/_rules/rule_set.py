"""A set of rules, read and checked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate._errors import ArgumentTypeError
from tidegate._rules.compile import compile_rules, validate
from tidegate._rules.document import Document, read_file, read_text
from tidegate._rules.pauses import pause_at_times

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from tidegate import _core
    from tidegate._rules.model import Rule, Rules

__all__ = ["RuleSet"]


class RuleSet:
    """Rules, read and checked as a whole: which limits apply to which requests.

        rules = RuleSet({"rules": [{"id": "api", "by": "user", "limits": "100/minute"}]})
        limiter = Limiter(rules=rules)
        limiter.check(user="42", endpoint="/api/posts")

    `rules` is a mapping with the fields of a document of rules (docs/rules.md), or a list of
    Rule objects. Raises RulesError, a ConfigurationError whose `problems` say what is wrong and
    where. A RuleSet is immutable; limiters and threads may share it.
    """

    def __init__(self, rules: Mapping[str, Any] | Iterable[Rule]) -> None:
        self._read(_document_of(rules))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RuleSet:
        """Reads a file that ends in .yaml, .yml, .toml or .json.

        Raises RulesError, whose problems name lines, and OSError if the file cannot be read.
        """
        return cls._from(read_file(Path(path)))

    @classmethod
    def parse(cls, text: str, format: str = "yaml", *, source: str = "<text>") -> RuleSet:
        """Reads a text whose `format` is yaml, toml or json. Errors call it `source`."""
        if not isinstance(text, str):
            raise ArgumentTypeError(f"the rules are of type {type(text).__name__}; expected a text")
        return cls._from(read_text(text, format, source))

    @classmethod
    def _from(cls, document: Document) -> RuleSet:
        rule_set = cls.__new__(cls)
        rule_set._read(document)
        return rule_set

    def _read(self, document: Document) -> None:
        model = validate(document)
        self._compiled: _core.RuleSet = compile_rules(document, model)
        self.source: str = document.source
        """The file that it was read from, or ``<dict>`` or ``<text>``."""
        self.rules: tuple[Rule, ...] = tuple(model.rules)
        """All its rules, including those that are not enabled."""
        self.tiers: tuple[str, ...] = tuple(model.tiers)
        self.default_tier: str | None = model.default_tier
        self.default = model.default
        self.hidden: frozenset[str] = frozenset(
            rule.id
            for rule in (*model.rules, *((model.default,) if model.default else ()))
            if not rule.headers
        )
        """The ids of the rules whose limits are not shown in responses."""
        whens = [rule.when for rule in model.rules] + [cost.when for cost in model.costs]
        blocked = [entry.__pydantic_extra__ or {} for entry in model.block]
        self.conditions: frozenset[str] = frozenset({"tier"}.union(*whens, *blocked))
        """The attributes that decide which rules apply, beside endpoint, method and ip."""
        self.overrides: int = len(model.overrides)
        """How many overrides it has. Their keys are not kept."""
        self.digest: str = _digest_of(model)
        """Equal for rule sets with the same content. It names the version in logs and metrics."""

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Returns the JSON Schema of a document, for editors."""
        from tidegate._rules.schema import json_schema

        return json_schema()

    def __repr__(self) -> str:
        return f"RuleSet({self.source!r}, {len(self.rules)} rules, digest={self.digest!r})"


def _digest_of(model: Rules) -> str:
    digest = hashlib.sha256()
    for name in sorted(type(model).model_fields):
        value = getattr(model, name)
        items = value if isinstance(value, list) else [value]
        digest.update(f"\n{name}={len(items)}".encode())
        for item in items:
            pause_at_times()
            dump = getattr(item, "model_dump", None)
            plain = item if dump is None else dump(mode="json", exclude_defaults=True)
            digest.update(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    return digest.hexdigest()[:12]


def _document_of(rules: Mapping[str, Any] | Iterable[Rule]) -> Document:
    from collections.abc import Mapping as AnyMapping

    data: Any
    if isinstance(rules, AnyMapping):
        data = dict(rules)
    elif isinstance(rules, (str, bytes)) or not hasattr(rules, "__iter__"):
        raise ArgumentTypeError(
            f"the rules are {rules!r:.80} of type {type(rules).__name__}; expected a mapping, a "
            "list of rules, or RuleSet.load(path)"
        )
    else:
        data = {"rules": [_plain(rule) for rule in rules]}
    return Document(data, "<dict>", lambda where: None)


def _plain(rule: Any) -> Any:
    dump = getattr(rule, "model_dump", None)
    return rule if dump is None else dump(exclude_defaults=True)
