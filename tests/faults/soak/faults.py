"""The faults. Each function returns when its fault is over."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import struct
import threading
import time
from typing import Any, Callable

from soak import frames
from soak.service import FIRST_PROBE
from soak.stage import ANY, SOME, Fault, Stage
from soak.strangers import Flood, connect, crowd, cut

STATUS = "/v1/ratelimit/status/stranger"
CHECK = "/v1/ratelimit/check"
BODY = json.dumps({"userId": "stranger", "endpoint": "/api/posts"}).encode()
HTTP1 = (
    f"POST {CHECK} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
).encode() + BODY
GET = f"GET {STATUS} HTTP/1.1\r\nHost: soak\r\n\r\n".encode()
ENHANCE_YOUR_CALM = 11

_faults: dict[str, Fault] = {}


def fault(**attributes: Any) -> Callable[[Callable[[Stage], None]], Any]:
    """Adds the decorated function to the list of faults, with dashes in its name.

    What the fault does is the docstring of the function.
    """

    def add(act: Callable[[Stage], None]) -> Callable[[Stage], None]:
        name = act.__name__.replace("_", "-")
        says = " ".join((act.__doc__ or "").split()).removesuffix(".")
        _faults[name] = Fault(name, says, act, **attributes)
        return act

    return add


def all_faults() -> dict[str, Fault]:
    return dict(_faults)


# ------------------------------------------------------------- servers behind it


@fault(degraded=SOME)
def redis_killed(stage: Stage) -> None:
    """Redis is killed, and started again with its data."""
    stage.redis.kill()
    time.sleep(stage.pace.hold)
    status, body = stage.service.get("/readyz")
    ready = json.loads(body)
    stage.expect(status == 200, "the service was not ready, though its fallback decides")
    stage.expect(ready["storage"] != "answers", "/readyz did not show that Redis is down")
    stage.redis.start()


@fault(degraded=SOME)
def redis_emptied(stage: Stage) -> None:
    """Redis is killed, and started again empty."""
    stage.load.command("forget on")
    stage.redis.kill()
    shutil.rmtree(stage.redis.path.parent / "appendonlydir")
    time.sleep(stage.pace.hold)
    stage.redis.start()
    stage.load.command("forget off")


@fault(degraded=SOME)
def redis_stopped(stage: Stage) -> None:
    """Redis is stopped, and continued: its connections stay open."""
    stage.redis.signal(signal.SIGSTOP)
    try:
        # The pause is longer than the time-out of a call.
        time.sleep(max(3.0, stage.pace.hold))
    finally:
        stage.redis.signal(signal.SIGCONT)


@fault(degraded=ANY)
def redis_connections_killed(stage: Stage) -> None:
    """All connections to Redis are killed, again and again."""
    deadline = time.monotonic() + stage.pace.hold
    while time.monotonic() < deadline:
        stage.redis.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.05)


@fault()
def postgres_killed(stage: Stage) -> None:
    """PostgreSQL is killed, and started again: history goes on."""
    stage.postgres.kill()
    time.sleep(stage.pace.hold)
    stage.expect(stage.service.probe()["limit"], "no check was answered without PostgreSQL")
    stage.postgres.start()
    written = stage.service.count("usage_written")
    stage.eventually(
        lambda: stage.service.count("usage_written") > written,
        "the history was not written after the restart",
        30,
    )


# ------------------------------------------------------------------ files, signals


@fault()
def sighup_valid(stage: Stage) -> None:
    """Valid rules, again and again, each by SIGHUP."""
    deadline = time.monotonic() + stage.pace.hold
    while time.monotonic() < deadline:
        stage.service.probe_limit += 1
        stage.service.write_rules()
        stage.service.reload()
        stage.eventually(
            lambda: stage.service.probe()["limit"] == stage.service.probe_limit,
            "the new rules did not come into force",
        )


BROKEN = [
    b"rules: [{id: api, limits: many}]\n",
    b"rules: [{id: api, by: user, limit: 1/day}, {id: api, by: user, limit: 2/day}]\n",
    b"rules: {\n",
    b"\xff\xfe\x00",
    b"a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nrules: [*b, *b, *b, *b]\n",
    b"",
]


@fault()
def sighup_broken(stage: Stage) -> None:
    """Rules that are broken in six ways, by SIGHUP: the old ones stay."""

    def refused() -> int:
        return stage.service.count("rules_refused") + stage.service.count("rules_failures")

    for text in BROKEN:
        before = refused()
        stage.service.write_rules(text)
        stage.service.reload()
        stage.eventually(lambda before=before: refused() > before, f"{text!r} was not refused")
        stage.expect(
            stage.service.probe()["limit"] == stage.service.probe_limit,
            f"{text!r} changed the rules in force",
        )
    stage.service.probe_limit = FIRST_PROBE
    stage.service.write_rules()
    stage.service.reload()
    stage.eventually(
        lambda: stage.service.probe()["limit"] == FIRST_PROBE,
        "valid rules were not read afterwards",
    )


# ------------------------------------------------------------ connections that fail


def _http2_session(generator: random.Random) -> bytes:
    """Returns the bytes of a connection with three calls."""
    fields = frames.block(CHECK, "POST", [("content-type", "application/json")])
    calls = b"".join(frames.request(stream, fields, BODY) for stream in (1, 3, 5))
    return frames.opening((frames.INITIAL_WINDOW_SIZE, generator.randrange(1 << 20))) + calls


def _send_pieces(stage: Stage, whole: Callable[[random.Random], bytes]) -> None:
    """Opens connections that send a beginning of `whole` and end, by RST or by FIN."""
    numbers = itertools.count()

    def act(over: threading.Event) -> None:
        generator = random.Random(next(numbers))
        while not over.is_set():
            data = whole(generator)
            sock = connect(stage.service.checks)
            with contextlib.suppress(OSError):
                sock.sendall(data[: generator.randrange(len(data) + 1)])
                if generator.random() < 0.3:
                    time.sleep(0.002)
            if generator.random() < 0.5:
                cut(sock)
            else:
                sock.close()

    with crowd(3, act):
        time.sleep(stage.pace.hold)


@fault()
def cut_within_http1(stage: Stage) -> None:
    """Clients of HTTP/1.1 are cut within a request or before its answer."""
    _send_pieces(stage, lambda _: HTTP1 * 2)


@fault()
def cut_within_http2(stage: Stage) -> None:
    """Clients of HTTP/2 are cut within a frame or before their answers."""
    _send_pieces(stage, _http2_session)


@fault()
def garbled(stage: Stage) -> None:
    """Bits of valid connections are flipped."""

    def garble(generator: random.Random) -> bytes:
        data = bytearray(generator.choice([HTTP1 * 2, _http2_session(generator)]))
        for _ in range(generator.randrange(1, 6)):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        return bytes(data)

    _send_pieces(stage, garble)


@fault()
def trickled(stage: Stage) -> None:
    """Requests that come a byte at a time, and never end."""
    timeouts = stage.service.count("front_timeouts_request")
    sessions = [HTTP1, frames.opening() + frames.frame(frames.HEADERS, 0, 1, b"\x82")]
    socks = [(connect(stage.service.checks), sessions[i % 2]) for i in range(40)]
    try:
        deadline = time.monotonic() + max(stage.pace.hold, 4.5)
        for at in itertools.count():
            for sock, data in socks:
                with contextlib.suppress(OSError):
                    sock.sendall(data[at : at + 1])
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        stage.expect(
            stage.service.count("front_timeouts_request") >= timeouts + len(socks) // 2,
            "the service kept requests that never end",
        )
    finally:
        for sock, _ in socks:
            sock.close()


# -------------------------------------------------------------- many and slow clients


@fault()
def slow_readers(stage: Stage) -> None:
    """Connections that ask and never read an answer."""
    slow = stage.service.count("front_slow_readers")
    fields = frames.block(STATUS)
    streams = b"".join(frames.request(stream, fields) for stream in range(1, 200, 2))
    # The first connections read nothing from the network, the others open no window.
    openings = [GET * 20_000, frames.opening((frames.INITIAL_WINDOW_SIZE, 0)) + streams]
    socks = []
    try:
        for number in range(20):
            sock = connect(stage.service.checks, receive_buffer=4096)
            socks.append(sock)
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.send(openings[number % 2])
        time.sleep(stage.pace.patience)
        if stage.pace.patience > 20:  # the time that the front gives such clients
            stage.eventually(
                lambda: stage.service.count("front_slow_readers") >= slow + 10,
                "the service kept clients that do not read",
            )
    finally:
        for sock in socks:
            sock.close()


@fault()
def idle_connections(stage: Stage) -> None:
    """Thousands of connections that are open and do nothing."""
    count = stage.pace.connections
    socks: list[socket.socket] = []
    try:
        for number in range(count):
            sock = connect(stage.service.checks)
            socks.append(sock)
            sock.sendall(frames.opening() if number % 2 else GET)
        stage.eventually(
            lambda: stage.service.count("front_connections_open") >= count,
            f"the service did not accept {count} connections",
            60,
        )
        time.sleep(stage.pace.hold)
        began = time.monotonic()
        stage.service.probe()
        stage.expect(time.monotonic() - began < 5, "a new client waited because of idle clients")
    finally:
        for sock in socks:
            sock.close()


# ---------------------------------------------------------------------- floods


def _flood(
    stage: Stage,
    name: str,
    opening: bytes,
    parts: Callable[[], Any],
    is_ended: Callable[[Flood], bool],
    enders: int = 3,
) -> None:
    """Opens connections that send `parts`, and expects the server to end each of them."""
    ended = threading.Semaphore(0)

    def act(over: threading.Event) -> None:
        while not over.is_set():
            flood = Flood(stage.service.checks, opening)
            try:
                for part in parts():
                    if flood.is_closed:
                        break
                    flood.send(part)
                if not flood.wait_for_end(10):
                    raise AssertionError(f"the service did not end a connection: {name}")
                if not is_ended(flood):
                    raise AssertionError(f"a connection ended with {flood.received[-100:]!r}")
                ended.release()
            finally:
                flood.close()

    with crowd(enders, act):
        time.sleep(stage.pace.hold)
    stage.expect(ended.acquire(blocking=False), f"the service ended no connection: {name}")


def _calmed(flood: Flood) -> bool:
    """Returns whether the connection was ended for the flood, if the client could read why."""
    return frames.goaway_code(flood.received) in (ENHANCE_YOUR_CALM, None)


@fault()
def rapid_reset(stage: Stage) -> None:
    """HTTP/2 rapid reset (CVE-2023-44487): streams opened and reset at once."""
    floods = stage.service.count("front_floods")
    fields = frames.block(STATUS)

    def parts() -> Any:
        for first in range(1, 200_000, 1000):
            yield b"".join(
                frames.request(stream, fields) + frames.reset(stream)
                for stream in range(first, first + 1000, 2)
            )

    _flood(stage, "rapid reset", frames.opening(), parts, _calmed)
    stage.expect(stage.service.count("front_floods") > floods, "no flood was counted")


@fault()
def made_to_reset(stage: Stage) -> None:
    """Streams that the client makes the server reset, by windows that overflow."""
    fields = frames.block(STATUS)
    overflow = struct.pack(">I", 2**31 - 1)

    def parts() -> Any:
        for first in range(1, 200_000, 1000):
            yield b"".join(
                frames.request(stream, fields) + frames.frame(8, 0, stream, overflow)
                for stream in range(first, first + 1000, 2)
            )

    _flood(stage, "made to reset", frames.opening(), parts, _calmed)


@fault()
def continuation_flood(stage: Stage) -> None:
    """CONTINUATION frames without an end."""

    def parts() -> Any:
        yield frames.frame(frames.HEADERS, 0, 1, frames.block(STATUS))
        piece = frames.block("/", more=[("x-flood", "y" * 8000)], huffman=False)[10:]
        for size in itertools.cycle([0, 1, len(piece)]):
            yield frames.frame(frames.CONTINUATION, 0, 1, piece[:size]) * 10

    _flood(stage, "CONTINUATION", frames.opening(), parts, lambda _: True)


@fault()
def control_flood(stage: Stage) -> None:
    """PING, SETTINGS, PRIORITY and empty DATA without an end."""
    kinds = [
        frames.frame(frames.PING, 0, 0, bytes(8)),
        frames.frame(frames.SETTINGS, 0, 0),
        frames.frame(frames.PRIORITY, 0, 1, struct.pack(">IB", 0, 1)),
    ]
    turns = itertools.cycle(kinds)

    def parts() -> Any:
        kind = next(turns)
        for _ in range(1000):
            yield kind * 500

    _flood(stage, "control frames", frames.opening(), parts, _calmed)


@fault()
def header_flood_http1(stage: Stage) -> None:
    """Headers of HTTP/1.1 without an end, in number and in length."""
    begin = b"GET / HTTP/1.1\r\nHost: soak\r\n"
    turns = itertools.cycle([b"X-Flood: y\r\n" * 1000, b"y" * 16_384])

    def parts() -> Any:
        kind = next(turns)
        yield begin if kind.startswith(b"X") else begin + b"X-Flood: "
        for _ in range(1000):
            yield kind

    def is_refused(flood: Flood) -> bool:
        # The RST may arrive before the client reads.
        return flood.received.startswith(b"HTTP/1.1 431 ") or not flood.received

    _flood(stage, "headers", b"", parts, is_refused)


@fault()
def header_flood_http2(stage: Stage) -> None:
    """Blocks of headers that grow when they are unpacked (HPACK bombs)."""
    # One field enters the dynamic table, and is repeated with one byte each.
    field = b"\x40\x01x" + b"\x7f\xa1\x1e" + b"y" * 4000
    bomb = frames.block(STATUS) + field + b"\xbe" * 8000

    def parts() -> Any:
        for stream in range(1, 20, 2):
            yield frames.frame(frames.HEADERS, frames.END_HEADERS | 1, stream, bomb)

    _flood(stage, "unpacked headers", frames.opening(), parts, _calmed)


@fault()
def malformed(stage: Stage) -> None:
    """Bodies that are too long, messages that are malformed, in thousands."""
    numbers = itertools.count()

    def act(over: threading.Event) -> None:
        generator = random.Random(next(numbers))
        fields = frames.block(
            "/tidegate.v1.RateLimiter/Check", "POST", [("content-type", "application/grpc")]
        )
        while not over.is_set():
            flood = Flood(stage.service.checks, frames.opening())
            try:
                for stream in range(1, 200, 2):
                    body = os.urandom(generator.randrange(200))
                    flood.send(
                        frames.request(stream, fields, b"\0" + struct.pack(">I", len(body)) + body)
                    )
                flood.send(frames.frame(frames.PING, 0, 0, bytes(8)))
                if flood.is_closed:
                    raise AssertionError("a malformed message ended the connection")
            finally:
                flood.close()
            too_long = HTTP1.replace(b"Length: ", b"Length: 9") + bytes(2_000_000)
            with (
                contextlib.suppress(OSError),
                contextlib.closing(connect(stage.service.checks)) as sock,
            ):
                sock.sendall(too_long)

    with crowd(2, act):
        time.sleep(stage.pace.hold)
