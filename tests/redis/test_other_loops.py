"""Under gevent and trio a limiter of Redis says what it does not do, and the way out works."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Callable

import pytest
import tidegate
from redis_server import PATIENT, RedisServer

GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent, logging, sys, tidegate
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
limiter = tidegate.Limiter("100/minute", storage=sys.argv[1])
turns = 0
def others():
    global turns
    while True:
        turns += 1
        gevent.sleep(0)
gevent.spawn(others)
pool = gevent.get_hub().threadpool
before = turns
decisions = [pool.apply(limiter.hit, ("k",)) for _ in range(20)]
print(sum(map(bool, decisions)), any(d.degraded for d in decisions), turns - before >= 20)
print(limiter.hit("k").allowed)
"""


def test_gevent_is_warned_of_and_its_threads_keep_the_hub_free(server: RedisServer) -> None:
    uri = f"redis://127.0.0.1:{server.port}/0?{PATIENT}"
    ran = subprocess.run(
        [sys.executable, "-c", GEVENT, uri], capture_output=True, text=True, timeout=60, check=True
    )
    warning, threads, plain = ran.stdout.splitlines()
    assert "gevent has patched this process" in warning
    assert threads == "20 False True"
    assert plain == "True"


CALLS: dict[str, Callable[[tidegate.Limiter], Any]] = {
    "hit": lambda limiter: limiter.hit_async("k"),
    "peek": lambda limiter: limiter.peek_async("k"),
    "hit_many": lambda limiter: limiter.hit_many_async(["k"]),
    "acquire": lambda limiter: limiter.acquire_async("k"),
    "plan": lambda limiter: tidegate.Plan([limiter]).hit_async(["k"]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_loop_that_is_not_of_asyncio_is_named(
    server: RedisServer, call: Callable[[tidegate.Limiter], Any]
) -> None:
    """As trio does, this runs a coroutine without a loop of asyncio."""
    limiter = tidegate.Limiter("100/minute", storage=f"redis://127.0.0.1:{server.port}/0")
    coroutine = call(limiter)
    with pytest.raises(RuntimeError, match=r"no asyncio event loop runs here; expected .* trio"):
        coroutine.send(None)
