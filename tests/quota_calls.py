"""Calls on quotas, through a limiter and through the model, which must agree."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import tidegate
from quota_model import SECOND, QuotaModel, Terms

DAY = 86_400
MOST = 2**48 - 1  # of a limit
MOST_FORMER = 16
CHANGES = ("limit", "switch", "change", "schedule")
OPS = [*["hit"] * 10, "peek", "refund", "refund", "top_up", "top_up", "reset", *CHANGES, "change"]


@dataclass(frozen=True)
class Call:
    # hit, peek, refund, top_up, reset or forget. Of another count: limit, which another limiter
    # has; switch, the same at an instant that is recorded for the key; change, which the quota
    # records; schedule, a change that is recorded ahead of its instant.
    op: str
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


def random_calls(
    rng: random.Random, terms: Terms, limit: int, number: int, ops: Sequence[str] = OPS
) -> list[Call]:
    days = {"day": 1, "week": 7, "month": 30, "quarter": 91, "year": 365}[terms.period]
    calls = []
    for _ in range(number):
        op = rng.choice(ops)
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
                max(1, min(units, MOST) if op in CHANGES else units),
                expires,
                rng.choice([0, 0, -1, 7, 100, -100]),
            )
        )
    return calls


def four_weeks(rng: random.Random, limit: int) -> list[Call]:
    """Upgrades, downgrades, top-ups, resets and hits of four weeks."""
    calls = []
    left_s = 28 * DAY
    while left_s > 0:
        op = rng.choice([*OPS, "change", "switch", "top_up", "reset"])
        gap_s = rng.choice([0, 60, DAY // 24, DAY // 4, DAY, 3 * DAY, 8 * DAY])
        left_s -= gap_s
        units = rng.choice([1, 2, limit // 4, limit, 3 * limit])
        expires = rng.choice([None, None, 1, DAY, 7 * DAY, 20 * DAY])
        priority = rng.choice([0, 0, 5, -5])
        calls.append(Call(op, gap_s, rng.randrange(SECOND), max(1, units), expires, priority))
    return calls


def change(model: QuotaModel, call: Call, now: int) -> bool:
    """Gives the model another count; returns whether the call changes something."""
    if call.op not in ("change", "schedule"):
        model.limit, model.former = call.units, []
        return True
    until_s = now // SECOND + (call.expires_in or 0) * (call.op == "schedule")
    if until_s <= max([0, *(until for _, until in model.former)]):
        return False
    model.former = [*model.former, (model.limit, until_s)][-MOST_FORMER:]
    model.limit = call.units
    return True


def check(storage: Any, terms: Terms, limit: int, start_s: int, calls: list[Call]) -> None:
    """Makes the calls on a limiter of `storage` and on the model, and compares all answers."""
    clock = tidegate.ManualClock(start_s * SECOND)
    model = QuotaModel(limit, terms)

    def limiter_on(storage: Any) -> tidegate.Limiter:
        quota = tidegate.Limit(terms.text(model.limit, model.former), id="quota")
        return tidegate.Limiter(quota, storage=storage, clock=clock)

    limiter = limiter_on(storage)
    for index, call in enumerate(calls):
        clock.advance_ns(call.gap_s * SECOND + call.gap_ns)
        now = clock.now_ns()
        what = f"call {index} {call} at {now} with {terms.text(model.limit, model.former)}"
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
        elif call.op == "reset":
            limiter.reset("key")
            model.reset(now)
        elif call.op == "forget":
            limiter.forget("key")
            model.forget()
        else:
            if call.op == "switch":
                limiter.bring_forward("key")
                model.bring_forward(now)
            if change(model, call, now):
                limiter = limiter_on(limiter.storage)
            if call.op == "switch":
                limiter.bring_forward("key")
                model.bring_forward(now)
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
