"""A limit of nothing lets nothing through, whether the server answers or not."""

from __future__ import annotations

import pytest
import tidegate
from redis_server import RedisServer

ALGORITHMS = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_server_lets_nothing_through(server: RedisServer, algorithm: str) -> None:
    with tidegate.Limiter("0/minute", storage=server.uri(), algorithm=algorithm) as limiter:
        refused = limiter.hit("k")
        assert not refused
        assert not refused.degraded
        assert refused.retry_after == float("inf")
        assert not limiter.allow("k", 3)
        assert not limiter.peek("k")
        assert limiter.hit_many(["a", "b"]) == [False, False]
        with tidegate.Limiter(["9/minute", "0/minute"], storage=limiter.storage) as both:
            assert not both.hit("k")
        with tidegate.Limiter("9/minute", storage=limiter.storage) as other:
            assert other.peek("k").remaining == 9
        assert limiter.stats().errors == 0


@pytest.mark.parametrize("on_error", ["fallback", "open", "closed"])
@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_policy_lets_anything_through(algorithm: str, share: float, on_error: str) -> None:
    # Nothing listens on port 1.
    uri = f"redis://127.0.0.1:1?on_error={on_error}&fallback_share={share}"
    with tidegate.Limiter("0/minute", storage=uri, algorithm=algorithm) as limiter:
        for _ in range(8):
            refused = limiter.hit("k")
            assert not refused
            assert refused.retry_after == float("inf")
    with tidegate.Limiter(["9/minute", "0/minute"], storage=uri, algorithm=algorithm) as both:
        refused = both.hit("k")
        assert not refused
        assert refused.rule == "0/minute"
