"""Faults of TLS: certificates, handshakes, and streams that are cut."""

from __future__ import annotations

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


@fault("tls", "the certificate expires, connections end; then it is renewed")
def certificate_expired(stage: Stage) -> Iterator[float]:
    stage.servers.certify("expired", expired=True)
    yield from _shown(stage, "expired")


@fault("tls", "the certificate is one of a foreign authority, then one of ours again")
def certificate_foreign(stage: Stage) -> Iterator[float]:
    stage.servers.certify("foreign", authority=trustme.CA())
    yield from _shown(stage, "foreign")


@fault("tls", "the certificate is one of another host, then one of this host again")
def certificate_of_another_host(stage: Stage) -> Iterator[float]:
    stage.servers.certify("another", "another.example")
    yield from _shown(stage, "another")


@fault("tls", "the certificate is renewed three times, connections end each time", degraded=ANY)
def certificate_renewed(stage: Stage) -> Iterator[float]:
    for number in range(3):
        stage.servers.certify(f"again-{number}")
        stage.servers.use(f"again-{number}")
        stage.server.cut()
        yield 0.3


@fault("tls", "the server wants certificates of its clients, which have none")
def client_certificate_demanded(stage: Stage) -> Iterator[float]:
    stage.server.set(tls_auth_clients="yes")
    stage.server.cut()
    yield 1.0
    stage.server.set(tls_auth_clients="no")


@fault("tls+proxy", "plain text answers at the port of TLS")
def plain_text(stage: Stage) -> Iterator[float]:
    assert stage.proxy is not None
    stage.proxy.target = stage.server.port
    stage.proxy.drop()
    yield 1.0
    stage.proxy.target = stage.servers.port


through_proxy(
    "handshake-hangs",
    "hole",
    "connections end, new ones are accepted, and the handshake gets no answer",
    cut=True,
    seconds=1.5,
    group="tls",
    topology="tls+proxy",
)
through_proxy(
    "tls-dripping",
    "drip",
    "replies and handshakes come a byte at a time",
    degraded=ANY,
    group="tls",
    topology="tls+proxy",
)
through_proxy(
    "tls-bits-flipped",
    "flip",
    "a bit of each record of the server is flipped",
    group="tls",
    topology="tls+proxy",
)
through_proxy(
    "tls-cut-mid-record",
    "truncate",
    "half of each record comes, then the connection ends without a close_notify",
    group="tls",
    topology="tls+proxy",
)
through_proxy(
    "tls-garbage",
    "garbage",
    "HTTP in place of records",
    group="tls",
    topology="tls+proxy",
)
through_proxy(
    "tls-black-hole", "hole", "everything is taken, nothing comes", group="tls",
    topology="tls+proxy",
)  # fmt: skip
