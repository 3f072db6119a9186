"""Faults between the client and a working server, made by a proxy."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.fault import ANY, Act, fault
from chaos.shim import FAILS, HANGS, RESOLVES
from chaos.stage import Stage


def through_proxy(
    name: str,
    mode: str,
    says: str,
    *,
    seconds: float = 1.0,
    lag: float = 0.0,
    forged: bytes = b"",
    cut: bool = False,
    group: str = "network",
    topology: str = "standalone+proxy",
    **attributes: object,
) -> None:
    """A fault in which the proxy is in `mode` for a while; with `cut`, old connections end too."""

    def act(stage: Stage) -> Iterator[float]:
        assert stage.proxy is not None
        stage.proxy.seconds, stage.proxy.forged = lag, forged
        stage.proxy.mode = mode
        if cut:
            stage.proxy.drop()
        yield seconds
        stage.proxy.heal()

    act.__name__, act.__doc__ = name, says
    made: Act = act
    fault(topology, group=group, **attributes)(made)


through_proxy("black-hole", "hole", "Everything is taken, nothing is answered")
through_proxy(
    "connects-then-silence",
    "hole",
    "Connections end; new ones are accepted, and never answered",
    cut=True,
    seconds=1.5,
)
through_proxy("dripping-replies", "drip", "Replies come a byte at a time", degraded=ANY)
through_proxy("dripping-requests", "split", "Requests arrive a byte at a time", degraded=ANY)
through_proxy("half-replies", "stall", "Half of each reply comes, and no more")
through_proxy("truncated-replies", "truncate", "Half of a reply comes, then the connection ends")
through_proxy("reset", "reset", "An RST in place of each reply")
through_proxy("reset-within-a-request", "abort", "An RST after half of a request")
through_proxy("closed", "close", "The connection ends in place of each reply")
through_proxy("half-closed", "half-close", "The server's direction ends, requests are still taken")
through_proxy("garbage", "garbage", "HTTP in place of each reply", script_errors=True)
through_proxy(
    "bits-flipped",
    "flip",
    "One bit of each piece of a reply is flipped",
    degraded=ANY,
    script_errors=True,
)
through_proxy("endless-reply", "endless", "A reply of two thousand million bytes begins to come")
through_proxy("huge-bulk", "huge-bulk", "A header that promises two thousand million bytes")
through_proxy("huge-array", "huge-array", "A header that promises two thousand million elements")
through_proxy(
    "nested-reply",
    "forge",
    "Arrays nested 2,000 deep",
    forged=b"*1\r\n" * 2000 + b":1\r\n",
    script_errors=True,
)
through_proxy(
    "empty-replies", "forge", "A null in place of each reply", forged=b"$-1\r\n", script_errors=True
)
through_proxy(
    "replies-of-another-type",
    "forge",
    "+OK in place of each reply",
    forged=b"+OK\r\n",
    script_errors=True,
)
through_proxy(
    "numbers-beyond-all-bounds",
    "forge",
    "Arrays of integers beyond 64 bits in place of each reply",
    forged=b"*2\r\n:99999999999999999999\r\n:-99999999999999999999\r\n",
    script_errors=True,
)
through_proxy(
    "redirected-without-a-cluster",
    "forge",
    "MOVED to a port where nobody listens",
    forged=b"-MOVED 1 127.0.0.1:1\r\n",
    script_errors=True,
)
through_proxy(
    "errors-without-a-name",
    "forge",
    "An error that no server sends",
    forged=b"-\xff\xfe\r\n",
    script_errors=True,
)
through_proxy(
    "one-reply-too-many",
    "extra",
    "Each reply is followed by a :1",
    forged=b":1\r\n",
    script_errors=True,
)
through_proxy(
    "replies-lost", "swallow", "One piece of the replies in ten is lost", script_errors=True
)
through_proxy(
    "replies-swapped", "swap", "Each two pieces of the replies change places", script_errors=True
)
through_proxy(
    "replies-out-of-step",
    "shift",
    "Instead of each reply comes the one before it, as long as the connection lives",
    script_errors=True,
)
through_proxy("replies-twice", "twice", "Each reply comes twice", script_errors=True)
through_proxy(
    "slow-network", "lag", "30 ms to each reply, with a deadline of 50 ms", lag=0.03, degraded=ANY
)
through_proxy("too-slow-network", "lag", "80 ms to each reply, with a deadline of 50 ms", lag=0.08)
through_proxy("latency-spikes", "spikes", "Every tenth reply is 200 ms late", lag=0.2)
through_proxy("narrow-network", "choke", "2,000 bytes a second")


@fault("standalone+proxy")
def refused(stage: Stage) -> Iterator[float]:
    """Nobody listens, connections end: refused."""
    assert stage.proxy is not None
    stage.proxy.refuse()
    yield 1.0
    stage.proxy.listen()


@fault("standalone+proxy", degraded=ANY)
def connections_cut(stage: Stage) -> Iterator[float]:
    """Connections end every 50 ms."""
    assert stage.proxy is not None
    for _ in range(20):
        stage.proxy.drop()
        yield 0.05


@fault("standalone+proxy", degraded=ANY)
def flapping(stage: Stage) -> Iterator[float]:
    """Nothing passes for 80 ms out of each 160 ms."""
    assert stage.proxy is not None
    for _ in range(8):
        stage.proxy.mode = "hole"
        yield 0.08
        stage.proxy.mode = "pass"
        yield 0.08


through_proxy(
    "long-outage", "hole", "Nothing passes for 8 s: the breaker probes again and again", seconds=8.0
)


def _names_fail(stage: Stage, how: int, seconds: float) -> Iterator[float]:
    assert stage.clock is not None
    stage.clock.names(how)
    stage.server.cut()
    yield seconds


@fault("standalone+names")
def name_unknown_for_a_while(stage: Stage) -> Iterator[float]:
    """Connections end while the host's name does not resolve."""
    yield from _names_fail(stage, FAILS, 1.2)
    stage.clock.names(RESOLVES)


@fault("standalone+names")
def name_server_silent(stage: Stage) -> Iterator[float]:
    """Connections end while the name server gives no answer."""
    yield from _names_fail(stage, HANGS, 1.5)
    stage.clock.names(RESOLVES)


@fault("standalone+names", recovers=False)
def name_unknown(stage: Stage) -> Iterator[float]:
    """The host's name never resolves, from the beginning."""
    yield from _names_fail(stage, FAILS, 1.5)


@fault("standalone+proxy")
def deny_cache_through_an_outage(stage: Stage) -> Iterator[float]:
    """A key that is used up is asked for all the time while nothing passes: refused in the
    process.
    """
    assert stage.proxy is not None
    stage.worker.begin("flood_denied", seconds=1.6 * stage.pace.hold)
    yield 0.3
    stage.proxy.mode = "hole"
    yield 1.0
    stage.proxy.heal()
    counts = stage.worker.result()
    stage.check_counts(counts, degraded=None)
    # Five by the server, and one more by the fallback.
    stage.check(counts["admitted"] <= 10, f"{counts['admitted']} of 5 were admitted")
    stage.check(counts["denied_locally"] > 0, "no refusal was repeated in the process")
    stage.notes["denied locally"] = counts["denied_locally"]
