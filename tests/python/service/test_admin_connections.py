"""The admin port with clients that are slow, numerous, or stop in the middle of a request."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import plain_http
import pytest
import trustme
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from fronts import RawClient
from polling import eventually
from prometheus_client import CollectorRegistry
from tidegate.server.admin_connections import Bounds
from tidegate.server.admin_server import AdminServer, probes
from tidegate.server.settings import Address, Tls

PATIENT = Bounds(connections=100, head=60, request=60, answer=60)
HEAD = b"GET /livez HTTP/1.1\r\nHost: admin\r\n"


@contextlib.contextmanager
def served(bounds: Bounds, app: FastAPI | None = None, tls: Tls | None = None) -> Iterator[int]:
    """The port of a server."""
    server = AdminServer(app or probes(lambda: True, lambda: None, None), tls, bounds)
    try:
        yield server.start(Address(host="127.0.0.1", port=0))[1]
    finally:
        server.stop()


def connect(port: int) -> RawClient:
    return RawClient(socket.create_connection(("127.0.0.1", port), timeout=60))


def is_alive(port: int) -> bool:
    return plain_http.get(f"http://127.0.0.1:{port}/livez").status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTT", HEAD, HEAD + b"X: y\r\n"])
def test_a_head_that_does_not_end_is_cut_off(sent: bytes) -> None:
    with served(PATIENT._replace(head=0.3)) as port, connect(port) as client:
        client.send(sent)
        assert client.read_to_end().startswith(b"HTTP/1.1 408 Request Timeout\r\n")


def test_a_head_that_comes_byte_by_byte_is_cut_off() -> None:
    with served(PATIENT._replace(head=0.5)) as port, connect(port) as client:
        client.sock.settimeout(0.02)
        client.send(HEAD)

        def is_cut() -> bool:
            try:
                client.send(b"x")
                return client.sock.recv(100) in (b"", b"HTTP/1.1 408 Request Timeout\r\n")
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        assert eventually(lambda: is_cut() or not client, 60)


def test_the_next_head_on_a_connection_is_cut_off_too() -> None:
    with served(PATIENT._replace(head=0.3)) as port, connect(port) as client:
        client.send(HEAD + b"\r\n" + HEAD)
        assert client.read_response()[0] == 200
        assert client.read_to_end().startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", ["/livez", "/reads"])
def test_a_body_that_does_not_end_is_cut_off(path: str) -> None:
    app = probes(lambda: True, lambda: None, None)

    @app.post("/reads")
    async def read(request: Request) -> str:
        return str(len(await request.body()))

    with served(PATIENT._replace(request=0.3), app) as port, connect(port) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: admin\r\nContent-Length: 10\r\n\r\n"
        client.send(head.encode() + b"abc")
        assert b"200 OK" not in client.read_to_end()
        assert is_alive(port)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_a_body_may_be_sent_before_its_early_answer_is_read(
    version: bytes, is_chunked: bool
) -> None:
    part = b"x" * 2**20
    said, shown = b"Content-Length: %d" % (20 * len(part)), part
    end = b""
    if is_chunked:
        said, shown = b"Transfer-Encoding: chunked", b"%x\r\n%s\r\n" % (len(part), part)
        end = b"0\r\n\r\n"
    with served(PATIENT) as port, connect(port) as client:
        client.send(b"POST /livez %s\r\nHost: admin\r\nConnection: close\r\n" % version)
        client.send(said + b"\r\n\r\n")
        for _ in range(20):
            client.send(shown)
            time.sleep(0.01)
        client.send(end)
        assert b" 405 " in client.read_to_end().partition(b"\r\n")[0]


_POST = "POST {} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\nContent-Length: 9\r\n\r\nabc"


def test_the_rest_of_a_body_after_its_answer_is_not_waited_for_long() -> None:
    with served(PATIENT._replace(request=0.3)) as port, connect(port) as client:
        client.send(_POST.format("/livez").encode())
        assert b" 405 " in client.read_to_end().partition(b"\r\n")[0]


def test_a_server_that_stops_does_not_wait_for_the_rest_of_a_body() -> None:
    app = probes(lambda: True, lambda: None, None)
    goes_on, entered = threading.Event(), threading.Event()

    @app.post("/slow")
    def slow() -> None:
        entered.set()
        assert goes_on.wait(60)

    with contextlib.ExitStack() as opened:
        with served(PATIENT, app) as port:
            answered, answering = (opened.enter_context(connect(port)) for _ in range(2))
            answered.send(_POST.format("/livez").encode())
            assert answered.read_response()[0] == 405
            answering.send(_POST.format("/slow").encode())
            assert entered.wait(60)
            begun = time.monotonic()
            threading.Timer(0.3, goes_on.set).start()
        assert time.monotonic() - begun < 2
        assert answering.read_response()[0] == 200


def test_a_connection_with_whole_requests_stays_open() -> None:
    bounds = PATIENT._replace(head=2, request=2)
    with served(bounds) as port, plain_http.client() as client:
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            assert client.get(f"http://127.0.0.1:{port}/livez").status_code == 200


def test_silent_clients_do_not_keep_others_from_connecting() -> None:
    with served(PATIENT._replace(connections=5)) as port, contextlib.ExitStack() as opened:
        silent = [opened.enter_context(connect(port)) for _ in range(20)]
        assert is_alive(port)
        for client in silent[:15]:
            assert client.read_to_end() == b""


def test_a_connection_that_is_being_answered_is_not_closed_for_another() -> None:
    app = probes(lambda: True, lambda: None, None)
    goes_on = threading.Event()
    entered = threading.Semaphore(0)

    @app.get("/slow")
    def slow() -> str:
        entered.release()
        assert goes_on.wait(60)
        return "done"

    with served(PATIENT._replace(connections=2), app) as port, contextlib.ExitStack() as opened:
        slow_ones = [opened.enter_context(connect(port)) for _ in range(2)]
        for client in slow_ones:
            client.send(b"GET /slow HTTP/1.1\r\nHost: admin\r\n\r\n")
            assert entered.acquire(timeout=60)
        with connect(port) as third:
            assert third.read_to_end() == b""
        goes_on.set()
        assert [client.read_response()[2] for client in slow_ones] == [b'"done"', b'"done"']
        assert eventually(lambda: is_alive(port), despite=httpx.TransportError)


def test_a_client_that_does_not_read_its_answer_is_cut_off() -> None:
    app = probes(lambda: True, lambda: None, None)
    size = 50_000_000

    @app.get("/big")
    def big() -> Response:
        return Response(b"x" * size)

    with served(PATIENT._replace(answer=0.3), app) as port, connect(port) as client:
        client.send(b"GET /big HTTP/1.1\r\nHost: admin\r\n\r\n")
        with connect(port) as other:  # the server no longer reads the connection before it
            other.send(HEAD + b"\r\n")
            assert other.read_response()[0] == 200
            assert other.read_to_end() == b""
        assert len(client.read_to_end()) < size


def test_clients_that_do_not_read_answers_do_not_keep_others_from_connecting() -> None:
    app = probes(lambda: True, lambda: None, None)

    @app.get("/big")
    def big() -> Response:
        return StreamingResponse(b"x" * 1_000_000 for _ in range(100))

    with served(PATIENT._replace(connections=3), app) as port, contextlib.ExitStack() as opened:
        for _ in range(3):
            client = opened.enter_context(connect(port))
            client.send(b"GET /big HTTP/1.1\r\nHost: admin\r\n\r\n")
            assert client.sock.recv(1) == b"H"
        assert eventually(lambda: is_alive(port), despite=httpx.TransportError)


def test_requests_sent_ahead_do_not_keep_others_from_connecting() -> None:
    app = probes(lambda: True, lambda: None, None)
    goes_on = threading.Event()

    @app.get("/slow")
    def slow() -> None:
        goes_on.wait(60)

    with served(PATIENT._replace(connections=1), app) as port, connect(port) as client:
        ahead = b"GET /slow HTTP/1.1\r\nHost: admin\r\n\r\n" * 3
        client.send(HEAD + b"\r\n" + ahead)
        try:
            assert client.read_response()[0] == 200
            assert eventually(lambda: is_alive(port), despite=httpx.TransportError)
        finally:
            goes_on.set()


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = Tls(certificate=tmp_path / "admin.pem", key=tmp_path / "admin.key")
    issued.private_key_pem.write_to_path(str(files.key))
    files.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    return files


def test_a_handshake_that_does_not_end_is_cut_off(tls: Tls) -> None:
    with served(PATIENT._replace(connections=3, head=0.3), tls=tls) as port:
        with connect(port) as client:
            assert client.read_to_end() == b""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

        def answers() -> bool:
            url = f"https://127.0.0.1:{port}/livez"
            return httpx.get(url, verify=context, timeout=60).status_code == 200

        with contextlib.ExitStack() as opened:
            for _ in range(3):
                opened.enter_context(connect(port))
            assert eventually(answers, 60, despite=httpx.TransportError)


def test_probes_answer_while_the_threads_of_all_other_requests_wait() -> None:
    """A supervisor must not end the process because a database hangs."""
    over = threading.Event()
    registry = CollectorRegistry()
    app = probes(lambda: True, lambda: None, registry)

    @app.get("/waits")
    def waits() -> None:
        over.wait(60)

    with served(PATIENT, app) as port, contextlib.ExitStack() as clients:
        for _ in range(60):  # more than there are threads
            clients.enter_context(connect(port)).send(b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n")
        try:
            for path in ("/livez", "/readyz", "/metrics"):
                assert (
                    plain_http.get(f"http://127.0.0.1:{port}{path}", timeout=20).status_code == 200
                )
        finally:
            over.set()


def test_head_is_answered_like_get_without_the_body() -> None:
    with served(PATIENT) as port, connect(port) as client:
        client.send(b"HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        client.send(b"HEAD /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        first, second = client.read_to_end().split(b"\r\n\r\n")[:2]
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-length: 18" in first
    assert second.startswith(b"HTTP/1.1 404 Not Found\r\n"), "no body lies between the answers"
