"""Plays the vectors of quotas on an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tidegate

CASES: list[Any] = json.loads(
    (Path(__file__).parent / "vectors" / "quotas" / "quotas.json").read_text("utf-8")
)
NAMES = [case["name"] for case in CASES]


def play(case: Any, storage: Any) -> None:
    """Makes the calls of a case on a limiter of `storage`, and compares all answers."""
    clock = tidegate.ManualClock()
    limiter = _limiter(case["quota"], storage, clock)
    for index, call in enumerate(case["calls"]):
        clock.set_ns(call["now_ns"])
        what = f"call {index} of {case['name']}: {call}"
        op = call["op"]
        if op in ("hit", "peek"):
            ask = limiter.hit if op == "hit" else limiter.peek
            _check_decision(ask("key", call["units"]), call["expect"], what)
        elif op == "refund":
            limiter.refund("key", call["units"])
        elif op == "reset":
            limiter.reset("key")
        elif op == "top_up":
            _top_up(limiter, call)
        else:
            limiter = _limiter(call["quota"], limiter.storage, clock)
        assert _shown(limiter.quota_status("key")) == call["status"], what


def _limiter(quota: str, storage: Any, clock: Any) -> Any:
    return tidegate.Limiter(tidegate.Limit(quota, id="quota"), storage=storage, clock=clock)


def _check_decision(decision: Any, expect: Any, what: str) -> None:
    assert not decision.degraded, what
    assert (decision.allowed, decision.remaining) == (expect["allowed"], expect["remaining"]), what
    waits = {"retry_after": expect["retry_after_ns"], "reset_after": expect["reset_after_ns"]}
    for name, nanoseconds in waits.items():
        seconds = float("inf") if nanoseconds is None else nanoseconds / 1e9
        assert getattr(decision, name) == pytest.approx(seconds, abs=1e-6), what


def _top_up(limiter: Any, call: Any) -> None:
    def add() -> None:
        more = {"expires_at": call["expires_s"], "priority": call["priority"]}
        limiter.top_up("key", call["units"], **more)

    if call["expect"]["added"]:
        add()
    else:
        with pytest.raises(tidegate.ConfigurationError, match="expected"):
            add()


def _shown(status: Any) -> dict[str, Any]:
    def seconds(at: Any) -> Any:
        return None if at is None else int(at.timestamp())

    names = ("base", "carried", "topped_up", "used", "available")
    return {
        **{name: getattr(status, name) for name in names},
        "resets_s": seconds(status.resets_at),
        "grants": [
            [each.kind, each.units, each.left, seconds(each.expires_at), each.priority]
            for each in status.grants
        ],
    }
