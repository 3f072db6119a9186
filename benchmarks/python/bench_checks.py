"""The service of checks beside the servers that it replaces.

    python benchmarks/python/bench_checks.py [--quick] [--json FILE]

REST: the same check answered by the native service, and by a route of FastAPI that calls
limiter.check() under uvicorn (uvloop, httptools), one worker each, under `wrk`. gRPC: `Check`
beside `nghttpd` with one worker that answers a POST of the same size from a file, under `h2load`.
Each runs in a process of its own, in turn, round after round. On a busy machine the CPU time of a
request in the serving process (`us_cpu`) means more than the rate. Then the costs of parts: the
time of a record, and the memory of tiers. Needs wrk, h2load and nghttpd (apt-get install wrk
nghttp2-client nghttp2-server).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

REST = {
    "userId": "user123",
    "apiKey": "key_abc",
    "endpoint": "/api/posts",
    "tier": "premium",
}
RULES: Any = {
    "tiers": ["free", "premium"],
    "default_tier": "free",
    "rules": [
        {
            "id": "api",
            "by": "user",
            "endpoint": "/api/**",
            "limits": {"free": "100/minute", "premium": "1000000000/hour"},
        }
    ],
}
TOKEN = "secret"


def limiter() -> Any:
    import tidegate as tg
    from tidegate.rules import RuleSet

    return tg.Limiter(rules=RuleSet(RULES))


def serve_native() -> None:
    """Prints the port of the native service, which runs until its input ends."""
    from tidegate.server import _native

    made = limiter()
    service = _native.CheckService(made._native(), recorder=_native.Recorder())
    service.set_tokens([(hashlib.sha256(TOKEN.encode()).digest(), "check")])
    front = _native.Front({})
    front.route(service)
    port = front.listen("127.0.0.1", 0)
    front.start()
    print(port, flush=True)
    sys.stdin.read()
    front.stop()


def serve_fastapi() -> None:
    """The same endpoint, written with FastAPI."""
    import uvicorn
    from fastapi import FastAPI, Header, HTTPException
    from pydantic import BaseModel

    made = limiter()
    app = FastAPI()

    class Check(BaseModel):
        userId: str
        apiKey: str | None = None
        endpoint: str
        tier: str | None = None

    globals()["Check"] = Check  # FastAPI resolves the names in annotations here

    @app.post("/v1/ratelimit/check")
    async def check(asked: Check, authorization: str = Header()) -> dict[str, Any]:
        if authorization != f"Bearer {TOKEN}":
            raise HTTPException(401)
        decision = made.check(
            user=asked.userId, api_key=asked.apiKey, endpoint=asked.endpoint, tier=asked.tier
        )
        return {
            "allowed": decision.allowed,
            "limit": decision.limit,
            "remaining": decision.remaining,
            "resetTime": int(time.time() + decision.reset_after),
            "retryAfter": None if decision.allowed else int(decision.retry_after),
        }

    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", access_log=False, log_level="error"
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


@contextlib.contextmanager
def served(name: str) -> Iterator[tuple[int, int]]:
    """The port of a subject and the id of its process."""
    command = [sys.executable, __file__, "--serve", name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline()), server.pid
        finally:
            server.kill()


@contextlib.contextmanager
def nghttpd(folder: Path, size: int) -> Iterator[tuple[int, int]]:
    (folder / "answer").write_bytes(b"x" * size)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["nghttpd", "--no-tls", "-n1", "-d", str(folder), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            yield port, server.pid
        finally:
            server.kill()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def rest_rate(port: int, seconds: int, folder: Path) -> float:
    script = folder / "check.lua"
    script.write_text(
        f"wrk.method='POST'; wrk.body='{json.dumps(REST)}'\n"
        "wrk.headers['content-type']='application/json'\n"
        f"wrk.headers['authorization']='Bearer {TOKEN}'\n"
    )
    url = f"http://127.0.0.1:{port}/v1/ratelimit/check"
    command = ["wrk", "-t1", "-c32", f"-d{seconds}s", "-s", str(script), url]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in output:
        raise RuntimeError(f"{url} answers with errors: {output}")
    return float(re.findall(r"Requests/sec:\s*([\d.]+)", output)[0])


def grpc_message() -> bytes:
    def text(field: int, value: bytes) -> bytes:
        return bytes([field << 3 | 2, len(value)]) + value

    named = {"user": "user123", "endpoint": "/api/posts", "tier": "premium"}
    message = b"".join(
        text(1, text(1, name.encode()) + text(2, value.encode())) for name, value in named.items()
    )
    return b"\0" + len(message).to_bytes(4, "big") + message


def h2_rate(port: int, path: str, seconds: int, folder: Path) -> float:
    body = folder / "check.bin"
    body.write_bytes(grpc_message())
    command = ["h2load", "-c4", "-m32", "-t1", f"-D{seconds}", "-d", str(body)]
    for header in (
        "content-type: application/grpc",
        "te: trailers",
        f"authorization: Bearer {TOKEN}",
    ):
        command += ["-H", header]
    output = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{path}"], check=True, capture_output=True, text=True
    ).stdout
    counts = re.findall(r"(\d+) (2xx|4xx|5xx)", output)
    if any(int(count) for count, kind in counts if kind != "2xx"):
        raise RuntimeError(f"{path} answers with errors: {output}")
    return float(re.findall(r", ([\d.]+) req/s", output)[0])


def measure_services(rounds: int, seconds: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[tuple[float, float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        native = stack.enter_context(served("native"))
        subjects: dict[str, Any] = {
            "REST, tidegate": (native, lambda port: rest_rate(port, seconds, folder)),
            "gRPC Check, tidegate": (
                native,
                lambda port: h2_rate(port, "/tidegate.v1.RateLimiter/Check", seconds, folder),
            ),
        }
        if all(map(harness.optional, ("fastapi", "uvicorn", "uvloop", "httptools"))):
            fastapi = stack.enter_context(served("fastapi"))
            subjects["REST, FastAPI"] = (fastapi, lambda port: rest_rate(port, seconds, folder))
        if shutil.which("nghttpd"):
            files = stack.enter_context(nghttpd(folder, 64))
            subjects["POST, nghttpd"] = (
                files,
                lambda port: h2_rate(port, "/answer", seconds, folder),
            )
        for i in range(rounds + 1):
            for name, ((port, pid), rate) in subjects.items():
                before = cpu_seconds(pid)
                reached = rate(port)
                cpu = (cpu_seconds(pid) - before) / (reached * seconds) * 1e6
                if i > 0:  # the first round warms them up
                    found.setdefault(name, []).append((reached, cpu))
    return {
        name: {
            "requests_per_second": statistics.median(rate for rate, _ in samples),
            "us_cpu": statistics.median(cpu for _, cpu in samples),
        }
        for name, samples in found.items()
    }


def measure_tiers(users: int) -> dict[str, float]:
    from tidegate.server import _native

    before = harness.resident_bytes()
    builder = _native.TiersBuilder()
    start = time.perf_counter()
    builder.add((str(i), "premium" if i % 7 == 0 else "free") for i in range(users))
    table = builder.finish()
    seconds = time.perf_counter() - start
    del builder
    return {
        "users": users,
        "bytes_a_user": table.bytes / users,
        "resident_bytes_a_user": (harness.resident_bytes() - before) / users,
        "build_s": seconds,
    }


def targets_of(figures: dict[str, dict[str, float]], tiers: dict[str, float]) -> list[Any]:
    targets = [
        harness.Target("bytes a user of the table of tiers", tiers["bytes_a_user"], 16, False, "B")
    ]
    for ours, theirs, bound in (
        ("REST, tidegate", "REST, FastAPI", 8.0),
        ("gRPC Check, tidegate", "POST, nghttpd", 0.5),
    ):
        if theirs not in figures:
            continue
        for what, power in (("requests_per_second", 1), ("us_cpu", -1)):
            ratio = (figures[ours][what] / figures[theirs][what]) ** power
            targets.append(harness.Target(f"{ours} over {theirs}, by {what}", ratio, bound))
    return targets


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        {"native": serve_native, "fastapi": serve_fastapi}[sys.argv[2]]()
        return
    parser = harness.arguments(__doc__ or "", rounds=5, quick_rounds=2)
    options = parser.parse_args()
    if harness.skipped("checks", "wrk", "h2load"):
        return
    harness.load_tidegate()
    harness.print_interpreter()
    figures = measure_services(harness.rounds_of(options), 1 if options.quick else 3)
    tiers = measure_tiers(200_000 if options.quick else 10_000_000)
    harness.print_table(
        "Checks a second",
        ["subject", "requests/s", "us of CPU each"],
        [
            [name, f"{row['requests_per_second']:,.0f}", f"{row['us_cpu']:.2f}"]
            for name, row in figures.items()
        ],
    )
    harness.print_table("Tiers", list(tiers), [[f"{value:,.1f}" for value in tiers.values()]])
    harness.print_targets(targets_of(figures, tiers))
    harness.write_json(options.json, "checks", {**figures, "tiers": tiers})


if __name__ == "__main__":
    main()
