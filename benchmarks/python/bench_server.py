"""Requests a second of the service's front beside `nghttpd`, by `h2load`.

Each answers a POST of 64 bytes with 64 bytes: the front by a service that echoes, in a process of
its own with one loop, and nghttpd with one thread from a file. h2load sends requests over 4
connections of 32 streams each from one thread. Also measures the memory of an idle connection.

Needs nghttpd and h2load, of the packages nghttp2-server and nghttp2-client of Debian.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import harness
from harness import Target

BODY_BYTES = 64
CONNECTIONS = 4
STREAMS = 32
IDLE_CONNECTIONS = 10_000

# The measurements: a name, and the path and headers of h2load's requests.
ECHO = "echo, HTTP/2"
GRPC = "echo, gRPC"
HTTP1 = "echo, HTTP/1.1"
NGHTTPD = "nghttpd"

_SERVER = """
import resource, sys
most = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
from service_testing import EchoService
from tidegate.server import _native
front = _native.Front({"connections": 60_000})
front.route(EchoService())
print(front.listen("127.0.0.1", 0), flush=True)
front.start()
sys.stdin.read()
front.stop()
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def nghttpd(folder: str) -> Iterator[tuple[int, int]]:
    """The port and the process of an nghttpd that serves the files of `folder`."""
    port = free_port()
    command = [nghttpd_path(), "-n1", "--no-tls", "-a", "127.0.0.1", "-d", folder, str(port)]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(10)


def nghttpd_path() -> str:
    return shutil.which("nghttpd") or "/usr/sbin/nghttpd"


def equalize(*processes: int) -> None:
    """Gives all threads one priority: some systems raise only that of main threads."""
    threads = [
        int(thread.name)
        for process in processes
        for thread in Path(f"/proc/{process}/task").iterdir()
    ]
    best = min(os.getpriority(os.PRIO_PROCESS, thread) for thread in threads)
    for thread in threads:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, thread, best)


def requests_a_second(url: str, body: Path, requests: int, *options: str) -> float:
    """The counts of h2load; exits if an answer is not a success."""
    done = subprocess.run(
        [
            *("h2load", "-c", str(CONNECTIONS), "-m", str(STREAMS), "-t", "1"),
            *("-n", str(requests), "-d", str(body), *options, url),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    if f"{requests} succeeded, 0 failed" not in done.stdout:
        sys.exit(f"h2load: expected {requests} successes of {url}, got\n{done.stdout}")
    found = re.search(r"finished in .*?, ([\d.]+) req/s", done.stdout)
    assert found is not None, done.stdout
    return float(found.group(1))


def resident_kib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return float(found.group(1))


def idle_connection_kib(connections: int, first_bytes: bytes) -> float:
    """KiB of the front's own memory for an idle connection after `first_bytes`."""
    with (
        harness.server_process([sys.executable, "-c", _SERVER]) as (port, process),
        contextlib.ExitStack() as stack,
    ):
        for warm in (True, False):
            before = resident_kib(process)
            count = 50 if warm else connections
            for _ in range(count):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                sock.sendall(first_bytes)
                sock.recv(4096)
        return (resident_kib(process) - before) / connections


def main() -> None:
    parser = harness.arguments(__doc__.splitlines()[0], rounds=7, quick_rounds=3)
    options = parser.parse_args()
    if shutil.which("h2load") is None or not Path(nghttpd_path()).exists():
        print("skipped: h2load and nghttpd were not found (nghttp2-client and nghttp2-server)")
        return
    harness.load_tidegate()
    harness.print_interpreter()
    requests = 50_000 if options.quick else 300_000
    rates: dict[str, list[float]] = {ECHO: [], GRPC: [], HTTP1: [], NGHTTPD: []}
    with tempfile.TemporaryDirectory(prefix="tg") as folder:
        body = Path(folder, "body")
        body.write_bytes(b"x" * BODY_BYTES)
        message = Path(folder, "message")
        message.write_bytes(b"\0" + BODY_BYTES.to_bytes(4, "big") + b"x" * BODY_BYTES)
        with (
            harness.server_process([sys.executable, "-c", _SERVER]) as (port, process),
            nghttpd(folder) as (peer_port, peer),
        ):
            ours = f"http://127.0.0.1:{port}"
            grpc = ("-H", "content-type: application/grpc", "-H", "te: trailers")
            subjects = {
                ECHO: (ours + "/echo", body, ()),
                GRPC: (ours + "/tidegate.test.Echo/Echo", message, grpc),
                HTTP1: (ours + "/echo", body, ("--h1",)),
                NGHTTPD: (f"http://127.0.0.1:{peer_port}/body", body, ()),
            }
            for _ in range(harness.rounds_of(options)):
                equalize(process, peer)
                for name, (url, data, more) in subjects.items():
                    rates[name].append(requests_a_second(url, data, requests, *more))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    harness.print_table(
        "Requests a second",
        ["", "median", "best", f"x {NGHTTPD}"],
        [
            [
                name,
                f"{medians[name]:,.0f}",
                f"{max(values):,.0f}",
                f"{medians[name] / medians[NGHTTPD]:.2f}x",
            ]
            for name, values in rates.items()
        ],
    )
    idle = 1_000 if options.quick else IDLE_CONNECTIONS
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    memory = {
        "HTTP/1.1": idle_connection_kib(idle, b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"),
        "HTTP/2": idle_connection_kib(idle, http2),
    }
    harness.print_table(
        f"KiB of the process for each of {idle:,} idle connections",
        ["", "KiB"],
        [[name, f"{kib:.1f}"] for name, kib in memory.items()],
    )
    targets = [
        Target(f"{ECHO} over nghttpd", medians[ECHO] / medians[NGHTTPD], 0.5),
        Target(f"{GRPC} over nghttpd", medians[GRPC] / medians[NGHTTPD], 0.5),
        Target(
            "an idle connection of HTTP/1.1", memory["HTTP/1.1"], 4, at_least=False, unit=" KiB"
        ),
    ]
    harness.report(options.json, "server", {"rates": rates, "idle_kib": memory}, targets)


if __name__ == "__main__":
    main()
