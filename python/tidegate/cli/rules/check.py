"""``tidegate rules check``: the problems of a document, and its likely mistakes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.rules.advice import advise, advise_of_overrides, hint
from tidegate.rules.compile import as_instant, compile_rules, validate
from tidegate.rules.document import read_file
from tidegate.rules.problems import RulesError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.rules import model
    from tidegate.rules.document import Document
    from tidegate.rules.problems import Problem

__all__ = ["check"]

# The attributes that every request has.
_EVERYONES = {"ip", "endpoint", "method"}


def check(file: str, *, strict: bool) -> int:
    """Prints problems and warnings, each with its place, and returns the exit code.

    Prints hints too, unless it is strict: they change no exit code.
    """
    try:
        document = read_file(Path(file))
        rules = validate(document)
        compile_rules(document, rules)
    except RulesError as error:
        for problem in error.problems:
            print(problem)
        count = len(error.problems)
        print(f"{file}: not accepted: {count} problem{'s' * (count != 1)}")
        return 1
    warnings = [
        *_warnings(document, rules),
        *(
            problem._replace(message=f"warning: {problem.message}")
            for problem in (*advise(document, rules), *advise_of_overrides(document, rules))
        ),
    ]
    for warning in warnings:
        print(warning)
    for problem in () if strict else hint(document, rules):
        print(problem._replace(message=f"hint: {problem.message}"))
    parts = [
        f"{len(items)} {one if len(items) == 1 else many}"
        for one, many, items in (
            ("rule", "rules", rules.rules),
            ("override", "overrides", rules.overrides),
            ("cost", "costs", rules.costs),
            ("entry of a list", "entries of lists", [*rules.allow, *rules.block]),
        )
        if items or one == "rule"
    ]
    found = f"{len(warnings)} warning{'s' * (len(warnings) != 1)}" if warnings else "no warnings"
    print(f"{file}: accepted: {', '.join(parts)}; {found}")
    return 1 if warnings and strict else 0


def _warnings(document: Document, rules: model.Rules) -> Iterator[Problem]:
    places: list[tuple[tuple[str | int, ...], model.Rule | model.Default]] = [
        (("rules", i), rule) for i, rule in enumerate(rules.rules) if rule.enabled
    ]
    if rules.default is not None:
        places.append((("default",), rules.default))
    if places and not any(set(rule.by) <= _EVERYONES and not rule.shadow for _, rule in places):
        named = sorted({name for _, rule in places for name in rule.by} - _EVERYONES)
        yield document.problem(
            ("rules",),
            f"warning: nothing counts requests without {' or '.join(named) or 'a rule in force'}, "
            "so they are not limited; expected a rule by ip or global, or a default",
        )
    for where, rule in places:
        yield from _warnings_of_rule(document, where, rule)
    now = dt.datetime.now(dt.timezone.utc)
    for section, what in (
        ("overrides", "the override"),
        ("allow", "the entry"),
        ("block", "the entry"),
    ):
        for i, each in enumerate(getattr(rules, section)):
            if each.until is not None and as_instant(each.until) <= now:
                at = as_instant(each.until).isoformat()
                yield document.problem(
                    (section, i, "until"), f"warning: {what} ended at {at}, so it changes nothing"
                )


def _warnings_of_rule(
    document: Document,
    where: tuple[str | int, ...],
    rule: model.Rule | model.Default,
) -> Iterator[Problem]:
    endpoints: list[str] = getattr(rule, "endpoints", [])
    if "endpoint" in rule.by and (not endpoints or "**" in endpoints or "/**" in endpoints):
        yield document.problem(
            (*where, "by"),
            f"warning: the rule {rule.id!r} counts every path that a client makes up for itself; "
            "expected endpoints, with {name} where parts of a path vary",
        )
