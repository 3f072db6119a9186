"""Each error reply that a real server can be made to send, and its effect on the call."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import tidegate
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT, RedisServer
from tidegate.limiter.storage.uri import open_store

# As many as the breaker takes, and some that it must spare the server.
CALLS = 8
BREAKER_FAILURES = 5


class Watched:
    """A limiter, and what its hooks were called with."""

    def __init__(self, limits: str | list[str], uri: str, **options: object) -> None:
        self.changes: list[tuple[bool, str]] = []
        self.script_errors: list[str] = []
        self.limiter = tidegate.Limiter(
            limits,
            storage=uri,
            on_breaker=lambda opened, why: self.changes.append((opened, why)),
            on_script_error=self.script_errors.append,
            **options,
        )

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.limiter.close()

    def hit(self, calls: int, way: str) -> list[tidegate.Decision]:
        if way == "sync":
            return [self.limiter.hit("k") for _ in range(calls)]

        async def one_by_one() -> list[tidegate.Decision]:
            return [await self.limiter.hit_async("k") for _ in range(calls)]

        return asyncio.run(one_by_one())

    def assert_it_is_a_failure(self, word: str, way: str) -> None:
        decisions = self.hit(BREAKER_FAILURES, way)
        stats = self.limiter.stats()  # now: probes that fail count, too
        decisions += self.hit(CALLS - BREAKER_FAILURES, way)
        assert all(decision.degraded for decision in decisions)
        assert (stats.errors, stats.script_errors) == (BREAKER_FAILURES, 0)
        assert stats.breaker_open
        ((opened, why),) = self.changes
        assert opened
        assert word in why
        assert self.script_errors == []


def config(server: RedisServer, name: str, value: str) -> None:
    assert server.command("CONFIG", "SET", name, value) == b"+OK\r\n"


Start = Callable[..., RedisServer]


# ------------------------------------------------- the server cannot serve the call


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    config(server, "maxmemory", "1")
    yield
    config(server, "maxmemory", "0")


@contextmanager
def without_replicas(server: RedisServer) -> Iterator[None]:
    config(server, "min-replicas-to-write", "1")
    yield
    config(server, "min-replicas-to-write", "0")


@contextmanager
def unable_to_save(server: RedisServer) -> Iterator[None]:
    # No file can be renamed to the name of a directory, not even by root.
    target = server.path.parent / server.dump
    target.mkdir()
    config(server, "save", "3600 1")
    server.command("BGSAVE")
    eventually(lambda: b"rdb_last_bgsave_status:err" in server.command("INFO", "persistence"))
    try:
        yield
    finally:
        target.rmdir()
    config(server, "save", "")


@contextmanager
def a_replica(server: RedisServer) -> Iterator[None]:
    config(server, "replica-serve-stale-data", "yes")
    assert server.command("REPLICAOF", "127.0.0.1", "1") == b"+OK\r\n"
    yield
    assert server.command("REPLICAOF", "NO", "ONE") == b"+OK\r\n"


@contextmanager
def a_replica_without_master(server: RedisServer) -> Iterator[None]:
    with a_replica(server):
        config(server, "replica-serve-stale-data", "no")
        yield


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    config(server, "lua-time-limit", "1")
    endless = threading.Thread(target=server.command, args=("EVAL", "while true do end", "0"))
    endless.start()
    try:
        eventually(lambda: server.command("PING").startswith(b"-BUSY"))
        yield
    finally:
        assert server.command("SCRIPT", "KILL") == b"+OK\r\n"
        endless.join()


STATES = {
    "OOM": full,
    "NOREPLICAS": without_replicas,
    "MISCONF": unable_to_save,
    "READONLY": a_replica,
    "MASTERDOWN": a_replica_without_master,
    "BUSY": busy,
}


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("word", STATES)
def test_a_server_that_cannot_serve_opens_the_breaker(start: Start, word: str, way: str) -> None:
    server = start()
    with Watched("1000/day", server.uri()) as watched:
        assert not any(decision.degraded for decision in watched.hit(1, way))
        with STATES[word](server):
            watched.assert_it_is_a_failure(word, way)


@pytest.mark.parametrize("word", STATES)
def test_the_breaker_closes_when_the_server_serves_again_and_no_sooner(
    start: Start, word: str
) -> None:
    """A server that is full, or a replica, still answers PING: that does not close it."""
    server = start()
    uri = server.uri(f"{PATIENT}&breaker_open=0.02&breaker_failures=1")
    with Watched("1000/day", uri) as watched:
        watched.limiter.hit("k")
        with STATES[word](server):
            assert watched.limiter.hit("k").degraded
            failed = watched.limiter.stats().errors

            def probed() -> bool:
                assert watched.limiter.hit("k").degraded
                return watched.limiter.stats().errors >= failed + 3

            eventually(probed)
            assert [opened for opened, _ in watched.changes] == [True]
        eventually(lambda: not watched.limiter.hit("k").degraded)
        eventually(lambda: [opened for opened, _ in watched.changes] == [True, False])
        # The key of the probe lives a millisecond.
        eventually(lambda: server.command("KEYS", "*probe*") == b"*0\r\n")


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_server_that_loads_its_data_opens_the_breaker(start: Start, way: str) -> None:
    server = start("--key-load-delay", "20000", "--rdbcompression", "no")
    # It answers once in two megabytes.
    fill = "for i = 1, 60 do redis.call('SET', 'x' .. i, string.rep('x', 1000000)) end"
    server.command("EVAL", fill, "0")
    assert server.command("SAVE") == b"+OK\r\n"
    server.kill()
    server.start()
    assert server.command("PING").startswith(b"-LOADING")
    with Watched("1000/day", server.uri()) as watched:
        watched.assert_it_is_a_failure("LOADING", way)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_server_without_room_for_clients_is_named(start: Start, way: str) -> None:
    server = start()
    with ExitStack() as stack:
        only = stack.enter_context(server.connect())
        only.sendall(b"PING\r\n")
        assert only.recv(100) == b"+PONG\r\n"
        only.sendall(b"CONFIG SET maxclients 1\r\n")
        assert only.recv(100) == b"+OK\r\n"
        watched = stack.enter_context(Watched("1000/day", server.uri()))
        watched.assert_it_is_a_failure("max number of clients", way)
        only.sendall(b"CONFIG SET maxclients 1000\r\n")
        assert only.recv(100) == b"+OK\r\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs 127.0.0.2")
def test_protected_mode_is_named(start: Start) -> None:
    server = start("--protected-mode", "yes")
    with closing(Proxy(server.port, source="127.0.0.2")) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as stranger:
            stranger.sendall(b"PING\r\n")
            if not stranger.recv(100).startswith(b"-DENIED"):
                pytest.skip("for this version 127.0.0.2 is no stranger, or --bind ends protection")
        with Watched("1000/day", f"redis://127.0.0.1:{proxy.port}?{PATIENT}") as watched:
            watched.assert_it_is_a_failure("DENIED", "sync")


# ------------------------------------------------------------- logins, permissions


def test_a_login_that_is_missing_is_named(start: Start) -> None:
    server = start("--requirepass", "hunter2")
    with Watched("1000/day", server.uri()) as watched:
        watched.assert_it_is_a_failure("NOAUTH", "sync")


def test_a_login_that_is_wrong_is_named_without_it(start: Start) -> None:
    server = start("--requirepass", "hunter2")
    with Watched("1000/day", f"redis://:wr0ng@127.0.0.1:{server.port}?{PATIENT}") as watched:
        watched.assert_it_is_a_failure("WRONGPASS", "sync")
        assert "wr0ng" not in watched.changes[0][1]


def test_a_connection_that_lost_its_login_logs_in_again(start: Start) -> None:
    server = start("--requirepass", "hunter2")
    passwords = []

    def password() -> str:
        passwords.append("hunter2")
        return "hunter2"

    store = open_store(server.uri(), {"password": password})
    with tidegate.Limiter("1000/day", storage=store) as limiter:
        assert not limiter.hit("k").degraded
        store.command(["RESET"])  # type: ignore[attr-defined]
        assert limiter.hit("k").degraded
        eventually(lambda: not limiter.hit("k").degraded)
        assert len(passwords) == 2
        stats = limiter.stats()
        assert (stats.script_errors, stats.breaker_open) == (0, False)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (("~*", "+@all", "-evalsha"), ["NOPERM"]),
        (("~other:*", "+@all"), ["NOPERM"]),
        # In the script: the words differ between versions.
        (("~*", "+@all", "-set"), ["NOPERM", "ACL failure", "user executing the script"]),
    ],
    ids=["command", "key", "in the script"],
)
def test_a_command_that_an_acl_forbids_opens_the_breaker(
    start: Start, rules: tuple[str, ...], words: list[str], way: str
) -> None:
    server = start()
    assert server.command("ACL", "SETUSER", "app", "on", ">hunter2", *rules) == b"+OK\r\n"
    uri = f"redis://app:hunter2@127.0.0.1:{server.port}?{PATIENT}"
    with Watched("1000/day", uri) as watched:
        watched.assert_it_is_a_failure("", way)
        assert any(word in watched.changes[0][1] for word in words)


@pytest.mark.parametrize("command", ["EVALSHA", "SET"])
def test_a_command_that_the_server_does_not_have_opens_the_breaker(
    start: Start, command: str
) -> None:
    server = start("--rename-command", command, "")
    with Watched("1000/day", server.uri()) as watched:
        watched.assert_it_is_a_failure("nknown", "sync")
        # The arguments of the command are shown by the server: they hold the caller's key.
        assert "{k}" not in watched.changes[0][1]


# ------------------------------------------------------------------------- cluster


def test_a_cluster_that_is_down_opens_the_breaker(start: Start) -> None:
    server = start("--cluster-enabled", "yes")
    for scheme in ("redis", "redis+cluster"):
        uri = f"{scheme}://127.0.0.1:{server.port}?{PATIENT}"
        with Watched("1000/day", uri) as watched:
            watched.assert_it_is_a_failure("CLUSTERDOWN", "sync")


@pytest.fixture(scope="module")
def nodes(server_directory: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A node that has all slots, and one that has none."""
    with (
        RedisServer(server_directory, "--cluster-enabled", "yes") as owner,
        RedisServer(server_directory, "--cluster-enabled", "yes") as other,
    ):
        owner.command("CLUSTER", "ADDSLOTS", *map(str, range(16384)))
        owner.command("CLUSTER", "MEET", "127.0.0.1", str(other.port))
        for node in (owner, other):
            eventually(lambda node=node: b"cluster_state:ok" in node.command("CLUSTER", "INFO"))  # type: ignore[misc]
        yield owner, other


def test_redirections_of_a_cluster_that_are_not_followed_open_the_breaker(
    nodes: tuple[RedisServer, RedisServer],
) -> None:
    owner, other = nodes
    with Watched("1000/day", other.uri()) as watched:
        watched.assert_it_is_a_failure("MOVED", "sync")
    slot = int(owner.command("CLUSTER", "KEYSLOT", "k").strip(b":\r\n"))
    with Watched(["1000/day", "2000/day"], owner.uri()) as watched:
        assert not watched.limiter.hit("k").degraded
        destination = other.command("CLUSTER", "MYID").split(b"\r\n")[1]
        owner.command("CLUSTER", "SETSLOT", str(slot), "MIGRATING", destination)
        gone = next(k for k in owner.command("KEYS", "*").split() if k.startswith(b"tg:"))
        owner.command("DEL", gone)
        # One of its two keys is there. Redis 6 says ASK.
        watched.assert_it_is_a_failure("", "sync")
        assert any(word in watched.changes[0][1] for word in ("TRYAGAIN", "ASK"))
    with Watched("500/day", owner.uri()) as watched:
        watched.assert_it_is_a_failure("ASK", "sync")


def test_a_plan_over_several_slots_of_a_node_is_an_error_of_that_plan(
    nodes: tuple[RedisServer, RedisServer],
) -> None:
    with Watched("10/day", nodes[0].uri()) as watched:
        first = watched.limiter
        with tidegate.Limiter("20/day", storage=first.storage) as second:
            plan = tidegate.Plan([first, second])
            assert all(plan.hit(["a", "b"]).degraded for _ in range(CALLS))
            assert not plan.hit(["a", "a"]).degraded
        stats = first.stats()
        assert (stats.errors, stats.script_errors, stats.breaker_open) == (0, CALLS, False)
        assert all("CROSSSLOT" in message for message in watched.script_errors)


# ------------------------------------------------------------------- script errors


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("value", ["a list", "a text", "a number"])
def test_a_key_with_a_foreign_value_is_counted_separately(
    server: RedisServer,
    value: str,
    way: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO, "tidegate")
    with Watched("1000/day", server.uri()) as watched:
        watched.hit(1, way)
        (key,) = (k for k in server.command("KEYS", "*").split() if k.startswith(b"tg:"))
        connections = b"total_connections_received"

        def connected() -> int:
            lines = server.command("INFO", "stats").splitlines()
            return int(next(line for line in lines if line.startswith(connections)).split(b":")[1])

        before = connected()
        for _ in range(10):
            server.command("DEL", key)
            if value == "a list":
                server.command("RPUSH", key, "x")
            else:
                server.command("SET", key, "no state" if value == "a text" else "9" * 18)
            assert all(decision.degraded for decision in watched.hit(1, way))
        # Each call of a server's command is a connection, so is each question of how many.
        assert connected() - before == 21
        assert not watched.limiter.hit("other").degraded
        stats = watched.limiter.stats()
        assert (stats.errors, stats.script_errors, stats.breaker_open) == (0, 10, False)
        assert watched.changes == []
        # At the first, second, fourth and eighth.
        assert len(watched.script_errors) == 4
        if value == "a list":
            assert all("WRONGTYPE" in message for message in watched.script_errors)
    records = [record for record in caplog.records if record.name == "tidegate"]
    assert [record.levelno for record in records] == [logging.ERROR] * 4
    assert [record.getMessage() for record in records] == watched.script_errors
    assert capfd.readouterr().err == ""


def test_a_hook_that_raises_harms_no_call(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, raised.append

    def failing(message: str) -> None:
        raise RuntimeError(message)

    try:
        with tidegate.Limiter("5/day", storage=server.uri(), on_script_error=failing) as limiter:
            limiter.hit("k")
            (key,) = (k for k in server.command("KEYS", "*").split() if k.startswith(b"tg:"))
            server.command("SET", key, "no state")
            assert limiter.hit("k").degraded
    finally:
        sys.unraisablehook = hook
    assert len(raised) == 1
