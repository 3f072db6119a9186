"""Replies that belong to another command: they decide nothing, and neither do those behind them."""

from __future__ import annotations

import asyncio

import pytest
import tidegate
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT

ALGORITHMS = ["token-bucket", "fixed-window", "sliding-log"]
KEYS = 12


def uri(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}?{PATIENT}&breaker_failures=10000&breaker_open=0.05"


def charged(proxy: Proxy, algorithm: str) -> tidegate.Limiter:
    """Key N has N units used, so that the answer for one key is wrong for all others."""
    limiter = tidegate.Limiter("100/365 days", algorithm=algorithm, storage=uri(proxy))
    for key in range(1, KEYS):
        assert limiter.hit(str(key), key).remaining == 100 - key
    return limiter


def assert_right_or_degraded(decisions: list[tidegate.Decision]) -> None:
    for key, decision in enumerate(decisions):
        assert decision.degraded or decision.remaining == 100 - key


def eventually_right(limiter: tidegate.Limiter) -> None:
    eventually(lambda: not limiter.peek("0").degraded)
    for key in range(KEYS):
        decision = limiter.peek(str(key))
        assert (decision.degraded, decision.remaining) == (False, 100 - key)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_replies_that_are_one_late_decide_nothing(proxy: Proxy, algorithm: str, way: str) -> None:
    async def peek_one_by_one() -> list[tidegate.Decision]:
        return [await limiter.peek_async(str(key)) for key in range(KEYS)]

    with charged(proxy, algorithm) as limiter:
        proxy.mode = "shift"
        if way == "sync":
            decisions = [limiter.peek(str(key)) for key in range(KEYS)]
        else:
            decisions = asyncio.run(peek_one_by_one())
        # Each connection gets a foreign reply first.
        assert all(decision.degraded for decision in decisions)
        proxy.mode = "pass"
        eventually_right(limiter)
        stats = limiter.stats()
        # An error of the connection, not of a script.
        assert stats.errors > 0
        assert stats.script_errors == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "extra", [b"+PONG\r\n", b":1\r\n", b"$-1\r\n", b"*1\r\n:1\r\n", b"-NOTBUSY No scripts\r\n"]
)
def test_no_call_gets_the_reply_of_another_behind_an_extra_one(
    proxy: Proxy, algorithm: str, extra: bytes
) -> None:
    async def peek_all() -> list[tidegate.Decision]:
        return list(await asyncio.gather(*(limiter.peek_async(str(k)) for k in range(KEYS))))

    with charged(proxy, algorithm) as limiter:
        assert_right_or_degraded(asyncio.run(peek_all()))
        proxy.extra = extra
        decisions = asyncio.run(peek_all())
        assert decisions[0].degraded
        assert_right_or_degraded(decisions)
        eventually_right(limiter)
        assert limiter.stats().script_errors == 0


def test_a_server_that_answers_other_commands_opens_the_breaker(proxy: Proxy) -> None:
    reasons: list[str] = []
    with tidegate.Limiter(
        "100/hour",
        storage=f"redis://127.0.0.1:{proxy.port}?{PATIENT}",
        on_breaker=lambda opened, why: reasons.append(why),
    ) as limiter:
        assert not limiter.hit("k").degraded
        proxy.mode = "shift"
        assert all(limiter.hit("k").degraded for _ in range(10))
        stats = limiter.stats()
        assert (stats.errors, stats.script_errors, stats.breaker_open) == (5, 0, True)
    (reason,) = reasons
    assert "does not belong to the command" in reason


def test_after_one_lost_reply_a_probe_brings_a_new_connection(proxy: Proxy) -> None:
    """Probes follow each other faster than a silent server is noticed."""
    with tidegate.Limiter(
        "100/hour",
        storage=f"redis://127.0.0.1:{proxy.port}?timeout=0.2&breaker_failures=1&breaker_open=0.5",
    ) as limiter:
        eventually(lambda: not limiter.peek("k").degraded)
        proxy.loses_one = True
        assert limiter.hit("k").degraded
        assert limiter.stats().breaker_open
        eventually(lambda: not limiter.peek("k").degraded)


def test_a_reset_is_not_confirmed_by_a_foreign_reply(proxy: Proxy) -> None:
    with charged(proxy, "token-bucket") as limiter:
        proxy.extra = b"+PONG\r\n"
        limiter.reset("1")
        assert limiter.stats().errors == 1
        # It was carried out all the same; what matters is that the replies are in step.
        for key in range(2, KEYS):
            assert limiter.peek(str(key)).remaining == 100 - key
