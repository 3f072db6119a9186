"""How long refusals of leased limits hold, and which wait they state."""

from __future__ import annotations

import tidegate as tg
from polling import eventually
from redis_server import PATIENT, RedisServer

LEASED = f"{PATIENT}&mode=leased&deny_cache_max=0"


def drained(limiter: tg.Limiter) -> None:
    for _ in range(5_000):
        if not limiter.hit("k"):
            return
    raise AssertionError("nothing was refused; expected it of more hits than the limit has units")


def strict(server: RedisServer, limit: tg.LimitLike) -> tg.Limiter:
    return tg.Limiter(limit, storage=server.uri(f"{PATIENT}&deny_cache_max=0&client_name=strict"))


def test_the_wait_is_that_of_the_cost(server: RedisServer) -> None:
    """A node whose centre has nothing left refuses for a moment, whatever the cost."""
    limiter = tg.Limiter("1200/minute", storage=server.uri(LEASED))
    drained(limiter)
    refusal = limiter.hit("k", 600)
    assert refusal.leased
    assert refusal.retry_after >= strict(server, "1200/minute").peek("k", 600).retry_after - 1
    assert refusal.retry_after <= 31


def test_a_reset_by_another_process_is_noticed(server: RedisServer) -> None:
    limiter = tg.Limiter("1200/minute", storage=server.uri(LEASED))
    drained(limiter)
    assert limiter.hit("k", 1000).retry_after > 30
    strict(server, "1200/minute").reset("k")
    eventually(lambda: limiter.hit("k", 1000).allowed)


def test_a_lowered_limit_states_its_wait(server: RedisServer) -> None:
    uri = server.uri(LEASED)
    before = tg.Limiter(tg.Limit("60000/minute", id="api"), storage=uri, prefix="lowered")
    lowered = tg.Limit("1200/minute", id="api")
    after = tg.Limiter(lowered, storage=before.storage, prefix="lowered")
    before.hit("k", 50_000)
    for _ in range(5_000):
        before.hit("k")
    assert before.stats().held_units > 0
    refusal = after.hit("k")
    assert not refusal.allowed
    # Units of the larger number come back at its rate, of 1,000 a second.
    assert refusal.retry_after < 60
    for _ in range(100):
        assert after.hit("k").retry_after < 60
    assert after.stats().script_errors == 0
