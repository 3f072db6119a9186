"""Faults of a master, its replica, and the sentinels that watch them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from chaos.fault import ANY, NONE, fault
from chaos.servers import Server, eventually, killed
from chaos.stage import Stage


def _follow(replica: Server) -> None:
    """Until the one that was away follows the new master, as sentinels tell it to."""
    eventually(lambda: "master_link_status:up" in replica.info("replication"))


@fault("sentinel", forgets=1)
def failover(stage: Stage) -> Iterator[float]:
    """The master is killed: fail-over to the replica."""
    old = stage.servers.master()
    old.kill()
    yield 0.0
    stage.servers.await_master(but=old)
    old.start()
    _follow(old)


@fault("sentinel", forgets=1, degraded=ANY)
def master_demoted(stage: Stage) -> Iterator[float]:
    """SENTINEL FAILOVER demotes a master that is well."""
    old = stage.servers.master()
    # The replica has to be known as a good one again.
    eventually(lambda: stage.servers.sentinels[0].do("SENTINEL", "FAILOVER", "limits"))
    yield 0.0
    stage.servers.await_master(but=old)
    _follow(old)


@fault("sentinel", forgets=2)
def master_comes_back(stage: Stage) -> Iterator[float]:
    """The master is stopped, replaced, and continues as if it still were the master."""
    old = stage.servers.master()
    old.signal(signal.SIGSTOP)
    yield 0.0
    stage.servers.await_master(but=old)
    yield 0.3
    old.signal(signal.SIGCONT)
    _follow(old)


@fault("sentinel", degraded=NONE)
def sentinels_gone(stage: Stage) -> Iterator[float]:
    """All sentinels are killed; the master is well."""
    with killed(stage.servers.sentinels):
        yield 1.0


@fault("sentinel")
def sentinels_gone_and_connections_cut(stage: Stage) -> Iterator[float]:
    """All sentinels are killed, and the connections to the master end."""
    with killed(stage.servers.sentinels):
        stage.servers.servers[0].cut()
        stage.servers.servers[1].cut()
        yield 1.2


@fault("sentinel", degraded=ANY, reconnects=0.5)
def first_sentinel_silent(stage: Stage) -> Iterator[float]:
    """The first sentinel is stopped, and the connections to the master end."""
    master = stage.servers.master()
    stage.servers.sentinels[0].signal(signal.SIGSTOP)
    master.cut()
    yield 1.2
    stage.servers.sentinels[0].signal(signal.SIGCONT)


@fault("sentinel", recovers=False, processes=0)
def wrong_service(stage: Stage) -> Iterator[float]:
    """No sentinel knows the name of the service."""
    stage.uri = stage.uri.replace("/limits/", "/others/")
    stage.start().do("status")  # once it calls
    yield 1.5
