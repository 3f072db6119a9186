"""Random stored values against every script on a real server, beside a watchdog.

    python tests/redis/value_fuzz.py [--seconds N] [--seed N]

Between calls, values are replaced by random ones: bytes, numbers, values of the right form with
random fields, and true values that were changed; so are the records of reservations. Hits, plans,
reservations and leases are called, so that each script of lua/ runs. Whatever is stored, no call
may raise, no script may fail except by saying that the value is not ours, and the server answers
others all the time.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import tidegate as tg
from redis_server import PATIENT, RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable

# The longest that the server may take for one script, and that a PING may wait.
BOUND_S = 0.1
_FORMAT = 0x81
_MINUTE_NS = 60_000_000_000


# A bucket's units that are leased: the flag, and the fields after the others.
_SLOTS = 32
_SLOT_FIELDS = (7, 5, 6, 6)


def _limit(text: str, algorithm: Any = "token-bucket", id: str | None = None) -> tg.Limit:
    return tg.Limit(text, algorithm=algorithm, id=id)


# The widths of the fields of a value after its format, by algorithm.
_QUOTA = (4, 5, 7, 7, 1, 1, 7, 7)
_FIELDS: dict[str, list[tuple[int, ...]]] = {
    "bucket": [(5, 4), (5, 4, 7), (5, 4, 7, 2), (5, 4, 7, 4, 4)],
    "fixed": [(5, 4, 7), (5, 4, 7, 2)],
    "sliding": [(5, 4, 4, 4)],
    "log": [(4, *(5, 4) * entries) for entries in (1, 2, 5, 40)],
    "quota": [_QUOTA, (*_QUOTA, 7, 7), (*_QUOTA, 7, 7, 5, 1)],
}
_LIMITS: list[tuple[str, tg.Limit]] = [
    ("bucket", _limit("100/minute")),
    ("bucket", _limit("7/second burst 20")),
    ("bucket", _limit("100/hour", id="rule")),
    ("bucket", _limit("7/second burst 90", id="rule")),
    ("bucket", _limit("50/minute", "leaky-bucket")),
    ("fixed", _limit("100/minute", "fixed-window")),
    ("fixed", _limit("100/month", "fixed-window")),
    ("fixed", _limit("13/1234567891 ns", "fixed-window")),
    ("sliding", _limit("100/minute", "sliding-window")),
    ("log", _limit("30/minute", "sliding-log")),
    ("log", _limit("10/minute", "concurrency")),
    ("log", _limit("1000000/hour", "sliding-log", id="rule")),
    ("quota", _limit("quota 1000/month", "quota")),
    ("quota", _limit("quota 1000/month rollover 500 for 2 periods", "quota")),
]


@dataclass
class Report:
    calls: int = 0
    refused_values: int = 0
    slowest_ping_s: float = 0.0
    slow_scripts: list[bytes] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class _Connection:
    """Sends commands of bytes, one at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.file.close()
        self.socket.close()

    def __call__(self, *words: bytes) -> Any:
        self.socket.sendall(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        )
        return self._reply()

    def _reply(self) -> Any:
        line = self.file.readline()[:-2]
        if line[:1] == b"$":
            size = int(line[1:])
            return None if size < 0 else self.file.read(size + 2)[:-2]
        if line[:1] == b"*":
            return [self._reply() for _ in range(int(line[1:]))]
        return line


class _Watchdog(threading.Thread):
    """Asks the server for nothing all the time, and notes the longest wait."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.slowest_s = 0.0
        self.over = threading.Event()
        self.ping = _Connection(port)

    def run(self) -> None:
        with self.ping as ping:
            while not self.over.wait(0.002):
                start = time.monotonic()
                ping(b"PING")
                self.slowest_s = max(self.slowest_s, time.monotonic() - start)


def _number(rng: random.Random, width: int) -> int:
    most = 256**width - 1
    now = int(time.time())
    near = [0, 1, 2, most, most - 1, most // 2, now, now + 1, now + 60, now + 10**9, 9 * 10**9]
    near += [9_223_372_035, 999_999_999, 10**9, 100, 2**53, 2**53 - 1, rng.randrange(most + 1)]
    number: int = rng.choice(near)
    return min(number, most)


def _likely(rng: random.Random, width: int) -> int:
    """A number that a field of the width may have: an instant, a second's part, or units."""
    now = int(time.time())
    if width == 5:
        return rng.choice([now, now + rng.randrange(100), now + rng.randrange(10**9), 0])
    return rng.choice([0, 1, 7, 100, rng.randrange(min(256**width, 10**9))])


def _well_formed(rng: random.Random, kind: str) -> bytes:
    widths = rng.choice(_FIELDS[kind])
    if kind == "bucket":
        flags = {2: 0, 3: 1, 4: 5, 5: 3}[len(widths)]
        if rng.random() < 0.3:
            flags, widths = flags | _SLOTS, (*widths, *_SLOT_FIELDS)
    elif kind == "fixed":
        flags = len(widths) - 3
    else:  # 1: the key owes
        flags = 0 if kind == "quota" else rng.choice([0, 0, 1])
    value = bytes([_FORMAT, flags])
    number = rng.choice([_number, _likely])
    for width in widths:
        value += number(rng, width).to_bytes(width, "big")
    return value


def _decimal(rng: random.Random) -> bytes:
    texts = ["9007199254740991", "9000000000000000", "-1", "nan", "inf", "1e308", "0x10", "1.5", ""]
    texts += ["9" * 18, "0", "-0", str(time.time_ns() // 1000 + rng.randrange(10**9))]
    return rng.choice(texts).encode()


def _changed(rng: random.Random, value: bytes) -> bytes:
    changed = bytearray(value)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) + 1)
        what = rng.random()
        if what < 0.7 and at < len(changed):
            changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif what < 0.85:
            del changed[at : at + rng.choice([1, 2, 9])]
        else:
            changed[at:at] = rng.randbytes(rng.choice([1, 2, 9]))
    return bytes(changed)


def _value(rng: random.Random, kind: str, before: bytes) -> bytes:
    what = rng.random()
    if what < 0.5:
        return _well_formed(rng, kind)
    if what < 0.6:
        return _well_formed(rng, rng.choice(list(_FIELDS)))
    if what < 0.7:
        return _decimal(rng)
    if what < 0.9 and before:
        return _changed(rng, before)
    return rng.randbytes(rng.choice([1, 6, 9, 13, 16, 18, 40, 1000]))


def _record(rng: random.Random) -> bytes:
    """A value of a reservation, or nearly one."""
    units = rng.choice([0, 1, 7, 2**53 - 1, 2**53, 10**18, 10**30, rng.randrange(100)])
    texts = [b"o%d" % units, b"s%d" % units, b"o", b"o-1", b"o1.5", b"x1", b"o" + b"9" * 400, b""]
    return rng.choice([*texts, rng.randbytes(9)])


def _reserve(
    rng: random.Random, limiter: tg.Limiter, redis: _Connection, kind: str, cost: int
) -> Any:
    """Reserves, changes what is stored, and raises or settles."""
    reservation = limiter.reserve("k", cost, ttl=rng.choice([1, 60, 3600]))
    for key in redis(b"KEYS", b"*"):
        is_record = key.rpartition(b"}")[2] != b""
        if rng.random() < 0.4:
            before = redis(b"GET", key) or b""
            redis(b"SET", key, _record(rng) if is_record else _value(rng, kind, before))
    decisions: list[tg.Decision] = []
    if reservation:
        with contextlib.suppress(tg.ReservationError):
            if kind != "log" and rng.random() < 0.3:
                decisions.append(reservation.extend(rng.choice([1, cost])))
            if rng.random() < 0.3:
                decisions.append(limiter.commit(reservation.token, rng.choice([0, 1, cost])))
            decisions.append(reservation.commit(rng.choice([0, 1, cost, cost * 3])))
    for key in redis(b"KEYS", b"*"):
        if key.rpartition(b"}")[2]:
            redis(b"DEL", key)
    return decisions


def _calls(
    rng: random.Random, limiter: tg.Limiter, limit: tg.Limit, redis: _Connection, kind: str
) -> list[Callable[[], Any]]:
    most = min(limit.count, 50)
    cost = rng.choice([1, 1, 1, 2, most])
    calls: list[Callable[[], Any]] = [
        lambda: limiter.hit("k", cost),
        lambda: limiter.hit("k", cost),
        lambda: limiter.peek("k", cost),
        lambda: limiter.charge_up_to("k", cost),
        lambda: limiter.charge("k", cost),
        lambda: limiter.refund("k", cost),
        lambda: limiter.hit_many(["k", "k"]),
        # Often enough that a leased limiter asks for units.
        lambda: [limiter.hit("k") for _ in range(20)],
    ]
    if limit.algorithm == "concurrency":

        def slot() -> None:
            with contextlib.suppress(tg.RateLimitExceeded), limiter.slot("k"):
                pass

        calls.append(slot)
    else:
        calls.append(lambda: _reserve(rng, limiter, redis, kind, cost))
    if limit.id is None:
        # With a limit under another key: the scripts of plans.
        other = tg.Limiter(limit, storage=limiter.storage)
        plan = tg.Plan([other, other])
        calls.append(lambda: [plan.hit(["k", "l"], [cost, 1])])
    return calls


def fuzz(server: RedisServer, seconds: float, seed: int, slow_s: float = BOUND_S) -> Report:
    """Fuzzes the scripts for so long. The server must be this call's own.

    The report names scripts that took longer than `slow_s`, pauses of the machine included.
    """
    rng = random.Random(seed)
    report = Report()
    server.command("CONFIG", "SET", "slowlog-log-slower-than", str(int(slow_s * 1e6)))
    said: list[str] = []
    options = f"{PATIENT}&deny_cache_max=0&breaker_failures=1000000"
    watchdog = _Watchdog(server.port)
    watchdog.start()
    try:
        with _Connection(server.port) as redis:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                kind, limit = rng.choice(_LIMITS)
                mode = "&mode=leased" if kind == "bucket" and rng.random() < 0.4 else ""
                redis(b"FLUSHALL")
                # Of its script errors a store tells the 1st, 2nd, 4th, ...: so it is used for few.
                with tg.Limiter(
                    limit,
                    storage=f"redis://127.0.0.1:{server.port}/0?{options}{mode}",
                    on_script_error=said.append,
                ) as limiter:
                    limiter.hit("k")
                    (key,) = redis(b"KEYS", b"*")
                    for _ in range(20):
                        redis(b"SET", key, _value(rng, kind, redis(b"GET", key) or b""))
                        for call in rng.sample(_calls(rng, limiter, limit, redis, kind), 2):
                            _call(report, redis, limiter, key, call, said, mode != "")
    finally:
        watchdog.over.set()
        watchdog.join()
    report.slowest_ping_s = watchdog.slowest_s
    slow = server.command("SLOWLOG", "LEN")
    if slow != b":0\r\n":
        report.slow_scripts.append(server.command("SLOWLOG", "GET", "3"))
    return report


def _call(
    report: Report,
    redis: _Connection,
    limiter: tg.Limiter,
    key: bytes,
    call: Callable[[], Any],
    said: list[str],
    is_leased: bool,
) -> None:
    before = redis(b"GET", key)
    errors = limiter.stats().script_errors
    answer = call()
    report.calls += 1
    what = f"{limiter.limits[0]} over {before!r}: {answer}"
    failed = limiter.stats().script_errors > errors
    if failed:
        report.refused_values += 1
        # Of several calls one may have changed it, and a node that gives leased units back.
        if not (isinstance(answer, list) or is_leased) and redis(b"GET", key) != before:
            report.failures.append(f"{what}: the value was changed")
    for message in said:
        if "TIDEGATE the value of a key" not in message:
            report.failures.append(f"{what}: {message}")
    said.clear()
    if isinstance(answer, tg.Decision) and not answer.degraded:
        _check(report, limiter.limits[0], answer, what)


def _check(report: Report, limit: tg.Limit, answer: tg.Decision, what: str) -> None:
    """Nobody is locked out for longer than a period and a debt; a sliding window has two."""
    if limit.algorithm == "quota" or answer.debt > 0 or answer.retry_after == float("inf"):
        return
    longest = limit.period_ns * 2 / 1e9
    if limit.period_ns > 27 * 86400 * 10**9:
        longest = 32 * 86400
    if limit.id is not None:
        longest *= 100  # as many periods as a burst may span
    if limit.algorithm in ("token-bucket", "leaky-bucket"):
        longest += 2 * 60  # the slots of leased units
    if answer.retry_after > longest + 1:
        report.failures.append(f"{what}: locked out for {answer.retry_after} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the scripts with random stored values.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)  # each script error is expected
    with tempfile.TemporaryDirectory(prefix="tg") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            report = fuzz(server, arguments.seconds, arguments.seed)
        finally:
            server.kill()
    print(
        f"seed {arguments.seed}: {report.calls} calls, {report.refused_values} of values that are "
        f"not ours; slowest PING {report.slowest_ping_s * 1e3:.1f} ms"
    )
    for failure in report.failures[:20]:
        print(failure)
    for slow in report.slow_scripts:
        print("slow:", slow)
    late = report.slowest_ping_s > BOUND_S or report.slow_scripts
    return 1 if late or report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
