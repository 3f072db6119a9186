"""Compiles documents of Envoy's rate limit service into a tree of descriptors.

The format is that of envoyproxy/ratelimit, extended by `algorithm`, `burst`, `period`, `limits`
(in tidegate's own grammar) and `reports` in `rate_limit`, and by `all_or_none` in a domain.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tidegate.rules.envoy_units import ENVOY_UNITS
from tidegate.rules.problems import Problem, RulesError
from tidegate.rules.yaml_reader import meant
from tidegate.server.native import _native
from tidegate.types import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tidegate.rules.document import Document

__all__ = ["Descriptors"]

_OF_DOMAIN = ("domain", "descriptors", "all_or_none")
_SWITCHES = {
    "shadow_mode": "shadow",
    "quota_mode": "quota",
    "share_threshold": "share_threshold",
    "detailed_metric": "detailed_metric",
    "value_to_metric": "value_to_metric",
}
_OF_DESCRIPTOR = ("key", "value", "rate_limit", "descriptors", "metadata", *_SWITCHES)
_OF_COUNT = ("unit", "unit_multiplier", "requests_per_unit", "period", "burst")
_OF_LIMIT = ("name", "replaces", "unlimited", "algorithm", "limits", "reports", *_OF_COUNT)
_YES = ("true", "yes", "on", "y")
_NO = ("false", "no", "off", "n")


class _Refused(Exception):
    """A field cannot be read further; the problem is recorded."""


class _Replaces(NamedTuple):
    name: str
    replaced: list[str]
    document: Document
    where: tuple[str | int, ...]


class Descriptors:
    """The compiled domains of some documents, by which an EnvoyService decides.

    With `merge_domains`, several documents may have descriptors of one domain; with `quota_mode`,
    all limits are in quota mode. Raises RulesError, which lists all mistakes.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        *,
        merge_domains: bool = False,
        quota_mode: bool = False,
    ) -> None:
        self.tree = _native.DescriptorTree()
        """For `EnvoyService.use()`."""
        self.domains: list[str] = []
        self.notes: list[str] = []
        """Accepted settings that may be mistakes."""
        digest = hashlib.sha256()
        compiler = _Compiler(self.tree, merge_domains, quota_mode)
        for document in documents:
            domain = compiler.domain(document)
            if domain is not None and domain not in self.domains:
                self.domains.append(domain)
            digest.update(json.dumps(document.data, sort_keys=True, default=str).encode())
        compiler.check_replaces()
        if compiler.problems:
            raise RulesError(compiler.problems)
        self.notes = compiler.notes
        self.digest = digest.hexdigest()[:12]
        """A digest that is equal for equivalent documents."""

    @property
    def limits(self) -> int:
        """The number of limits."""
        return self.tree.limits

    def __repr__(self) -> str:
        return f"Descriptors({self.domains!r}, {self.limits} limits, digest={self.digest!r})"


class _Domain(NamedTuple):
    place: str
    """Where it was named first."""
    all_or_none: bool | None
    root: int
    seen: dict[tuple[str, str | None], str]
    """The place of each of its first descriptors."""


class _Compiler:
    def __init__(self, tree: _native.DescriptorTree, merge_domains: bool, quota_mode: bool) -> None:
        self._merges = merge_domains
        self._quota_mode = quota_mode
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._tree = tree
        self._domains: dict[str, _Domain] = {}
        self._replaces: list[_Replaces] = []
        self._names: set[str] = set()

    def domain(self, document: Document) -> str | None:
        """Adds the domain of a document; None if it has no domain."""
        data = document.data
        try:
            if not isinstance(data, dict):
                self._refuse(document, (), f"is {data!r:.80}; expected a domain with descriptors")
            self._check_names(document, (), data, _OF_DOMAIN)
            name = data.get("domain")
            if not isinstance(name, str) or not name:
                self._refuse(document, ("domain",), f"is {name!r:.80}; expected a text")
            first = self._domains.get(name)
            if first is not None and not self._merges:
                self._refuse(
                    document,
                    ("domain",),
                    f"is {name!r:.80}, which {first.place} has; expected each domain once, or "
                    "envoy.merge_domains: true",
                )
            all_or_none = None
            if "all_or_none" in data:
                all_or_none = self._flag(document, (), data, "all_or_none")
            if first is None:
                root = self._tree.add_domain(name, all_or_none)
                first = _Domain(_place(document, ("domain",)), all_or_none, root, {})
                self._domains[name] = first
            elif all_or_none != first.all_or_none:
                self._refuse(
                    document,
                    ("all_or_none",),
                    f"is {all_or_none!r}, and {first.all_or_none!r} at {first.place}; expected one "
                    "value in all files of a domain",
                )
        except _Refused:
            return None
        self._level(document, ("descriptors",), data.get("descriptors"), first.root, first.seen)
        return name

    def check_replaces(self) -> None:
        """Warns about names that no limit has, and refuses limits that replace each other."""
        replaced_by: dict[str, set[str]] = {}
        for each in self._replaces:
            for name in each.replaced:
                if name not in self._names:
                    place = _place(each.document, each.where)
                    self.notes.append(f"{place}: no limit is named {name!r:.80}")
            if each.name:
                replaced_by.setdefault(each.name, set()).update(each.replaced)
        for each in self._replaces:
            others = [name for name in each.replaced if name != each.name]
            if each.name and _leads_to(replaced_by, others, each.name):
                self._problem(
                    each.document,
                    each.where,
                    f"leads back to {each.name!r:.80}, so that none of them would apply; expected "
                    "no circle",
                )

    def _level(
        self,
        document: Document,
        where: Any,
        descriptors: Any,
        parent: int,
        seen: dict[tuple[str, str | None], str],
    ) -> None:
        if descriptors is None:
            return
        if not isinstance(descriptors, list):
            self._problem(document, where, f"is {descriptors!r:.80}; expected a list")
            return
        for i, descriptor in enumerate(descriptors):
            place = (*where, i)
            try:
                self._descriptor(document, place, descriptor, parent, seen)
            except _Refused:
                continue

    def _descriptor(
        self, document: Document, where: Any, descriptor: Any, parent: int, seen: Any
    ) -> None:
        if not isinstance(descriptor, dict):
            self._refuse(document, where, f"is {descriptor!r:.80}; expected a mapping with a key")
        self._check_names(document, where, descriptor, _OF_DESCRIPTOR)
        key = descriptor.get("key")
        if not isinstance(key, str) or not key:
            self._refuse(document, (*where, "key"), f"is {key!r:.80}; expected a text")
        value = descriptor.get("value")
        if not isinstance(value, (str, type(None))):
            self._refuse(document, (*where, "value"), f"is {value!r:.80}; expected a text")
        value = value or None
        first = seen.setdefault((key, value), _place(document, where))
        if first != _place(document, where):
            self._refuse(
                document,
                where,
                f"has the key {key!r:.80} and the value {value!r:.80}, as {first} has; expected "
                "them once",
            )
        options: dict[str, Any] = {
            option: self._flag(document, where, descriptor, field)
            for field, option in _SWITCHES.items()
        }
        if self._quota_mode:
            options["quota"] = True
        options.update(self._rate_limit(document, (*where, "rate_limit"), descriptor))
        options["metadata"] = self._metadata(document, (*where, "metadata"), descriptor)
        try:
            node = self._tree.add_descriptor(parent, key, value, **options)
        except ValueError as error:
            self._refuse(document, where, f"is not accepted: {error}")
        self._level(document, (*where, "descriptors"), descriptor.get("descriptors"), node, {})

    def _rate_limit(self, document: Document, where: Any, descriptor: Any) -> dict[str, Any]:
        limit = descriptor.get("rate_limit")
        if limit is None:
            return {}
        if not isinstance(limit, dict):
            self._refuse(document, where, f"is {limit!r:.80}; expected a mapping")
        self._check_names(document, where, limit, _OF_LIMIT)
        options: dict[str, Any] = {}
        name = limit.get("name") or ""
        if not isinstance(name, str):
            self._refuse(document, (*where, "name"), f"is {name!r:.80}; expected a text")
        options["name"] = name
        options["replaces"] = self._replaced(document, (*where, "replaces"), limit.get("replaces"))
        if name:
            self._names.add(name)
        if options["replaces"]:
            entry = _Replaces(name, options["replaces"], document, (*where, "replaces"))
            self._replaces.append(entry)
        if self._flag(document, where, limit, "unlimited"):
            ignored = "requests_per_unit"  # as envoyproxy/ratelimit does, which refuses only units
            if ignored in limit:
                place = _place(document, (*where, ignored))
                self.notes.append(f"{place}: stands beside unlimited, so it has no effect")
            counted = {name: value for name, value in limit.items() if name != ignored}
            others = ("limits", "algorithm", "reports")
            self._refuse_beside(document, where, counted, "unlimited", others)
            return {**options, "unlimited": True}
        if limit.get("reports") is not None:
            options["reports"] = self._flag(document, where, limit, "reports")
        if "algorithm" in limit:
            options["algorithm"] = limit["algorithm"]
        if not isinstance(options.get("algorithm", ""), str):
            self._refuse(document, (*where, "algorithm"), "is not a text; expected an algorithm")
        options["limits"] = (
            self._own_limits(document, where, limit)
            if "limits" in limit
            else [self._count(document, where, limit)]
        )
        return options

    def _metadata(self, document: Document, where: Any, descriptor: dict[str, Any]) -> str:
        metadata = meant(descriptor.get("metadata")) or {}
        if not isinstance(metadata, dict):
            self._refuse(document, where, f"is {metadata!r:.80}; expected a mapping")
        if metadata and descriptor.get("rate_limit") is None:
            place = _place(document, where)
            self.notes.append(f"{place}: the descriptor has no rate_limit, so nobody is sent this")
        try:
            return json.dumps(metadata, allow_nan=False)
        except (TypeError, ValueError):
            self._refuse(
                document,
                where,
                f"is {metadata!r:.80}; expected texts, finite numbers, true, false, null, lists "
                "and mappings",
            )

    def _own_limits(self, document: Document, where: Any, limit: dict[str, Any]) -> list[str]:
        self._refuse_beside(document, where, limit, "limits", ())
        texts = limit["limits"]
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
            self._refuse(
                document, (*where, "limits"), f"is {texts!r:.80}; expected limits: ['100/minute']"
            )
        return texts

    def _refuse_beside(
        self, document: Document, where: Any, limit: Any, field: str, more: Iterable[str]
    ) -> None:
        for other in (*_OF_COUNT, *more):
            if other in limit:
                self._refuse(
                    document, (*where, other), f"stands beside {field}; expected one of them"
                )

    def _count(self, document: Document, where: Any, limit: dict[str, Any]) -> str:
        if "requests_per_unit" not in limit:
            self._refuse(
                document, where, "has no requests_per_unit; expected it, limits or unlimited: true"
            )
        count = self._number(document, where, limit, "requests_per_unit", 0)
        burst = ""
        if "burst" in limit:
            if limit.get("algorithm") not in BUCKETS:
                self._refuse(
                    document,
                    (*where, "burst"),
                    f"is for buckets, and the algorithm is {limit.get('algorithm', 'fixed-window')}"
                    "; expected algorithm: token-bucket or leaky-bucket",
                )
            burst = f" burst {self._number(document, where, limit, 'burst', 1)}"
        if "period" in limit:
            for other in ("unit", "unit_multiplier"):
                if other in limit:
                    self._refuse(
                        document, (*where, other), "stands beside period; expected one of them"
                    )
            return f"{count}/{limit['period']}{burst}"
        unit = limit.get("unit")
        if not isinstance(unit, str) or unit.lower() not in ENVOY_UNITS:
            self._refuse(
                document, (*where, "unit"), f"is {unit!r:.80}; expected {', '.join(ENVOY_UNITS)}"
            )
        each, name = ENVOY_UNITS[unit.lower()]
        each *= self._number(document, where, limit, "unit_multiplier", 1)
        return f"{count}/{each} {name}s{burst}"

    def _number(
        self, document: Document, where: Any, limit: dict[str, Any], field: str, least: int
    ) -> int:
        given = limit.get(field, least)
        if not re.fullmatch("[0-9]{1,15}", str(given)) or int(given) < least:
            self._refuse(
                document,
                (*where, field),
                f"is {given!r:.80}; expected a whole number from {least} up",
            )
        return int(given)

    def _flag(self, document: Document, where: Any, fields: dict[str, Any], name: str) -> bool:
        given = fields.get(name)
        text = str(given).lower()
        if given is not None and text not in _YES + _NO:
            self._refuse(document, (*where, name), f"is {given!r:.80}; expected true or false")
        return text in _YES

    def _replaced(self, document: Document, where: Any, replaces: Any) -> list[str]:
        if replaces is None:
            return []
        if not isinstance(replaces, list) or not all(
            isinstance(each, dict)
            and set(each) == {"name"}
            and isinstance(each["name"], str)
            and each["name"]
            for each in replaces
        ):
            self._refuse(document, where, f"is {replaces!r:.80}; expected a list of - name: NAME")
        return [each["name"] for each in replaces]

    def _check_names(
        self, document: Document, where: Any, fields: dict[str, Any], known: Iterable[str]
    ) -> None:
        unknown = [name for name in fields if name not in known]
        for name in unknown:
            self._problem(document, (*where, name), f"is not a field; expected {', '.join(known)}")
        if unknown:
            raise _Refused

    def _problem(self, document: Document, where: Any, message: str) -> None:
        self.problems.append(document.problem(where, message))

    def _refuse(self, document: Document, where: Any, message: str) -> NoReturn:
        self._problem(document, where, message)
        raise _Refused


def _place(document: Document, where: Any) -> str:
    """Returns a place such as ``limits.yaml:12``, with the field if the line is not enough."""
    problem = document.problem(where, "")
    line = "" if problem.line is None else f":{problem.line}"
    return f"{problem.source}{line} ({problem.where})"


def _leads_to(edges: dict[str, set[str]], begin: Iterable[str], end: str) -> bool:
    waiting, seen = list(begin), set()
    while waiting:
        name = waiting.pop()
        if name == end:
            return True
        if name not in seen:
            seen.add(name)
            waiting += edges.get(name, ())
    return False
