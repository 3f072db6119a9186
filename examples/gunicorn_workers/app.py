"""A WSGI application with one limit for each client; a setting chooses the storage.

STORAGE=memory://    gunicorn --workers 4 app:app     each worker counts for itself
STORAGE=shm://demo   gunicorn --workers 4 app:app     all workers count together
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import tidegate as tg

limiter = tg.Limiter(
    os.environ.get("LIMIT", "100/minute"), storage=os.environ.get("STORAGE", "memory://")
)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answers with the worker's process id, and 200 or 429."""
    decision = limiter.hit(environ["REMOTE_ADDR"])
    headers = [("Content-Type", "text/plain"), ("X-RateLimit-Remaining", str(decision.remaining))]
    if decision:
        start_response("200 OK", headers)
    else:
        headers.append(("Retry-After", str(int(decision.retry_after) + 1)))
        start_response("429 Too Many Requests", headers)
    return [str(os.getpid()).encode()]
