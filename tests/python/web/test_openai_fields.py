"""The fields that clients of OpenAI read: x-ratelimit-remaining-tokens and so on."""

from __future__ import annotations

from typing import Any

import pytest
import tidegate as tg
from fastapi import FastAPI
from fastapi.testclient import TestClient
from openai_headers import BOTH, openai
from servers import ask, limited
from tidegate import rate_limit
from tidegate.outbound.server_wait import exhausted_for
from tidegate.rules import RuleSet

NOW = 1_700_000_000 * 10**9
REQUESTS = tg.Limit("60/minute", id="requests", algorithm="fixed-window")
TOKENS = tg.Limit("90000/10 minutes", id="tokens", algorithm="fixed-window")


def clock() -> tg.ManualClock:
    return tg.ManualClock(NOW - NOW % (3600 * 10**9))


def test_middleware_sends_those_of_requests_and_of_tokens() -> None:
    app = limited([TOKENS, REQUESTS], headers=["openai"], clock=clock())
    fields = dict(ask(app).fields)
    assert openai(fields) == BOTH
    assert "x-ratelimit-limit" not in fields
    assert "ratelimit" not in fields


def test_they_are_not_sent_unless_asked_for() -> None:
    assert openai(ask(limited([TOKENS, REQUESTS], clock=clock())).fields) == {}


def test_they_stand_beside_other_families() -> None:
    fields = dict(ask(limited("2/minute", headers=["x-ratelimit", "openai"], clock=clock())).fields)
    assert openai(fields) == {
        "limit-requests": "2",
        "remaining-requests": "1",
        "reset-requests": "30s",
    }
    assert fields["x-ratelimit-limit"] == "2"


@pytest.mark.parametrize(
    ("limit", "field"), [("api-Tokens", "tokens"), ("tokenizer", "tokens"), ("calls", "requests")]
)
def test_the_name_of_a_limit_says_what_it_counts(limit: str, field: str) -> None:
    named = tg.Limit("5/minute", id=limit)
    found = openai(ask(limited(named, headers="openai", clock=clock())).fields)
    assert set(found) == {f"limit-{field}", f"remaining-{field}", f"reset-{field}"}


def test_of_several_limits_on_requests_the_one_with_the_least_left_is_sent() -> None:
    daily = tg.Limit("10/day", id="daily", algorithm="fixed-window")
    app = limited([REQUESTS, daily, TOKENS], headers="openai", clock=clock())
    found = openai(ask(app).fields)
    assert (found["limit-requests"], found["remaining-requests"]) == ("10", "9")
    assert found["remaining-tokens"] == "89999"


def test_a_refusal_has_both_and_what_a_client_reads_of_them() -> None:
    few = tg.Limit("1/minute", id="requests", algorithm="fixed-window")
    app = limited([few, TOKENS], headers="openai", clock=clock())
    ask(app)
    answer = ask(app)
    assert answer.status == 429
    assert answer["retry-after"] == "60"
    assert openai(answer.fields)["remaining-requests"] == "0"
    assert openai(answer.fields)["remaining-tokens"] == "89999"
    assert exhausted_for(dict(answer.fields)) == 60.0


@pytest.mark.parametrize(
    ("limit", "reset"),
    [
        ("1/millisecond", "1ms"),
        ("1/20 milliseconds", "20ms"),
        ("3/2 seconds", "667ms"),
        ("1/second", "1s"),
        ("1/1250 milliseconds", "1.25s"),
        ("1/minute", "1m0s"),
        ("1/90 seconds", "1m30s"),
        ("1/hour", "1h0m0s"),
        ("1/3661 seconds", "1h1m1s"),
        ("1/30 days", "720h0m0s"),
    ],
)
def test_a_reset_is_a_duration_that_our_own_client_reads_too(limit: str, reset: str) -> None:
    fields = ask(limited(tg.Limit(limit, id="r"), headers="openai", clock=clock())).fields
    assert openai(fields)["reset-requests"] == reset
    empty = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset}
    assert (exhausted_for(empty) or 0) >= tg.Limit(limit).period / tg.Limit(limit).count


def test_a_route_of_fastapi_shows_what_its_answer_used() -> None:
    app = FastAPI()

    @app.post("/chat")
    @rate_limit(REQUESTS, headers="openai", clock=(time := clock()))
    @rate_limit(
        TOKENS,
        cost=500,
        cost_after=tg.UsageCost({"input": 1, "output": 5}),
        headers="openai",
        clock=time,
    )
    async def chat() -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 300, "completion_tokens": 20}}

    answer = TestClient(app).post("/chat")
    assert openai(answer.headers) == {**BOTH, "remaining-tokens": "89600"}
    described = app.openapi()["paths"]["/chat"]["post"]["responses"]["429"]["headers"]
    assert "X-RateLimit-Remaining-Tokens" in described


RULES: Any = {
    "algorithm": "fixed-window",
    "rules": [
        {"id": "requests", "by": "ip", "limit": "60/minute", "counts": "requests"},
        {"id": "tokens", "by": "ip", "limit": "90000/10 minutes"},
        {"id": "hidden-tokens", "also": True, "by": "ip", "limit": "50000/hour", "headers": False},
    ],
}


def test_rules_send_those_of_their_limits_that_are_shown() -> None:
    app = limited(None, rules=RuleSet(RULES), headers="openai", clock=clock())
    assert openai(ask(app).fields) == BOTH
