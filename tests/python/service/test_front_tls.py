"""The front over TLS, with and without certificates of clients."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
from fronts import Http2Client, RawClient, Served, new_front
from polling import eventually
from tidegate import ConfigurationError
from tidegate.server import _native


@dataclass
class Files:
    authority: trustme.CA
    certificate: Path
    key: Path
    trust: Path

    def renew(self) -> None:
        certificate = self.authority.issue_cert("localhost", "127.0.0.1")
        self.key.write_bytes(certificate.private_key_pem.bytes())
        self.certificate.write_bytes(b"".join(p.bytes() for p in certificate.cert_chain_pems))

    def client_context(self, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.trust))
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    authority = trustme.CA()
    trust = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(trust))
    files = Files(authority, tmp_path / "server.pem", tmp_path / "server.key", trust)
    files.renew()
    return files


def serve(tls: _native.Tls, **options: object) -> Served:
    front, health, later = new_front(**options)
    port = front.listen("127.0.0.1", 0, tls=tls)
    front.start()
    return Served(front, health, later, port)


def wrapped(served: Served, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", served.port), timeout=30)
    return context.wrap_socket(plain, server_hostname="localhost")


def test_alpn_chooses_either_protocol(files: Files) -> None:
    served = serve(_native.Tls(str(files.certificate), str(files.key)))
    url = f"https://localhost:{served.port}/echo"
    big = b"x" * 900_000
    for http2, version in ((False, "HTTP/1.1"), (True, "HTTP/2")):
        with httpx.Client(http2=http2, verify=files.client_context(), timeout=60) as client:
            answer = client.post(url, content=b"hello")
            assert (answer.http_version, answer.content) == (version, b"hello")
            assert client.post(url, content=big).content == big
    served.front.stop()


def test_without_alpn_the_first_bytes_decide(files: Files) -> None:
    served = serve(_native.Tls(str(files.certificate), str(files.key)))
    with RawClient(wrapped(served, files.client_context())) as client:
        client.send(b"GET /echo HTTP/1.1\r\nHost: test\r\n\r\n")
        assert client.read_response()[0] == 200
    with Http2Client(wrapped(served, files.client_context())) as http2:
        assert http2.answer(http2.request("/echo", b"x"))[1] == b"x"
    served.front.stop()


def test_an_unknown_protocol_of_alpn_is_refused(files: Files) -> None:
    served = serve(_native.Tls(str(files.certificate), str(files.key)))
    with pytest.raises(ssl.SSLError):
        wrapped(served, files.client_context("spdy/3"))
    eventually(lambda: served.count("tls_failures") == 1)
    served.front.stop()


def test_tls_before_1_2_is_refused(files: Files) -> None:
    served = serve(_native.Tls(str(files.certificate), str(files.key)))
    context = files.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        wrapped(served, context)
    served.front.stop()


def test_the_default_ciphers_of_tls_1_2_have_neither_cbc_nor_sha_1(files: Files) -> None:
    served = serve(_native.Tls(str(files.certificate), str(files.key)))

    def cipher(wanted: str) -> str:
        context = files.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(wanted)
        with wrapped(served, context) as sock:
            used = sock.cipher()
            assert used is not None
            return used[0]

    assert "GCM" in cipher("ALL")
    for refused in ("ECDHE+AES+SHA1", "ECDHE+AES+SHA256:!AESGCM", "AES128-GCM-SHA256"):
        with pytest.raises((ssl.SSLError, OSError)):
            cipher(refused)
    served.front.stop()


def test_tls_1_2_can_be_refused_and_ciphers_chosen(files: Files) -> None:
    pair = str(files.certificate), str(files.key)
    newest = serve(_native.Tls(*pair, only_1_3=True))
    old = files.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, OSError)):
        wrapped(newest, old)
    with wrapped(newest, files.client_context()) as sock:
        assert sock.version() == "TLSv1.3"
    newest.front.stop()
    chosen = serve(_native.Tls(*pair, ciphers="ECDHE+CHACHA20"))
    with wrapped(chosen, old) as sock:
        assert "CHACHA20" in str(sock.cipher())
    chosen.front.stop()
    with pytest.raises(ConfigurationError, match='the ciphers are "none"; expected names that'):
        _native.Tls(*pair, ciphers="none")


def test_clients_need_a_certificate_if_authorities_are_set(files: Files, tmp_path: Path) -> None:
    clients = trustme.CA()
    trust = tmp_path / "clients.pem"
    clients.cert_pem.write_to_path(str(trust))
    served = serve(_native.Tls(str(files.certificate), str(files.key), client_ca=str(trust)))
    url = f"https://localhost:{served.port}/echo"
    known = files.client_context()
    clients.issue_cert("client@test").configure_cert(known)
    with httpx.Client(verify=known, timeout=60) as client:
        assert client.get(url).status_code == 200
    stranger = files.client_context()
    trustme.CA().issue_cert("client@test").configure_cert(stranger)
    for context in (stranger, files.client_context()):
        with (
            httpx.Client(verify=context, timeout=60) as client,
            pytest.raises(httpx.TransportError),
        ):
            client.get(url)
    eventually(lambda: served.count("tls_failures") == 2)
    assert served.count("requests_http1") == 1
    served.front.stop()


def test_new_connections_get_the_new_certificate(files: Files) -> None:
    tls = _native.Tls(str(files.certificate), str(files.key))
    served = serve(tls)

    def certificate_of(sock: ssl.SSLSocket) -> bytes:
        found = sock.getpeercert(binary_form=True)
        assert found is not None
        return found

    with wrapped(served, files.client_context()) as before:
        first = certificate_of(before)
        files.certificate.write_text("nothing")
        with pytest.raises(ConfigurationError, match="; expected a certificate in PEM"):
            tls.reload()
        with wrapped(served, files.client_context()) as kept:
            assert certificate_of(kept) == first
        files.renew()
        tls.reload()
        with wrapped(served, files.client_context()) as after:
            assert certificate_of(after) != first
        before.sendall(b"GET /echo HTTP/1.1\r\nHost: test\r\n\r\n")
        assert before.recv(100).startswith(b"HTTP/1.1 200")
    served.front.stop()


def test_unusable_files_are_refused(files: Files, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    other.write_bytes(trustme.CA().issue_cert("localhost").private_key_pem.bytes())
    for certificate, key, client_ca, what in (
        (tmp_path / "none.pem", files.key, None, "a certificate"),
        (files.certificate, tmp_path / "none.key", None, "the private key of the certificate"),
        (files.certificate, other, None, "the private key of the certificate"),
        (files.certificate, files.key, tmp_path / "none.pem", "the authorities of clients"),
    ):
        with pytest.raises(
            ConfigurationError, match=rf"the file /.* cannot be read \(.*; expected {what} in PEM"
        ):
            _native.Tls(str(certificate), str(key), None if client_ca is None else str(client_ca))
    with pytest.raises(ConfigurationError, match=r"cannot be read \(No such file or directory\)"):
        _native.Tls(str(tmp_path / "none.pem"), str(files.key), None)


def test_a_client_that_never_finishes_its_handshake_is_closed(files: Files) -> None:
    tls = _native.Tls(str(files.certificate), str(files.key))
    served = serve(tls, request_seconds=0.1)
    with RawClient(socket.create_connection(("127.0.0.1", served.port), timeout=30)) as client:
        client.send(b"\x16\x03\x01")
        assert client.read_to_end() == b""
    assert served.count("timeouts_request") == 1
    served.front.stop()


def test_bytes_that_are_not_tls_end_the_connection(files: Files) -> None:
    served = serve(_native.Tls(str(files.certificate), str(files.key)))
    with RawClient(socket.create_connection(("127.0.0.1", served.port), timeout=30)) as client:
        client.send(b"GET /echo HTTP/1.1\r\nHost: test\r\n\r\n")
        client.read_to_end()
    eventually(lambda: served.count("connections_open") == 0)
    assert served.count("tls_failures") == 1
    served.front.stop()
