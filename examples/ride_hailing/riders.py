"""Who a request comes from: riders carry a token that the platform has signed.

A limit for each client is worth only as much as the name of the client. A name that anybody can
write into a header would give every request a limit of its own, so only a signature counts.
"""

from __future__ import annotations

import functools
import hmac
import os
from typing import Any

_SECRET = os.environ.get("RIDES_SECRET", "a secret for trying this out").encode()


def _signature(name: str) -> str:
    return hmac.digest(_SECRET, name.encode(), "sha256").hex()[:32]


def token_of(name: str) -> str:
    """What the platform gives a rider or a driver who logs in."""
    return f"{name}.{_signature(name)}"


# In a surge few tokens come again and again, and a refusal should cost little.
@functools.lru_cache(maxsize=10_000)
def name_in(authorization: str) -> str | None:
    """The name that an Authorization field proves, or None where it proves none."""
    name, _, signature = authorization.removeprefix("Bearer ").rpartition(".")
    proven = name and hmac.compare_digest(signature.encode(), _signature(name).encode())
    return name if proven else None


def client_of(scope: Any) -> str:
    """The name of the client of a request, and its address where it has not proven a name."""
    for field, value in scope["headers"]:
        if field == b"authorization":
            name = name_in(value.decode("latin-1"))
            if name is not None:
                return f"user:{name}"
    client = scope.get("client")
    return f"ip:{client[0] if client else 'unknown'}"
