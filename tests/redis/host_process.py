"""A process of its own that asks a Redis by word of the test."""

from __future__ import annotations

import sys
from typing import Any

import processes

# Answers each line with one, in JSON: the state of hits, or what else was asked for.
_LOOP = """
import json, sys
import tidegate

limit, uri, fallback, deny_cache_max = sys.argv[1:5]
changes = []
limiter = tidegate.Limiter(
    limit, storage=uri, fallback=fallback, deny_cache_max=deny_cache_max,
    on_breaker=lambda opened, why: changes.append([opened, why]),
)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "hit":
        decisions = [limiter.hit(rest[0]) for _ in range(int(rest[1]))]
        answer = [[bool(d), d.degraded] for d in decisions]
    elif word == "stats":
        answer = limiter.stats()._asdict()
    elif word == "changes":
        answer = changes
    else:
        answer = getattr(limiter, word)(*rest)
    print(json.dumps(answer), flush=True)
"""


class HostProcess(processes.Answering):
    """A limiter on Redis with a shared memory for its fallback."""

    def __init__(self, limit: str, uri: str, fallback: str, deny_cache_max: float = 0) -> None:
        super().__init__([sys.executable, "-c", _LOOP, limit, uri, fallback, str(deny_cache_max)])

    def ask(self, *words: object) -> Any:
        return self.answer_to(" ".join(map(str, words)))

    def hit(self, times: int = 1, key: str = "k") -> list[tuple[bool, bool]]:
        """Whether each was allowed, and whether it was decided without Redis."""
        return [(allowed, degraded) for allowed, degraded in self.ask("hit", key, times)]

    def is_degraded(self) -> bool:
        ((_, degraded),) = self.hit()
        return degraded

    def changes(self) -> list[bool]:
        """What the hook of the breaker was told."""
        return [opened for opened, _ in self.ask("changes")]

    def kill(self) -> None:
        processes.stop(self.process)
