"""Faults of TLS: certificates, handshakes, and streams that are cut."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import trustme

from chaos.fault import ANY, fault
from chaos.network_faults import through_proxy
from chaos.stage import Stage


def _shown(stage: Stage, name: str) -> Iterator[float]:
    """A server that shows this certificate for a while, and then a good one again."""
    stage.servers.use(name)
    stage.server.cut()
    yield 1.0
    stage.servers.certify("renewed")
    stage.servers.use("renewed")


@fault("tls")
def certificate_expired(stage: Stage) -> Iterator[float]:
    """The certificate expires, connections end; then it is renewed."""
    stage.servers.certify("expired", expired=True)
    yield from _shown(stage, "expired")


@fault("tls")
def certificate_foreign(stage: Stage) -> Iterator[float]:
    """The certificate is one of a foreign authority, then one of ours again."""
    stage.servers.certify("foreign", authority=trustme.CA())
    yield from _shown(stage, "foreign")


@fault("tls")
def certificate_of_another_host(stage: Stage) -> Iterator[float]:
    """The certificate is one of another host, then one of this host again."""
    stage.servers.certify("another", "another.example")
    yield from _shown(stage, "another")


@fault("tls", degraded=ANY)
def certificate_renewed(stage: Stage) -> Iterator[float]:
    """The certificate is renewed three times, connections end each time."""
    for number in range(3):
        stage.servers.certify(f"again-{number}")
        stage.servers.use(f"again-{number}")
        stage.server.cut()
        yield 0.3


@fault("tls")
def client_certificate_demanded(stage: Stage) -> Iterator[float]:
    """The server wants certificates of its clients, which have none."""
    stage.server.set(tls_auth_clients="yes")
    stage.server.cut()
    yield 1.0
    stage.server.set(tls_auth_clients="no")


@fault("tls+proxy")
def plain_text(stage: Stage) -> Iterator[float]:
    """Plain text answers at the port of TLS."""
    assert stage.proxy is not None
    stage.proxy.target = stage.server.port
    stage.proxy.drop()
    yield 1.0
    stage.proxy.target = stage.servers.port


over_tls = functools.partial(through_proxy, group="tls", topology="tls+proxy")

over_tls(
    "handshake-hangs",
    "hole",
    "Connections end, new ones are accepted, and the handshake gets no answer",
    cut=True,
    seconds=1.5,
)
over_tls("tls-dripping", "drip", "Replies and handshakes come a byte at a time", degraded=ANY)
over_tls("tls-bits-flipped", "flip", "A bit of each record of the server is flipped")
over_tls(
    "tls-cut-mid-record",
    "truncate",
    "Half of each record comes, then the connection ends without a close_notify",
)
over_tls("tls-garbage", "garbage", "HTTP in place of records")
over_tls("tls-black-hole", "hole", "Everything is taken, nothing comes")
