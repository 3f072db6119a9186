"""``tidegate rules test``: requests in order, on a clock of their own, with the expected decisions.

    cases:
    - name: free users get ten requests a minute
      requests:
      - {user: "42", tier: free, endpoint: /api/posts, times: 10, expect: allowed, remaining: 0}
      - {user: "42", tier: free, endpoint: /api/posts, expect: refused, retry_after: 6}
      - {user: "42", tier: free, endpoint: /api/posts, after: 6, expect: allowed}

Each case begins with nothing counted.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.limiter.clock import ManualClock
from tidegate.limiter.rule_limiter import RuleLimiter
from tidegate.rules.advice.near import meant_by
from tidegate.rules.document import Document, read_file
from tidegate.rules.problems import RulesError
from tidegate.rules.rule_set import RuleSet
from tidegate.rules.yaml_reader import meant_number

if TYPE_CHECKING:
    from tidegate._core import Decision

__all__ = ["run_cases"]

# The fields of a case and their types; all others are attributes of the request.
_NUMBERS = {
    "cost": "a whole number from 1 up",
    "times": "a whole number from 1 to 1000000",
    "after": "a number of seconds from 0 up",
    "limit": "a whole number from 0 up",
    "remaining": "a whole number from 0 up",
    "retry_after": "a number of seconds from 0 up",
}
_WHOLE = {"cost": 1, "times": 1, "limit": 0, "remaining": 0}
_MOST_TIMES = 1_000_000
_EXPECTED = ("expect", "rule", "limit", "remaining", "retry_after")
# Waits are rounded up to whole nanoseconds or microseconds.
_NEAR = 0.001


class _Request(NamedTuple):
    where: tuple[str | int, ...]
    attributes: dict[str, str]
    cost: int
    times: int
    after: float
    expected: dict[str, Any]


class _Case(NamedTuple):
    name: str
    start_ns: int
    requests: list[_Request]


def run_cases(rules_file: str, cases_file: str) -> int:
    """Runs all cases, prints those that fail, and returns the exit code."""
    rules = RuleSet.load(rules_file)
    document = read_file(Path(cases_file))
    cases = _Reader(document, rules).cases()
    failures = []
    count = 0
    for case in cases:
        clock = ManualClock(case.start_ns)
        limiter = RuleLimiter(rules, clock=clock)
        for request in case.requests:
            clock.advance_ns(round(request.after * 1e9))
            for time in range(1, request.times + 1):
                decision = limiter.check(cost=request.cost, **request.attributes)
                count += 1
                wrong = _differences(request, decision, is_last=time == request.times)
                if wrong:
                    often = f", time {time} of {request.times}" if request.times > 1 else ""
                    message = f"{case.name}{often}: {'; '.join(wrong)}"
                    failures.append(document.problem(request.where, message))
                    break
    for failure in failures:
        print(failure)
    requests = f"{count} request{'s' * (count != 1)} of {len(cases)} case{'s' * (len(cases) != 1)}"
    print(f"{requests}: {len(failures)} not as expected" if failures else f"{requests}: all pass")
    return 1 if failures else 0


def _differences(request: _Request, decision: Decision, *, is_last: bool) -> list[str]:
    """All that is expected holds for the last of several times; the verdict for each."""
    given = {
        "expect": "allowed" if decision.allowed else "refused",
        "rule": decision.rule,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
    }
    wrong = []
    for field, expected in request.expected.items():
        got = given[field]
        if not is_last and field != "expect":
            continue
        if field == "retry_after":
            wait = decision.retry_after
            same = wait == expected or math.isclose(wait, expected, rel_tol=1e-9, abs_tol=_NEAR)
        else:
            same = got == expected
        if not same and field == "expect":
            by = f" by {decision.rule!r}" if decision.rule else ", no rule applies"
            wrong.append(f"expected {expected}, got {got}{by}")
        elif not same:
            wrong.append(f"expected {field} {expected!r}, got {got!r}")
    return wrong


class _Reader:
    """Reads the cases of a document, and gathers their problems."""

    def __init__(self, document: Document, rules: RuleSet) -> None:
        self.document = document
        self.attributes = {*rules._compiled._attributes, *rules.model.attributes}
        self.tiers = rules.named_tiers
        self.problems: list[Any] = []

    def cases(self) -> list[_Case]:
        data = self.document.data
        cases: list[_Case] = []
        if not isinstance(data, dict) or not isinstance(data.get("cases"), list):
            self.problem((), f"the document is {data!r:.80}; expected a list of cases")
        else:
            for name in data.keys() - {"cases"}:
                self.problem((name,), "is not a field; expected cases")
            cases = [self.case(("cases", i), case) for i, case in enumerate(data["cases"])]
        if not self.problems and not any(case.requests for case in cases):
            self.problem((), "there is no request; expected cases with requests")
        for case in cases:
            for request in case.requests:
                self.look_for_slips(request)
        if self.problems:
            raise RulesError(self.problems)
        return cases

    def look_for_slips(self, request: _Request) -> None:
        """A request without the attribute that was meant may pass for the wrong reason."""
        fields = {*self.attributes, *_NUMBERS, *_EXPECTED}
        for name in request.attributes.keys() - self.attributes:
            near = meant_by(name, fields)
            if near is not None:
                self.problem(
                    (*request.where, name), f"no rule looks at {name!r}; did you mean {near!r}?"
                )
        tier = request.attributes.get("tier", "")
        near = None if tier in self.tiers else meant_by(tier, self.tiers)
        if near is not None:
            self.problem(
                (*request.where, "tier"), f"no rule knows {tier!r}; did you mean {near!r}?"
            )

    def problem(self, where: tuple[str | int, ...], message: str) -> None:
        self.problems.append(self.document.problem(where, message))

    def case(self, where: tuple[str | int, ...], case: Any) -> _Case:
        if not isinstance(case, dict) or not isinstance(case.get("requests"), list):
            self.problem(where, f"is {case!r:.80}; expected a mapping with requests")
            return _Case("", 0, [])
        for name in case.keys() - {"name", "start", "requests"}:
            self.problem((*where, name), "is not a field; expected name, requests, start")
        requests = [
            self.request((*where, "requests", i), request)
            for i, request in enumerate(case["requests"])
        ]
        start_ns = self.start((*where, "start"), case.get("start"))
        return _Case(str(case.get("name", "")) or f"case {where[1]}", start_ns, requests)

    def start(self, where: tuple[str | int, ...], start: Any) -> int:
        if isinstance(start, dt.datetime) and start.tzinfo is not None:
            epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
            return (start - epoch) // dt.timedelta(microseconds=1) * 1000
        if start is not None:
            self.problem(
                where, f"is {start!r:.80}; expected a time with its zone: 2030-01-31T12:00:00Z"
            )
        return 0

    def request(self, where: tuple[str | int, ...], request: Any) -> _Request:
        if not isinstance(request, dict):
            self.problem(where, f"is {request!r:.80}; expected a mapping of attributes")
            return _Request(where, {}, 1, 1, 0.0, {})
        from tidegate.rules.model import NAME, RESERVED

        attributes = {}
        numbers: dict[str, Any] = {}
        for name, value in request.items():
            if name in _NUMBERS:
                try:
                    value = meant_number(value)
                except ValueError as error:
                    self.problem((*where, name), str(error))
                    continue
                if not _is_number(name, value):
                    self.problem((*where, name), f"is {value!r:.80}; expected {_NUMBERS[name]}")
                else:
                    numbers[name] = value
            elif name == "expect":
                if value not in ("allowed", "refused"):
                    self.problem((*where, name), f"is {value!r:.80}; expected allowed or refused")
            elif name == "rule":
                if value is not None and not isinstance(value, str):
                    self.problem((*where, name), f"is {value!r:.80}; expected the id of a rule")
            elif not re.fullmatch(NAME, name) or name in RESERVED:
                self.problem((*where, name), "is no attribute; expected a name such as user")
            elif isinstance(value, (str, int)):
                text = str(value)
                attributes[name] = text.lower() if isinstance(value, bool) else text
            elif value is not None:
                self.problem((*where, name), f"is {value!r:.80}; expected a text")
        expected = {field: request[field] for field in _EXPECTED if field in request}
        if not expected:
            self.problem(where, f"expects nothing; expected one of {', '.join(_EXPECTED)}")
        return _Request(
            where,
            attributes,
            numbers.get("cost", 1),
            numbers.get("times", 1),
            numbers.get("after", 0.0),
            expected,
        )


def _is_number(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if name in _WHOLE:
        most = _MOST_TIMES if name == "times" else value
        return isinstance(value, int) and _WHOLE[name] <= value <= most
    return value >= 0 and (name == "retry_after" or math.isfinite(value))
