"""The time of a decision by rules, beside a plan of the same limits made by hand.

    python benchmarks/python/bench_rules.py [--quick] [--json FILE]

- A check of a request to which four rules apply, in sets of 10 to 100,000 rules, beside Plan.hit()
  of four limits with ids, and of four without, in one run.
- The matching alone, for random requests to the endpoints of the rules, so that caches help as
  little as in a service.
- The memory of one of 100,000 overrides.
- The ASGI middleware with rules beside the one with a limit, in process.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Any

import harness
from harness import Subject, Target

_SIZES = (10, 100, 1_000, 10_000, 100_000)
_REQUESTS = 2_000
_PLENTY = "1000000000/hour"


def _rule_set(size: int) -> Any:
    """`size` rules, half of them with patterns; four of them are for /api/posts."""
    from tidegate.rules import RuleSet

    rules = [
        {"id": "user", "by": "user", "endpoint": "/api/*", "limits": _PLENTY},
        {"id": "endpoint", "by": "endpoint", "endpoint": "/api/*", "limits": _PLENTY},
        {"id": "address", "by": "ip", "limits": _PLENTY},
        {"id": "all", "by": "global", "limits": _PLENTY},
    ]
    for i in range(size - len(rules)):
        endpoint = f"/s{i % 1000}/items/{i}" if i % 2 else f"/s{i}/{{id}}/x"
        rules.append({"id": f"r{i}", "by": "user", "endpoint": endpoint, "limits": _PLENTY})
    return RuleSet({"rules": rules})


def _requests(size: int) -> list[dict[str, str]]:
    """Random requests to the endpoints of rules."""
    chance = random.Random(size)
    requests = []
    for _ in range(_REQUESTS):
        i = chance.randrange(max(1, size - 4))
        endpoint = f"/s{i % 1000}/items/{i}" if i % 2 else f"/s{i}/77/x"
        requests.append(
            {"user": str(chance.randrange(10**6)), "endpoint": endpoint, "ip": "203.0.113.9"}
        )
    return requests


def _matching_ns(limiter: Any, requests: list[dict[str, str]]) -> float:
    """The median time of matching over the rounds, with the reading of attributes."""
    match = limiter._match
    rounds = []
    for _ in range(7):
        start = time.perf_counter_ns()
        for request in requests:
            match(request)
        rounds.append((time.perf_counter_ns() - start) / len(requests))
    return statistics.median(rounds)


def _middleware_us(app: Any, requests: int) -> float:
    scope = {"type": "http", "method": "GET", "path": "/api/posts", "client": ("203.0.113.9", 1)}

    async def send(message: Any) -> None: ...

    async def run() -> float:
        start = time.perf_counter()
        for _ in range(requests):
            await app({**scope, "headers": []}, None, send)
        return (time.perf_counter() - start) / requests * 1e6

    return asyncio.run(run())


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=15, quick_rounds=5)
    options = parser.parse_args()
    tidegate = harness.load_tidegate()
    assert tidegate is not None
    from tidegate import asgi
    from tidegate.rules import RuleSet

    sizes = _SIZES[:3] if options.quick else _SIZES
    limiters = {size: tidegate.Limiter(rules=_rule_set(size)) for size in sizes}
    call = 'check(user=key, tier="free", endpoint="/api/posts", method="GET", ip="203.0.113.9")'
    subjects = [
        Subject(f"check, {size:,} rules, 4 apply", call, {"check": limiter.check})
        for size, limiter in limiters.items()
    ]
    for name, ids in (("with ids", True), ("without ids", False)):
        first: Any = None
        made = []
        for number in range(4):
            limit = tidegate.Limit(_PLENTY, id=f"l{number}" if ids else None)
            storage = "memory://" if first is None else first.storage
            made.append(tidegate.Limiter(limit, storage=storage, prefix=f"p{number}"))
            first = first or made[0]
        plan = tidegate.Plan(made)
        keys = '[key, "/api/posts", "203.0.113.9", "*"]'
        subjects.append(Subject(f"Plan.hit, 4 limits {name}", f"hit({keys})", {"hit": plan.hit}))
    rows = harness.measure(subjects, harness.rounds_of(options), quick=options.quick)
    harness.print_interpreter()
    harness.print_rows("A request that four limits apply to", rows, None)
    times = {row.name: row.ns for row in rows}
    check = times[f"check, {sizes[-1]:,} rules, 4 apply"]

    matching = {size: _matching_ns(limiters[size], _requests(size)) for size in sizes}
    harness.print_table(
        "Matching alone, of random requests",
        ["rules", "ns"],
        [[f"{size:,}", f"{ns:.0f}"] for size, ns in matching.items()],
    )

    overrides = [
        {"rule": "a", "key": f"user-{i}", "limits": "100/minute", "reason": "contract"}
        for i in range(100_000)
    ]
    held = RuleSet(
        {"rules": [{"id": "a", "by": "user", "limits": "1/minute"}], "overrides": overrides}
    )
    bytes_each = held._compiled._override_bytes / len(overrides)

    one = asgi.RateLimitMiddleware(_hello, limit=_PLENTY)
    ruled = asgi.RateLimitMiddleware(_hello, rules=_rule_set(100))
    rounds = [
        (_middleware_us(one, 5_000), _middleware_us(ruled, 5_000))
        for _ in range(harness.rounds_of(options))
    ]
    middleware = statistics.median(after - before for before, after in rounds)

    targets = [
        Target(
            "check over a plan of the same limits with ids",
            check / times["Plan.hit, 4 limits with ids"],
            1.5,
            at_least=False,
        ),
        Target(
            "check over a plan of four limits without ids",
            check / times["Plan.hit, 4 limits without ids"],
            1.5,
            at_least=False,
        ),
        Target("check", check / 1000, 2, at_least=False, unit=" us"),
        Target(
            f"matching, {sizes[-1]:,} rules over {sizes[0]}",
            matching[sizes[-1]] / matching[sizes[0]],
            2,
            at_least=False,
        ),
        Target("an override", bytes_each, 100, at_least=False, unit=" bytes"),
    ]
    print(f"the middleware with 100 rules, of which 2 apply, takes {middleware:.1f} us more")
    figures = {"rows": rows, "matching_ns": matching, "middleware_us": middleware}
    harness.report(options.json, "rules", figures, targets)


if __name__ == "__main__":
    main()
