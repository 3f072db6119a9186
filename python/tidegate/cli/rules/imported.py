"""``tidegate rules import``: the descriptors of Envoy's rate limit service as rules.

A counter of Envoy is known by all keys and values of its descriptor. So a rule counts by all
keys, and the keys that have a value are its conditions. Of descriptors with the same keys the
one with more values counts, and those with other keys all count: as rules do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.rules.document import Document, read_file
from tidegate.rules.envoy_units import ENVOY_UNITS
from tidegate.rules.problems import RulesError
from tidegate.rules.rule_set import RuleSet

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_yaml", "import_file"]

# Conditions that have fields of their own, by attribute.
_FIELDS = {"endpoint": "endpoint", "method": "method", "tier": "tier", "ip": "network"}
_ATTRIBUTES = {"remote_address": "ip"}
_OF_DESCRIPTOR = {
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "detailed_metric",
    "metadata",
    "quota_mode",
    "value_to_metric",
    "share_threshold",
}
_OF_LIMIT = {"unit", "unit_multiplier", "requests_per_unit", "unlimited", "name", "replaces"}

Where = "tuple[str | int, ...]"


def import_file(file: str, names: dict[str, str]) -> Imported:
    """Reads `file`; `names` are the attributes of descriptor keys that are called otherwise."""
    # Values are texts to Envoy: `007` and `yes` too.
    document = read_file(Path(file), keep_texts=True)
    imported = Imported(document, {**_ATTRIBUTES, **names})
    imported.read()
    for key in sorted(names.keys() - imported.keys):
        imported.notes.append(f"--map {key}={names[key]}: no descriptor has the key {key!r}")
    return imported


def as_yaml(imported: Imported, file: str) -> str:
    """The document of rules as text."""
    import yaml

    head = f"# Made of {Path(file).name} by `tidegate rules import`.\n"
    text: str = yaml.safe_dump(imported.data, sort_keys=False, allow_unicode=True, width=100)
    return head + text


class Imported:
    """The rules of a document of descriptors, and what does not carry over."""

    def __init__(self, document: Document, names: dict[str, str]) -> None:
        self.notes: list[str] = []
        """What does not carry over, and what to look at."""
        self.is_refused = False
        """Whether the rules as a whole are not accepted."""
        self.keys: set[str] = set()
        """The keys of all descriptors."""
        self._document = document
        self._names = names
        self._rules: list[dict[str, Any]] = []
        # The limits by the name that `replaces` uses, and by the order of keys.
        self._named: dict[str, list[str]] = {}
        self._replaces: list[tuple[Any, dict[str, Any], list[str]]] = []
        self._orders: dict[frozenset[str], tuple[list[str], str]] = {}
        self._keys: dict[str, str] = {}
        self._renamed: set[str] = set()
        # How often each id was wanted.
        self._ids: dict[str, int] = {}

    @property
    def data(self) -> dict[str, Any]:
        """The document of rules."""
        return {"algorithm": "fixed-window", "rules": self._rules}

    def read(self) -> None:
        data = self._document.data
        if not isinstance(data, dict) or not _is_text(data.get("domain")):
            raise RulesError(
                [self._document.problem((), "has no domain; expected a domain and descriptors")]
            )
        self._refuse_unknown((), data, {"domain", "descriptors"})
        self._level(("descriptors",), data.get("descriptors"), [])
        self._resolve_replaces()
        self._note(
            ("domain",),
            f"the domain is {data['domain']!r}; where several share a storage, give each limiter "
            "its own prefix=",
        )
        attributes = sorted(
            {name for rule in self._rules for name in rule["by"].split("+")} - {"global"}
        )
        if "ip" in attributes:
            self._note(
                ("descriptors",),
                "the addresses of IPv6 count by networks of 64 bits, and in Envoy one by one",
            )
        if attributes:
            self._note(("descriptors",), f"the service has to give {', '.join(attributes)}")
        try:
            RuleSet._with_advice(Document(self.data, self._document.source, lambda where: None))
        except RulesError as error:
            self.is_refused = True
            self.notes += [f"the rules are not accepted: {each}" for each in error.problems]

    def _note(self, where: Any, message: str) -> None:
        self.notes.append(str(self._document.problem(where, message)))

    def _refused(self, where: Any, message: str) -> RulesError:
        return RulesError([self._document.problem(where, message)])

    def _refuse_unknown(self, where: Any, fields: dict[str, Any], known: set[str]) -> None:
        for name in fields:
            if name not in known:
                raise self._refused(
                    (*where, name), f"is not a field; expected {', '.join(sorted(known))}"
                )

    def _level(self, where: Any, descriptors: Any, path: list[dict[str, Any]]) -> None:
        if descriptors is None:
            return
        if not isinstance(descriptors, list):
            raise self._refused(where, f"is {descriptors!r:.80}; expected a list")
        seen = set()
        for i, descriptor in enumerate(descriptors):
            place = (*where, i)
            if not isinstance(descriptor, dict) or not _is_text(descriptor.get("key")):
                raise self._refused(place, f"is {descriptor!r:.80}; expected a mapping with a key")
            self._refuse_unknown(place, descriptor, _OF_DESCRIPTOR)
            if isinstance(descriptor.get("value"), (dict, list)):
                raise self._refused((*place, "value"), "is no text; expected one")
            both = (descriptor["key"], descriptor.get("value"))
            if both in seen:
                raise self._refused(place, "has the key and value of another; expected it once")
            seen.add(both)
            self.keys.add(descriptor["key"])
        for i, descriptor in enumerate(descriptors):
            same_key = [d for d in descriptors if d["key"] == descriptor["key"]]
            is_default_limited = any(
                d.get("value") is None and d.get("rate_limit") is not None for d in same_key
            )
            self._descriptor((*where, i), descriptor, path, is_default_limited)
            self._note_hidden((*where, i), descriptor, descriptors)

    def _note_hidden(self, where: Any, descriptor: Any, siblings: list[Any]) -> None:
        """Envoy does not go back from a value to the descriptor of any value."""
        if descriptor.get("value") is None:
            return
        caught = {child["key"] for child in _children(descriptor) if child.get("value") is None}
        for other in siblings:
            if other["key"] != descriptor["key"] or other.get("value") is not None:
                continue
            if {child["key"] for child in _children(other)} - caught:
                self._note(
                    where,
                    f"requests with {_shown(descriptor)} that meet none of its descriptors have no "
                    f"limit in Envoy; here those below {other['key']!r} apply to them",
                )

    def _descriptor(
        self,
        where: Any,
        descriptor: dict[str, Any],
        path: list[dict[str, Any]],
        is_default_limited: bool,
    ) -> None:
        value = descriptor.get("value")
        if isinstance(value, str) and "*" in value:
            is_endpoint = self._is_endpoint(descriptor)
            if not is_endpoint or not _is_path_and_all_below(value):
                those = "a condition on endpoints does so at the end of a path alone (/api/*)"
                self._note(
                    where,
                    f"each '*' of the value {value!r} stands for any text, and "
                    f"{those if is_endpoint else 'no condition does so'}; left out, with all that "
                    "is nested in it",
                )
                return
        path = [*path, descriptor]
        for field, why in (
            ("detailed_metric", "metrics are by rule"),
            ("value_to_metric", "metrics are by rule"),
            ("metadata", "the answers of rules have none"),
        ):
            if _is_set(descriptor, field) or (field == "metadata" and descriptor.get(field)):
                self._note((*where, field), f"is left out: {why}")
        has_children = bool(descriptor.get("descriptors"))
        if value is not None and is_default_limited and _is_set(descriptor, "shadow_mode"):
            self._note(
                (*where, "shadow_mode"),
                f"in Envoy the limit of any {descriptor['key']!r} does not count these requests; "
                "here it does, since a rule in shadow takes no limit away",
            )
        limit = descriptor.get("rate_limit")
        self._note_nested(where, descriptor)
        # A value without a limit of its own has none; the limit of "any value" does not apply.
        if limit is not None or not has_children or (value is not None and is_default_limited):
            self._rule(where, path, limit)
        self._level((*where, "descriptors"), descriptor.get("descriptors"), path)

    def _note_nested(self, where: Any, descriptor: dict[str, Any]) -> None:
        """In Envoy the limit of the deepest descriptor that matches is the only one."""
        limit = descriptor.get("rate_limit")
        if not isinstance(limit, dict) or _is_set(limit, "unlimited"):
            return
        if _is_limited_below(descriptor):
            self._note(
                (*where, "rate_limit"),
                f"is in Envoy for requests with {_shown(descriptor)} alone; here it counts those "
                "of its descriptors too, so the smaller of both limits holds for them",
            )

    def _is_endpoint(self, descriptor: dict[str, Any]) -> bool:
        return self._names.get(descriptor["key"]) == "endpoint"

    def _rule(self, where: Any, path: list[dict[str, Any]], limit: Any) -> None:
        names = [self._attribute(where, descriptor["key"]) for descriptor in path]
        if len(set(names)) < len(names):
            self._note(where, f"counts by {' + '.join(names)}, one of them twice; left out")
            return
        if _is_set(path[-1], "quota_mode"):
            self._note((*where, "quota_mode"), "is left out: the rule refuses, unless in shadow")
        rule: dict[str, Any] = {"id": ""}
        rule["by"] = "+".join(self._counted(where, path, names)) or "global"
        for name, descriptor in zip(names, path):
            if descriptor.get("value") is not None:
                self._add_condition(rule, name, descriptor["value"])
        rule["limit"] = "unlimited"
        limit_name: Any = None
        if limit is not None:
            place = (*where, "rate_limit")
            if not isinstance(limit, dict):
                raise self._refused(place, f"is {limit!r:.80}; expected a mapping")
            self._refuse_unknown(place, limit, _OF_LIMIT)
            limit_name = limit.get("name")
            if limit_name is not None and not _is_text(limit_name):
                raise self._refused((*place, "name"), f"is {limit_name!r:.80}; expected a text")
            rule["limit"] = self._limit(place, limit)
            replaced = self._replaced((*place, "replaces"), limit.get("replaces"))
            if replaced:
                self._replaces.append(((*place, "replaces"), rule, replaced))
        if _is_set(path[-1], "shadow_mode"):
            rule["shadow"] = True
        rule["id"] = self._id(limit_name, path)
        if limit_name:
            self._named.setdefault(limit_name, []).append(rule["id"])
        known = self._orders.setdefault(frozenset(names), (names, rule["id"]))
        if known[0] != names:
            self._note(
                where,
                f"has the keys of the rule {known[1]!r} in another order: in Envoy both may count "
                "a request, here the more specific one",
            )
        self._rules.append(rule)

    def _replaced(self, where: Any, replaces: Any) -> list[str]:
        if replaces is None:
            return []
        if not isinstance(replaces, list) or not all(
            isinstance(each, dict) and set(each) == {"name"} and _is_text(each["name"])
            for each in replaces
        ):
            raise self._refused(where, f"is {replaces!r:.80}; expected a list of names")
        return [each["name"] for each in replaces]

    def _counted(self, where: Any, path: list[dict[str, Any]], names: list[str]) -> Iterator[str]:
        for name, descriptor in zip(names, path):
            if _is_set(descriptor, "share_threshold"):
                self._note(
                    (*where, "share_threshold"),
                    f"all values of {name} count together, apart from the rules by {name}",
                )
            else:
                yield name

    def _add_condition(self, rule: dict[str, Any], name: str, value: Any) -> None:
        text = str(value)
        if name == "endpoint" and _is_path_and_all_below(text):
            text += "*"
        if name in _FIELDS:
            rule[_FIELDS[name]] = text
        else:
            rule.setdefault("when", {})[name] = text

    def _attribute(self, where: Any, key: str) -> str:
        name = self._names.get(key) or re.sub(r"\W", "_", key, flags=re.ASCII)[:64]
        if name[0].isdigit():
            name = f"_{name}"[:64]
        other = self._keys.setdefault(name, key)
        if other != key:
            raise self._refused(
                where,
                f"the keys {other!r} and {key!r} are both the attribute {name!r}; expected "
                f"--map {key}=ANOTHER",
            )
        if name != key:
            if key not in self._renamed:
                self._note(where, f"the key {key!r} is the attribute {name!r} here")
            self._renamed.add(key)
        return name

    def _limit(self, where: Any, limit: dict[str, Any]) -> str:
        if _is_set(limit, "unlimited"):
            return "unlimited"
        unit = str(limit.get("unit", "")).lower()
        if unit not in ENVOY_UNITS:
            raise self._refused(
                (*where, "unit"), f"is {limit.get('unit')!r}; expected {', '.join(ENVOY_UNITS)}"
            )
        count = self._number(where, limit, "requests_per_unit", 0)
        multiplier = self._number(where, limit, "unit_multiplier", 1)
        each, name = ENVOY_UNITS[unit]
        each *= multiplier
        return f"{count}/{name}" if each == 1 else f"{count}/{each} {name}s"

    def _number(self, where: Any, limit: dict[str, Any], field: str, least: int) -> int:
        text = str(limit.get(field, least))
        if not re.fullmatch("[0-9]{1,15}", text) or int(text) < least:
            raise self._refused(
                (*where, field), f"is {text!r:.80}; expected a whole number from {least} up"
            )
        return int(text)

    def _id(self, name: Any, path: list[dict[str, Any]]) -> str:
        text = str(name) if name else "/".join(_shown(descriptor) for descriptor in path)
        id = wanted = re.sub(r"[^!-~]", "-", text)[:90]
        while id in self._ids:
            self._ids[wanted] += 1
            id = f"{wanted}-{self._ids[wanted]}"
        self._ids[id] = 1
        return id

    def _resolve_replaces(self) -> None:
        for where, rule, names in self._replaces:
            for name in names:
                if name not in self._named:
                    self._note(where, f"no limit is named {name!r}; left out")
            ids = [id for name in names for id in self._named.get(name, []) if id != rule["id"]]
            if ids:
                rule["replaces"] = ids


def _children(descriptor: dict[str, Any]) -> list[dict[str, Any]]:
    children = descriptor.get("descriptors")
    if not isinstance(children, list):
        return []
    return [each for each in children if isinstance(each, dict) and _is_text(each.get("key"))]


def _is_limited_below(descriptor: dict[str, Any]) -> bool:
    return any(
        isinstance(each.get("rate_limit"), dict) or _is_limited_below(each)
        for each in _children(descriptor)
    )


def _is_path_and_all_below(value: str) -> bool:
    """Whether an endpoint can say so: Envoy's ``/api/*`` is ``/api/**``, at any depth."""
    return value.startswith("/") and value.endswith("/*") and value.count("*") == 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_set(fields: dict[str, Any], name: str) -> bool:
    return str(fields.get(name)).lower() in ("true", "yes", "on", "y")


def _shown(descriptor: dict[str, Any]) -> str:
    value = descriptor.get("value")
    return str(descriptor["key"]) if value is None else f"{descriptor['key']}={value}"
