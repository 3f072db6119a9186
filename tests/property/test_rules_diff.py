"""What `tidegate rules diff` says of usage is what a limiter does when its rules change."""

from __future__ import annotations

from itertools import product
from typing import Any

import tidegate as tg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tidegate.rules import RulesError, RuleSet
from tidegate.rules.compile import validate
from tidegate.rules.diff import differences
from tidegate.rules.document import Document

TIERS = ["free", "pro"]
ONE = st.sampled_from(["10/minute", "20/minute", "20/hour", "600/hour"])
LIMITS = st.one_of(ONE, st.just("unlimited"), st.just(["10/minute", "90/hour"]))
PATTERNS = st.lists(
    st.sampled_from(["/a/*", "/a/{id}", "/a/**", "/{x}/b", "/a/b", "/c"]), max_size=2, unique=True
)
DOCUMENT = st.fixed_dictionaries(
    {
        "rule": st.fixed_dictionaries(
            {
                "by": st.sampled_from(["user", "user+endpoint", "endpoint+user"]),
                "limits": st.one_of(
                    LIMITS,
                    st.dictionaries(st.sampled_from([*TIERS, "*"]), LIMITS, min_size=1),
                ),
            },
            optional={
                "endpoints": PATTERNS,
                "algorithm": st.sampled_from(["fixed-window", "sliding-window"]),
                "counter": st.sampled_from(["a", "b"]),
                "counts": st.sampled_from(["cost", "requests"]),
                "carry_over": st.sampled_from(["as-is", "reset"]),
                "shadow": st.booleans(),
                "tiers": st.lists(st.sampled_from(TIERS), min_size=1, max_size=2, unique=True),
            },
        ),
    },
    optional={
        "tiers": st.just(TIERS),
        "default_tier": st.sampled_from(TIERS),
        "override": st.sampled_from(["10/minute", "20/hour", "7/day", "unlimited"]),
    },
)
FIELDS = st.sampled_from(["limits", "endpoints", "algorithm", "tiers", "override", "default_tier"])
# Often two documents differ in one field alone.
PAIR = st.one_of(
    st.tuples(DOCUMENT, DOCUMENT),
    st.builds(lambda old, new, field: (old, _changed(old, new, field)), DOCUMENT, DOCUMENT, FIELDS),
)
REQUESTS = [
    {"user": user, "endpoint": endpoint, **({} if tier is None else {"tier": tier})}
    for user, endpoint, tier in product("12", ["/a/b", "/a/x", "/c"], [None, *TIERS])
]


def _changed(old: dict[str, Any], new: dict[str, Any], field: str) -> dict[str, Any]:
    """The old document with a field of the new one, or without it."""
    if field in ("override", "default_tier"):
        return {name: value for name, value in {**old, field: new.get(field)}.items() if value}
    rule = {**old["rule"], field: new["rule"].get(field)}
    return {**old, "rule": {name: value for name, value in rule.items() if value}}


def _rules(drawn: dict[str, Any]) -> dict[str, Any]:
    document = {name: drawn[name] for name in ("tiers", "default_tier") if name in drawn}
    document["rules"] = [{"id": "r", **drawn["rule"]}]
    if "override" in drawn:
        by = drawn["rule"]["by"]
        key: Any = "1" if by == "user" else {"user": "1", "endpoint": "/a/x"}
        document["overrides"] = [{"rule": "r", "key": key, "limits": drawn["override"]}]
    return document


def _model(document: dict[str, Any]) -> Any:
    return validate(Document(document, "<dict>", lambda where: None))


def _starts_anew(old: RuleSet, new: RuleSet) -> list[dict[str, str]]:
    """The requests that were counted, and of which a limit that follows has counted nothing."""
    found = []
    for request in REQUESTS:
        limiter = tg.Limiter(rules=old, clock=tg.ManualClock(0))
        if not limiter.check(**request).outcomes:
            continue
        limiter.use(new)
        outcomes = limiter.peek(**request).outcomes
        if any(outcome.remaining == outcome.limit for outcome in outcomes):
            found.append(request)
    return found


ENDPOINTS = {"by": "user+endpoint", "limits": "10/minute", "algorithm": "sliding-window"}


@settings(max_examples=500, deadline=None)
@given(PAIR)
# A pattern without names now has paths that one with names had.
@example(
    (
        {"rule": {**ENDPOINTS, "endpoints": ["/{x}/b"]}},
        {"rule": {**ENDPOINTS, "endpoints": ["/{x}/b", "/a/*"]}},
    )
)
def test_usage_that_starts_anew_is_said(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    documents = [_rules(drawn) for drawn in pair]
    try:
        old, new = (RuleSet(document) for document in documents)
    except RulesError:
        return
    lines = differences(*(_model(document) for document in documents))
    said = [line for line in lines if "usage starts anew" in line]
    assert bool(said) or not _starts_anew(old, new), (lines, documents)
