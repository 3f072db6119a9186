"""Nodes that come and go: a cluster's client keeps no connection and no thread of old ones."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import pytest
import tidegate
from polling import eventually
from proxy import Proxy
from redis_server import RedisServer

THREADS = Path("/proc/self/task")


def connections(node: RedisServer) -> int:
    return node.command("CLIENT", "LIST").count(b"name=tidegate")


@pytest.mark.skipif(not THREADS.exists(), reason="no /proc counts threads")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_nodes_that_left_the_map_are_closed(node: RedisServer, asynchronous: bool) -> None:
    uri = (
        f"redis+cluster://127.0.0.1:{node.port}?timeout=2&connect_timeout=20&breaker_failures=1000"
    )
    proxies: list[Proxy] = []

    def move() -> None:
        # Redis 6 learns of another host while it runs, not of another port.
        host = f"127.0.0.{len(proxies) + 2}"
        proxies.append(Proxy(node.port, address=(host, node.port)))
        assert node.command("CONFIG", "SET", "cluster-announce-ip", host) == b"+OK\r\n"
        eventually(lambda: host.encode() + b"\r\n" in node.command("CLUSTER", "SLOTS"))

    move()
    try:
        with tidegate.Limiter("1000/hour", storage=uri) as limiter:

            def is_shared() -> bool:
                if asynchronous:
                    return not asyncio.run(limiter.hit_async("k")).degraded
                return not limiter.hit("k").degraded

            eventually(lambda: is_shared() and proxies[-1].requests > 0)
            before = len(list(THREADS.iterdir())) - len(proxies[-1].threads)
            for _ in range(20):
                # The node moves to an address that it never had, and leaves the one before.
                move()
                proxies[-2].close()
                eventually(lambda: is_shared() and proxies[-1].requests > 0)
            eventually(lambda: connections(node) == 1)
            # The threads of the last proxy are this test's own.
            eventually(
                lambda: len(list(THREADS.iterdir())) - len(proxies[-1].threads) <= before + 2
            )
    finally:
        proxies[-1].close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nodes_that_never_answer_delay_no_call(asynchronous: bool) -> None:
    """The map, which may take as long as a connection, is asked for first."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        nodes = ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners)
        uri = f"redis+cluster://{nodes}?timeout=0.05&connect_timeout=20&breaker_failures=1000"
        with tidegate.Limiter("100/minute", storage=uri) as limiter:
            for _ in range(3):
                began = time.monotonic()
                decision = asyncio.run(limiter.hit_async("k")) if asynchronous else limiter.hit("k")
                assert decision.degraded
                assert time.monotonic() - began < 5
