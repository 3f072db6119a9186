"""Types for annotations of code that passes options on."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["Algorithm", "KeyName", "Oversize"]

Algorithm = Literal[
    "token-bucket",
    "gcra",
    "leaky-bucket",
    "fixed-window",
    "sliding-window",
    "sliding-log",
    "concurrency",
    "quota",
]
"""The values that the option `algorithm` accepts; ``gcra`` is an alias of ``token-bucket``, and
``quota`` is for quotas only."""

# Those that a limit of a count and a period may have, once each.
ALGORITHMS: tuple[Algorithm, ...] = tuple(
    each for each in get_args(Algorithm) if each not in ("gcra", "quota")
)
# Those whose limits have a burst, with the alias.
BUCKETS: tuple[Algorithm, ...] = ("token-bucket", "gcra", "leaky-bucket")

KeyName = Literal["ip", "user", "user_or_ip"]
"""The keys that the option `key` knows by name: the client's address, the user whom the framework
has authenticated, and the user or else the address."""

Oversize = Literal["refuse", "debt"]
"""The values of `oversize` of a Limit: what becomes of a cost beyond its capacity."""
