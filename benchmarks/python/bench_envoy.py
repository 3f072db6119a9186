"""Requests a second of Envoy's rate limit service, beside `nghttpd` and `grpc.aio`, by `h2load`.

One descriptor with one limit in each request. tidegate answers in a process of its own with one
loop, and records its decisions as `tidegate serve` does; its counts are in memory, or in a Redis
of its own, which is asked for each request or for leases. grpc.aio answers by a tidegate limiter in
memory; nghttpd answers a POST of the same size from a file. h2load sends requests over 4
connections of 32 streams each from one thread, to each subject once a round.

Needs nghttpd and h2load, of the packages nghttp2-server and nghttp2-client of Debian, and for
grpc.aio the packages in tests/envoy-requirements.txt.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path

import harness
from bench_server import equalize, nghttpd, requests_a_second
from harness import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "redis"))

from envoy_tools import installed
from redis_server import PATIENT, RedisServer

MEMORY = "tidegate, memory"
REDIS = "tidegate, Redis"
LEASED = "tidegate, leased Redis"
AIO = "grpc.aio with a tidegate limiter, memory"
NGHTTPD = "nghttpd"
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
# How many times fewer requests grpc.aio gets, which is slow.
AIO_SHARE = 20

TIDEGATE = """
import sys
from tidegate.server import _native
from tidegate.limiter.storage.uri import open_store
tree = _native.DescriptorTree()
tree.add_descriptor(tree.add_domain("edge"), "user", limits=["4000000000/day"])
store = open_store(sys.argv[1], {})
service = _native.EnvoyService(store._native(), recorder=_native.Recorder())
service.use(tree)
front = _native.Front()
front.route(service)
print(front.listen("127.0.0.1", 0), flush=True)
front.start()
sys.stdin.read()
front.stop()
"""

_AIO = """
import asyncio, sys
import grpc, tidegate
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
limiter = tidegate.Limiter("4000000000/day", algorithm="fixed-window")
Response = rls_pb2.RateLimitResponse
class Service(rls_pb2_grpc.RateLimitServiceServicer):
    async def ShouldRateLimit(self, request, context):
        response = Response(overall_code=Response.OK)
        for descriptor in request.descriptors:
            key = request.domain + "".join(f"|{e.key}={e.value}" for e in descriptor.entries)
            decision = limiter.hit(key)
            code = Response.OK if decision else Response.OVER_LIMIT
            status = response.statuses.add(code=code, limit_remaining=decision.remaining)
            status.current_limit.requests_per_unit = decision.limit
            status.current_limit.unit = Response.RateLimit.DAY
            status.duration_until_reset.FromNanoseconds(int(decision.reset_after * 1e9))
        return response
async def main():
    server = grpc.aio.server()
    rls_pb2_grpc.add_RateLimitServiceServicer_to_server(Service(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)
asyncio.run(main())
"""


def request() -> bytes:
    """A message of gRPC: domain "edge", one descriptor ("user", "4213")."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    entry = field(1, field(1, b"user") + field(2, b"4213"))
    message = field(1, b"edge") + field(2, entry)
    return b"\0" + len(message).to_bytes(4, "big") + message


def server(
    program: str, *arguments: str, path: str = ""
) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """The port and the process of a server that prints its port."""
    paths = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-c", program, *arguments]
    return harness.server_process(command, {"PYTHONPATH": paths})


def main() -> None:
    parser = harness.arguments(__doc__.splitlines()[0], rounds=7, quick_rounds=3)
    options = harness.begin(parser)
    requests = 50_000 if options.quick else 300_000
    rates: dict[str, list[float]] = {name: [] for name in (MEMORY, LEASED, REDIS, AIO, NGHTTPD)}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tg"))
        body = Path(folder, "body")
        body.write_bytes(request())
        redis = RedisServer(Path(folder))
        redis.start()
        stack.callback(redis.kill)
        stubs = str(installed("xds-protos"))
        uri = f"redis://127.0.0.1:{redis.port}?{PATIENT}"
        ports = {
            MEMORY: stack.enter_context(server(TIDEGATE, "memory://")),
            LEASED: stack.enter_context(server(TIDEGATE, f"{uri}&mode=leased")),
            REDIS: stack.enter_context(server(TIDEGATE, uri)),
            AIO: stack.enter_context(server(_AIO, path=stubs)),
            NGHTTPD: stack.enter_context(nghttpd(folder)),
        }
        grpc = ("-H", "content-type: application/grpc", "-H", "te: trailers")
        for _ in range(harness.rounds_of(options)):
            equalize(*(process for _, process in ports.values()))
            for name, (port, _) in ports.items():
                path, more = ("/body", ()) if name == NGHTTPD else (METHOD, grpc)
                count = requests // AIO_SHARE if name == AIO else requests
                url = f"http://127.0.0.1:{port}{path}"
                rates[name].append(requests_a_second(url, body, count, *more))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rows = [
        [
            name,
            f"{medians[name]:,.0f}",
            f"{max(values):,.0f}",
            f"{medians[name] / medians[NGHTTPD]:.2f}x",
        ]
        for name, values in rates.items()
    ]
    harness.print_table("Requests a second", ["", "median", "best", f"x {NGHTTPD}"], rows)
    targets = [
        Target(f"{MEMORY} over nghttpd", medians[MEMORY] / medians[NGHTTPD], 0.5),
        Target(f"{LEASED} over {MEMORY}", medians[LEASED] / medians[MEMORY], 0.85),
        Target(f"{REDIS} over {MEMORY}", medians[REDIS] / medians[MEMORY], 0.5),
        Target(f"{REDIS} over nghttpd", medians[REDIS] / medians[NGHTTPD], 0.25),
        Target(f"{MEMORY} over grpc.aio", medians[MEMORY] / medians[AIO], 10),
    ]
    harness.report(options.json, "envoy", {"rates": rates}, targets)


if __name__ == "__main__":
    main()
