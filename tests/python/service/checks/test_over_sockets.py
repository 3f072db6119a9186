"""The service behind a front, called over real sockets."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_wire as wire
import httpx
import plain_http
import pytest
from check_service import JSON, Service
from fronts import Http2Client, RawClient
from polling import run_threads
from tidegate.server import _native

ROOT = Path(__file__).resolve().parents[4]
BEARER = {"authorization": "Bearer secret"}


@pytest.fixture
def service() -> Service:
    made = Service(recorder=_native.Recorder(), require_token=True)
    made.native.set_tokens([(hashlib.sha256(b"secret").digest(), "operator")])
    return made


@pytest.fixture
def port(service: Service) -> Iterator[int]:
    front = _native.Front({"loops": 2})
    front.route(service.native)
    port = front.listen("127.0.0.1", 0)
    front.start()
    try:
        yield port
    finally:
        front.stop()


@pytest.fixture
def client(port: int) -> Iterator[httpx.Client]:
    with plain_http.client(
        base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=10
    ) as client:
        yield client


def test_a_check_over_http(client: httpx.Client) -> None:
    answer = client.post("/v1/ratelimit/check", json={"userId": "42", "endpoint": "/api/x"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-ratelimit-remaining"] == "1"
    assert answer.json()["remaining"] == 1
    status = client.get("/v1/ratelimit/status/42").json()
    assert [row["remaining"] for row in status["rules"]] == [1]


def test_a_connection_survives_bad_requests(client: httpx.Client) -> None:
    for body, status in ((b"{", 400), (b"[]", 400), (b"\xff" * 1000, 400)):
        answer = client.post("/v1/ratelimit/check", content=body, headers=dict(JSON))
        assert answer.status_code == status
        assert answer.json()["status"] == status
    assert client.get("/v1/ratelimit/check").status_code == 405
    assert client.get("/v1/ratelimit/status/%zz").status_code == 400
    assert client.get("/v1/ratelimit/status/42").status_code == 200


def test_trailers_are_not_headers(port: int) -> None:
    trailer = (("authorization", BEARER["authorization"]),)
    with Http2Client(socket.create_connection(("127.0.0.1", port), timeout=30)) as client:
        stream = client.request("/v1/ratelimit/check", b"{}", headers=tuple(JSON), end=False)
        client.h2.send_headers(stream, trailer, end_stream=True)
        client.flush()
        assert client.answer(stream)[0][":status"] == "401"
        stream = client.request("/v1/ratelimit/check", b"{}", headers=(*JSON, *trailer), end=False)
        client.h2.send_headers(stream, (("content-type", "text/plain"),), end_stream=True)
        client.flush()
        assert client.answer(stream)[0][":status"] == "200"
    with RawClient(socket.create_connection(("127.0.0.1", port), timeout=30)) as client:
        head = b"POST /v1/ratelimit/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        client.send(head + b"\r\n2\r\n{}\r\n0\r\nauthorization: Bearer secret\r\n\r\n")
        assert client.read_response()[0] == 401


@pytest.mark.parametrize("version", [1, 2])
def test_head_is_answered_like_get_without_a_body(port: int, version: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/ratelimit"
    with plain_http.client(headers=BEARER, http1=version == 1, http2=version == 2) as client:
        asked = client.get(f"{url}/status/42")
        head = client.head(f"{url}/status/42")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == "application/json"
        assert head.headers["content-length"] == str(len(asked.content))
        question = {"x-original-uri": "/api/x"}
        assert client.head(f"{url}/auth", headers=question).status_code == 204
        assert client.get(f"{url}/status/42").status_code == 200, "the connection goes on"


@pytest.mark.parametrize("version", [1, 2])
def test_an_unknown_path_or_method_is_answered_with_what_is_expected(
    port: int, version: int
) -> None:
    url = f"http://127.0.0.1:{port}"
    with plain_http.client(http1=version == 1, http2=version == 2) as client:
        nowhere = client.get(f'{url}/no"where')
        other = client.put(f"{url}/v1/ratelimit/auth")
    for answer in (nowhere, other):
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == answer.status_code
        assert answer.json()["type"] == "about:blank"
    assert (nowhere.status_code, nowhere.json()["title"]) == (404, "Not Found")
    assert nowhere.json()["detail"] == "the path is '/no%22where'; expected one of this service"
    assert (other.status_code, other.headers["allow"]) == (405, "GET, HEAD, POST")
    assert other.json()["detail"] == "the method is 'PUT'; expected GET, HEAD, POST for this path"


def test_a_request_without_a_token_is_refused(client: httpx.Client) -> None:
    answer = client.get("/v1/ratelimit/status/42", headers={"authorization": "Bearer other"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="tidegate", error="invalid_token"'


def test_a_gateway_is_answered_without_a_body(client: httpx.Client) -> None:
    headers = {"x-original-uri": "/api/x", "x-real-ip": "192.0.2.1"}
    answer = client.get("/v1/ratelimit/auth", headers=headers)
    assert (answer.status_code, answer.content) == (204, b"")


def test_threads_together_are_admitted_up_to_the_limit(service: Service, port: int) -> None:
    service.use({"rules": [{"id": "all", "by": "global", "limit": "100/hour"}]})
    allowed = []

    def ask() -> None:
        with plain_http.client(
            base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=30
        ) as own:
            for _ in range(50):
                answer = own.post("/v1/ratelimit/check", json={"userId": "1"})
                allowed.append(answer.json()["allowed"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    run_threads(threads)
    assert (len(allowed), allowed.count(True)) == (200, 100)


def method_of(channel: Any, name: str) -> Any:
    return channel.unary_unary(f"/tidegate.v1.RateLimiter/{name}", bytes, bytes)


def test_a_client_of_grpc_checks_and_refunds(port: int) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    metadata = [("authorization", "Bearer secret")]
    ask = wire.request({"user": "42", "endpoint": "/api/x"}, cost=2)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = method_of(channel, "Check")
        first = wire.CheckResponse(check(ask, metadata=metadata, timeout=10))
        second = wire.CheckResponse(check(ask, metadata=metadata, timeout=10))
        assert (first.allowed, second.allowed) == (True, False)
        refund = wire.request({"user": "42", "endpoint": "/api/x"}, decision=first.decision)
        assert method_of(channel, "Refund")(refund, metadata=metadata, timeout=10) == b""
        peek = method_of(channel, "Peek")(ask, metadata=metadata, timeout=10)
        assert wire.CheckResponse(peek).allowed
        with pytest.raises(grpc.RpcError) as caught:
            check(ask, timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x05ab", metadata=metadata, timeout=10)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "expected" in caught.value.details()


def test_reflection_returns_the_published_proto() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    script = ROOT / "scripts" / "embed-protos.py"
    spec = importlib.util.spec_from_file_location("embed_protos", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.source() == module.TARGET.read_text(encoding="utf-8"), (
        "run scripts/embed-protos.py"
    )


def test_a_body_may_arrive_in_pieces(client: httpx.Client) -> None:
    raw = json.dumps({"userId": "42", "endpoint": "/api/x"}).encode()
    pieces = (raw[i : i + 7] for i in range(0, len(raw), 7))
    answer = client.post("/v1/ratelimit/check", content=pieces, headers=dict(JSON))
    assert answer.json()["allowed"]
