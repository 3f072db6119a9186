"""Redis fails in every way it can: nothing is raised, nothing waits, nothing is sent twice."""

from __future__ import annotations

import resource
import signal
import time
from pathlib import Path

import pytest
import tidegate
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT, RedisServer

DEADLINE = 0.05
# What a call may take on top of its deadline on a machine that does other things too.
SCHEDULING = 2
QUICK = f"timeout={DEADLINE}&connect_timeout=0.2&breaker_open=0.3"


def timed_hit(limiter: tidegate.Limiter, key: str = "k") -> tidegate.Decision:
    begin = time.monotonic()
    decision = limiter.hit(key)
    assert time.monotonic() - begin < DEADLINE + SCHEDULING
    return decision


def eventually_shared(limiter: tidegate.Limiter) -> tidegate.Decision:
    """The first decision that Redis itself makes again."""

    def decided_by_redis() -> tuple[tidegate.Decision, ...]:
        decision = limiter.hit("recovery")
        return () if decision.degraded else (decision,)

    (decision,) = eventually(decided_by_redis)
    return decision


MODES = [
    "hole", "stall", "garbage", "reset", "close", "half-close",
    "huge-bulk", "huge-array", "endless",
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_error", ["fallback", "open", "closed"])
def test_a_bad_network(server: RedisServer, proxy: Proxy, mode: str, on_error: str) -> None:
    uri = f"redis://127.0.0.1:{proxy.port}?{QUICK}&on_error={on_error}"
    with tidegate.Limiter("100/hour", storage=uri) as limiter:
        eventually_shared(limiter)
        before = int(server.calls().get("evalsha", 0)) + int(server.calls().get("eval", 0))
        proxy.mode = mode
        decisions = [timed_hit(limiter) for _ in range(20)]
        assert all(decision.degraded for decision in decisions)
        assert all(bool(decision) is (on_error != "closed") for decision in decisions)
        stats = limiter.stats()
        assert stats.degraded >= 20
        # The breaker spares Redis: at most a few probes got through, none of them twice.
        after = int(server.calls().get("evalsha", 0)) + int(server.calls().get("eval", 0))
        assert after - before <= stats.errors
        proxy.mode = "pass"
        proxy.drop()
        assert eventually_shared(limiter)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc tells of memory")
def test_the_announced_size_of_a_reply_takes_no_memory(proxy: Proxy) -> None:
    """A connection with an endless reply is given up long before a silent one would be."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    uri = f"redis://127.0.0.1:{proxy.port}?{QUICK}&breaker_failures=100000"
    with tidegate.Limiter("100/hour", storage=uri) as limiter:
        eventually_shared(limiter)
        proxy.mode = "endless"
        before, most = resident(), 0
        for _ in range(30):
            timed_hit(limiter)
            most = max(most, resident())
        assert most - before < 100 << 20


def test_a_byte_at_a_time(proxy: Proxy) -> None:
    uri = f"redis://127.0.0.1:{proxy.port}?{PATIENT}"
    with tidegate.Limiter(["10/hour", "20/hour"], storage=uri) as limiter:
        assert limiter.hit("k").remaining == 9
        proxy.mode = "drip"
        for left in range(8, 3, -1):
            decision = limiter.hit("k")
            assert not decision.degraded
            assert decision.remaining == left


def test_nobody_listens() -> None:
    with tidegate.Limiter("3/hour", storage=f"redis://127.0.0.1:1?{QUICK}") as limiter:
        decisions = [timed_hit(limiter) for _ in range(5)]
        assert [bool(d) for d in decisions] == [True, True, True, False, False]
        assert all(d.degraded for d in decisions)
        assert decisions[0].rule == "3/hour"
        with pytest.raises(tidegate.StorageError):
            limiter.ping()


def test_the_fallback_grants_its_share() -> None:
    uri = f"redis://127.0.0.1:1?{QUICK}&fallback_share=0.25"
    with tidegate.Limiter(["100/hour", "1000/hour"], storage=uri) as limiter:
        decisions = [timed_hit(limiter) for _ in range(30)]
        assert sum(map(bool, decisions)) == 25
        assert decisions[0].limit == 100
        assert decisions[0].remaining == 24
        assert decisions[-1].remaining == 0
        assert decisions[-1].rule == "100/hour"


def test_killed_and_started_again(own_server: RedisServer) -> None:
    with tidegate.Limiter("100/hour", storage=own_server.uri(QUICK)) as limiter:
        eventually_shared(limiter)
        own_server.kill()
        assert all(timed_hit(limiter).degraded for _ in range(10))
        own_server.start()
        assert eventually_shared(limiter)


def test_stopped_and_continued(own_server: RedisServer) -> None:
    with tidegate.Limiter("100/hour", storage=own_server.uri(QUICK)) as limiter:
        eventually_shared(limiter)
        own_server.signal(signal.SIGSTOP)
        try:
            assert all(timed_hit(limiter).degraded for _ in range(10))
        finally:
            own_server.signal(signal.SIGCONT)
        assert eventually_shared(limiter)
        # What was on its way is charged at most once each.
        assert limiter.peek("k").remaining >= 100 - limiter.stats().errors


def test_flushed(server: RedisServer) -> None:
    with tidegate.Limiter("5/hour", storage=server.uri()) as limiter:
        assert limiter.hit("k").remaining == 4
        server.command("FLUSHALL")
        assert limiter.hit("k").remaining == 4


def test_a_password(own_server: RedisServer) -> None:
    with tidegate.Limiter("5/hour", storage=own_server.uri(QUICK)) as limiter:
        eventually_shared(limiter)
        own_server.command("CONFIG", "SET", "requirepass", "hunter2")
        place = f"127.0.0.1:{own_server.port}"
        good = f"redis://:hunter2@{place}?{PATIENT}"
        with tidegate.Limiter("5/hour", storage=good) as knows:
            assert not knows.hit("k").degraded
        for wrong in (f"redis://:nonsense@{place}?{QUICK}", f"redis://{place}?{QUICK}"):
            with tidegate.Limiter("5/hour", storage=wrong) as knows_not:
                assert timed_hit(knows_not).degraded
                if "nonsense" in wrong:
                    with pytest.raises(tidegate.StorageError) as caught:
                        knows_not.ping()
                    assert "nonsense" not in str(caught.value)


def test_a_full_server(own_server: RedisServer) -> None:
    with tidegate.Limiter("5/hour", storage=own_server.uri(QUICK)) as limiter:
        eventually_shared(limiter)
        own_server.command("CONFIG", "SET", "maxmemory", "1")
        assert timed_hit(limiter).degraded
        own_server.command("CONFIG", "SET", "maxmemory", "0")
        eventually_shared(limiter)


def test_a_replica(own_server: RedisServer) -> None:
    with tidegate.Limiter("5/hour", storage=own_server.uri(QUICK)) as limiter:
        eventually_shared(limiter)
        own_server.command("REPLICAOF", "127.0.0.1", "1")
        own_server.command("CONFIG", "SET", "replica-serve-stale-data", "yes")
        assert timed_hit(limiter).degraded
        own_server.command("REPLICAOF", "NO", "ONE")
        eventually_shared(limiter)


def test_a_foreign_value_is_counted_separately(server: RedisServer) -> None:
    with tidegate.Limiter("5/hour", storage=server.uri()) as limiter:
        limiter.hit("k")
        key = next(k for k in server.command("KEYS", "*").splitlines() if k.startswith(b"tg:"))
        server.command("SET", key, "foreign")
        assert limiter.hit("k").degraded
        assert limiter.stats().script_errors == 1
        assert limiter.stats().errors == 0
