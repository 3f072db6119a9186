"""Servers and proxies close idle connections: no call suffers from it, on any kind of storage."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
import tidegate
from idle_proxy import IdleProxy
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT, RedisServer, speaks_tls
from sockets import wait_for_end
from test_redis_tls import tls_server
from test_redis_topologies import ClusterServers, Watched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are found by /proc")

Hit = Callable[[str], tidegate.Decision]


@contextlib.contextmanager
def hits_of(limiter: tidegate.Limiter, is_async: bool) -> Iterator[Hit]:
    """A function that hits, in an event loop of its own if it `is_async`."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        yield (
            (lambda key: loop.run_until_complete(limiter.hit_async(key)))
            if is_async
            else limiter.hit
        )


@contextlib.contextmanager
def limited_through_proxy(
    server: RedisServer, options: str
) -> Iterator[tuple[IdleProxy, tidegate.Limiter]]:
    """A limiter, and the proxy between it and `server`."""
    with contextlib.closing(IdleProxy(server.port)) as proxy:
        uri = f"redis://127.0.0.1:{proxy.port}?{options}"
        with tidegate.Limiter("100/hour", storage=uri) as limiter:
            yield proxy, limiter


def end_connections(server: RedisServer, name: str) -> None:
    """The server ends the connections of that client, which learns it before this returns."""
    lines = server.command("CLIENT", "LIST").decode().splitlines()
    for line in lines:
        fields = dict(field.partition("=")[::2] for field in line.split() if "=" in field)
        if fields.get("name") == name:
            server.command("CLIENT", "KILL", "ADDR", fields["addr"])
            wait_for_end(int(fields["addr"].rpartition(":")[2]), server.port)


@contextlib.contextmanager
def servers_of(
    topology: str, directory: Path, options: str
) -> Iterator[tuple[str, list[RedisServer]]]:
    """The URI of new servers, and those that limiters of it connect to."""
    with contextlib.ExitStack() as stack:
        if topology == "cluster":
            cluster = ClusterServers(directory)
            stack.callback(cluster.kill)
            yield cluster.uri(options), cluster.nodes
        elif topology == "sentinel":
            watched = Watched(directory)
            stack.callback(watched.kill)
            yield watched.uri(options), [watched.master]
        elif topology == "tls":
            if not speaks_tls():
                pytest.skip("this server was built without TLS")
            tls = stack.enter_context(tls_server(directory, "localhost"))
            yield tls.uri(options=options), [tls.server]
        else:
            server = RedisServer(directory)
            stack.callback(server.kill)
            server.start()
            yield server.uri(options), [server]


@pytest.mark.parametrize("topology", ["single", "cluster", "sentinel", "tls"])
def test_a_server_that_closed_an_idle_connection(server_directory: Path, topology: str) -> None:
    """The end lies in the buffer when the next call is made: it is noticed before the use."""
    name = f"idle-{topology}"
    options = "" if topology == "tls" else f"{PATIENT}&"
    with (
        servers_of(topology, server_directory, f"{options}client_name={name}") as (uri, servers),
        tidegate.Limiter("100/hour", storage=uri) as limiter,
    ):
        eventually(lambda: not limiter.peek("k").degraded)
        for is_async in (False, True):
            with hits_of(limiter, is_async) as hit:
                for number in range(1, 11):
                    for each in servers:
                        end_connections(each, name)
                    # With several keys all nodes of a cluster are used.
                    decisions = [hit(f"{is_async}{key}") for key in range(5)]
                    assert [decision.degraded for decision in decisions] == [False] * 5
                    assert [decision.remaining for decision in decisions] == [100 - number] * 5
        stats = limiter.stats()
        assert (stats.errors, stats.breaker_opened) == (0, 0)


@pytest.mark.parametrize("how", ["end", "reset"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_proxy_that_closed_an_idle_connection(
    server: RedisServer, is_async: bool, how: str
) -> None:
    with (
        limited_through_proxy(server, PATIENT) as (proxy, limiter),
        hits_of(limiter, is_async) as hit,
    ):
        for number in range(1, 31):
            decision = hit("k")
            assert not decision.degraded
            assert decision.remaining == 100 - number
            proxy.end_connections(how)
        assert limiter.stats().errors == 0


def test_an_end_behind_a_reply_that_came_too_late(server: RedisServer) -> None:
    """A request that its caller gave up keeps nobody from noticing the end."""
    options = "timeout=0.2&connect_timeout=20&breaker_failures=100"
    with limited_through_proxy(server, options) as (proxy, limiter):
        eventually(lambda: not limiter.peek("k").degraded)
        proxy.mode = "hole"
        assert limiter.hit("k").degraded
        proxy.mode = "pass"
        proxy.end_connections("end")
        failed = limiter.stats().errors
        eventually(lambda: not limiter.hit("k").degraded)
        # A call that waits for the new connection in vain has not failed.
        assert limiter.stats().errors == failed


def test_what_was_not_written_goes_to_the_next_connection(server: RedisServer) -> None:
    """A proxy stops to read, and then ends the connection: part of the requests never left."""
    total = 60_000
    with limited_through_proxy(server, f"{PATIENT}&breaker_failures=1000") as (proxy, limiter):
        # Fewer than half of the calls fail, and fewer than 1,000 in a row: the breaker is closed.
        assert all(limiter.hit_many([f"before {number}" for number in range(2000)]))
        assert limiter.stats().degraded == 0
        proxy.is_deaf = True
        keys = [f"{number:0100}" for number in range(total)]
        caller = threading.Thread(target=limiter.hit_many, args=(keys,))
        caller.start()
        proxy.wait_until_full()
        proxy.end_connections("reset")  # while it is deaf, or it would hand a part on to Redis
        proxy.is_deaf = False
        caller.join()
        stats = limiter.stats()
        assert 0 < stats.degraded < total
        # Each was charged once: in Redis, unless the proxy had taken it and dropped it.
        assert int(server.command("DBSIZE")[1:]) == 2000 + total - stats.degraded


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0])
def test_sparse_calls_through_a_proxy_with_an_idle_timeout(
    server: RedisServer, seconds: float
) -> None:
    with limited_through_proxy(server, PATIENT) as (proxy, limiter):
        for number in range(1, 9):
            assert limiter.hit("k").remaining == 100 - number
            assert proxy.connections == number
            proxy.wait_until_closed(idle_seconds=seconds)
        stats = limiter.stats()
        assert (stats.degraded, stats.errors) == (0, 0)


# ------------------------------------------------------------- after an outage


# The breaker stays open for 30 s; what comes sooner comes from a sign of life.
SOON = 15.0
OUTAGE = "timeout=0.2&connect_timeout=1"


def opens(limiter: tidegate.Limiter) -> None:
    def is_open() -> bool:
        limiter.hit("k")
        return limiter.stats().breaker_open

    eventually(is_open)


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_a_server_that_is_back_is_asked_at_once(own_server: RedisServer, kind: str) -> None:
    with tidegate.Limiter("100000/hour", storage=own_server.uri(OUTAGE)) as limiter:
        eventually(lambda: not limiter.hit("k").degraded)
        if kind == "killed":
            own_server.kill()
            opens(limiter)
            own_server.start()
        else:
            own_server.signal(signal.SIGSTOP)
            opens(limiter)
            own_server.signal(signal.SIGCONT)
        eventually(lambda: not limiter.hit("k").degraded, SOON)
        assert not limiter.stats().breaker_open


def test_a_server_that_only_connects_is_not_asked_ever_more_often(server: RedisServer) -> None:
    """Each probe fails and ends its connection, and the next connection is made at once.

    Nor ever more seldom: once it is well, it is asked within a second or two.
    """
    with contextlib.closing(Proxy(server.port)) as proxy:
        uri = f"redis://127.0.0.1:{proxy.port}?{OUTAGE}"
        with tidegate.Limiter("100000/hour", storage=uri) as limiter:
            eventually(lambda: not limiter.peek("k").degraded)
            server.command("CONFIG", "RESETSTAT")
            proxy.mode = "swallow-scripts"
            opens(limiter)
            before = limiter.stats().errors
            end = time.monotonic() + 2

            def is_over() -> bool:
                limiter.hit("k")
                return time.monotonic() >= end

            eventually(is_over)
            # After 0, 0.1, 0.3, 0.7 and 1.5 s at most.
            assert 1 <= limiter.stats().errors - before <= 5

            def is_asked_often() -> bool:
                limiter.hit("k")
                return limiter.stats().errors - before >= 9

            # With pauses that double without a bound, the 9th comes after 25 s.
            eventually(is_asked_often, 20, interval=0.05)
