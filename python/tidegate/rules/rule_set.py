"""A set of rules, read and checked."""

from __future__ import annotations

import hashlib
import json
import pickle
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tidegate import _core
from tidegate.limiter.errors import ArgumentTypeError
from tidegate.limiter.usage_cost import UsageCost
from tidegate.rules.advice import advise, advise_of_overrides, endpoint_names, named_tiers, say
from tidegate.rules.compile import compile_rules, validate
from tidegate.rules.document import Document, read_file, read_text
from tidegate.rules.pauses import pause_at_times
from tidegate.rules.problems import RulesError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from tidegate.rules.compile import Compiled
    from tidegate.rules.model import Default, Rule, Rules
    from tidegate.rules.problems import Problem

__all__ = ["RuleSet"]

_MOST_ADVICE = 100


class RuleSet:
    """Rules, read and checked as a whole: which limits apply to which requests.

        rules = RuleSet({"rules": [{"id": "api", "by": "user", "limits": "100/minute"}]})
        limiter = Limiter(rules=rules)
        limiter.check(user="42", endpoint="/api/posts")

    `rules` is a mapping with the fields of a document of rules (docs/rules.md), or a list of
    Rule objects. Raises RulesError, a ConfigurationError whose `problems` say what is wrong and
    where. A RuleSet is immutable; limiters and threads may share it.
    """

    _compiled: _core.RuleSet
    _model: Rules | bytes

    def __init__(self, rules: Mapping[str, Any] | Iterable[Rule]) -> None:
        self._read(_document_of(rules))
        say(self.advice)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RuleSet:
        """Reads a file that ends in .yaml, .yml, .toml or .json.

        Raises RulesError, whose problems name lines, and OSError if the file cannot be read.
        """
        return cls._with_advice(read_file(Path(path)))

    @classmethod
    def parse(cls, text: str, format: str = "yaml", *, source: str = "<text>") -> RuleSet:
        """Reads a text whose `format` is yaml, toml or json. Errors call it `source`."""
        if not isinstance(text, str):
            raise ArgumentTypeError(f"the rules are of type {type(text).__name__}; expected a text")
        return cls._with_advice(read_text(text, format, source))

    @classmethod
    def _with_advice(cls, document: Document) -> RuleSet:
        """The rules of a document, whose likely mistakes are logged."""
        rule_set = cls._from(document)
        say(rule_set.advice)
        return rule_set

    @classmethod
    def _from(cls, document: Document) -> RuleSet:
        rule_set = cls.__new__(cls)
        rule_set._read(document)
        return rule_set

    @classmethod
    def _of(cls, document: Document, model: Rules, compiled: Compiled) -> RuleSet:
        """The rules of a document that is compiled already."""
        rule_set = cls.__new__(cls)
        rule_set._fill(document, model, compiled)
        return rule_set

    @classmethod
    def _packed(cls, document: Document) -> dict[str, Any]:
        """Returns the argument of _unpacked(), in another process of the same version."""
        rule_set = cls.__new__(cls)
        spec = rule_set._read(document)
        rule_set._pickle()
        return {**vars(rule_set), "_compiled": _core.RuleSet._spec_bytes(spec)}

    @classmethod
    def _unpacked(cls, packed: dict[str, Any]) -> RuleSet:
        """The rules that _packed() was called with. Raises ValueError for other bytes."""
        rule_set = cls.__new__(cls)
        compiled, problems = _core.RuleSet._compile_bytes(packed["_compiled"])
        if compiled is None:
            raise ValueError(f"the rules were compiled before, and now are not: {problems[0]}")
        vars(rule_set).update(packed, _compiled=compiled)
        return rule_set

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, including those that are not enabled."""
        return tuple(self.model.rules)

    @property
    def default(self) -> Default | None:
        """The limits that apply if no rule does."""
        return self.model.default

    @property
    def model(self) -> Rules:
        """The fields of the document, without overrides."""
        model = self._model
        if isinstance(model, bytes):
            self._model = model = cast("Rules", pickle.loads(model))
        return model

    def _pickle(self) -> None:
        """Keeps its rules as bytes."""
        # Requests are decided without them, and so many objects would be looked at by each run of
        # the garbage collector, and be freed at once in the end.
        if not isinstance(self._model, bytes):
            self._model = pickle.dumps(self._model)

    def _read(self, document: Document) -> dict[str, Any]:
        """Fills it in. Returns the specification that the core has compiled."""
        while True:
            try:
                model = validate(document)
                compiled = compile_rules(document, model)
                break
            except RulesError as error:
                if not document.leave_out(error.problems):
                    raise
        self._fill(document, model, compiled)
        return compiled.spec

    def _fill(self, document: Document, model: Rules, compiled: Compiled) -> None:
        kept = document.kept
        left_out = document.skipped if kept is None else (*kept.skipped, *document.skipped)
        self.skipped: tuple[Problem, ...] = left_out
        """The problems of overrides in a database that were left out; the rest is in force."""
        found = islice(advise(document, model), _MOST_ADVICE)
        of_overrides = (
            tuple(islice(advise_of_overrides(document, model), _MOST_ADVICE))
            if kept is None
            else kept._override_advice
        )
        self.advice: tuple[Problem, ...] = (*found, *of_overrides)
        """Likely mistakes in the rules, at most 200; they are logged as warnings."""
        self._override_advice: tuple[Problem, ...] = of_overrides
        self._compiled = compiled.core
        self._model = model.model_copy(update={"overrides": []})
        self._override_terms = compiled.override_terms
        self._override_digest: str = (
            _digest_of_items(model.overrides) if kept is None else kept._override_digest
        )
        self._overrides_mark = document.overrides_mark
        self.etag: str | None = None
        """The ETag of the document in a database, without overrides; None if it is not known."""
        self._size = len(model.rules)
        self.in_force: int = sum(rule.enabled for rule in model.rules) + bool(model.default)
        """How many rules are enabled; the default is one more."""
        self.blocked: int = len(model.block)
        """How many entries `block` has."""
        self._usage_costs: dict[int, UsageCost] = {
            number: UsageCost(cost.cost.usage)
            for number, cost in enumerate(model.costs)
            if not isinstance(cost.cost, int)
        }
        self.names_options: bool = any("OPTIONS" in rule.methods for rule in model.rules)
        """Whether a rule names the method OPTIONS."""
        self.source: str = document.source
        """The file that it was read from, or ``<dict>`` or ``<text>``."""
        self.tiers: tuple[str, ...] = tuple(model.tiers)
        self.default_tier: str | None = model.default_tier
        self.named_tiers: frozenset[str] = frozenset(named_tiers(model))
        """The tiers that there are: those of `tiers`, else those that are named anywhere."""
        self.hidden: frozenset[str] = frozenset(
            rule.id
            for rule in (*model.rules, *((model.default,) if model.default else ()))
            if not rule.headers
        )
        """The ids of the rules whose limits are not shown in responses."""
        whens = [rule.when for rule in model.rules] + [cost.when for cost in model.costs]
        blocked = [entry.__pydantic_extra__ or {} for entry in model.block]
        self.endpoint_names: tuple[str, ...] = endpoint_names(model)
        """The endpoints of rules, costs and lists that are no paths and no patterns of paths."""
        self.conditions: frozenset[str] = frozenset({"tier"}.union(*whens, *blocked))
        """The attributes that decide which rules apply, beside endpoint, method and ip."""
        self.overrides: int = len(model.overrides) if kept is None else kept.overrides
        """How many overrides it has. Their keys are not kept."""
        self.digest: str = _digest_of(model, self._override_digest)
        """Equal for rule sets with the same content. It names the version in logs and metrics."""

    def __copy__(self) -> RuleSet:
        return self

    def __deepcopy__(self, memo: object) -> RuleSet:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "a RuleSet cannot be pickled, since it is compiled for its process; expected "
            "RuleSet.load(path), or RuleSet(...) of the same document, in the process that needs it"
        )

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Returns the JSON Schema of a document, for editors."""
        from tidegate.rules.schema import json_schema

        return json_schema()

    def __repr__(self) -> str:
        return f"RuleSet({self.source!r}, {self._size} rules, digest={self.digest!r})"


def _digest_of(model: Rules, overrides: str) -> str:
    digest = hashlib.sha256()
    for name in sorted(type(model).model_fields):
        value = getattr(model, name)
        items = value if isinstance(value, list) else [value]
        of_items = overrides if name == "overrides" else _digest_of_items(items)
        digest.update(f"\n{name}={of_items}".encode())
    return digest.hexdigest()[:12]


def _digest_of_items(items: list[Any]) -> str:
    digest = hashlib.sha256()
    for item in items:
        pause_at_times()
        dump = getattr(item, "model_dump", None)
        plain = item if dump is None else dump(mode="json", exclude_defaults=True)
        digest.update(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


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
