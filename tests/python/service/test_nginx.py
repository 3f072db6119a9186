"""A real nginx with examples/nginx, which asks a real `tidegate serve` about each request."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from envoy_tools import Upstream
from polling import eventually
from ports import free_port
from servers import Answer, Client

if sys.platform != "linux":
    pytest.skip("the service is for Linux", allow_module_level=True)

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "nginx"
FAIL_OPEN = "error_page 500 = @unanswered;"
# The paths that nginx writes, and the user: its workers could not read the folder otherwise.
OF_TEST = """
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
"""


class Tidegate:
    """`tidegate serve` with the settings of the example, on its own port."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        variables = {
            "TIDEGATE_CHECKS__LISTEN": f"127.0.0.1:{self.port}",
            "TIDEGATE_ADMIN__LISTEN": "127.0.0.1:0",
        }
        log = self._directory / "tidegate.log"
        with log.open("w") as out:
            self._process = processes.start(
                [
                    *(sys.executable, "-m", "tidegate", "serve"),
                    *("--config", str(EXAMPLE / "tidegate.yaml")),
                ],
                cwd=EXAMPLE,
                stderr=out,
                env={**os.environ, **variables},
            )

        def is_answering() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, log.read_text()
            return "checks are answered at" in log.read_text()

        eventually(is_answering, 60)

    def stop(self) -> None:
        if self._process is not None:
            processes.stop(self._process)


class Nginx:
    """nginx in front of `service`, with the configuration of the example."""

    def __init__(self, directory: Path, service: int, tidegate: int, *, fails_open: bool) -> None:
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "there is no nginx; expected the program of the package nginx"
        self.port = free_port()
        text = (EXAMPLE / "nginx.conf").read_text()
        changes = {
            "listen 8888": f"listen 127.0.0.1:{self.port}",
            "127.0.0.1:8000": f"127.0.0.1:{service}",
            "127.0.0.1:8080": f"127.0.0.1:{tidegate}",
            "worker_processes auto": "worker_processes 1",
            "http {": "http {" + OF_TEST,
        }
        if fails_open:
            changes[f"# {FAIL_OPEN}"] = FAIL_OPEN
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        config, self._log = directory / "nginx.conf", directory / "nginx.log"
        config.write_text(("user root;\n" if os.geteuid() == 0 else "") + text)
        directives = f"daemon off; pid {directory / 'nginx.pid'};"
        self.process = processes.start(
            [
                *(program, "-p", str(directory), "-c", str(config), "-e", str(self._log)),
                *("-g", directives),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        processes.await_start(self._is_answering, 30, self.stop)

    def _is_answering(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.connect()
        return True

    def stop(self) -> None:
        processes.stop(self.process)


class Edge:
    """nginx, the service behind it, and tidegate."""

    def __init__(self, directory: Path, *, fails_open: bool = False) -> None:
        with contextlib.ExitStack() as closing:
            self.upstream = Upstream()
            closing.callback(self.upstream.close)
            self.tidegate = Tidegate(directory)
            closing.callback(self.tidegate.stop)
            self.nginx = Nginx(
                directory, self.upstream.port, self.tidegate.port, fails_open=fails_open
            )
            closing.callback(self.nginx.stop)
            self._closing = closing.pop_all()

    def close(self) -> None:
        self._closing.close()


class Visitor:
    """A client with its own address, for which nothing has been charged."""

    _numbers = itertools.count(2)

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self._seen = edge.upstream.requests
        source = f"127.0.0.{next(self._numbers)}"
        self._ask = Client(("127.0.0.1", edge.nginx.port), timeout=60, source=source)

    def __call__(self, path: str = "/api/posts", method: str = "GET", **options: Any) -> Answer:
        return self._ask(path, method, **options)

    @property
    def served(self) -> int:
        """Returns how many requests have reached the service."""
        return self.edge.upstream.requests - self._seen

    def close(self) -> None:
        self._ask.close()


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with contextlib.closing(Edge(tmp_path_factory.mktemp("edge"))) as edge:
        yield edge


@pytest.fixture
def visitor(edge: Edge) -> Iterator[Visitor]:
    with contextlib.closing(Visitor(edge)) as visitor:
        yield visitor


def test_an_allowed_request_passes_with_the_fields_of_its_limit(visitor: Visitor) -> None:
    answer = visitor("/api/posts?page=2")
    assert (answer.status, answer.body) == (200, b"ok")
    assert answer["ratelimit"].startswith('"address";r=4;t=')
    assert answer["ratelimit-policy"] == '"address";q=5;w=3600'
    assert "retry-after" not in answer
    assert visitor.served == 1


def test_a_refused_request_gets_429_with_its_fields_and_does_not_reach_the_service(
    visitor: Visitor,
) -> None:
    assert [visitor().status for _ in range(5)] == [200] * 5
    refused = visitor()
    assert refused.status == 429
    assert 1 <= int(refused["retry-after"]) <= 720
    assert refused["ratelimit"].startswith('"address";r=0;t=')
    assert refused["ratelimit-policy"] == '"address";q=5;w=3600'
    assert visitor.served == 5


def test_requests_without_a_rule_pass_without_fields(visitor: Visitor) -> None:
    answers = [visitor("/health") for _ in range(10)]
    assert [answer.status for answer in answers] == [200] * 10
    assert not any("ratelimit" in answer for answer in answers)
    assert visitor.served == 10


def test_the_method_selects_the_rule(visitor: Visitor) -> None:
    # Only the service gets the body. It answers POST with 501; nginx answers 502 if the service
    # closes the connection before nginx has sent the whole body.
    statuses = [visitor(method="POST", body=b"x" * 100_000).status for _ in range(3)]
    assert [status == 429 for status in statuses] == [False, False, True]
    assert visitor().status == 200


def test_all_spellings_of_a_path_share_its_limit(visitor: Visitor) -> None:
    spellings = ["/x/../%61pi/posts", "/%61pi//posts", "//api/./posts", "/api%2Fposts", "/api/a"]
    assert [visitor(path).status for path in spellings] == [200] * 5
    assert [visitor(path).status for path in spellings] == [429] * 5


def test_a_client_cannot_forge_the_headers_of_nginx(visitor: Visitor) -> None:
    forged = {"X-Real-IP": "203.0.113.9", "X-Original-URI": "/health", "X-Original-Method": "GET"}
    assert [visitor(headers=forged).status for _ in range(6)] == [200] * 5 + [429]
    assert visitor("/ratelimit").status == 404, "the location is internal"


def test_nginx_refuses_while_the_service_is_down_and_asks_it_again_afterwards(
    visitor: Visitor,
) -> None:
    assert visitor().status == 200
    visitor.edge.tidegate.stop()
    assert visitor().status == 500
    assert visitor.served == 1
    visitor.edge.tidegate.start()
    eventually(lambda: visitor().status == 200, 60, interval=0.2)


def test_nginx_may_let_requests_pass_while_the_service_is_down(tmp_path: Path) -> None:
    with (
        contextlib.closing(Edge(tmp_path, fails_open=True)) as edge,
        contextlib.closing(Visitor(edge)) as visitor,
    ):
        assert [visitor().status for _ in range(6)] == [200] * 5 + [429]
        edge.tidegate.stop()
        answer = visitor()
        assert (answer.status, answer.body) == (200, b"ok")
        assert "ratelimit" not in answer
        assert visitor.served == 6
