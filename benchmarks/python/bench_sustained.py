"""A steady rate of checks from many users: its latency and its memory.

    python benchmarks/python/bench_sustained.py [--quick] [--minutes N] [--users N] [--json FILE]

`tidegate serve` with a rule by user and a ceiling for all, its history in SQLite, and metrics.
`wrk` sends REST checks of random users at a bound rate for the given time (10 minutes), while the
resident memory is sampled. Then the latency that Envoy's service adds: its p99 at half of its
highest rate, beside that of `nghttpd`, which answers a POST from a file, at the same rate, by
`h2load`. Needs wrk, h2load and nghttpd (apt-get install wrk nghttp2-client nghttp2-server).
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench_envoy
import harness
from bench_server import free_port, nghttpd, requests_a_second, resident_kib

RATE = 35_000
CONNECTIONS = 150
PAUSE_MS = 2

# Each connection pauses before a request, so that the rate stays below the most that the service
# can answer.
_SCRIPT = """
local users, seed = %d, os.time()
math.randomseed(seed)
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
function delay() return %d end
function request()
  local user = math.random(0, users - 1)
  return wrk.format(nil, nil, nil, '{"userId":"user-' .. user .. '","endpoint":"/api/posts"}')
end
function done(summary, latency, requests)
  io.write(string.format('{"requests":%%d,"us":%%d,"status":%%d,"connect":%%d,"read":%%d,' ..
    '"write":%%d,"timeout":%%d,"p50":%%d,"p99":%%d,"p999":%%d,"max":%%d}\\n',
    summary.requests, summary.duration, summary.errors.status, summary.errors.connect,
    summary.errors.read, summary.errors.write, summary.errors.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.max))
end
"""


@contextlib.contextmanager
def service(folder: Path, users: int) -> Iterator[tuple[int, int]]:
    """The port for checks and the process of a service."""
    checks, admin = free_port(), free_port()
    rules = {
        "rules": [
            {"id": "user", "by": "user", "limit": "1000/minute"},
            {"id": "ceiling", "by": "global", "limit": "1000000/second"},
        ]
    }
    (folder / "rules.json").write_text(json.dumps(rules))
    settings = {
        "storage": f"memory://?capacity={users * 5 // 4}",
        "database": f"sqlite:///{folder / 'history.db'}",
        "rules": str(folder / "rules.json"),
        "checks": {"listen": f"127.0.0.1:{checks}"},
        "admin": {"listen": f"127.0.0.1:{admin}"},
    }
    (folder / "tidegate.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "tidegate", "serve", "--config", str(folder / "tidegate.json")]
    with subprocess.Popen(command) as process:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=1)
                    break
                time.sleep(0.1)
            yield checks, process.pid
        finally:
            process.terminate()


def sustain(seconds: int, users: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name, service(Path(name), users) as (port, process):
        script = Path(name, "users.lua")
        script.write_text(_SCRIPT % (users, PAUSE_MS))
        memory: list[float] = []
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(1):
                memory.append(resident_kib(process) / 1024)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            output = subprocess.run(
                ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script),
                 f"http://127.0.0.1:{port}/v1/ratelimit/check"],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        finally:
            ended.set()
            sampler.join()
    found = json.loads(output.splitlines()[-1])
    failed = sum(found[kind] for kind in ("status", "connect", "read", "write", "timeout"))
    return {
        "rate": found["requests"] / found["us"] * 1e6,
        "failed": failed,
        **{name: found[name] / 1000 for name in ("p50", "p99", "p999", "max")},
        "memory_mib": max(memory, default=0.0),
    }


def p99_ms(url: str, body: Path, rate: float, seconds: int, folder: Path, *headers: str) -> float:
    """The 99th percentile of the latencies at this rate, of h2load's log."""
    log = folder / "latencies"
    log.unlink(missing_ok=True)
    subprocess.run(
        ["h2load", "-c4", "-m32", "-t1", "--rps", str(round(rate / 4)), "-n",
         str(round(rate * seconds)), "-d", str(body), f"--log-file={log}", *headers, url],
        capture_output=True, check=True, timeout=600,
    )  # fmt: skip
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    if any(line[1] != "200" for line in lines):
        sys.exit(f"h2load: an answer of {url} is not a success")
    return statistics.quantiles((int(line[2]) / 1000 for line in lines), n=100)[98]


def added_latency(seconds: int, rounds: int) -> dict[str, float]:
    grpc = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        body = folder / "body"
        body.write_bytes(bench_envoy.request())
        ours, _ = stack.enter_context(bench_envoy.server(bench_envoy.TIDEGATE, "memory://"))
        files, _ = stack.enter_context(nghttpd(name))
        url = f"http://127.0.0.1:{ours}{bench_envoy.METHOD}"
        highest = max(requests_a_second(url, body, 200_000, *grpc) for _ in range(3))
        rate = highest / 2
        service, beside = [], []
        for _ in range(rounds):
            service.append(p99_ms(url, body, rate, seconds, folder, *grpc))
            beside.append(p99_ms(f"http://127.0.0.1:{files}/body", body, rate, seconds, folder))
    return {
        "rate": rate,
        "p99_ms": statistics.median(service),
        "nghttpd_p99_ms": statistics.median(beside),
        "added_ms": statistics.median(a - b for a, b in zip(service, beside)),
    }


def main() -> None:
    parser = harness.arguments(__doc__.splitlines()[0], rounds=5, quick_rounds=2)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the steady rate")
    parser.add_argument("--users", type=int, default=10_000_000)
    options = parser.parse_args()
    if harness.skipped("sustained", "wrk", "h2load"):
        return
    harness.load_tidegate()
    harness.print_interpreter()
    quick = options.quick
    added = added_latency(1 if quick else 3, harness.rounds_of(options))
    steady = sustain(
        15 if quick else round(options.minutes * 60), 100_000 if quick else options.users
    )
    for title, row in (("p99 at half of the highest rate", added), ("Steady", steady)):
        harness.print_table(title, list(row), [[f"{value:,.3f}" for value in row.values()]])
    targets: list[Any] = [
        harness.Target("p99 added by the service, ms", added["added_ms"], 1, False, " ms"),
        harness.Target("checks a second, held", steady["rate"], RATE, unit="/s"),
        harness.Target("failed", steady["failed"], 0, False, ""),
        harness.Target("p99 of steady checks", steady["p99"], 5, False, " ms"),
        harness.Target("memory", steady["memory_mib"], 1024, False, " MiB"),
    ]
    harness.print_targets(targets)
    harness.write_json(options.json, "sustained", {"added": added, "steady": steady})


if __name__ == "__main__":
    main()
