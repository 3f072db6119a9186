"""Inspecting a running service: in shared memory, in a real Redis, and through its metrics."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from polling import eventually
from redis_server import PATIENT, RedisServer
from tidegate.tuning import live


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with (
        tempfile.TemporaryDirectory(prefix="tg") as folder,  # a socket's path must be short
        RedisServer(Path(folder)) as server,
    ):
        yield server


def uri(server: RedisServer) -> str:
    return f"redis://127.0.0.1:{server.port}?{PATIENT}"


def connected(limiter: tg.Limiter) -> tg.Limiter:
    limiter.storage.ping()
    return limiter


def contents(server: RedisServer) -> dict[bytes, tuple[bytes, bool]]:
    """Returns all keys with their values, and whether they expire."""
    keys = [line for line in server.command("KEYS", "*").splitlines()[1:] if line[:1] != b"$"]
    return {
        key: (server.command("GET", key), int(server.command("PTTL", key)[1:]) > 0)
        for key in sorted(keys)
    }


def test_top_lists_the_most_used_keys_of_a_redis_and_changes_nothing(server: RedisServer) -> None:
    server.command("FLUSHALL")
    limiter = connected(tg.Limiter("5/hour", storage=uri(server), prefix="tg:api*"))
    other = connected(tg.Limiter("9/hour", storage=uri(server), prefix="tg:apis"))
    for key, times in (("ann", 7), ("bob", 3), ("zoë", 2), (b"\xff\xfe", 1)):
        for _ in range(times):
            limiter.hit(key)
    other.hit("somebody else")
    before = contents(server)
    service = live.connect(uri(server), "5/hour", prefix="tg:api*")
    top = service.top()
    assert list(top["key"]) == ["ann", "bob", "zoë", b"\xff\xfe"]
    assert top["used"][:2].tolist() == [5, 3]
    assert top["remaining"][:2].tolist() == [0, 2]
    assert top["refused"][:2].tolist() == [True, False]
    assert 700 < top["retry_after"][0] <= 720
    assert list(service.top(1)["key"]) == ["ann"]
    assert contents(server) == before, "top() changed the contents of Redis"


def test_top_leaves_out_keys_stored_as_a_digest(server: RedisServer) -> None:
    server.command("FLUSHALL")
    limiter = connected(tg.Limiter("5/hour", storage=uri(server)))
    for key in ("x" * 300, "in {braces}", "ann"):
        limiter.hit(key)
    assert list(live.connect(uri(server), "5/hour").top()["key"]) == ["ann"]


def test_top_scans_at_most_the_given_number_of_keys(server: RedisServer) -> None:
    server.command("FLUSHALL")
    limiter = connected(tg.Limiter("5/hour", storage=uri(server)))
    limiter.hit_many([f"user:{number}" for number in range(3000)])
    service = live.connect(uri(server), "5/hour")
    assert len(service.top(5000)) == 3000
    assert len(service.top(5000, among=100)) == 100


def test_an_unreachable_redis_is_an_error(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tg") as folder:
        server = RedisServer(Path(folder))
        server.start()
        service = live.connect(uri(server), "5/hour")
        gone = f"redis://127.0.0.1:{server.port}?timeout=1&connect_timeout=1"
        server.kill()
        with pytest.raises(tg.StorageError, match="does not answer"):
            live.connect(gone, "5/hour")
        with pytest.raises(tg.StorageError):
            eventually(lambda: service.top(keys=["ann"]) is None, 20)


def test_top_lists_the_fingerprints_and_the_given_keys_of_a_shared_memory(tmp_path: Path) -> None:
    storage = f"shm://{tmp_path}/limits"
    limiter = tg.Limiter("5/hour", storage=f"{storage}?capacity=1000")
    limiter.hit("ann", cost=5)
    limiter.hit("bob", cost=2)
    service = live.connect(storage, "5/hour")
    top = service.top()
    assert len(top["fingerprint"][0]) == 28
    assert 3500 < top["reset_after"][0] <= 3600
    named = service.top(keys=["bob", "ann", "eve"])
    assert list(named["key"]) == ["ann", "bob"]
    assert named["used"].tolist() == [5, 2]
    assert list(named["limit"]) == ["5/hour", "5/hour"]


def test_rates_of_this_process_include_a_limit_in_shadow() -> None:
    limits = ["10/minute", tg.Limit("4/minute", shadow=True)]
    limiter = tg.Limiter(limits, clock=tg.ManualClock())
    limiter.hit("before")

    def traffic(seconds: float) -> None:
        assert seconds == 5
        for _ in range(12):
            limiter.hit("ann")

    told = live.rates({"api": limiter}, 5, sleep=traffic).to_dict()
    assert told["limiter"] == ["api", "api"]
    assert told["rule"] == ["10/minute", "4/minute"]
    assert told["decisions"] == [12, 12]
    assert told["refused"] == [2, 0]
    assert told["refused_in_shadow"][1] >= 6
    assert told["refused_share"] == [2 / 12, 0]
    assert 0 < told["decisions_per_second"][0] <= 12 / 5


def test_rates_are_read_from_the_metrics_of_a_service() -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    from tidegate.prometheus import RateLimitCollector

    limiter = tg.Limiter(tg.Limit("2/minute", name='odd "name"\\'), clock=tg.ManualClock())
    registry = prometheus_client.CollectorRegistry()
    registry.register(RateLimitCollector({"api": limiter}))
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        told = live.rates(url, 0.5, sleep=lambda _: [limiter.hit("ann") for _ in range(5)] and None)
        assert told.to_dict()["decisions"] == [5]
        assert told.to_dict()["refused"] == [3]
        assert list(told["rule"]) == ['odd "name"\\']
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    with pytest.raises(tg.StorageError, match="does not answer"):
        live.counters(url)


def test_the_counters_of_workers_are_added_up() -> None:
    def text(counts: list[int]) -> str:
        lines = [
            f'tidegate_decisions_total{{limiter="a",outcome="allowed",pid="{pid}"}} {count}.0\n'
            f'tidegate_refused_total{{limiter="a",rule="r",pid="{pid}"}} 1.0\n'
            for pid, count in enumerate(counts)
        ]
        return "# HELP x\n" + "".join(lines)

    assert live.counters(text([10, 20]))["decisions"].tolist() == [30]
    assert live.counters(text([10, 20]))["refused"].tolist() == [2]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: live.connect("memory://", "1/s"), "no other process can see"),
        (lambda: live.connect("shm:///nowhere/at/all", "1/s"), "there is no shared memory"),
        (lambda: live.connect(tg.Limiter("1/s").storage, "1/s"), "expected a URI"),
        (lambda: live.counters("# nothing\n"), "no metrics of limiters"),
        (lambda: live.counters("ftp://host/metrics"), "expected a URL of http"),
        (lambda: live.counters({"api": 7}), "expected a tidegate.Limiter"),
        (lambda: live.rates({}, 0), "a number above 0"),
    ],
)
def test_what_cannot_be_inspected_is_an_error(ask: Any, said: str) -> None:
    with pytest.raises((tg.ConfigurationError, TypeError), match=said):
        ask()


def test_a_limit_that_the_service_does_not_have_causes_a_warning(server: RedisServer) -> None:
    server.command("FLUSHALL")
    connected(tg.Limiter("5/hour", storage=uri(server))).hit("ann")
    with pytest.warns(UserWarning, match=r"prefix 'tg' has 1 keys, and 9/hour .* counts none") as w:
        assert len(live.connect(uri(server), "9/hour").top()) == 0
    assert w[0].filename == __file__


@pytest.mark.parametrize("keys", ["ann", b"ann"])
def test_a_single_key_in_place_of_a_list_is_an_error(server: RedisServer, keys: Any) -> None:
    service = live.connect(uri(server), "5/hour")
    with pytest.raises(tg.ConfigurationError, match="expected a list of keys"):
        service.top(keys=keys)
