"""Times each request inside the process of an application, from its call to its return.

What the server does before and after, and the network, are not in it.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

# By status, pairs of when a request ended and what it took, in seconds of time.perf_counter.
Taken = dict[str, list[tuple[float, float]]]


def write(taken: Taken) -> None:
    """Writes the times of this process, by status, into the folder that SURGE_REPORT names."""
    path = Path(os.environ["SURGE_REPORT"]) / f"{os.getpid()}.json"
    path.write_text(json.dumps(taken), encoding="utf-8")


def read(folder: Path) -> Taken:
    """The times of all processes that have written theirs."""
    taken: Taken = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        for status, times in json.loads(path.read_text(encoding="utf-8")).items():
            taken[status] += [(ended, seconds) for ended, seconds in times]
    return dict(taken)


class Stopwatch:
    """Around an ASGI application; writes when the application's lifespan ends."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._taken: Taken = defaultdict(list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            write(self._taken)
            return
        status = 500

        async def note(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        begin = time.perf_counter()
        try:
            await self._app(scope, receive, note)
        finally:
            ended = time.perf_counter()
            self._taken[str(status)].append((ended, ended - begin))


class WsgiStopwatch:
    """Around a WSGI application; writes when the process ends."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._taken: Taken = defaultdict(list)
        self._process = 0

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if self._process != os.getpid():  # a worker that was forked, at its first request
            self._process = os.getpid()
            atexit.register(write, self._taken)
        status = "500"

        def note(line: str, *rest: Any) -> Any:
            nonlocal status
            status = line.split(" ", 1)[0]
            return start_response(line, *rest)

        begin = time.perf_counter()
        try:
            return self._app(environ, note)
        finally:
            ended = time.perf_counter()
            self._taken[status].append((ended, ended - begin))
