"""Real servers, on free ports, for the tests that need one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Callable

import pytest
from polling import eventually
from proxy import Proxy
from redis_server import RedisServer
from tidegate.limiter.storage import redis_uri


@pytest.fixture(scope="session")
def server_directory() -> Iterator[Path]:
    # Paths of Unix sockets are short; those of pytest are not.
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def shared_server(server_directory: Path) -> Iterator[RedisServer]:
    with RedisServer(server_directory) as server:
        yield server


def emptied(server: RedisServer) -> RedisServer:
    # A client that lives on in a cycle would be shared, with the refusals that it remembers.
    redis_uri._shared.clear()
    server.command("FLUSHALL")
    server.command("SCRIPT", "FLUSH")
    server.command("CONFIG", "RESETSTAT")
    return server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A server that other tests use too, emptied."""
    return emptied(shared_server)


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    """What stands between a client and `server`, to do to connections what networks do."""
    with closing(Proxy(server.port)) as proxy:
        yield proxy


@pytest.fixture
def own_server(server_directory: Path) -> Iterator[RedisServer]:
    """A server that the test may do anything to."""
    with RedisServer(server_directory) as server:
        yield server


@pytest.fixture
def start(server_directory: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers with the arguments that it is called with; they end with the test."""
    with ExitStack() as servers:
        yield lambda *arguments: servers.enter_context(RedisServer(server_directory, *arguments))


@contextmanager
def cluster_of_one(directory: Path) -> Iterator[RedisServer]:
    with RedisServer(directory, "--cluster-enabled", "yes") as node:
        # Redis 6 knows no ADDSLOTSRANGE.
        added = node.command("CLUSTER", "ADDSLOTS", *(str(slot) for slot in range(16384)))
        assert added == b"+OK\r\n"
        eventually(lambda: b"cluster_state:ok" in node.command("CLUSTER", "INFO"))
        yield node


@pytest.fixture
def node(server_directory: Path) -> Iterator[RedisServer]:
    """A cluster of one node that has every slot, which the test may do anything to."""
    with cluster_of_one(server_directory) as node:
        yield node


@pytest.fixture(scope="session")
def _shared_node(server_directory: Path) -> Iterator[RedisServer]:
    with cluster_of_one(server_directory) as node:
        yield node


@pytest.fixture
def shared_node(_shared_node: RedisServer) -> RedisServer:
    """Such a cluster that other tests use too, emptied."""
    return emptied(_shared_node)
