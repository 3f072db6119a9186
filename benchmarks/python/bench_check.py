"""The time of one check of a request, in Python, by how much the check must ask of the service.

    python benchmarks/python/bench_check.py [--quick] [--rounds N] [--json FILE]

A check by the address of the connection is one call of the core. The others call functions of the
service: of the key, of exempt_when, of the cost. In memory, one thread, inside an event loop; every
request passes.
"""

from __future__ import annotations

import asyncio
import gc
import time
from types import CoroutineType
from typing import Any

import harness
from bench_asgi import scope

_BARE = "the address, one call of the core"
# The subjects with a target: the multiple of _BARE that each may take.
_MOST = {"a key function and exempt_when": 2.0, "a cost function": 2.0}


def _key(request: Any) -> str:
    return str(request["client"][0])


def _checks(tidegate: Any) -> dict[str, Any]:
    from tidegate.web.request_limiter import RequestLimiter

    def check(**options: Any) -> Any:
        limiter = tidegate.Limiter("1000000/second")
        return RequestLimiter(limiter, headers=("x-ratelimit", "ietf"), **options).check

    return {
        _BARE: check(),
        "a key function": check(key=_key),
        "exempt_when": check(exempt_when=lambda request: False),
        "a key function and exempt_when": check(key=_key, exempt_when=lambda request: False),
        "a cost function": check(cost=lambda request: 2),
        "a key, a cost function and exempt_when": check(
            key=_key, cost=lambda request: 2, exempt_when=lambda request: False
        ),
    }


async def _nanoseconds(check: Any, calls: int) -> float:
    request = scope()
    checked = None
    began = time.perf_counter_ns()
    for _ in range(calls):
        checked = check(request)
        if isinstance(checked, CoroutineType):
            checked = await checked
    taken = time.perf_counter_ns() - began
    if checked is None or not checked.decision.allowed:
        raise RuntimeError(f"the check returned {checked!r}; expected one that passes")
    return taken / calls


async def measure(checks: dict[str, Any], rounds: int, calls: int) -> dict[str, float]:
    """The least of the rounds: any time above it goes to other work of the machine."""
    found: dict[str, list[float]] = {name: [] for name in checks}
    for _ in range(rounds):
        gc.collect()
        for name, check in checks.items():
            found[name].append(await _nanoseconds(check, calls))
    return {name: min(times) for name, times in found.items()}


def main() -> None:
    options = harness.arguments(__doc__ or "", rounds=41, quick_rounds=11).parse_args()
    tidegate = harness.load_tidegate()
    harness.print_interpreter()
    calls = 2_000 if options.quick else 10_000
    found = asyncio.run(measure(_checks(tidegate), harness.rounds_of(options), calls))
    bare = found[_BARE]
    figures = {name: {"ns": ns, "ratio": ns / bare} for name, ns in found.items()}
    lines = [[name, f"{f['ns']:,.0f}", f"{f['ratio']:.2f}x"] for name, f in figures.items()]
    harness.print_table("One check, least of the rounds", ["", "ns", "ratio"], lines)
    targets = [
        harness.Target(f"{name}: multiple of {_BARE}", found[name] / bare, most, at_least=False)
        for name, most in _MOST.items()
    ]
    harness.report(options.json, "check", {"checks": figures}, targets)


if __name__ == "__main__":
    main()
