"""`t` of the RateLimit field is the same whether Redis or this process counts."""

from __future__ import annotations

import pytest
import tidegate as tg
from redis_server import RedisServer
from tidegate.web.execution import BLOCKING
from tidegate.web.request_limiter import RequestLimiter

SECOND = 10**9
REQUEST = {"type": "http", "client": ("192.0.2.1", 80)}
ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]
# Seconds that pass before each call, and its cost.
CALLS = [(0, 1), (7, 2), (13, 1), (0, 2), (25, 2), (3, 1), (40, 1), (5, 3), (0, 9), (70, 1)]


def fields_of_calls(uri: str, algorithm: str) -> list[dict[str, str]]:
    clock = tg.ManualClock(1_700_000_000 * SECOND)
    told = []
    with tg.Limiter("5/minute", storage=uri, algorithm=algorithm, clock=clock) as limiter:
        for seconds, cost in CALLS:
            clock.advance(seconds)
            request_limiter = RequestLimiter(
                limiter, cost=lambda request, cost=cost: cost, headers=("ietf",)
            )
            outcome = request_limiter.check(REQUEST, BLOCKING)
            assert outcome is not None
            told.append(dict(outcome.text_fields()))
    return told


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_redis_tells_what_this_process_would(server: RedisServer, algorithm: str) -> None:
    shared = fields_of_calls(f"{server.uri()}&clock=client", algorithm)
    assert shared == fields_of_calls("memory://", algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_share_tells_when_its_own_quota_comes(algorithm: str) -> None:
    # Nothing listens on port 1: of 8/minute, 2 are this process's.
    uri = "redis://127.0.0.1:1?clock=client&fallback_share=0.25"
    clock = tg.ManualClock(1_700_000_000 * SECOND)
    with tg.Limiter("8/minute", storage=uri, algorithm=algorithm, clock=clock) as limiter:
        request_limiter = RequestLimiter(limiter, headers=("ietf",))
        outcome = request_limiter.check(REQUEST, BLOCKING)
        assert outcome is not None
        assert outcome.decision.degraded
        told = dict(outcome.text_fields())["RateLimit"]
        assert told.startswith('"8/minute";r=1;t=')
        clock.advance(int(told.rpartition("=")[2]))
        assert limiter.peek("192.0.2.1").remaining == 2
