"""The circuit breaker: when it opens and closes, how it reports, and that no call suffers."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tidegate
from polling import eventually
from proxy import Proxy
from redis_server import RedisServer

# Deadlines that a call to a black hole waits out, and pauses that a test can.
HASTY = "timeout=0.5&connect_timeout=1&breaker_open=0.3"


def limiter_of(proxy: Proxy, limit: str = "100/hour", **options: object) -> tidegate.Limiter:
    limiter = tidegate.Limiter(
        limit, storage=f"redis://127.0.0.1:{proxy.port}/0?{HASTY}", **options
    )
    eventually(lambda: not limiter.peek("warm").degraded)
    return limiter


def heals(limiter: tidegate.Limiter) -> float:
    """Hits until Redis decides again. Returns the longest that a hit took, in seconds."""
    took = []

    def is_decided_by_redis() -> bool:
        begin = time.monotonic()
        degraded = limiter.hit("k").degraded
        took.append(time.monotonic() - begin)
        return not degraded

    eventually(is_decided_by_redis)
    return max(took)


@pytest.mark.alone
def test_it_opens_reports_once_and_closes_by_itself(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate")
    changes: list[tuple[bool, str]] = []
    with limiter_of(proxy, on_breaker=lambda opened, why: changes.append((opened, why))) as limiter:
        proxy.mode = "hole"
        assert all(limiter.hit("k").degraded for _ in range(5))
        stats = limiter.stats()
        assert (stats.breaker_open, stats.breaker_opened, stats.errors) == (True, 1, 5)
        # Open: decided in the process, and nothing is sent.
        sent = proxy.requests
        begin = time.monotonic()
        assert all(limiter.hit("k").degraded for _ in range(100))
        assert time.monotonic() - begin < 0.5
        assert proxy.requests <= sent + 1  # a probe at most
        proxy.mode = "pass"
        # The probe is nobody's request: no call waits for it to fail.
        assert heals(limiter) < 0.45
        assert not limiter.stats().breaker_open
    assert [opened for opened, _ in changes] == [True, False]
    assert "deciding without it" in changes[0][1]
    # Clients of other tests may still live and log, too.
    ours = [r for r in caplog.records if f":{proxy.port}/" in r.getMessage()]
    told = [(r.levelno, r.getMessage()[:13]) for r in ours]
    assert told == [
        (logging.WARNING, "rate limiting"),  # the first failure
        (logging.WARNING, "Redis fails ("),
        (logging.INFO, "Redis answers"),
    ]


def test_half_of_the_calls(proxy: Proxy) -> None:
    """One failure between two successes never makes five in a row."""
    with limiter_of(proxy, "1000/hour", deny_cache_max=0) as limiter:
        for _ in range(30):
            if limiter.stats().breaker_open:
                break
            proxy.mode = "reset"
            limiter.hit("k")
            proxy.mode = "pass"
            for _ in range(100):
                if not limiter.hit("k").degraded:
                    break
        assert limiter.stats().breaker_opened == 1


def test_units_that_the_fallback_charged_are_not_charged_again(proxy: Proxy) -> None:
    with limiter_of(proxy, "10/hour") as limiter:
        assert limiter.hit("k", 4).remaining == 6
        proxy.mode = "hole"
        for _ in range(8):
            limiter.hit("k")
        proxy.mode = "pass"
        heals(limiter)
        # Those of the five calls that the server never read were not sent again either.
        assert limiter.peek("k").remaining >= 0
        limiter.reset("k")
        assert limiter.peek("k").remaining == 10


@pytest.mark.parametrize("kind", ["memory", "shm"])
def test_the_fallback_is_bounded(proxy: Proxy, tmp_path: Path, kind: str) -> None:
    fallback = "memory://" if kind == "memory" else f"shm://{tmp_path}/fallback?capacity=1000"
    with limiter_of(proxy, "10/hour", fallback=fallback, fallback_share=0.5) as limiter:
        proxy.mode = "hole"
        decisions = [limiter.hit("k") for _ in range(12)]
        assert all(decision.degraded for decision in decisions)
        assert sum(map(bool, decisions)) == 5
        assert decisions[0].limit == 10
        assert decisions[0].remaining == 4


@pytest.mark.parametrize(("on_error", "admitted"), [("open", 8), ("closed", 0)])
def test_policies(proxy: Proxy, on_error: str, admitted: int) -> None:
    with limiter_of(proxy, "2/hour", on_error=on_error) as limiter:
        proxy.mode = "hole"
        decisions = [limiter.hit("k") for _ in range(8)]
        assert all(decision.degraded for decision in decisions)
        assert sum(map(bool, decisions)) == admitted


def test_a_foreign_value_opens_nothing(server: RedisServer) -> None:
    with tidegate.Limiter("5/hour", storage=server.uri()) as limiter:
        limiter.hit("bad")
        keys = server.command("KEYS", "*bad*").split(b"\r\n")
        (key,) = [word for word in keys if word.startswith(b"tg:")]
        server.command("DEL", key)
        server.command("SET", key, "no state of ours")
        assert all(limiter.hit("bad").degraded for _ in range(10))
        assert not limiter.hit("good").degraded
        assert limiter.stats().script_errors == 10
        assert not limiter.stats().breaker_open


@pytest.mark.parametrize(
    "options", [{"fallback": "redis://h"}, {"on_breaker": 1}, {"on_script_error": 1}]
)
def test_wrong_options(server: RedisServer, options: dict[str, object]) -> None:
    with pytest.raises(tidegate.ConfigurationError, match=next(iter(options))):
        tidegate.Limiter("5/hour", storage=server.uri(), **options)


def test_many_stores_that_end_with_the_interpreter() -> None:
    """Their threads let go of the hooks, for which they need the interpreter."""
    work = """
import gc
import logging
import tidegate
logging.getLogger("tidegate").addHandler(logging.NullHandler())
limiters = [
    tidegate.Limiter(
        "5/minute", storage="redis://127.0.0.1:1?timeout=0.005", on_breaker=lambda opened, why: None
    )
    for _ in range(40)
]
for each in limiters:
    for _ in range(3):
        each.hit("k")
del each
limiters.clear()
gc.collect()
"""
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
