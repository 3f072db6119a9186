"""Sentinels and clusters of the tests' own, with failovers and moving slots."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import polling
import processes
import pytest
import tidegate
from busy_threads import BusyThreads
from redis_server import PATIENT, PROGRAM, RedisServer

# A server that changes its role ends the connections that it has.
eventually = functools.partial(polling.eventually, despite=OSError, interval=0.05)


class Load(BusyThreads):
    """Threads that hit until they are told to end; every call must return in time."""

    def __init__(self, limiter: tidegate.Limiter, most_seconds: float) -> None:
        self.limiter = limiter
        self.slowest = 0.0
        self.most = most_seconds
        super().__init__(*(functools.partial(self._hit, number) for number in range(4)))

    def _hit(self, number: int) -> Iterator[None]:
        for count in itertools.count():
            begin = time.monotonic()
            self.limiter.hit(f"{number}-{count % 50}")
            self.slowest = max(self.slowest, time.monotonic() - begin)
            yield

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        assert self.errors == []
        assert self.slowest < self.most


# ------------------------------------------------------------------ Sentinel


def sentinel_of(directory: Path, port: int, *settings: str, quorum: int = 2) -> RedisServer:
    """Starts a sentinel, which calls the master at `port` "limits"."""
    sentinel = RedisServer(directory)
    config = directory / f"sentinel-{sentinel.port}.conf"
    lines = [
        f"port {sentinel.port}",
        "bind 127.0.0.1",
        f"dir {directory}",
        f"sentinel monitor limits 127.0.0.1 {port} {quorum}",
        *settings,
    ]
    config.write_text("".join(f"{line}\n" for line in lines))
    sentinel.process = processes.start(
        [PROGRAM, str(config), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return sentinel


class Watched:
    """A master, a replica and three sentinels."""

    def __init__(self, directory: Path) -> None:
        self.master = RedisServer(directory, "--repl-diskless-sync-delay", "0")
        self.replica = RedisServer(directory, "--replicaof", "127.0.0.1", str(self.master.port))
        self.sentinels: list[RedisServer] = []
        self.master.start()
        self.replica.start()
        eventually(lambda: b"master_link_status:up" in self.replica.command("INFO", "replication"))
        for _ in range(3):
            sentinel = sentinel_of(
                directory,
                self.master.port,
                "sentinel down-after-milliseconds limits 500",
                "sentinel failover-timeout limits 3000",
            )
            self.sentinels.append(sentinel)
        for sentinel in self.sentinels:
            eventually(lambda sentinel=sentinel: self._knows_all(sentinel))  # type: ignore[misc]

    def _knows_all(self, sentinel: RedisServer) -> bool:
        with contextlib.suppress(OSError):
            info = sentinel.command("INFO", "sentinel")
            return b"slaves=1,sentinels=3" in info
        return False

    def uri(self, options: str) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/limits/0?{options}"

    def kill(self) -> None:
        for server in [*self.sentinels, self.master, self.replica]:
            server.kill()


@pytest.fixture
def watched(server_directory: Path) -> Iterator[Watched]:
    servers = Watched(server_directory)
    yield servers
    servers.kill()


def test_a_failover_under_load(watched: Watched) -> None:
    with tidegate.Limiter(
        "1000/hour",
        storage=watched.uri("timeout=0.5&connect_timeout=2&breaker_open=0.2"),
    ) as limiter:
        eventually(lambda: not limiter.hit("before").degraded)
        assert b"tg:" in watched.master.command("KEYS", "*")
        with Load(limiter, most_seconds=5):
            watched.master.kill()
            eventually(lambda: b"role:master" in watched.replica.command("INFO", "replication"))
            eventually(lambda: not limiter.hit("after").degraded)
        assert b"after" in watched.replica.command("KEYS", "*")


def test_no_sentinel_knows_the_service(watched: Watched) -> None:
    uri = watched.uri(PATIENT).replace("/limits/", "/others/")
    with (
        tidegate.Limiter("5/hour", storage=uri) as limiter,
        pytest.raises(tidegate.StorageError, match="others"),
    ):
        limiter.ping()


@pytest.mark.parametrize("user", ["", "watcher"])
def test_sentinels_have_a_user_and_a_password_of_their_own(
    server_directory: Path, user: str
) -> None:
    account = f"user {user} on >guarded ~* &* +@all" if user else "requirepass guarded"
    with RedisServer(server_directory, "--requirepass", "secret") as master:
        sentinel = sentinel_of(
            server_directory,
            master.port,
            "sentinel auth-pass limits secret",
            account,
            quorum=1,
        )
        try:
            uri = f"redis+sentinel://:secret@127.0.0.1:{sentinel.port}/limits/0?{PATIENT}"
            named = {"sentinel_username": user} if user else {}
            with tidegate.Limiter(
                "5/hour", storage=uri, sentinel_password="guarded", **named
            ) as limiter:
                eventually(lambda: limiter.ping() is None)
                assert not limiter.hit("k").degraded
            for wrong in ({"sentinel_password": "other"}, {}):
                with (
                    tidegate.Limiter("5/hour", storage=uri, **named, **wrong) as limiter,
                    pytest.raises(tidegate.StorageError),
                ):
                    limiter.ping()
        finally:
            sentinel.kill()


# ------------------------------------------------------------------- Cluster


class ClusterServers:
    """Three masters with a replica each."""

    def __init__(self, directory: Path) -> None:
        self.nodes = []
        for _ in range(6):
            node = RedisServer(
                directory,
                *("--cluster-enabled", "yes"),
                *("--cluster-node-timeout", "700", "--cluster-require-full-coverage", "no"),
                *("--repl-diskless-sync-delay", "0"),
            )
            node.start()
            self.nodes.append(node)
        addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
        subprocess.run(
            [
                *("redis-cli", "--cluster", "create", *addresses),
                *("--cluster-replicas", "1", "--cluster-yes"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for node in self.nodes:
            eventually(lambda node=node: b"cluster_state:ok" in node.command("CLUSTER", "INFO"))  # type: ignore[misc]
            # A replica that has nothing yet takes nobody's place.
            eventually(
                lambda node=node: (  # type: ignore[misc]
                    b"role:master" in (info := node.command("INFO", "replication"))
                    or b"master_link_status:up" in info
                )
            )

    def uri(self, options: str = PATIENT, nodes: int = 6) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:nodes])
        return f"redis+cluster://{hosts}?{options}"

    def masters(self) -> list[RedisServer]:
        return [
            node
            for node in self.nodes
            if node.process is not None and b"role:master" in node.command("INFO", "replication")
        ]

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


@pytest.fixture(scope="module")
def cluster(server_directory: Path) -> Iterator[ClusterServers]:
    servers = ClusterServers(server_directory)
    yield servers
    servers.kill()


def test_keys_are_spread_and_counted_once(cluster: ClusterServers) -> None:
    # One seed: the rest is learnt.
    with tidegate.Limiter(["3/hour", "1000/day"], storage=cluster.uri(nodes=1)) as limiter:
        for round_number in range(4):
            for number in range(60):
                decision = limiter.hit(f"spread-{number}")
                assert not decision.degraded
                assert bool(decision) is (round_number < 3)
    sizes = [int(node.command("DBSIZE")[1:]) for node in cluster.masters()]
    assert len(sizes) == 3
    assert min(sizes) > 0


def test_two_limits_of_one_number_count_apart(cluster: ClusterServers) -> None:
    with (
        tidegate.Limiter("13971/second", storage=cluster.uri(), prefix="apart") as first,
        tidegate.Limiter("2024/minute", storage=first.storage, prefix="apart") as second,
    ):
        assert first.hit("k", 6000)
        assert second.hit("k", 2024)


def test_tasks_share_exactly(cluster: ClusterServers) -> None:
    async def run() -> list[int]:
        with tidegate.Limiter("20/hour", storage=cluster.uri(), prefix="tasks") as limiter:
            decisions = await asyncio.gather(*[limiter.hit_async(f"k{n % 10}") for n in range(500)])
            assert not any(decision.degraded for decision in decisions)
            many = limiter.hit_many([f"many{n % 30}" for n in range(900)])
            return [sum(map(bool, decisions)), sum(many)]

    assert asyncio.run(run()) == [200, 600]


def test_a_plan_across_slots(cluster: ClusterServers) -> None:
    """Law 3, which holds here when the call returns."""
    with (
        tidegate.Limiter("20/hour", storage=cluster.uri(), prefix="user") as users,
        tidegate.Limiter("5/hour", storage=users.storage, prefix="tenant") as tenants,
        tidegate.Limiter(
            "50/hour", storage=users.storage, prefix="all", algorithm="sliding-log"
        ) as everybody,
    ):
        plan = tidegate.Plan([users, tenants, everybody])
        for name in range(8):
            keys = [f"user-{name}", f"tenant-{name}", f"all-{name}"]
            told = [plan.hit(keys) for _ in range(8)]
            assert [bool(decision) for decision in told] == [True] * 5 + [False] * 3
            assert not any(decision.degraded for decision in told)
            assert all(plan.binding(decision) == 1 for decision in told)
            # What another slot refused was given back.
            assert plan.limiters[0].peek(keys[0]).remaining == 15
            assert everybody.peek(keys[2]).remaining == 45

        async def many() -> int:
            keys = ["loop", "loop-tenant", "loop-all"]
            told = await asyncio.gather(*(plan.hit_async(keys) for _ in range(100)))
            return sum(map(bool, told))

        # Those that were under way together may be refused for what is given back a moment
        # later, but no more are let through, and nothing stays charged of the refused.
        allowed = asyncio.run(many())
        assert 1 <= allowed <= 5
        assert users.peek("loop").remaining == 20 - allowed
        assert tenants.peek("loop-tenant").remaining == 5 - allowed
        assert everybody.peek("loop-all").remaining == 50 - allowed


@pytest.mark.parametrize("is_async", [False, True])
def test_a_charge_of_a_plan_across_slots(cluster: ClusterServers, is_async: bool) -> None:
    prefix = f"owed-{is_async}"
    with (
        tidegate.Limiter("20/hour", storage=cluster.uri(), prefix=prefix) as users,
        tidegate.Limiter("5/hour", storage=users.storage, prefix=prefix) as tenants,
    ):
        plan = tidegate.Plan([users, tenants])
        for name in range(8):
            keys = [f"user-{name}", f"tenant-{name}"]
            decision = (
                asyncio.run(plan.charge_async(keys, [7, 11]))
                if is_async
                else plan.charge(keys, [7, 11])
            )
            assert (decision.charged, decision.degraded) == (7, False)
            assert (plan.binding(decision), decision.debt) == (1, 6)
            assert users.peek(keys[0]).remaining == 13


@pytest.mark.parametrize("is_async", [False, True])
def test_a_plan_that_one_node_did_not_answer_is_given_back_by_the_others(
    cluster: ClusterServers, is_async: bool
) -> None:
    uri = cluster.uri("timeout=1&connect_timeout=20&breaker_failures=1000")
    prefix = f"part-{is_async}"
    with (
        tidegate.Limiter("20/hour", storage=uri, prefix=prefix) as users,
        tidegate.Limiter(["9/hour", "5/hour"], storage=users.storage, prefix=prefix) as tenants,
    ):
        plan = tidegate.Plan([users, tenants, users])

        def node_of(key: str) -> RedisServer:
            pattern = f"{prefix}:*{{{key}}}"
            return next(n for n in cluster.masters() if n.command("KEYS", pattern) != b"*0\r\n")

        names = [f"k{number}" for number in range(9)]
        eventually(lambda: not any(tenants.hit(name).degraded for name in names))
        nodes = {name: node_of(name) for name in names}
        tenant = names[0]
        user, other = [name for name in names if nodes[name] is not nodes[tenant]][:2]
        for name in names:
            tenants.reset(name)
        assert not tenants.hit(tenant).degraded
        nodes[tenant].command("CLIENT", "PAUSE", "2500", "ALL")
        keys, costs = [user, tenant, other], [3, 2, 1]
        decision = asyncio.run(plan.hit_async(keys, costs)) if is_async else plan.hit(keys, costs)
        assert decision.allowed
        assert decision.degraded
        eventually(lambda: not tenants.peek(tenant).degraded)
        late = 4 - tenants.peek(tenant).remaining  # it may have been charged when it woke
        assert late in (0, 2)
        assert [users.peek(key).remaining for key in (user, other)] == [17, 19]
        if is_async:
            asyncio.run(plan.refund_async(keys, costs, decision=decision))
        else:
            plan.refund(keys, costs, decision=decision)
        assert tenants.peek(tenant).remaining == 4 - late
        assert [users.peek(key).remaining for key in (user, other)] == [20, 20]
        # The fallback, which decided in the node's place, has back what it charged.
        assert tenants._peek_fallback(tenant)[1] == 0


def test_a_slot_that_moves(cluster: ClusterServers) -> None:
    with tidegate.Limiter("1000/hour", storage=cluster.uri(), prefix="move") as limiter:
        first = limiter.hit("mover")
        assert first.remaining == 999
        (key,) = [
            word
            for node in cluster.masters()
            for word in node.command("KEYS", "move:*{mover}").split(b"\r\n")
            if word.startswith(b"move")
        ]
        slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", key)[1:-2]
        source = next(n for n in cluster.masters() if n.command("EXISTS", key) == b":1\r\n")
        target = next(n for n in cluster.masters() if n is not source)
        name = {n: n.command("CLUSTER", "MYID").split(b"\r\n")[1] for n in (source, target)}
        # Half way: the source has the slot and no longer the key, so it answers ASK.
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", name[source])
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", name[target])
        moved = source.command(
            "MIGRATE", "127.0.0.1", str(target.port), key, "0", "20000", "REPLACE"
        )
        assert moved == b"+OK\r\n"
        for expected in (998, 997):
            decision = limiter.hit("mover")
            assert (decision.remaining, decision.degraded) == (expected, False)
        assert asyncio.run(limiter.hit_async("mover")).remaining == 996
        # All the way: MOVED, once, and from then on the right node at once.
        for node in (target, source):
            assert node.command("CLUSTER", "SETSLOT", slot, "NODE", name[target]) == b"+OK\r\n"
        assert limiter.hit("mover").remaining == 995
        before = source.calls().get("evalsha", 0)
        assert limiter.hit("mover").remaining == 994
        assert source.calls().get("evalsha", 0) == before


@pytest.mark.parametrize("breaker_open", [0.2, 600.0], ids=["short", "long"])
def test_a_master_that_is_killed(cluster: ClusterServers, breaker_open: float) -> None:
    """While the breaker is open, the map of the others shows that a replica has taken over."""
    with tidegate.Limiter(
        "1000/hour",
        storage=cluster.uri(f"timeout=0.5&connect_timeout=2&breaker_open={breaker_open}"),
        prefix=f"failover{breaker_open}",
    ) as limiter:
        keys = [f"k{number}" for number in range(60)]
        eventually(lambda: not any(limiter.hit(key).degraded for key in keys))
        victim = cluster.masters()[0]
        with Load(limiter, most_seconds=5):
            victim.kill()
            if breaker_open > 1:
                eventually(
                    lambda: [limiter.hit(key) for key in keys] and limiter.stats().breaker_open
                )
            eventually(lambda: len(cluster.masters()) == 3)
            eventually(lambda: not any(limiter.hit(key).degraded for key in keys))
    victim.start()
    eventually(lambda: b"master_link_status:up" in victim.command("INFO", "replication"))
