"""A Redis that can be cut off and found again, and what is counted on both sides meanwhile."""

from __future__ import annotations

from typing import Any

import tidegate as tg
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT, RedisServer

# Of the limiter's clock, so that nothing runs out while a test is held up.
GIVEN_TIME = f"{PATIENT}&clock=client&ttl_margin=600"


class Line:
    """The line between limiters of one storage and their Redis, which can be cut."""

    def __init__(self, proxy: Proxy, clock: tg.ManualClock, options: str = "") -> None:
        self.proxy = proxy
        self.is_cut = False
        self.has_fallback = "on_error" not in options
        uri = f"redis://127.0.0.1:{proxy.port}?{GIVEN_TIME}&breaker_failures=1&breaker_open=0.02{options}"
        self.scout = tg.Limiter("1000000/hour", storage=uri, prefix="scout", clock=clock)
        self.storage = self.scout.storage
        self._wait_until_degraded(False)

    def cut(self) -> None:
        self.proxy.mode = "close"
        self._wait_until_degraded(True)
        self.is_cut = True

    def mend(self) -> None:
        self.proxy.mode = "pass"
        self._wait_until_degraded(False)
        self.is_cut = False

    def _wait_until_degraded(self, wanted: bool) -> None:
        eventually(lambda: self.scout.hit("scout").degraded is wanted, 60)


class Direct:
    """One limit, as Redis counts it, and as the fallback does while the line is cut."""

    def __init__(self, server: RedisServer, line: Line, clock: tg.ManualClock, **limiter: Any):
        self.shared = tg.Limiter(storage=server.uri(GIVEN_TIME), clock=clock, **limiter)
        self.local = tg.Limiter(storage=line.storage, clock=clock, **limiter)

    def used(self, key: str) -> int:
        decision = self.shared.peek(key)
        assert not decision.degraded
        return decision.limit - decision.remaining

    def used_of_share(self, key: str, share: int) -> int:
        decision = self.local.peek(key)
        assert decision.degraded
        return share - decision.remaining


def by_line(
    server: RedisServer, proxy: Proxy, clock: tg.ManualClock, limit: tg.Limit | str
) -> tuple[Line, tg.Limiter, Direct]:
    """A line, a limiter at its end, and what is counted of its limit."""
    line = Line(proxy, clock)
    limiter = tg.Limiter(limit, storage=line.storage, clock=clock)
    return line, limiter, Direct(server, line, clock, limit=limit)
