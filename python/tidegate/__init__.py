"""tidegate: rate limiting that decides in nanoseconds.

::

    import tidegate as tg

    limiter = tg.Limiter("100/minute")
    decision = limiter.hit("user:42")
    if not decision:
        print("try again in", decision.retry_after, "seconds")
"""

from __future__ import annotations

from tidegate._core import Decision, __version__
from tidegate.limiter.base import BaseLimiter
from tidegate.limiter.clock import ManualClock
from tidegate.limiter.errors import (
    ArgumentTypeError,
    ConfigurationError,
    LimiterClosedError,
    RateLimitExceeded,
    ReservationError,
    StorageError,
    TidegateError,
)
from tidegate.limiter.limit import Limit, parse, parse_many
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.reservation import Reservation

# Names that only type checkers need are not imported, so that `import tidegate` takes milliseconds.
# Without the annotation, jedi does not read the block, and a notebook shows no arguments of these.
TYPE_CHECKING: bool = False
if TYPE_CHECKING:
    from typing import Any

    from tidegate.limiter.plan import Plan
    from tidegate.limiter.replay import replay
    from tidegate.limiter.rule_limiter import RuleLimiter
    from tidegate.limiter.stats import Stats
    from tidegate.limiter.usage_cost import UsageCost, usage_in
    from tidegate.limiter.waiting.slot import Slot
    from tidegate.rules.rule_set import RuleSet
    from tidegate.web.configuration import configure
    from tidegate.web.frameworks.decorator import rate_limit

__all__ = [
    "ArgumentTypeError",
    "BaseLimiter",
    "ConfigurationError",
    "Decision",
    "Limit",
    "Limiter",
    "LimiterClosedError",
    "ManualClock",
    "Plan",
    "RateLimitExceeded",
    "Reservation",
    "ReservationError",
    "RuleLimiter",
    "RuleSet",
    "Slot",
    "Stats",
    "StorageError",
    "TidegateError",
    "UsageCost",
    "__version__",
    "configure",
    "parse",
    "parse_many",
    "rate_limit",
    "replay",
    "usage_in",
]


# Type checkers are to find names that do not exist, and so must not know of this function.
if not TYPE_CHECKING:
    _ELSEWHERE = {
        "DefaultRateLimit": "from tidegate.fastapi import DefaultRateLimit",
        "RateLimit": "from tidegate.fastapi import RateLimit",
        "RateLimitMiddleware": "from tidegate.asgi import RateLimitMiddleware",
        "RateLimiter": "from tidegate.flask import RateLimiter",
        "Rule": "from tidegate.rules import Rule",
        "RuleFile": "from tidegate.rules import RuleFile",
        "Tiers": "from tidegate.rules import Tiers",
        "client_ip": "from tidegate.keys import client_ip",
        "exempt": "from tidegate.fastapi import exempt",
        **dict.fromkeys(
            ("RateLimiting", "Throttle", "limit", "ratelimit", "throttle"),
            "from tidegate import rate_limit",
        ),
        **dict.fromkeys(("init", "init_app", "setup"), "from tidegate import configure"),
        "AsyncLimiter": "Limiter('5/minute'), and await its hit_async()",
        "Quota": "from tidegate.quotas import Quota",
        "Rate": "from tidegate import Limit",
        "RateLimitCollector": "from tidegate.prometheus import RateLimitCollector",
        "Rules": "from tidegate import RuleSet",
        "Semaphore": "Limiter('5 at once'), and its slot(key)",
        "load_rules": "RuleSet.load('rules.yaml')",
        **{name: f"from tidegate.testing import {name}" for name in ("limits_off", "reset_all")},
        **dict.fromkeys(
            ("RateLimitError", "RateLimitException", "RateLimited", "TooManyRequests"),
            "from tidegate import RateLimitExceeded",
        ),
        **dict.fromkeys(
            ("MemoryStorage", "RedisBackend", "RedisStorage", "redis", "storage"),
            "Limiter(..., storage='redis://localhost')",
        ),
        **{
            name: f"Limiter(..., algorithm={algorithm!r})"
            for name, algorithm in {
                "FixedWindow": "fixed-window",
                "LeakyBucket": "leaky-bucket",
                "MovingWindow": "sliding-log",
                "SlidingWindow": "sliding-window",
                "TokenBucket": "token-bucket",
            }.items()
        },
        "decorators": "from tidegate import rate_limit",
        "middleware": "from tidegate.asgi import RateLimitMiddleware",
    }
    # Few programs need all of these, and they take longer to import than everything else.
    _LATER = {
        "Plan": "tidegate.limiter.plan",
        "RuleLimiter": "tidegate.limiter.rule_limiter",
        "RuleSet": "tidegate.rules",
        "Slot": "tidegate.limiter.waiting.slot",
        "Stats": "tidegate.limiter.stats",
        "UsageCost": "tidegate.limiter.usage_cost",
        "configure": "tidegate.web.configuration",
        "rate_limit": "tidegate.web.frameworks.decorator",
        "replay": "tidegate.limiter.replay",
        "usage_in": "tidegate.limiter.usage_cost",
    }
    # Modules that newcomers look for; each raises an error that says what to import.
    __path__.append(f"{__file__.rpartition('/')[0]}/_elsewhere")

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            return getattr(__import__(_LATER[name], fromlist=[name]), name)
        from tidegate.limiter.errors import missing

        raise missing(__name__, name, _ELSEWHERE)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations"})
