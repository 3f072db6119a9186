"""Limits of which Redis took two for one, on every store. See also count_names_test.cc."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import tidegate as tg
from ports import free_port
from redis_server import RedisServer
from tidegate._core import ShmStore


@pytest.fixture(params=["memory", "shm", "redis", "fallback"])
def storage(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"tidegate-test-{uuid.uuid4().hex}"
    if request.param == "memory":
        yield "memory://"
    elif request.param == "redis":
        server: RedisServer = request.getfixturevalue("server")
        yield server.uri()
    elif request.param == "fallback":
        yield f"redis://127.0.0.1:{free_port()}?fallback_share=0.5"
    else:
        try:
            yield f"shm://{name}?capacity=1000"
        finally:
            ShmStore.remove(name)


def test_two_limits_of_one_number_count_apart(storage: str) -> None:
    limits = [tg.Limit("13971/second"), tg.Limit("2024/minute")]
    first = tg.Limiter(limits[0], storage=storage)
    second = tg.Limiter(limits[1], storage=first.storage)
    fresh = second.peek("k").remaining
    assert first.hit("k", 6000)
    assert second.peek("k").remaining == fresh
    assert second.hit("k", fresh)


@pytest.mark.parametrize("algorithm", ["token-bucket", "fixed-window", "sliding-log"])
def test_the_rules_of_two_tenants_count_apart(storage: str, algorithm: str) -> None:
    tenants = ["tenant-32117", "tenant-91288"]
    first, second = (
        tg.RuleSet(
            {"rules": [{"id": id, "by": ["user"], "limit": "4/hour", "algorithm": algorithm}]}
        )
        for id in tenants
    )
    one = tg.Limiter(first, storage=storage)
    other = tg.Limiter(second, storage=one.storage)
    assert not [one.check(user="u") for _ in range(5)][-1]
    assert other.check(user="u")
