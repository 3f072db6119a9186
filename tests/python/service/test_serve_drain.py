"""A `tidegate serve` over TLS that ends while many requests are in flight."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import check_wire as wire
import grpc
import grpc.aio
import httpx
import pytest
import trustme
from polling import eventually_async
from serving import Served

USERS = ("grpc", "rest")
LIMIT = 100_000_000
RULES = f"rules: [{{id: api, by: user, algorithm: fixed-window, limit: {LIMIT}/365 days}}]\n"
SETTINGS = """
rules: rules.yaml
database: null
checks: {listen: "127.0.0.1:0", tls: {certificate: server.pem, key: server.key}}
admin: {listen: null}
drain: 3600
log: {format: json, refusals: false}
"""


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    made = trustme.CA()
    certificate = made.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    chain = b"".join(each.bytes() for each in certificate.cert_chain_pems)
    (tmp_path / "server.pem").write_bytes(chain)
    made.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    return tmp_path / "authority.pem"


@pytest.fixture
def storage() -> Iterator[str]:
    name = f"drain-{os.getpid()}"
    yield f"shm://{name}"
    for file in Path("/dev/shm").glob(f"*{name}*"):
        file.unlink()


@contextlib.contextmanager
def serving(directory: Path, storage: str) -> Iterator[Served]:
    served = Served(directory, SETTINGS, TIDEGATE_STORAGE=storage)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.wait(60)


class Callers:
    """Tasks that ask until the service has ended, and count the answers of each user."""

    def __init__(self, place: str, authority: Path) -> None:
        self.answered: Counter[str] = Counter()
        self.wrong: list[object] = []
        self._place = place
        self._authority = authority

    async def run(self, streams: int, connections: int) -> None:
        trust = grpc.ssl_channel_credentials(self._authority.read_bytes())
        context = ssl.create_default_context(cafile=str(self._authority))
        async with (
            grpc.aio.secure_channel(self._place, trust) as channel,
            httpx.AsyncClient(
                base_url=f"https://{self._place}", verify=context, timeout=60
            ) as http,
        ):
            call = channel.unary_unary("/tidegate.v1.RateLimiter/Check")
            await asyncio.gather(
                *(self._grpc(call) for _ in range(streams)),
                *(self._rest(http) for _ in range(connections)),
            )

    async def _grpc(self, call: grpc.aio.UnaryUnaryMultiCallable) -> None:
        asked = wire.request({"user": "grpc", "endpoint": "/a"})
        while True:
            try:
                answer = wire.CheckResponse(await call(asked, timeout=60))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    self.wrong.append(error)
                return
            if not answer.allowed:
                self.wrong.append(answer)
            self.answered["grpc"] += 1

    async def _rest(self, http: httpx.AsyncClient) -> None:
        while True:
            try:
                asked = {"userId": "rest", "endpoint": "/a"}
                answer = await http.post("/v1/ratelimit/check", json=asked)
            except httpx.ConnectError:
                return  # the port is closed
            except httpx.RemoteProtocolError:
                continue  # the connection was closed before it read the request
            if answer.status_code != 200 or not answer.json()["allowed"]:
                self.wrong.append(answer)
            self.answered["rest"] += 1


def test_each_request_that_counts_is_answered_while_a_service_over_tls_ends(
    tmp_path: Path, authority: Path, storage: str
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    with serving(tmp_path, storage) as served:
        callers = Callers(urlsplit(served.checks).netloc, authority)

        async def end_under_load() -> None:
            load = asyncio.create_task(callers.run(streams=100, connections=10))
            await eventually_async(lambda: all(callers.answered[each] > 300 for each in USERS), 60)
            served.process.send_signal(signal.SIGTERM)
            await load

        asyncio.run(end_under_load())
        assert served.process.wait(60) == 0
    assert callers.wrong == []
    with serving(tmp_path, storage) as again:
        context = ssl.create_default_context(cafile=str(authority))
        for user in USERS:
            url = f"https://{urlsplit(again.checks).netloc}/v1/ratelimit/status/{user}"
            (rule,) = httpx.get(url, verify=context, timeout=60).json()["rules"]
            assert LIMIT - rule["remaining"] == callers.answered[user]
