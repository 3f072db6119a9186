"""One round trip, any key, any thread: a shared store without faults."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
import tidegate
from polling import run_threads
from redis_server import PATIENT, RedisServer

PLAN = [
    tidegate.Limit("100/minute"),
    tidegate.Limit("200/hour", algorithm="leaky-bucket"),
    tidegate.Limit("300/day", algorithm="fixed-window"),
    tidegate.Limit("400/month", algorithm="fixed-window"),
    tidegate.Limit("500/minute", algorithm="sliding-window"),
    tidegate.Limit("600/minute", algorithm="sliding-log"),
]


def test_a_plan_is_one_command(server: RedisServer) -> None:
    with tidegate.Limiter(PLAN, storage=server.uri()) as limiter:
        assert limiter.hit("k")
        server.command("CONFIG", "RESETSTAT")
        for _ in range(50):
            assert limiter.hit("k")
    calls = server.calls()
    assert calls["evalsha"] == 50
    # What scripts call is counted as well; of what clients send there is no more.
    assert "eval" not in calls


def test_a_lost_script_is_sent_again(server: RedisServer) -> None:
    with tidegate.Limiter("100/hour", storage=server.uri()) as limiter:
        assert limiter.hit("k").remaining == 99
        server.command("SCRIPT", "FLUSH")
        assert limiter.hit("k").remaining == 98
        calls = server.calls()
        assert calls["eval"] == 2
        assert limiter.stats().errors == 0


def test_a_refused_plan_charges_nothing(server: RedisServer) -> None:
    plan = [tidegate.Limit("100/hour"), tidegate.Limit("1/hour", algorithm="sliding-log")]
    with tidegate.Limiter(plan, storage=server.uri()) as limiter:
        assert limiter.hit("k")
        for _ in range(5):
            refused = limiter.hit("k")
            assert not refused
            assert refused.rule == "1/hour"
    with tidegate.Limiter(plan[0], storage=server.uri()) as limiter:
        assert limiter.peek("k").remaining == 99


def test_keys_vanish(server: RedisServer) -> None:
    with tidegate.Limiter(PLAN, storage=server.uri()) as limiter:
        limiter.hit("k")
    keys = [line for line in server.command("KEYS", "*").splitlines() if line.startswith(b"tg:")]
    assert len(keys) == len(PLAN)
    for key in keys:
        assert int(server.command("PTTL", key)[1:]) >= 1


@pytest.mark.parametrize(
    "key",
    ["a b", "a{b}c", "}{", "line\r\nfeed", b"\x00\xff", "ключ", "#digest", "x" * 100_000],
)
def test_any_bytes_are_a_key(server: RedisServer, key: str | bytes) -> None:
    with tidegate.Limiter(["2/hour", "3/hour"], storage=server.uri()) as limiter:
        assert [bool(limiter.hit(key)) for _ in range(3)] == [True, True, False]
        assert limiter.hit("another")
        limiter.reset(key)
        assert limiter.hit(key)
        assert limiter.stats().degraded == 0


def test_threads_and_limiters_share_exactly(server: RedisServer) -> None:
    admitted: list[bool] = []

    def work() -> None:
        with tidegate.Limiter("200/hour", storage=server.uri()) as limiter:
            admitted.extend([limiter.allow("k") for _ in range(100)])

    one = tidegate.Limiter("200/hour", storage=server.uri())

    def work_on_one() -> None:
        admitted.extend([one.allow("k") for _ in range(100)])

    threads = [threading.Thread(target=t) for t in [work] * 4 + [work_on_one] * 8]
    run_threads(threads)
    assert len(admitted) == 1200
    assert sum(admitted) == 200
    assert one.stats().degraded == 0


def test_tasks_share_exactly(server: RedisServer) -> None:
    async def main() -> int:
        async with tidegate.Limiter("50/hour", storage=server.uri()) as limiter:
            return sum(
                map(bool, await asyncio.gather(*(limiter.hit_async("k") for _ in range(200))))
            )

    assert asyncio.run(main()) == 50


def test_a_slot_is_given_back(server: RedisServer) -> None:
    limit = tidegate.Limit(2, 60.0, algorithm="concurrency")
    with tidegate.Limiter(limit, storage=server.uri()) as limiter:
        with limiter.slot("k"), limiter.slot("k"):
            assert not limiter.peek("k")
        assert limiter.peek("k").remaining == 2


def test_a_unix_socket(server: RedisServer) -> None:
    uri = f"redis+unix://{server.path}?{PATIENT}"
    with tidegate.Limiter("5/hour", storage=uri) as limiter:
        assert limiter.hit("k").remaining == 4
        limiter.ping()


def test_a_fork_opens_its_own_connection(server: RedisServer) -> None:
    with tidegate.Limiter("10/hour", storage=server.uri()) as limiter:
        assert limiter.hit("k").remaining == 9
        child = os.fork()
        if child == 0:
            decision = limiter.hit("k")
            os._exit(0 if decision.remaining == 8 and not decision.degraded else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert limiter.hit("k").remaining == 7


def test_memory_of_a_key(server: RedisServer) -> None:
    with tidegate.Limiter("100/minute", storage=server.uri()) as limiter:
        limiter.hit("x" * 20)
    key = next(k for k in server.command("KEYS", "*").splitlines() if k.startswith(b"tg:"))
    assert int(server.command("MEMORY", "USAGE", key)[1:]) <= 112


@pytest.mark.parametrize(
    ("uri", "word"),
    [
        ("rediss+unix:///s", "scheme"),
        ("redis+socket://h", "scheme"),
        ("redis+cluster://h/1", "cluster"),
        ("redis+sentinel://h:1,h:2", "service"),
        ("redis+sentinel://h:1,h:x/service", "port"),
        ("rediss://h?ssl_ca_certs=/nowhere", "ssl_ca_certs"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("redis://h?ssl_check_hostname=0", "TLS"),
        ("redis://h:99999", "port"),
        ("redis://h:x", "port"),
        ("redis://h/x", "database"),
        ("redis://h?nonsense=1", "nonsense"),
        ("redis://h?timeout=0", "option timeout is '0'; expected above 0, up to 3600"),
        ("redis://h?timeout=-1", "option timeout is '-1'; expected above 0, up to 3600"),
        ("redis://h?connect_timeout=0", "option connect_timeout is '0'; expected above 0"),
        ("redis://h?breaker_open=0", "option breaker_open is '0'; expected above 0"),
        ("redis://h?fallback_share=0", "option fallback_share is '0'; expected above 0, up to 1"),
        ("redis://h?client_name=a+b", "option client_name is 'a b'; expected ASCII without"),
        ("redis+unix://tmp/redis.sock", "with three slashes"),
        ("redis+sentinel://h:1,/service", "an empty address"),
        ("redis+cluster://h:1,,h:2", "an empty address"),
        ("redis://h?timeout=x", "timeout"),
        ("redis://h?on_error=maybe", "on_error"),
        ("redis://h?clock=sundial", "clock"),
        ("redis+unix://", "socket"),
    ],
)
def test_bad_configuration_is_refused(uri: str, word: str) -> None:
    with pytest.raises(tidegate.ConfigurationError, match=word) as caught:
        tidegate.Limiter("5/hour", storage=uri.replace("://h", "://user:hunter2@h"))
    assert "hunter2" not in str(caught.value)


def test_a_clock_needs_the_clients_time() -> None:
    with pytest.raises(tidegate.ConfigurationError, match="clock=client"):
        tidegate.Limiter("5/hour", storage="redis://h", clock=tidegate.ManualClock())
