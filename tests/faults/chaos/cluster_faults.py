"""Faults of the nodes and slots of a cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from redis.crc import key_slot

from chaos.fault import ANY, NONE, fault
from chaos.servers import Server, eventually, killed
from chaos.stage import Stage


def _two_masters(stage: Stage) -> tuple[Server, Server]:
    first, second, *_ = stage.servers.masters()
    return first, second


@fault("cluster", forgets=1)
def node_killed(stage: Stage) -> Iterator[float]:
    """A master is killed: its replica takes over."""
    victim = stage.servers.masters()[0]
    victim.kill()
    yield 0.0
    eventually(lambda: len(stage.servers.masters()) == 3 and _serves_all(stage))
    victim.start()
    stage.servers.await_well()


def _serves_all(stage: Stage) -> bool:
    """Whether every node that is up finds an owner for each slot that is up too."""
    up = {node.port for node in stage.servers.nodes if node.process is not None}
    return all(
        int(master[1]) in up
        for node in stage.servers.nodes
        if node.process is not None
        for _, _, master, *_ in node.do("CLUSTER", "SLOTS")
    )


@fault("cluster", forgets=1)
def node_stopped(stage: Stage) -> Iterator[float]:
    """A master is stopped for longer than the node timeout, then continued."""
    victim = stage.servers.masters()[0]
    victim.signal(signal.SIGSTOP)
    yield 3.0
    victim.signal(signal.SIGCONT)
    stage.servers.await_well()


@fault("cluster", degraded=ANY)
def replica_promoted(stage: Stage) -> Iterator[float]:
    """A replica is promoted by hand (CLUSTER FAILOVER)."""
    master = stage.servers.masters()[0]
    replica = stage.servers.replica_of(master)
    replica.do("CLUSTER", "FAILOVER")
    eventually(lambda: replica.role() == "master")
    yield 0.3
    stage.servers.await_well()


@fault("cluster", forgets=1)
def all_nodes_killed(stage: Stage) -> Iterator[float]:
    """All nodes are killed, and started again empty."""
    with killed(stage.servers.nodes):
        yield 0.5
    stage.servers.await_well()


def _move(stage: Stage, slots: list[int], source: Server, target: Server) -> Iterator[float]:
    """Moves slots as a resharding does: they are ASKed for first, then they have MOVED."""
    stage.servers.set_slots(slots, source, target, "MOVING")
    stage.servers.migrate(slots, source, target)
    yield 0.4
    # Keys that came meanwhile went to the target; these were still at the source.
    stage.servers.migrate(slots, source, target)
    stage.servers.set_slots(slots, source, target, "NODE")
    yield 0.2


@fault("cluster", degraded=NONE)
def slots_migrated(stage: Stage) -> Iterator[float]:
    """All slots in use of a master are migrated with their keys: ASK, then MOVED; and back."""
    source, target = _two_masters(stage)
    slots = stage.servers.slots_in_use(source)
    stage.notes["slots"] = len(slots)
    yield from _move(stage, slots, source, target)
    yield from _move(stage, slots, target, source)
    stage.servers.await_well()


@fault("cluster", degraded=ANY)
def slots_half_way(stage: Stage) -> Iterator[float]:
    """Slots hang half-way, with every other key moved: TRYAGAIN for two keys together."""
    source, target = _two_masters(stage)
    slots = stage.servers.slots_in_use(source)
    stage.servers.set_slots(slots, source, target, "MOVING")
    keys = [key for key in source.do("KEYS", "*") if key_slot(key) in slots]
    stage.servers.move_keys(sorted(keys)[::2], source, target)
    yield 0.7
    stage.servers.migrate(slots, source, target)
    stage.servers.set_slots(slots, source, target, "NODE")
    yield from _move(stage, slots, target, source)
    stage.servers.await_well()


@fault("cluster+own", degraded=ANY)
def nodes_come_and_go(stage: Stage) -> Iterator[float]:
    """Five nodes join, get slots, lose them and leave."""
    cluster = stage.servers
    before = stage.worker.do("usage")
    most = before
    for _ in range(5):
        node = cluster.add()
        cluster.meet(node)
        for other in cluster.nodes:
            eventually(lambda other=other: len(cluster.known(other)) == 7)  # type: ignore[misc]
        cluster.await_well()
        source = cluster.masters()[0]
        slots = cluster.slots_in_use(source)[:20]
        for giver, taker in ((source, node), (node, source)):
            yield from _move(stage, slots, giver, taker)
            now = stage.worker.do("usage")
            most = {name: max(most[name], now[name]) for name in now}
        name = cluster.id_of(node)
        cluster.nodes.remove(node)
        node.kill()
        for other in cluster.nodes:
            other.do("CLUSTER", "FORGET", name)
    cluster.await_well()
    after = stage.worker.do("usage")

    def gone() -> bool:
        nonlocal after
        after = stage.worker.do("usage")
        # A descriptor or two of connections that are just being reopened.
        return after["fds"] <= before["fds"] + 1 and after["threads"] <= before["threads"] + 1

    try:
        eventually(gone, 10)
    except TimeoutError:
        stage.check(
            False,
            f"after the nodes had left, the process had {after['threads']} threads and "
            f"{after['fds']} descriptors; before they came, {before['threads']} and "
            f"{before['fds']}",
        )
    stage.notes["threads before, most, after"] = [u["threads"] for u in (before, most, after)]
    stage.notes["descriptors before, most, after"] = [u["fds"] for u in (before, most, after)]


@fault("cluster+own", forgets=1)
def node_leaves_the_map(stage: Stage) -> Iterator[float]:
    """A node fails for good and is forgotten, its replica takes over."""
    cluster = stage.servers
    before = stage.worker.do("usage")
    victim = cluster.masters()[0]
    name = cluster.id_of(victim)
    victim.kill()
    yield 0.0
    eventually(lambda: len(cluster.masters()) == 3 and _serves_all(stage))
    cluster.nodes.remove(victim)
    for node in cluster.nodes:
        node.do("CLUSTER", "FORGET", name)
    yield 0.3
    after = stage.worker.do("usage")
    try:
        eventually(lambda: stage.worker.do("usage")["threads"] <= before["threads"] + 1, 10)
    except TimeoutError:
        after = stage.worker.do("usage")
        stage.check(
            False,
            f"after a node had left, the process had {after['threads']} threads; "
            f"{before['threads']} before",
        )
    stage.notes["threads before, after"] = [before["threads"], after["threads"]]


@fault("cluster+own", processes=0)
def map_unknown(stage: Stage) -> Iterator[float]:
    """No node answers when the limiter is made, so that it has no map; later all do."""
    for node in stage.servers.nodes:
        node.signal(signal.SIGSTOP)
    stage.start().do("status")  # once it calls
    yield 1.5
    for node in stage.servers.nodes:
        node.signal(signal.SIGCONT)
    stage.servers.await_well()


@fault("cluster+own")
def slots_without_owner(stage: Stage) -> Iterator[float]:
    """A third of the slots have no owner: CLUSTERDOWN for their keys."""
    master = stage.servers.masters()[0]
    slots = stage.servers.slots_of(master)
    for node in stage.servers.nodes:
        node.do("CLUSTER", "DELSLOTS", *slots)
    yield 1.0
    master.do("CLUSTER", "ADDSLOTS", *slots)
    # The others hear of it once the epoch is beyond that of what they knew.
    master.do("CLUSTER", "BUMPEPOCH")
    stage.servers.await_well()


@fault("cluster+own")
def cluster_down(stage: Stage) -> Iterator[float]:
    """Most masters are stopped, and a node wants a whole cluster: CLUSTERDOWN."""
    nodes = stage.servers.nodes
    for node in nodes:
        node.set(cluster_require_full_coverage="yes", cluster_replica_no_failover="yes")
    stopped = stage.servers.masters()[:2]
    for node in stopped:
        node.signal(signal.SIGSTOP)
    yield 2.5
    for node in stopped:
        node.signal(signal.SIGCONT)
    stage.servers.await_well()
    for node in nodes:
        node.set(cluster_require_full_coverage="no", cluster_replica_no_failover="no")


@fault("cluster", degraded=NONE)
def scripts_flushed_everywhere(stage: Stage) -> Iterator[float]:
    """SCRIPT FLUSH on all nodes, ten times in a second."""
    for _ in range(10):
        for node in stage.servers.nodes:
            node.do("SCRIPT", "FLUSH")
        yield 0.1


@fault("cluster", degraded=ANY)
def all_connections_killed(stage: Stage) -> Iterator[float]:
    """CLIENT KILL of all connections to all nodes, ten times."""
    for _ in range(10):
        for node in stage.servers.nodes:
            node.cut()
        yield 0.1
