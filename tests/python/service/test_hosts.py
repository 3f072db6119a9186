"""Requests to loopback addresses under the name of another site (DNS rebinding)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_wire as wire
import grpc
import httpx
import plain_http
import pytest
from pydantic import ValidationError
from tidegate.server._native import accepts_host
from tidegate.server.service import Service
from tidegate.server.settings import Admin, Checks, Settings

NAMES = ["limits.example.com"]


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1",
        "127.0.0.1:8080",
        "192.0.2.1:80",
        "[::1]:8080",
        "[::1]",
        "localhost",
        "LOCALHOST.:8081",
        "app.localhost:1",
        "tidegate",
        "tidegate:8080",
        "limits.example.com",
        "Limits.Example.Com.:8080",
    ],
)
def test_a_host_of_this_machine_is_accepted(host: str) -> None:
    assert accepts_host(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "1.2.3.4.nip.io:8080",
        "localhost.evil.example",
        "evil.example.",
        "evillocalhost.example",
        "a.limits.example.com",
        "limits.example.com.evil.example",
        "evil.1x",
        "127.0.0.1@evil.example",
        "evil.example..",
    ],
)
def test_a_foreign_host_is_refused(host: str) -> None:
    assert not accepts_host(host, NAMES)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rules") / "rules.yaml"


@pytest.fixture(scope="module")
def ports(rules: Path) -> Iterator[dict[str, int]]:
    rules.write_text("rules: [{id: api, by: user, limit: 1000/minute}]\n")
    service = Service(settings(rules))
    service.start()
    try:
        assert service.address is not None
        assert service.admin_address is not None
        yield {"checks": service.address[1], "admin": service.admin_address[1]}
    finally:
        service.stop()


def settings(rules: Path) -> Settings:
    part: dict[str, Any] = {"listen": "127.0.0.1:0", "hosts": ["Limits.example.com"]}
    checks = {**part, "unix": rules.with_name("checks.sock")}
    return Settings.model_validate(
        {"rules": rules, "database": None, "checks": checks, "admin": part}
    )


@pytest.mark.parametrize(
    ("place", "path"), [("checks", "/v1/ratelimit/status/42"), ("admin", "/livez")]
)
def test_each_port_refuses_foreign_hosts(ports: dict[str, int], place: str, path: str) -> None:
    def ask(host: str) -> httpx.Response:
        url = f"http://127.0.0.1:{ports[place]}{path}"
        return plain_http.get(url, headers={"Host": host})

    refused = ask(f"evil.example:{ports[place]}")
    assert (refused.status_code, refused.json()["title"]) == (421, "Misdirected Request")
    expected = f"expected an address, localhost or one of {place}.hosts"
    assert refused.json()["detail"].endswith(expected)
    assert refused.headers["content-type"] == "application/problem+json"
    for host in (f"127.0.0.1:{ports[place]}", "localhost", "limits.example.com"):
        assert ask(host).status_code == 200, host


@pytest.mark.parametrize("is_http2", [False, True])
def test_any_host_is_answered_at_a_unix_socket(
    rules: Path, ports: dict[str, int], is_http2: bool
) -> None:
    """A proxy passes public names on, and no browser reaches the socket."""
    path = "/v1/ratelimit/status/42"
    at_socket = httpx.HTTPTransport(
        uds=str(rules.with_name("checks.sock")), http1=not is_http2, http2=is_http2
    )
    at_port = httpx.HTTPTransport(http1=not is_http2, http2=is_http2)
    with httpx.Client(transport=at_socket, timeout=60) as client:
        assert client.get(f"http://evil.example{path}").status_code == 200
    with httpx.Client(transport=at_port, timeout=60) as client:
        url = f"http://127.0.0.1:{ports['checks']}{path}"
        assert client.get(url, headers={"Host": "evil.example"}).status_code == 421


def test_grpc_is_answered_at_a_unix_socket_under_any_name(
    rules: Path, ports: dict[str, int]
) -> None:
    options = [("grpc.default_authority", "limits.example.org")]
    with grpc.insecure_channel(f"unix:{rules.with_name('checks.sock')}", options) as channel:
        call = channel.unary_unary("/tidegate.v1.RateLimiter/Check", bytes, bytes)
        answer = call(wire.request({"user": "unix", "endpoint": "/a"}), timeout=60)
    assert wire.CheckResponse(answer).limit == 1000


@pytest.mark.parametrize("part", [Checks, Admin])
@pytest.mark.parametrize("name", ["https://a.example", "a.example:80", "*.example", "", "[::1]"])
def test_a_name_in_the_settings_is_one_host(part: Any, name: str) -> None:
    with pytest.raises(ValidationError, match="expected a name such as"):
        part.model_validate({"hosts": [name]})
