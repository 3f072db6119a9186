"""A hit is one command for any state of its key: what a short script does not understand, the full
one decides in the same call.

Its oracle is the full script alone, which a limit in shadow brings about, over an equal key.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable

import pytest
import tidegate as tg
from redis_server import PATIENT, RedisServer

STRICT = f"{PATIENT}&deny_cache_max=0"
PERIOD = "2000 weeks"  # of which nothing comes back while a test runs
PERIOD_S = 2000 * 7 * 86400

# The time of a unit of the second bucket is no whole number of nanoseconds.
LIMITS: dict[str, list[tg.Limit]] = {
    "whole": [tg.Limit(f"60/{PERIOD}")],
    "odd": [tg.Limit(f"61/{PERIOD}")],
    "leaky": [tg.Limit(f"60/{PERIOD}", algorithm="leaky-bucket")],
    "plan": [tg.Limit(f"{n}/{PERIOD}") for n in (60, 61, 70, 71)],
    "windows": [tg.Limit(f"60/{PERIOD}", algorithm="fixed-window")],
    "windows plan": [tg.Limit(f"{n}/{PERIOD}", algorithm="fixed-window") for n in (60, 61, 70, 71)],
}
BUCKETS = ("whole", "odd", "leaky", "plan")
ALONE = ("whole", "odd", "leaky", "windows")
SHADOW = tg.Limit("1000000/hour", shadow=True)


def now_s(server: RedisServer) -> int:
    return int(server.command("TIME").split(b"\r\n")[2])


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def commands(server: RedisServer) -> int:
    calls = server.calls()
    return calls.get("evalsha", 0) + calls.get("eval", 0)


class Pair:
    """A limiter whose hits are of the short scripts, and one of the full script."""

    def __init__(self, server: RedisServer, kind: str) -> None:
        self.server = server
        self.kind = kind
        self.short = tg.Limiter(LIMITS[kind], storage=server.uri(STRICT))
        self.full = tg.Limiter([*LIMITS[kind], SHADOW], storage=server.uri(STRICT))
        for limiter in (self.short, self.full):
            limiter.hit("a call that loads the script")
        self.short.hit("short")
        self.keys = sorted(
            key for key in server.command("KEYS", "*{short}").split(b"\r\n") if b"{short}" in key
        )
        assert len(self.keys) == len(LIMITS[kind])

    def value(self, key: bytes) -> bytes:
        return b"" if self.server.command("EXISTS", key) == b":0\r\n" else self.server.value_of(key)

    def values(self, of: str = "short") -> list[bytes]:
        return [self.value(self.key(key, of)) for key in self.keys]

    def key(self, key: bytes, of: str) -> bytes:
        return key.replace(b"{short}", b"{%s}" % of.encode())

    def store(self, values: list[bytes]) -> None:
        """Gives the keys of both these values; none where it is empty."""
        for key, value in zip(self.keys, values, strict=True):
            for each in (key, self.key(key, "full")):
                self.server.command(*(("SET", each, value) if value else ("DEL", each)))

    def check(self, hits: Callable[[tg.Limiter], list[tg.Decision]], costs: list[int]) -> int:
        """Both decide and store the same. Returns the commands that `hits` took."""
        before = commands(self.server)
        told = hits(self.short)
        taken = commands(self.server) - before
        expected = [self.full.hit("full", cost) for cost in costs]
        for d, e in zip(told, expected, strict=True):
            assert (d.allowed, d.remaining, d.limit) == (e.allowed, e.remaining, e.limit)
            assert (d.debt, d.degraded) == (e.debt, e.degraded)
            assert d.retry_after == pytest.approx(e.retry_after, abs=60)
            assert d.reset_after == pytest.approx(e.reset_after, abs=60)
        for of_short, of_full in zip(self.values(), self.values("full"), strict=True):
            assert alike(of_short, of_full), (of_short, of_full)
        for key in self.keys:
            lives = [
                int(self.server.command("PTTL", self.key(key, of))[1:-2])
                for of in ("short", "full")
            ]
            assert abs(lives[0] - lives[1]) < 60_000
        assert self.short.stats().script_errors == self.full.stats().script_errors
        return taken


def alike(one: bytes, other: bytes) -> bool:
    """Whether two values are equal but for the microseconds between the calls."""
    if one == other:
        return True
    if one.isdigit() and other.isdigit():
        return abs(int(one) - int(other)) < 60 * 10**6
    instants = [
        int.from_bytes(v[2:7], "big") * 10**9 + int.from_bytes(v[7:11], "big") for v in (one, other)
    ]
    apart = abs(instants[0] - instants[1])
    return (one[:2], one[11:]) == (other[:2], other[11:]) and apart < 60e9 and apart % 1000 == 0


def slots(server: RedisServer, current: int, previous: int) -> bytes:
    """Units of a bucket that nodes hold, in slots of a minute."""
    us = now_s(server) * 10**6
    fields = (number(us + 60 * 10**6, 7), number(60 * 10**6, 5))
    return b"".join((*fields, number(current, 6), number(previous, 6)))


def leased(server: RedisServer, ahead_s: int, current: int, previous: int = 0) -> bytes:
    """A bucket whose instant lies ahead of now, with units that nodes hold."""
    fields = number(now_s(server) + ahead_s, 5) + struct.pack(">I", 1000) + number(0, 7)
    return b"\x81\x21" + fields + slots(server, current, previous)


UNIT_S = PERIOD_S // 60
HALF_S = UNIT_S // 2


def states(server: RedisServer, kind: str) -> list[bytes]:
    """Values that the short scripts leave to the full one."""
    start = now_s(server)
    if kind in BUCKETS:
        owing = number(start + 2 * PERIOD_S, 5) + struct.pack(">I", 999_999_999) + number(0, 7)
        # 2^59 to 2^60 nanoseconds beyond the burst.
        most = number(8 * 57 + 7, 2)
        found = [
            b"\x81\x05" + owing + most,
            # Half a unit more, so that no unit is full or free between the calls of a pair.
            leased(server, 10 * UNIT_S + HALF_S, 20),
            leased(server, 10 * UNIT_S + HALF_S, 55, 2),
            leased(server, PERIOD_S + HALF_S, 60),
            leased(server, 58 * UNIT_S + HALF_S, 0, 3),
            b"\x81\x25" + owing + most + slots(server, 5, 5),
        ]
        if kind in ("whole", "leaky"):  # whole and parts of nanoseconds
            found += [
                b"\x81\0" + number(start + 3 * UNIT_S, 5) + struct.pack(">I", 5),
                b"\x81\1" + number(start + 59 * UNIT_S, 5) + struct.pack(">I", 5) + number(0, 7),
            ]
        return found
    end = (start // PERIOD_S + 1) * PERIOD_S
    return [
        b"\x81\1" + number(end + 2 * PERIOD_S, 5) + bytes(4) + number(7, 7) + number(2, 2),
        b"\x81\0" + number(end, 5) + struct.pack(">I", 1) + number(57, 7),
        b"\x81\0" + number(end + 3 * PERIOD_S, 5) + bytes(4) + number(4, 7),
        b"\x81\0" + number(end + 3 * PERIOD_S, 5) + bytes(4) + number(80, 7),
    ]


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("cost", [1, 7])
def test_a_hit_is_one_command(server: RedisServer, kind: str, way: str, cost: int) -> None:
    pair = Pair(server, kind)
    before = pair.values()
    for state in states(server, kind):
        for at in range(len(before)):  # the key of the plan that has the state
            pair.store([*before[:at], state, *before[at + 1 :]])

            def hit(limiter: tg.Limiter) -> list[tg.Decision]:
                if way == "sync":
                    return [limiter.hit("short", cost)]
                return [asyncio.run(limiter.hit_async("short", cost))]

            assert pair.check(hit, [cost]) == 1
    assert pair.short.stats().script_errors == 0


@pytest.mark.parametrize("kind", ALONE)
def test_hits_that_share_a_command_need_no_other(server: RedisServer, kind: str) -> None:
    pair = Pair(server, kind)

    async def together(limiter: tg.Limiter) -> list[tg.Decision]:
        calls = [limiter.hit_async("short", 2) for _ in range(9)]
        others = [limiter.hit_async(f"other {i}", 2) for i in range(9)]
        told = await asyncio.gather(*calls, *others)
        assert all(decision.allowed for decision in told[9:])
        return told[:9]

    for state in states(server, kind):
        fewest = 18
        for _ in range(20):
            # A busy machine splits the hits of a turn; it does not split them each time.
            for i in range(9):
                pair.short.reset(f"other {i}")
            pair.store([state])
            taken = pair.check(lambda limiter: asyncio.run(together(limiter)), [2] * 9)
            fewest = min(fewest, taken)
            if fewest == 1 or kind == "odd":
                break
        # Plans, and so buckets of odd rates, share no command.
        assert fewest == (18 if kind == "odd" else 1)
    assert pair.short.stats().script_errors == 0


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("seed", range(3))
def test_any_history_ends_as_by_the_full_script(server: RedisServer, kind: str, seed: int) -> None:
    draw = random.Random(seed)
    pair = Pair(server, kind)
    for _ in range(60):
        cost = draw.choice((1, 1, 2, 7, 30, 60))
        change = draw.random()
        if change < 0.15:
            pair.short.charge("short", cost)
        elif change < 0.3:
            pair.short.refund("short", cost)
        elif change < 0.4:
            pair.short.reset("short")
        elif change < 0.6:
            values = pair.values()
            values[draw.randrange(len(values))] = draw.choice(states(server, kind))
            pair.store(values)
        pair.store(pair.values())

        def hit(limiter: tg.Limiter, cost: int = cost) -> list[tg.Decision]:
            return [limiter.hit("short", cost)]

        assert pair.check(hit, [cost]) == 1
    assert pair.short.stats().script_errors == 0


@pytest.mark.parametrize("kind", LIMITS)
def test_a_debt_that_was_charged_is_one_command(server: RedisServer, kind: str) -> None:
    pair = Pair(server, kind)
    pair.short.charge("short", 100)
    pair.store(pair.values())
    assert pair.check(lambda limiter: [limiter.hit("short")], [1]) == 1
    assert not pair.short.hit("short").allowed


def test_units_that_another_node_holds_are_one_command(server: RedisServer) -> None:
    limit = "60/minute burst 1000"
    uri = server.uri(f"{STRICT}&mode=leased&lease=10&client_name=a")
    with (
        tg.Limiter(limit, storage=uri) as node,
        tg.Limiter(limit, storage=server.uri(STRICT)) as strict,
    ):
        strict.hit("a call that loads the script")
        for _ in range(200):
            node.hit("k")
        keys = server.command("KEYS", "*{k}").split(b"\r\n")
        assert server.value_of(keys[2])[:2] == b"\x81\x21"
        before = commands(server) - node.stats().lease_questions
        assert strict.hit("k").allowed
        assert strict.hit_many(["k"])
        assert commands(server) - node.stats().lease_questions == before + 2
        assert strict.stats().script_errors == 0


@pytest.mark.parametrize("kind", ["whole", "windows"])
@pytest.mark.parametrize("foreign", ["text", "newer", "list"])
def test_a_foreign_key_fails_alone_in_its_command(
    server: RedisServer, kind: str, foreign: str
) -> None:
    """Hits of other callers share the command, one of a state of the full script too."""
    said: list[str] = []
    limiter = tg.Limiter(LIMITS[kind][0], storage=server.uri(STRICT), on_script_error=said.append)
    values = {"text": b"of another program", "newer": b"\x82\0" + bytes(16)}
    words = {
        "text": "TIDEGATE the value of a key is not a",
        "newer": "which a newer version of tidegate wrote; expected the format 1",
        "list": "WRONGTYPE",
    }
    for attempt in range(20):
        names = [f"{attempt} {i}" for i in range(9)]
        for name in names:
            limiter.hit(name)
        keys = {}
        for name in names:
            keys[name] = server.command("KEYS", f"*{{{name}}}").split(b"\r\n")[2]
        server.command("DEL", keys[names[4]])
        if foreign == "list":
            server.command("RPUSH", keys[names[4]], "a")
        else:
            server.command("SET", keys[names[4]], values[foreign])
        server.command("SET", keys[names[6]], states(server, kind)[1])
        before = commands(server)
        failed = limiter.stats().script_errors

        async def hits(names: list[str] = names) -> list[tg.Decision]:
            return await asyncio.gather(*(limiter.hit_async(name) for name in names for _ in "ab"))

        told = asyncio.run(hits())
        assert all(told)  # those of the foreign key by the fallback
        assert [d.degraded for d in told] == [i // 2 == 4 for i in range(18)]
        assert limiter.stats().script_errors == failed + 2
        if foreign != "list":
            assert server.value_of(keys[names[4]]) == values[foreign]
        # Each other key has both hits.
        for name in names[:4] + names[5:6] + names[7:]:
            assert limiter.peek(name).remaining == 57
        if commands(server) - before == 1 + 7:
            break
    else:
        raise AssertionError("no turn of 18 hits was one command")
    assert said
    assert all(words[foreign] in message for message in said)


@pytest.mark.parametrize("kind", ["plan", "windows plan"])
def test_a_plan_with_a_foreign_key_changes_none(server: RedisServer, kind: str) -> None:
    pair = Pair(server, kind)
    values = pair.values()
    for state in states(server, kind):
        pair.store([values[0], state, b"of another program", values[3]])
        before = commands(server), pair.values()
        assert pair.short.hit("short").degraded
        assert (commands(server), pair.values()) == (before[0] + 1, before[1])
