"""The certificate of the admin port, and its replacement by SIGHUP."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from polling import eventually
from serving import SETTINGS, Served
from tidegate import ConfigurationError
from tidegate.server.admin_tls import Certificate
from tidegate.server.settings import Tls


class Files:
    """A certificate, its key, and the authority of clients."""

    def __init__(self, directory: Path) -> None:
        self.certificate, self.key, self.clients = (
            directory / name for name in ("admin.pem", "admin.key", "clients.pem")
        )
        self.authority = trustme.CA()
        self.renew()
        self.trust(self.authority)

    def renew(self) -> None:
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))

    def trust(self, authority: trustme.CA) -> None:
        authority.cert_pem.write_to_path(str(self.clients))


@pytest.fixture
def files(directory: Path) -> Files:
    return Files(directory)


@pytest.fixture
def served(directory: Path, files: Files) -> Iterator[Served]:
    tls = "tls: {certificate: admin.pem, key: admin.key, client_ca: clients.pem}"
    listen = 'admin: {listen: "127.0.0.1:0"'
    service = Served(directory, SETTINGS.replace(listen, f"{listen}, {tls}"))
    yield service
    service.process.kill()
    service.process.wait()


def certificate_of(served: Served, files: Files, client: trustme.CA) -> bytes | None:
    """Returns the certificate that a client of an authority sees, or None if it is refused."""
    context = ssl.create_default_context()
    files.authority.configure_trust(context)
    client.issue_cert("client").configure_cert(context)
    host, port = served.admin.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as connection:
                connection.sendall(b"GET /livez HTTP/1.1\r\nHost: admin\r\n\r\n")
                answer = connection.recv(100)
                assert answer == b"" or answer.startswith(b"HTTP/1.1 200 OK"), answer
                return connection.getpeercert(True) if answer else None
        except (ssl.SSLError, ConnectionError):
            return None


def reload(served: Served) -> None:
    before = served.log.read_text().count("the service was reloaded")
    served.process.send_signal(signal.SIGHUP)
    eventually(lambda: served.log.read_text().count("the service was reloaded") > before)


def test_a_reload_uses_the_new_certificate_and_keeps_the_old_one_if_that_is_invalid(
    served: Served, files: Files
) -> None:
    first = certificate_of(served, files, files.authority)
    assert first is not None
    files.renew()
    reload(served)
    second = certificate_of(served, files, files.authority)
    assert second is not None
    assert second != first
    files.key.write_text("no key")
    served.process.send_signal(signal.SIGHUP)
    served.logged("the service keeps a certificate of before; all else was read again")
    served.logged("the certificate was not replaced: admin.tls has admin.pem, admin.key")
    assert certificate_of(served, files, files.authority) == second


def test_the_admin_port_has_the_version_and_the_ciphers_of_the_settings(files: Files) -> None:
    def context(**more: object) -> ssl.SSLContext:
        given = {"certificate": files.certificate, "key": files.key, **more}
        return Certificate(Tls.model_validate(given)).context

    usual = context()
    assert usual.minimum_version == ssl.TLSVersion.TLSv1_2
    old = [each for each in usual.get_ciphers() if each["protocol"] == "TLSv1.2"]
    assert old
    assert all(each["aead"] for each in old)
    assert context(minimum="1.3").minimum_version == ssl.TLSVersion.TLSv1_3
    with pytest.raises(ConfigurationError, match="ciphers is 'none'; expected names"):
        context(ciphers="none")


def test_a_reload_replaces_the_authorities_of_clients(served: Served, files: Files) -> None:
    other = trustme.CA()
    assert certificate_of(served, files, other) is None
    files.trust(other)
    reload(served)
    assert certificate_of(served, files, other) is not None
    assert certificate_of(served, files, files.authority) is None
