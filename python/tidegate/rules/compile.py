"""Turns the fields of a document into the specification that the core compiles."""

from __future__ import annotations

import datetime as dt
import difflib
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tidegate import _core
from tidegate.limiter.errors import ConfigurationError
from tidegate.rules.document import PLURALS, as_where
from tidegate.rules.limit_fields import fields_for_tiers
from tidegate.rules.pauses import pause_at_times
from tidegate.rules.problems import RulesError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Optional, Union

    from pydantic import ValidationError

    from tidegate.rules import model
    from tidegate.rules.document import Document
    from tidegate.rules.problems import Problem
    from tidegate.types import Algorithm

    # Where a value lies: the place of what holds it, and its name there.
    _Place = Optional[tuple["_Place", Union[str, int]]]

__all__ = ["Compiled", "StaleOverridesError", "as_instant", "compile_rules", "validate"]

Where = "tuple[str | int, ...]"
# In the year 2106. An override that ends later never ends.
_FOREVER_NS = (2**32 - 1) * 10**9
_LAST_NS = 2**63 - 1
_OTHER_TIERS = "*"
_LISTS = ("allow", "block")
# A field of these names in a list is a mistake and not an attribute of requests.
_ONLY_OF_RULES = frozenset(("algorithm", "also", "by", "limits", "replaces", "shadow", "when"))
# The attributes that have a meaning of their own.
_OF_ALL_REQUESTS = ("endpoint", "ip", "method", "priority", "tier")
# The expected values of each field, for messages about values of a wrong type.
_EXPECTED = {
    "limits": "a limit such as 100/minute, a list of limits, 'unlimited', or a mapping of tiers to "
    "these",
    "by": "a name such as user, names such as user+endpoint, or a list of names",
    "endpoints": "a text or a list of texts",
    "methods": "a text or a list of texts",
    "tiers": "a text or a list of texts",
    "networks": "a text or a list of texts",
    "replaces": "the id of a rule or a list of ids",
    "key": "a text, or the text of each attribute that the rule counts by",
}
_WRONG_TYPES = {"string_type", "list_type", "dict_type", "model_type", "model_attributes_type"}
# Pydantic's words for types, and the words that messages use instead.
_WORDS = {
    "greater than or equal to 1": "1 or more",
    "a valid string": "a text",
    "a valid list": "a list",
    "a valid dictionary": "a mapping",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
}


class StaleOverridesError(Exception):
    """The overrides that a document keeps must be read again: rules that they are for changed."""


class Compiled(NamedTuple):
    """The result of compile_rules()."""

    core: _core.RuleSet
    spec: dict[str, Any]
    """The specification that `core` was made of; without overrides that were kept."""
    override_terms: dict[str, tuple[str, bool]]
    """The algorithm, and whether it is in shadow, of each rule that has overrides."""


def validate(document: Document) -> model.Rules:
    """Checks the document's fields. Raises RulesError."""
    try:
        import pydantic
    except ModuleNotFoundError:
        raise ConfigurationError(
            "rules need the package pydantic; expected `pip install 'tidegate[rules]'`"
        ) from None
    from tidegate.rules import model

    data = document.data
    if data is None:  # perhaps the file is being written
        raise RulesError([document.problem((), "the document is empty; expected rules")])
    if not isinstance(data, dict):
        raise RulesError(
            [
                document.problem(
                    (), f"the document is {_shown(data)}; expected fields such as rules and tiers"
                )
            ]
        )
    _check_texts(document)
    try:
        return model.Rules.model_validate(_in_plural(document, data))
    except pydantic.ValidationError as error:
        raise RulesError(_problems_of(document, error)) from None


def _check_texts(document: Document) -> None:
    """Raises RulesError for texts that are not Unicode, and for field names that are not texts."""
    # The place of a value is that of what holds it and a name: whole paths would take time and
    # memory in proportion to the square of the depth.
    waiting: list[tuple[_Place, Any]] = [(None, document.data)]
    seen = set()
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        pause_at_times()
        if isinstance(value, dict):
            for name in value:
                if not (isinstance(name, str) and _is_unicode(name)):
                    message = f"has the field name {_shown(name)}; expected a text"
                    raise RulesError([document.problem(_path(place), message)])
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, str):
                if not _is_unicode(item):
                    message = f"is {item!a:.80}, with half of a surrogate pair; expected Unicode"
                    raise RulesError([document.problem(_path((place, name)), message)])
            elif isinstance(item, (list, dict)):
                waiting.append(((place, name), item))


def _path(place: _Place) -> tuple[str | int, ...]:
    names = []
    while place is not None:
        place, name = place
        names.append(name)
    return tuple(reversed(names))


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_plural(document: Document, data: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields, with each singular name such as ``endpoint`` replaced by its plural."""
    problems = []
    result = dict(data)
    for section in ("rules", "costs", "overrides", "allow", "block", "default"):
        items = result.get(section)
        single = section == "default" and isinstance(items, dict)
        if isinstance(items, (str, list)) and section == "default":
            result[section] = {"limits": items}
            continue
        if not single and not isinstance(items, list):
            continue
        changed = []
        for i, item in enumerate([items] if single else cast("list[Any]", items)):
            pause_at_times()
            at = (section,) if single else (section, i)
            if isinstance(item, dict):
                item = dict(item)
                if section in _LISTS and "ip" in item:
                    item["network"] = item.pop("ip")
                for one, many in PLURALS.items():
                    if one in item and many in item:
                        message = f"is given with {many}; expected one of them"
                        problems.append(document.problem((*at, one), message))
                    elif one in item:
                        item[many] = item.pop(one)
                wrong = section in ("rules", "default") and fields_for_tiers(data, item)
                if wrong:
                    problems.append(document.problem((*at, "limits"), wrong))
            changed.append(item)
        result[section] = changed[0] if single else changed
    if problems:
        raise RulesError(problems)
    return result


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or deeply nested lists
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _problems_of(document: Document, error: ValidationError) -> list[Any]:
    from tidegate.rules import model

    problems = []
    fields = {
        name
        for each in (
            model.Rules,
            model.Rule,
            model.Default,
            model.Override,
            model.Cost,
            model.ListEntry,
            model.Reserve,
            model.UsageUnits,
        )
        for name in [*model.field_names(each), *PLURALS]
    }
    seen = set()
    for each in error.errors(include_url=False):
        # Pydantic's places include the branches of unions, which are not fields.
        where: list[str | int] = []
        for part in each["loc"]:
            if isinstance(part, int) or part in fields or _is_in(document.data, where, part):
                where.append(part)
        message = each["msg"]
        kind = each["type"]
        name = str(each["loc"][-1])
        if kind == "extra_forbidden":
            where = [*where[:-1], name] if where and where[-1] == name else [*where, name]
            section = _fields_at(where)
            near = difflib.get_close_matches(name, section, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            message = f"is not a field; {hint}expected {', '.join(section)}"
        elif kind == "missing":
            message = "is missing"
        elif kind == "value_error":
            message = str(each["ctx"]["error"])
        else:
            message = message.replace("Input should be", "expected")
            if kind in _WRONG_TYPES and where and where[-1] in _EXPECTED:
                message = f"expected {_EXPECTED[where[-1]]}"
            message = re.sub("a valid dictionary or instance of .*", "a mapping", message)
            for theirs, ours in _WORDS.items():
                message = message.replace(theirs, ours)
            message = f"is {_shown(each['input'])}; {message[0].lower()}{message[1:]}"
        key = (tuple(where), kind if kind in ("missing", "extra_forbidden") else "value")
        if key in seen:  # another branch of a union reported it
            continue
        seen.add(key)
        problems.append((tuple(where), message))
    # A problem inside of a field says more than the problem of the whole field.
    outer = {where[:length] for where, _ in problems for length in range(1, len(where))}
    return [document.problem(*each) for each in problems if each[0] not in outer]


def _is_in(data: Any, where: Iterable[str | int], part: str | int) -> bool:
    for step in where:
        if isinstance(data, dict):
            singular = step[:-1] if isinstance(step, str) and step not in data else step
            data = data.get(singular)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return False
    return isinstance(data, dict) and part in data


def _fields_at(where: list[str | int]) -> list[str]:
    from tidegate.rules import model

    sections: dict[str, type[Any]] = {
        "rules": model.Rule,
        "default": model.Default,
        "overrides": model.Override,
        "costs": model.Cost,
        "allow": model.ListEntry,
        "block": model.ListEntry,
    }
    if "reserve" in where[:-1]:
        return sorted(model.field_names(model.Reserve))
    if where[0] == "costs" and "cost" in where[:-1]:
        return sorted(model.field_names(model.UsageUnits))
    at = sections.get(str(where[0])) if len(where) > 1 else None
    return sorted(model.field_names(at or model.Rules))


def as_instant(given: dt.datetime | dt.date) -> dt.datetime:
    """A time; that at which a day begins in UTC."""
    if isinstance(given, dt.datetime):
        return given
    return dt.datetime(given.year, given.month, given.day, tzinfo=dt.timezone.utc)


class _Compiler:
    """Reads limits and times, and collects their problems."""

    def __init__(self, document: Document, rules: model.Rules) -> None:
        self.document = document
        self.rules = rules
        self.problems: list[Any] = []
        # By text, algorithm and shadow: the limit, or the reason why the text is not a limit.
        self._known: dict[tuple[str, str, bool], _core.Limit | str] = {}

    def limit(
        self, where: tuple[str | int, ...], text: str, algorithm: Algorithm, shadow: bool
    ) -> _core.Limit | None:
        key = (text, algorithm, shadow)
        if key not in self._known:
            try:
                self._known[key] = _core.Limit(text, algorithm=algorithm, shadow=shadow)
            except ConfigurationError as error:
                self._known[key] = str(error)
        known = self._known[key]
        if isinstance(known, str):
            self.problems.append(self.document.problem(where, known))
            return None
        return known

    def limits(
        self,
        where: tuple[str | int, ...],
        given: str | list[str],
        algorithm: Algorithm,
        shadow: bool,
    ) -> list[_core.Limit]:
        from tidegate.rules.model import UNLIMITED

        if given == UNLIMITED or given == [UNLIMITED]:
            return []
        texts = [given] if isinstance(given, str) else given
        if not texts:
            self.problems.append(
                self.document.problem(where, "has no limit; expected at least one, or 'unlimited'")
            )
        result = []
        for i, text in enumerate(texts):
            place = where if isinstance(given, str) else (*where, i)
            parts = [part for part in text.replace("|", ";").replace(",", ";").split(";") if part]
            if UNLIMITED in (part.strip() for part in parts):
                message = "has 'unlimited' beside a limit; expected it alone, or limits alone"
                self.problems.append(self.document.problem(place, message))
                continue
            for part in parts or [text]:
                limit = self.limit(place, part.strip(), algorithm, shadow)
                if limit is not None:
                    result.append(limit)
        return result

    def by_tier(
        self, where: tuple[str | int, ...], rule: model.Rule | model.Default
    ) -> list[tuple[str, list[_core.Limit]]]:
        algorithm = rule.algorithm or self.rules.algorithm
        given = rule.limits
        place = (*where, "limits")
        if not isinstance(given, dict):
            return [("", self.limits(place, given, algorithm, rule.shadow))]
        if not given:
            self.problems.append(self.document.problem(place, "has no tier; expected at least one"))
        return [
            (
                "" if tier == _OTHER_TIERS else tier,
                self.limits((*place, tier), limits, algorithm, rule.shadow),
            )
            for tier, limits in given.items()
        ]

    def rule(self, where: tuple[str | int, ...], rule: model.Rule | model.Default) -> Any:
        pause_at_times()
        spec = {
            "id": rule.id,
            "by": list(rule.by),
            "limits": self.by_tier(where, rule),
            "counts_requests": rule.counts == "requests",
            "counter": rule.counter or "",
            "carry_over": rule.carry_over,
            "reserve": [0, rule.reserve.normal, rule.reserve.background],
            "replaces": list(getattr(rule, "replaces", ())),
            "also": getattr(rule, "also", False),
            "shadow": rule.shadow,
        }
        return {**spec, **_condition(rule)}

    def override(self, i: int, override: model.Override, by: dict[str, list[str]]) -> Any:
        pause_at_times()
        where = ("overrides", i)
        names = by.get(override.rule, [])
        key = override.key
        if isinstance(key, dict):
            if override.rule in by and set(key) != set(names):
                self.problems.append(
                    self.document.problem(
                        (*where, "key"),
                        f"has {', '.join(sorted(key)) or 'nothing'}; expected "
                        f"{', '.join(names) or 'a rule that counts by an attribute'}",
                    )
                )
            values = [key.get(name, "") for name in names]
        else:
            values = [key]
        return {
            "rule": override.rule,
            "key": values,
            "limits": self.limits(
                (*where, "limits"),
                override.limits,
                override.algorithm or self._algorithm_of(override.rule),
                self._shadows.get(override.rule, False),
            ),
            **self.times(where, override),
            "reason": override.reason,
        }

    def listed(self, section: str, i: int, entry: model.ListEntry) -> dict[str, Any]:
        return {
            "name": entry.id or f"{section}[{i}]",
            "allows": section == "allow",
            **self.times((section, i), entry),
            **_listed(entry),
        }

    def times(
        self, where: tuple[str | int, ...], given: model.Override | model.ListEntry
    ) -> dict[str, Any]:
        from_ns = self.instant((*where, "from"), given.begin) or 0
        until_ns = self.instant((*where, "until"), given.until)
        if until_ns is not None and 0 < until_ns <= from_ns:
            self.problems.append(
                self.document.problem(
                    (*where, "until"), "is not after `from`; expected a later time"
                )
            )
        if until_ns is not None and until_ns >= _FOREVER_NS:
            until_ns = None
        return {"from_ns": from_ns, "until_ns": until_ns}

    def instant(
        self, where: tuple[str | int, ...], given: dt.datetime | dt.date | None
    ) -> int | None:
        if given is None:
            return None
        at = as_instant(given)
        if at.tzinfo is None:
            self.problems.append(
                self.document.problem(
                    where,
                    f"is {at.isoformat()}; expected a time with its zone, such as "
                    f"{at.isoformat()}Z",
                )
            )
            return None
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
        micros = (at - epoch) // dt.timedelta(microseconds=1)
        return min(max(0, micros) * 1000, _LAST_NS)

    def _algorithm_of(self, rule: str) -> Algorithm:
        return self._algorithms.get(rule, self.rules.algorithm)

    def spec(self) -> dict[str, Any]:
        enabled = [rule for rule in self.rules.rules if rule.enabled]
        self._places = [i for i, rule in enumerate(self.rules.rules) if rule.enabled]
        default = self.rules.default
        everyone: list[Any] = [*enabled, *([default] if default else [])]
        by = {rule.id: rule.by for rule in everyone}
        self._algorithms = {rule.id: rule.algorithm or self.rules.algorithm for rule in everyone}
        self._shadows = {rule.id: rule.shadow for rule in everyone}
        return {
            "tiers": list(self.rules.tiers),
            "default_tier": self.rules.default_tier or "",
            "rules": [
                self.rule(("rules", place), rule) for place, rule in zip(self._places, enabled)
            ],
            "otherwise": None if default is None else self.rule(("default",), default),
            "overrides": [
                self.override(i, override, by) for i, override in enumerate(self.rules.overrides)
            ],
            "costs": [
                {
                    "cost": cost.units,
                    "is_estimate": not isinstance(cost.cost, int),
                    "usage": cost.millionths,
                    "priority": cost.priority,
                    **_condition(cost),
                }
                for cost in self.rules.costs
            ],
            "lists": [
                self.listed(section, i, entry)
                for section in _LISTS
                for i, entry in enumerate(getattr(self.rules, section))
            ],
        }

    def override_terms(self, rules: Iterable[str]) -> dict[str, tuple[str, bool]]:
        """Returns what the limits of overrides take from each of these rules."""
        return {rule: (self._algorithm_of(rule), self._shadows.get(rule, False)) for rule in rules}

    def place_of(self, where: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """The place in the document of a field of the core's specification."""
        if len(where) > 1 and where[0] == "rules" and isinstance(where[1], int):
            return ("rules", self._places[where[1]], *where[2:])
        return where

    def message_of(self, message: str) -> str:
        """The message, with each rule's place in the document."""
        return re.sub(r"rules\[(\d+)\]", lambda m: f"rules[{self._places[int(m[1])]}]", message)


def _condition(fields: Any, when: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The conditions of a rule, a cost or a list entry, for the core's specification."""
    if when is None:
        when = getattr(fields, "when", {})
    return {
        "endpoints": list(getattr(fields, "endpoints", ())),
        "methods": list(getattr(fields, "methods", ())),
        "tiers": list(getattr(fields, "tiers", ())),
        "networks": list(getattr(fields, "networks", ())),
        "when": list(when.items()),
    }


def _undeclared(document: Document, rules: model.Rules) -> Iterator[Problem]:
    """The problem of each attribute that a document with `attributes` does not declare."""
    known = {*rules.attributes, *_OF_ALL_REQUESTS}
    everyone = [(("rules", i), rule) for i, rule in enumerate(rules.rules) if rule.enabled]
    default = [] if rules.default is None else [(("default",), rules.default)]
    by = [((*at, "by"), name) for at, rule in [*everyone, *default] for name in rule.by]
    when = [
        ((section, i, "when", name), name)
        for section in ("rules", "costs")
        for i, each in enumerate(getattr(rules, section))
        if getattr(each, "enabled", True)
        for name in each.when
    ]
    listed = [
        ((section, i, name), name)
        for section in _LISTS
        for i, entry in enumerate(getattr(rules, section))
        for name in entry.__pydantic_extra__ or {}
    ]
    for where, name in [*by, *when, *listed] if rules.attributes else ():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            yield document.problem(
                where,
                f"the attribute {name!r} is not in `attributes`; {hint}expected one of "
                f"{', '.join(sorted(known))}",
            )


def _listed(entry: model.ListEntry) -> dict[str, Any]:
    # Fields that the model does not have are attributes.
    return _condition(entry, entry.__pydantic_extra__ or {})


def compile_rules(document: Document, rules: model.Rules) -> Compiled:
    """Compiles rules. Overrides that the document keeps are neither read nor compiled again.

    Raises RulesError, and StaleOverridesError for overrides that no longer fit the rules.
    """
    compiler = _Compiler(document, rules)
    spec = compiler.spec()
    kept = document.kept
    terms = compiler.override_terms(
        {each.rule for each in rules.overrides} if kept is None else kept._override_terms
    )
    problems = list(compiler.problems)
    for section in _LISTS:
        for i, entry in enumerate(getattr(rules, section)):
            problems += [
                document.problem((section, i, name), "is a field of rules; expected an attribute")
                for name in entry.__pydantic_extra__ or {}
                if name in _ONLY_OF_RULES
            ]
            if not any(_listed(entry).values()):
                problems.append(
                    document.problem(
                        (section, i), "matches every request; expected a condition, such as a user"
                    )
                )
    problems += _undeclared(document, rules)
    if problems:
        raise RulesError(problems)
    if kept is not None and terms != kept._override_terms:
        raise StaleOverridesError
    compiled, found = _core.RuleSet._compile(spec, None if kept is None else kept._compiled)
    if any(where == "overrides" for where, _ in found):
        raise StaleOverridesError
    if compiled is None and spec["lists"]:
        # The core's problems name list entries by their ids. Compiled again with places as ids, it
        # names their places.
        places = [f"{name}[{i}]" for name in _LISTS for i in range(len(getattr(rules, name)))]
        spec["lists"] = [{**entry, "name": at} for entry, at in zip(spec["lists"], places)]
        found = _core.RuleSet._compile(spec, None if kept is None else kept._compiled)[1]
    if compiled is None:
        raise RulesError(
            [
                document.problem(compiler.place_of(as_where(where)), compiler.message_of(message))
                for where, message in found
            ]
        )
    return Compiled(compiled, spec, terms)
