"""Calls on quotas, through a limiter and through the model, which must agree."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import tidegate
from quota_model import SECOND, QuotaModel, Terms

DAY = 86_400
MOST = 2**48 - 1  # of a limit


@dataclass(frozen=True)
class Call:
    op: str  # hit, peek, refund, top_up, limit or reset
    gap_s: int  # that passes before it
    gap_ns: int
    units: int  # also of the new limit
    expires_in: int | None = None
    priority: int = 0


def random_terms(rng: random.Random) -> Terms:
    period = rng.choice(["day", "week", "month", "month", "quarter", "year"])
    day = {"day": 1, "week": rng.randint(1, 7)}.get(period, rng.choice([1, 15, 28, 29, 30, 31]))
    month = rng.randint(1, 12) if period in ("quarter", "year") else 1
    zones = ["UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata"]
    zones += ["Pacific/Apia", "Africa/Cairo", "Australia/Lord_Howe", "America/Havana"]
    return Terms(
        period,
        day,
        month,
        rng.choice(zones),
        rng.choice([None, 1, 30, 1000]),
        rng.choice([None, None, 1, 50, 100]),
        rng.choice([1, 1, 2, 3, 12]),
        rng.random() < 0.3,
    )


def random_calls(rng: random.Random, terms: Terms, limit: int, number: int) -> list[Call]:
    days = {"day": 1, "week": 7, "month": 30, "quarter": 91, "year": 365}[terms.period]
    calls = []
    for _ in range(number):
        op = rng.choice(["hit"] * 6 + ["peek", "refund", "top_up", "limit"])
        gap = rng.choice([0, 0, 1, DAY // 3, days * DAY // 2, days * DAY, 3 * days * DAY])
        if rng.random() < 0.02:
            gap = rng.choice([15, 40]) * days * DAY
        expires = rng.choice([None, 1, DAY, days * DAY, 2 * days * DAY, 4 * days * DAY])
        units = rng.choice([1, 1, 3, limit // 3, limit, limit + 20, 2 * limit])
        calls.append(
            Call(
                op,
                gap,
                rng.randrange(SECOND),
                max(1, min(units, MOST) if op == "limit" else units),
                expires,
                rng.choice([0, 0, -1, 7, 100, -100]),
            )
        )
    return calls


def check(storage: Any, terms: Terms, limit: int, start_s: int, calls: list[Call]) -> None:
    """Makes the calls on a limiter of `storage` and on the model, and compares all answers."""
    clock = tidegate.ManualClock(start_s * SECOND)
    model = QuotaModel(limit, terms)

    quota = tidegate.Limit(terms.text(limit), id="quota")
    limiter = tidegate.Limiter(quota, storage=storage, clock=clock)
    for index, call in enumerate(calls):
        clock.advance_ns(call.gap_s * SECOND + call.gap_ns)
        now = clock.now_ns()
        what = f"call {index} {call} at {now} with {terms.text(model.limit)}"
        if call.op in ("hit", "peek"):
            ask = limiter.hit if call.op == "hit" else limiter.peek
            told = (model.hit if call.op == "hit" else model.peek)(now, call.units)
            decision = ask("key", call.units)
            assert not decision.degraded, what
            assert decision.allowed is told.allowed, what
            assert decision.remaining == told.remaining, what
            assert decision.reset_after == pytest.approx(told.reset_after_ns / 1e9, abs=1e-6), what
            if told.retry_after_ns is None:
                assert decision.retry_after == float("inf"), what
            else:
                wait = told.retry_after_ns / 1e9
                assert decision.retry_after == pytest.approx(wait, abs=1e-6), what
        elif call.op == "refund":
            limiter.refund("key", call.units)
            model.refund(now, call.units)
        elif call.op == "top_up":
            expires = None
            if call.expires_in is not None:
                expires = now // SECOND + call.expires_in
            if model.top_up(now, call.units, expires, call.priority):
                limiter.top_up("key", call.units, expires_at=expires, priority=call.priority)
            else:
                with pytest.raises(tidegate.ConfigurationError, match="expected"):
                    limiter.top_up("key", call.units, expires_at=expires, priority=call.priority)
        else:
            model.limit = call.units
            quota = tidegate.Limit(terms.text(call.units), id="quota")
            limiter = tidegate.Limiter(quota, storage=limiter.storage, clock=clock)
        status = limiter.quota_status("key")
        shown = {
            "base": status.base,
            "carried": status.carried,
            "topped_up": status.topped_up,
            "used": status.used,
            "available": status.available,
            "resets_s": int(status.resets_at.timestamp()),
            "grants": [
                (
                    g.kind,
                    g.units,
                    g.left,
                    None if g.expires_at is None else int(g.expires_at.timestamp()),
                    g.priority,
                )
                for g in status.grants
            ],
        }
        assert shown == model.status(now), what
