"""What the vectors of quotas play, and its answers by the plain model in ../quota_model.py."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Any

from quota_calls import CHANGES, OPS, Call, change, random_calls, random_terms
from quota_model import SECOND, QuotaModel, Terms

_CALLS = 16
_DAY = 86_400
_OPS = [op for op in OPS if op != "switch"]
# The first instant of each case by hand, and what is special about it.
_BY_HAND = [
    ("31 January, then February", 1_769_817_600, 28, Terms("month", 31, cap=30)),
    ("clocks go forward at midnight", 1_536_000_000, 29, Terms("month", 4, 1, "America/Sao_Paulo")),
    ("a day that a zone skips", 1_325_000_000, 1, Terms("day", zone="Pacific/Apia", percent=50)),
    ("a quarter from May on", 1_700_000_000, 30, Terms("quarter", 15, 5, cap=7, periods=3)),
    ("a share of the first period", 1_700_000_000, 20, Terms("year", 29, 2, prorated=True)),
]


@dataclasses.dataclass(frozen=True)
class QuotaCase:
    """Calls on one key, with the answers."""

    name: str
    quota: str
    calls: list[dict[str, Any]]

    def text(self) -> str:
        """As JSON, on one line."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


def quotas() -> Iterator[QuotaCase]:
    """All cases."""
    for name, start, gap_days, terms in _BY_HAND:
        calls = [
            Call(op, gap_days * _DAY, 0, units)
            for op, units in (("hit", 3), ("hit", 20), ("peek", 1), ("hit", 100)) * 3
        ]
        yield _played(name, terms, 100, start, calls)
    for number in range(12):
        name = f"random {number}"
        rng = random.Random(name)
        terms, limit = random_terms(rng), rng.choice([7, 100, 10_000])
        start = rng.randrange(10**9, 2 * 10**9)
        yield _played(name, terms, limit, start, random_calls(rng, terms, limit, _CALLS, _OPS))


def _played(name: str, terms: Terms, limit: int, start_s: int, calls: list[Call]) -> QuotaCase:
    model = QuotaModel(limit, terms)
    now = start_s * SECOND
    played = []
    for call in calls:
        now += call.gap_s * SECOND + call.gap_ns
        op = "limit" if call.op in CHANGES else call.op
        played.append(
            {"op": op, "now_ns": now, **_answered(model, terms, call, now)}
            | {"status": _status(model, now)}
        )
    return QuotaCase(name, terms.text(limit), played)


def _answered(model: QuotaModel, terms: Terms, call: Call, now: int) -> dict[str, Any]:
    if call.op in ("hit", "peek"):
        told = (model.hit if call.op == "hit" else model.peek)(now, call.units)
        expect = {
            "allowed": told.allowed,
            "remaining": told.remaining,
            "retry_after_ns": told.retry_after_ns,
            "reset_after_ns": told.reset_after_ns,
        }
        return {"units": call.units, "expect": expect}
    if call.op == "refund":
        model.refund(now, call.units)
        return {"units": call.units}
    if call.op == "top_up":
        expires = None if call.expires_in is None else now // SECOND + call.expires_in
        is_added = model.top_up(now, call.units, expires, call.priority)
        more = {"expires_s": expires, "priority": call.priority, "expect": {"added": is_added}}
        return {"units": call.units, **more}
    if call.op == "reset":
        model.reset(now)
        return {}
    change(model, call, now)
    return {"quota": terms.text(model.limit, model.former)}


def _status(model: QuotaModel, now: int) -> dict[str, Any]:
    status = dict(model.status(now))
    return {**status, "grants": [list(grant) for grant in status["grants"]]}
