"""``tidegate demo``: real requests to a real service, and its answers."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from tidegate.cli.demo.access_log import logged_requests
from tidegate.limiter.replay import replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.cli.demo.access_log import Request

__all__ = ["LIVE_LIMIT", "LOG_LIMIT", "run"]

LIVE_LIMIT = "5 per 5 seconds"
LOG_LIMIT = "15 per minute"

_SECOND_NS = 10**9


def run(*, fast: bool = False, lines: int | None = None) -> int:
    """Runs the demo and returns the exit code.

    With `fast` it does not wait, but moves the service's clock. `lines` is how much of the log to
    replay.
    """
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"tidegate: the demo needs {' and '.join(missing)}: pip install 'tidegate[demo]'",
            file=sys.stderr,
        )
        return 1
    screen = Screen()
    try:
        with _service(fast) as address, contextlib.closing(_Client(address)) as client:
            client.send("GET", "/")  # any answer shows that the service is up
            screen.say(f"FastAPI under uvicorn on http://{address[0]}:{address[1]}", "bold")
            screen.say(", the store embedded in its process.\n\n")
            _burst(client, screen, fast)
            return _log(client, screen, logged_requests(lines))
    except BrokenPipeError:  # the reader of the pipe is gone, which main() handles
        raise
    except (OSError, http.client.HTTPException) as exc:
        print(f"tidegate: the demo's service did not answer: {exc!r}", file=sys.stderr)
        return 1


class _Answer(NamedTuple):
    status: int
    remaining: int
    reset: int  # seconds since the epoch
    retry_after: int | None


class _Client:
    """Sends requests over one connection and reads the limit's fields of the answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=30)

    def send(self, method: str, path: str, client: str = "", now_ns: int | None = None) -> _Answer:
        headers = {"X-Demo-Client": client}
        if now_ns is not None:
            headers["X-Demo-Time-Ns"] = str(now_ns)
        self._connection.request(method, path, headers=headers)
        response = self._connection.getresponse()
        response.read()
        retry_after = response.getheader("Retry-After")
        return _Answer(
            response.status,
            int(response.getheader("X-RateLimit-Remaining", "0")),
            int(response.getheader("X-RateLimit-Reset", "0")),
            None if retry_after is None else int(retry_after),
        )

    def close(self) -> None:
        self._connection.close()


class Screen:
    """Standard output: colours and a moving bar on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self._colours = self.is_terminal and "NO_COLOR" not in os.environ
        try:
            "█░".encode(sys.stdout.encoding or "ascii")
            self._full, self._light = "█", "░"
        except UnicodeEncodeError:
            self._full, self._light = "#", "."

    def say(self, text: str, style: str = "") -> None:
        code = {"bold": "1", "good": "32", "bad": "31", "faint": "2"}.get(style)
        if code is not None and self._colours:
            text = f"\x1b[{code}m{text}\x1b[0m"
        sys.stdout.write(text)
        sys.stdout.flush()

    def progress(self, done: int, total: int, note: str) -> None:
        """A bar that is redrawn in place; without a terminal, a line at each quarter."""
        if self.is_terminal:
            if done % 20 == 0 or done == total:
                bar = self._full * (done * 40 // total)
                self.say(f"\r  {bar.ljust(40, self._light)} {done:>5,} of {total:,}  {note}")
                if done == total:
                    self.say("\n")
        elif done * 4 // total > (done - 1) * 4 // total:
            self.say(f"  {done:>5,} of {total:,}  {note}\n")


def _burst(client: _Client, screen: Screen, fast: bool) -> None:
    """Shows a burst until it is used up, the wait, and the recovery."""
    start_ns = time.time_ns()
    moved_ns = 0

    def now_ns() -> int:
        return start_ns + moved_ns if fast else time.time_ns()

    def send(times: int) -> _Answer:
        for _ in range(times):
            sent_ns = now_ns()
            answer = client.send("GET", "/live/tides", "surfer", sent_ns if fast else None)
            tenth = sent_ns // 10**8 % 10
            screen.say(f"  {_utc(sent_ns)}.{tenth}  GET /live/tides     ")
            screen.say(f"{answer.status}", "good" if answer.status == 200 else "bad")
            wait = "" if answer.retry_after is None else f"{answer.retry_after:>11} s"
            screen.say(f"{answer.remaining:>11}  {_utc(answer.reset * _SECOND_NS)}{wait}\n")
        return answer

    def pause(seconds: float, why: str) -> None:
        nonlocal moved_ns
        screen.say(f"  ... {seconds:.1f} s pass, {why}\n", "faint")
        if fast:
            moved_ns += round(seconds * 1e9)
        else:
            time.sleep(seconds)

    screen.say(f"1. A burst against a limit of {LIVE_LIMIT}\n\n", "bold")
    screen.say("  at (UTC)    request          status  remaining  reset at  retry after\n", "faint")
    refused = send(8)
    pause(refused.retry_after or 0, "as Retry-After asked")
    recovered = send(2)
    pause(max(0.0, recovered.reset - now_ns() / 1e9), "until X-RateLimit-Reset")
    send(6)


def _log(client: _Client, screen: Screen, requests: list[Request]) -> int:
    """Replays the log against the service; returns 1 if the replay engine decides differently."""
    sent = Counter(request.client for request in requests)
    first, last = requests[0].time_ns, requests[-1].time_ns
    screen.say(f"\n2. A real web server's log against {LOG_LIMIT} and client\n\n", "bold")
    screen.say(
        f"  {len(requests):,} requests of {len(sent):,} clients, from {_utc(first, date=True)}\n"
        f"  to {_utc(last, date=True)}, one by one; the service's clock shows the log's time.\n\n"
    )
    allowed = []
    refused: Counter[str] = Counter()
    began = time.monotonic()
    for done, request in enumerate(requests, start=1):
        answer = client.send(request.method, "/log" + request.path, request.client, request.time_ns)
        allowed.append(answer.status != 429)
        if not allowed[-1]:
            refused[request.client] += 1
        screen.progress(done, len(requests), f"{sum(refused.values()):,} refused")
    seconds = time.monotonic() - began

    screen.say("\n  client            requests   refused    share\n", "faint")
    for name, count in refused.most_common():
        screen.say(f"  {name:<16}{sent[name]:>10,}{count:>10,}{count / sent[name]:>9.0%}\n")
    spared = [name for name in sent if name not in refused]
    others = f"{len(spared):,} others"
    screen.say(f"  {others:<16}{sum(sent[name] for name in spared):>10,}{0:>10}{0:>9.0%}\n")
    screen.say(
        f"\n  {sum(refused.values()):,} of {len(requests):,} requests were refused, those of "
        f"{len(refused):,} of {len(sent):,} clients, in {seconds:.1f} s.\n"
    )
    expected = replay(
        LOG_LIMIT,
        [request.client for request in requests],
        [request.time_ns for request in requests],
    )
    agreed = [decision.allowed for decision in expected] == allowed
    screen.say(
        "  tidegate.replay(), without any service, decides "
        + ("the same.\n" if agreed else "otherwise: this is a bug.\n"),
        "good" if agreed else "bad",
    )
    return 0 if agreed else 1


def _utc(ns: int, *, date: bool = False) -> str:
    moment = datetime.fromtimestamp(ns // _SECOND_NS, timezone.utc)
    return f"{moment:%d %b %Y %H:%M:%S}" if date else f"{moment:%H:%M:%S}"


@contextlib.contextmanager
def _service(fast: bool) -> Iterator[tuple[str, int]]:
    """Runs the demo service in a process of its own, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "tidegate.cli.demo.service", str(listener.fileno())]
        # The socket listens already: requests that come before uvicorn is up wait in its queue.
        process = subprocess.Popen(
            command + ["--fast"] * fast, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL
        )
        address: tuple[str, int] = listener.getsockname()
    try:
        yield address
    finally:
        process.terminate()
        process.wait()
