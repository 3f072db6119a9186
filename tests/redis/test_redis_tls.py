"""TLS: who is trusted, who is refused, and that it is no other store for it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import tidegate
import trustme
from ports import free_port
from redis_server import PATIENT, RedisServer, speaks_tls

pytestmark = pytest.mark.skipif(not speaks_tls(), reason="this server was built without TLS")


@dataclass
class TlsServer:
    server: RedisServer
    port: int
    ca: Path
    client: Path

    def uri(self, host: str = "localhost", options: str = "") -> str:
        return f"rediss://{host}:{self.port}/0?{PATIENT}&on_error=closed&ssl_ca_certs={self.ca}" + (
            f"&{options}" if options else ""
        )


@contextlib.contextmanager
def tls_server(
    directory: Path,
    *names: str,
    expires: datetime.datetime | None = None,
    clients: str = "no",
) -> Iterator[TlsServer]:
    authority = trustme.CA()
    certificate = authority.issue_cert(*names, not_after=expires)
    home = directory / f"tls-{free_port()}"
    home.mkdir()
    authority.cert_pem.write_to_path(str(home / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(home / "key.pem"))
    with open(home / "cert.pem", "wb") as chain:
        chain.writelines(blob.bytes() for blob in certificate.cert_chain_pems)
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(
        str(home / "client.pem")
    )
    port = free_port()
    server = RedisServer(
        directory,
        *("--tls-port", str(port), "--tls-cert-file", str(home / "cert.pem")),
        *("--tls-key-file", str(home / "key.pem"), "--tls-ca-cert-file", str(home / "ca.pem")),
        *("--tls-auth-clients", clients),
    )
    server.start()
    try:
        yield TlsServer(server, port, home / "ca.pem", home / "client.pem")
    finally:
        server.kill()


@pytest.fixture(scope="module")
def tls(server_directory: Path) -> Iterator[TlsServer]:
    with tls_server(server_directory, "localhost", "127.0.0.1") as server:
        yield server


def problem(uri: str) -> str:
    with tidegate.Limiter("5/hour", storage=uri) as limiter:
        with pytest.raises(tidegate.StorageError) as caught:
            limiter.ping()
        assert limiter.hit("k").degraded
        return str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_certificate_of_this_host(tls: TlsServer, host: str) -> None:
    with tidegate.Limiter("2/hour", storage=tls.uri(host), prefix=host) as limiter:
        limiter.ping()
        assert [bool(limiter.hit("k")) for _ in range(3)] == [True, True, False]
        assert not limiter.hit("k").degraded


def test_threads_and_tasks_at_once(tls: TlsServer) -> None:
    """Reading and writing meet in one TLS session."""
    with tidegate.Limiter(
        ["500/hour", "10000/day"], storage=tls.uri(), prefix="many", deny_cache_max=0
    ) as limiter:

        async def tasks() -> int:
            decisions = await asyncio.gather(*[limiter.hit_async("k") for _ in range(400)])
            assert not any(decision.degraded for decision in decisions)
            return sum(map(bool, decisions))

        def calls() -> int:
            return sum(limiter.allow("k") for _ in range(50))

        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(calls) for _ in range(7)]
            admitted = asyncio.run(tasks()) + sum(future.result() for future in futures)
        assert admitted == 500


def test_large_requests_and_replies(tls: TlsServer) -> None:
    """More than a TLS record, and than one read."""
    with tidegate.Limiter("1000/hour", storage=tls.uri()) as limiter:
        keys = [f"{number}" + "x" * 100 for number in range(3000)]
        assert all(limiter.hit_many(keys))


def test_nobody_is_trusted_unasked(tls: TlsServer) -> None:
    uri = f"rediss://localhost:{tls.port}/0?{PATIENT}"
    assert "certificate" in problem(uri)


def test_a_certificate_of_another_host(server_directory: Path) -> None:
    with tls_server(server_directory, "another.example") as server:
        assert "certificate" in problem(server.uri())
        assert "certificate" in problem(server.uri("127.0.0.1"))
        for option in ("ssl_check_hostname=false", "ssl_cert_reqs=none"):
            with tidegate.Limiter("5/hour", storage=server.uri(options=option)) as limiter:
                limiter.ping()


def test_an_expired_certificate(server_directory: Path) -> None:
    yesterday = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    with tls_server(server_directory, "localhost", expires=yesterday) as server:
        assert "expired" in problem(server.uri())


def test_a_server_that_wants_to_know_its_clients(server_directory: Path) -> None:
    with tls_server(server_directory, "localhost", clients="yes") as server:
        with tidegate.Limiter(
            "5/hour", storage=server.uri(options=f"ssl_certfile={server.client}")
        ) as limiter:
            limiter.ping()
            assert not limiter.hit("k").degraded
        problem(server.uri())


def test_a_key_in_a_file_of_its_own_and_a_folder_of_authorities(server_directory: Path) -> None:
    with tls_server(server_directory, "localhost", clients="yes") as server:
        home = server.ca.parent
        before, begin, certificates = server.client.read_text().partition(
            "-----BEGIN CERTIFICATE-----"
        )
        (home / "client-key.pem").write_text(before)
        (home / "client-certificate.pem").write_text(begin + certificates)
        authorities = home / "authorities"
        authorities.mkdir()
        (authorities / "ca.pem").write_bytes(server.ca.read_bytes())
        subprocess.run(["openssl", "rehash", str(authorities)], check=True)
        without_key = (
            f"rediss://localhost:{server.port}/0?{PATIENT}&on_error=closed"
            f"&ssl_ca_path={authorities}&ssl_certfile={home}/client-certificate.pem"
        )
        assert "cannot read the key" in problem(without_key)
        uri = f"{without_key}&ssl_keyfile={home}/client-key.pem"
        with tidegate.Limiter("5/hour", storage=uri) as limiter:
            limiter.ping()
            assert not limiter.hit("k").degraded


def test_no_tls_on_the_other_side(server: RedisServer) -> None:
    uri = f"rediss://127.0.0.1:{server.port}/0?timeout=1&connect_timeout=1&on_error=closed"
    assert "TLS" in problem(uri) or "answer" in problem(uri)
