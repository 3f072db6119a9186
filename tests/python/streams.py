"""For the tests of streaming responses: a limit of 100 units that charges 50 at first."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Callable

import tidegate as tg
from tidegate import rate_limit
from tidegate.web.shared_counters import limiter_in_scope

KEY = "everybody"
START = 1_700_000_000 * 10**9


def limited(**options: Any) -> tuple[Any, Callable[[], int]]:
    """A decorator for 100 units, of which 50 are charged at first, and what remains of them."""
    limiter = tg.Limiter("100/minute", clock=tg.ManualClock(START), prefix="streams")
    options.setdefault("cost_after", lambda request, response: request.state.used)
    decorator = rate_limit(
        "100/minute",
        key=lambda request: KEY,
        cost=50,
        storage=limiter.storage,
        clock=limiter._clock,
        prefix="streams",
        scope="streams",
        **options,
    )
    return decorator, lambda: remaining(limiter)


def remaining(limiter: tg.Limiter) -> int:
    same = limiter_in_scope(
        "100/minute",
        scope="streams",
        store=limiter.storage,
        algorithm="token-bucket",
        prefix="streams",
        clock=limiter._clock,
        headers=(),
    ).limiter
    assert same is not None
    return same.peek(KEY).remaining


@contextlib.contextmanager
def request_to(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A connection that has asked for the root, and goes away at the end of the block."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        yield connection
