"""Runs ordinary clients in a separate process, and reports what they found.

    python load.py HOST PORT

Each client checks its own users, one after the other, and users that all clients share. The process
reads commands from its input, one on each line, and answers each with a line of JSON.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import check_wire as wire
from fronts import Http2Client

from soak.model import CALLS, Answer, User, seconds_until

ENDPOINT = "/api/posts"
PATIENCE = 20.0
# The pause between two calls of a client.
PAUSE = 0.005


class Client(Protocol):
    def ask(self, user: str) -> Answer: ...

    def close(self) -> None: ...


def answer_of_json(body: bytes) -> Answer:
    found = json.loads(body)
    return Answer(
        allowed=found["allowed"],
        limit=found["limit"],
        remaining=found["remaining"],
        has_wait=found["retryAfter"] is not None,
        resets_in=seconds_until(found["resetTime"]),
        degraded=found["degraded"],
        rule=found["rule"],
    )


class Http1:
    """REST over HTTP/1.1."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)

    def ask(self, user: str) -> Answer:
        self._connection.request(
            "POST",
            "/v1/ratelimit/check",
            json.dumps({"userId": user, "endpoint": ENDPOINT}),
            {"content-type": "application/json"},
        )
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == 200, (response.status, body)
        return answer_of_json(body)

    def close(self) -> None:
        self._connection.close()


class Http2:
    """REST over HTTP/2."""

    def __init__(self, host: str, port: int) -> None:
        self._client = Http2Client(socket.create_connection((host, port), timeout=PATIENCE))

    def ask(self, user: str) -> Answer:
        body = json.dumps({"userId": user, "endpoint": ENDPOINT}).encode()
        headers = (("content-type", "application/json"),)
        stream = self._client.request("/v1/ratelimit/check", body, headers=headers)
        found, answered = self._client.answer(stream)
        assert found[":status"] == "200", (found, answered)
        return answer_of_json(answered)

    def close(self) -> None:
        self._client.sock.close()


class Grpc:
    """tidegate.v1 over gRPC."""

    def __init__(self, host: str, port: int) -> None:
        self._client = Http2Client(socket.create_connection((host, port), timeout=PATIENCE))

    def ask(self, user: str) -> Answer:
        message = wire.request({"user": user, "endpoint": ENDPOINT})
        headers = (("content-type", "application/grpc"), ("te", "trailers"))
        stream = self._client.request(
            "/tidegate.v1.RateLimiter/Check",
            b"\0" + struct.pack(">I", len(message)) + message,
            headers=headers,
        )
        found, answered = self._client.answer(stream)
        assert found.get("grpc-status") == "0", found
        response = wire.CheckResponse(answered[5:])
        return Answer(
            allowed=response.allowed,
            limit=response.limit,
            remaining=response.remaining,
            has_wait=response.retry_after_ns is not None,
            resets_in=(response.reset_after_ns or 0) / 1e9,
            degraded=response.degraded,
            rule=response.rule,
        )

    def close(self) -> None:
        self._client.sock.close()


KINDS: tuple[type[Client], ...] = (Http1, Http2, Grpc, Http1)


class Users:
    """Gives clients the users to check."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._forgets = 0
        self._numbers: Counter[str] = Counter()
        self._known: dict[str, User] = {}
        self._asking: Counter[str] = Counter()
        self.wrong: list[str] = []

    def callers(self) -> int:
        """Returns how many users were given out."""
        return self._numbers.total()

    def forget(self, is_forgetting: bool) -> None:
        """Says whether the store may now lose its counts, once for each user."""
        with self.lock:
            self._forgets = int(is_forgetting)
            for user in self._known.values():
                user.forgets = max(user.forgets, self._forgets)

    @contextlib.contextmanager
    def one(self, series: str) -> Iterator[User]:
        """Yields the user that a series of calls has reached."""
        with self.lock:
            user = self._known.get(series)
            if user is None or user.calls >= CALLS:
                self._retire(series)
                self._numbers[series] += 1
                name = f"{series}-{self._numbers[series]}"
                user = User(name, is_shared=series == "shared", forgets=self._forgets)
                self._known[series] = user
            self._asking[user.name] += 1
        try:
            yield user
        finally:
            with self.lock:
                self._asking[user.name] -= 1
                if not self._asking[user.name] and self._known[series] is not user:
                    self._finish(user)

    def _retire(self, series: str) -> None:
        user = self._known.get(series)
        if user is not None and not self._asking[user.name]:
            self._finish(user)

    def _finish(self, user: User) -> None:
        user.finish()
        self.wrong += user.wrong
        user.wrong = []
        del self._asking[user.name]


class Load:
    """All clients, and their counts since the last report."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self._address = (host, port)
        self._users = Users()
        self._stop = threading.Event()
        self._clear()
        # The seconds of each call since the last trace.
        self._traced: list[float] = []
        self._threads = [
            threading.Thread(target=self._run, args=(kind, f"{prefix}{number}"), daemon=True)
            for number, kind in enumerate(KINDS)
        ]
        for thread in self._threads:
            thread.start()

    def _clear(self) -> None:
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._slowest = 0.0
        self._last_degraded: float | None = None
        self._seen_wrong: list[str] = []

    def command(self, words: list[str]) -> dict[str, Any]:
        """Runs the command of one line of the input."""
        if words[0] == "forget":
            self._users.forget(words[1] == "on")
            return {}
        if words == ["trace"]:
            return self._trace()
        assert words == ["report"], words
        with self._users.lock:
            report = {
                **{name: self._counts[name] for name in ("calls", "degraded", "refused")},
                "errors": dict(self._errors),
                "wrong": self._seen_wrong + self._users.wrong,
                "slowest": self._slowest,
                "last_degraded": self._last_degraded,
            }
            self._users.wrong = []
            self._clear()
        return report

    def _trace(self) -> dict[str, Any]:
        """Returns the callers so far, and the calls since the last trace with their latencies."""
        with self._users.lock:
            traced, self._traced = self._traced, []
            callers = self._users.callers()
        traced.sort()
        return {
            "callers": callers,
            "calls": len(traced),
            **{
                f"p{share}_ms": traced[len(traced) * share // 100] * 1e3 if traced else 0.0
                for share in (50, 99)
            },
        }

    def _run(self, kind: Any, series: str) -> None:
        client: Client | None = None
        number = 0
        while not self._stop.wait(PAUSE):
            number += 1
            with self._users.one("shared" if number % 4 == 0 else series) as user:
                began = time.monotonic()
                try:
                    client = client or kind(*self._address)
                    answer = client.ask(user.name)
                except Exception as error:
                    self._note_error(kind, user, error)
                    if client is not None:
                        client.close()
                    client = None
                    self._stop.wait(0.05)
                else:
                    self._note(user, answer, time.monotonic() - began)

    def _note(self, user: User, answer: Answer, seconds: float) -> None:
        with self._users.lock:
            self._counts["calls"] += 1
            self._counts["refused"] += not answer.allowed
            self._slowest = max(self._slowest, seconds)
            self._traced.append(seconds)
            if answer.degraded:
                self._counts["degraded"] += 1
                self._last_degraded = time.monotonic()
            user.note(answer)
            self._seen_wrong += user.wrong
            user.wrong = []

    def _note_error(self, kind: Any, user: User, error: Exception) -> None:
        with self._users.lock:
            self._errors[f"{kind.__name__}: {type(error).__name__}: {error!s:.100}"] += 1
            user.note_lost()


def main() -> None:
    load = Load(sys.argv[1], int(sys.argv[2]), "own-")
    for line in sys.stdin:
        print(json.dumps(load.command(line.split())), flush=True)


if __name__ == "__main__":
    main()
