"""Real servers on free ports, real requests to them, and ASGI calls without a server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import processes
import tidegate as tg
from tidegate.asgi import RateLimitMiddleware

Address = tuple[str, int]
TESTS = Path(__file__).resolve().parents[1]
NO_ROOTS_IN_PATHS = (
    "Starlette before 0.33 finds no route where a server leaves the root path in the path, as "
    "uvicorn does from 0.26 on; test_root_paths.py has what it finds"
)


def finds_roots_in_paths() -> bool:
    """Whether routes of the Starlette that is installed match a path behind its root path."""
    version = importlib.metadata.version("starlette").split(".")
    return (int(version[0]), int(version[1])) >= (0, 33)


@dataclass(frozen=True)
class Answer:
    """A response. `fields` keeps the order and the repetitions, names in lower case."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str:
        """The one value of a field."""
        values = [value for known, value in self.fields if known == name]
        assert len(values) == 1, (name, self.fields)
        return values[0]

    def __contains__(self, name: str) -> bool:
        return any(known == name for known, _ in self.fields)

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Sends requests over one connection, from the address `source` if it is given."""

    def __init__(self, address: Address, timeout: float = 60, source: str | None = None) -> None:
        origin = None if source is None else (source, 0)
        self._connection = http.client.HTTPConnection(
            *address, timeout=timeout, source_address=origin
        )

    def __call__(
        self,
        path: str,
        method: str = "GET",
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        self._connection.request(method, path, body=body, headers=headers or {})
        response = self._connection.getresponse()
        fields = [(name.lower(), value) for name, value in response.getheaders()]
        return Answer(response.status, fields, response.read())

    def close(self) -> None:
        self._connection.close()


def environment(path: Path, **variables: str) -> dict[str, str]:
    """For a process that imports from `path`, and the rest from where the tests do."""
    paths = [str(path), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}


@contextlib.contextmanager
def asgi_server(app: Any) -> Iterator[Client]:
    """`app` under uvicorn in a thread, and a client of it."""
    with uvicorn_at(app, ws="none") as address, contextlib.closing(Client(address)) as client:
        yield client


@contextlib.contextmanager
def uvicorn_at(app: Any, **options: Any) -> Iterator[Address]:
    """`app` under uvicorn in a thread, with `options` of its Config, and where it listens."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    options.setdefault("log_level", "error")
    server = uvicorn.Server(uvicorn.Config(app, access_log=False, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextlib.contextmanager
def wsgi_server(app: Any) -> Iterator[Client]:
    """`app` under Werkzeug's server in a thread, and a client of it."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with contextlib.closing(Client(server.server_address[:2])) as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def waitress_server(app: Any) -> Iterator[Client]:
    """`app` under waitress in a thread, and a client of it."""
    import waitress

    listener = socket.create_server(("127.0.0.1", 0))
    channels: dict[int, Any] = {}
    server = waitress.create_server(app, sockets=[listener], threads=2, map=channels)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with contextlib.closing(Client(listener.getsockname())) as client:
            yield client
    finally:
        # Its loop ends when nothing is left to serve. Everything is closed after the last thread
        # that may pull the trigger has ended: a byte for a closed trigger is an error.
        served: dict[int, Any] = {}

        def leave() -> None:
            served.update(channels)
            channels.clear()

        server.trigger.pull_trigger(leave)
        thread.join()
        server.task_dispatcher.shutdown()
        server.asyncore.close_all(served)
        listener.close()


@contextlib.contextmanager
def gunicorn_server(app: str, folder: Path, *, worker: str = "sync") -> Iterator[Address]:
    """An application of a module in `folder`, under two workers of gunicorn; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    command = ["-m", "gunicorn", "--chdir", str(folder), "--workers=2"]
    command += ["--worker-class", worker, "--bind", f"fd://{listener.fileno()}", "--preload"]
    command += ["--no-control-socket", "--graceful-timeout=1"]
    command += ["--threads=2"] if worker == "gthread" else []
    with _serving(listener, [*command, app]):
        yield listener.getsockname()


# Not by uvicorn's own `--fd`, which takes it for a Unix socket: then clients have no address.
_UVICORN = """
import socket, sys, uvicorn
sys.path.insert(0, sys.argv[1])
config = uvicorn.Config(sys.argv[2], log_level="error", access_log=False, lifespan="off")
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[3]))])
"""


@contextlib.contextmanager
def uvicorn_server(app: str, folder: Path) -> Iterator[Address]:
    """An application of a module in `folder`, under a process of uvicorn; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    with _serving(listener, ["-c", _UVICORN, str(folder), app, str(listener.fileno())]):
        yield listener.getsockname()


@contextlib.contextmanager
def _serving(listener: socket.socket, arguments: list[str]) -> Iterator[None]:
    with (
        listener,
        processes.running(
            [sys.executable, *arguments],
            grace=30,
            pass_fds=[listener.fileno()],
            stderr=subprocess.DEVNULL,
        ),
    ):
        yield


async def messages_of(app: Callable[..., Any], scope: dict[str, Any]) -> list[Any]:
    """What an ASGI application sends for a request without a body."""
    messages: list[Any] = []
    received = []

    async def receive() -> dict[str, Any]:
        if received:
            await asyncio.Event().wait()  # the client stays, and says nothing more
        received.append(True)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return messages


async def asgi_call(
    app: Callable[..., Any],
    path: str = "/",
    method: str = "GET",
    *,
    client: Address | None = ("203.0.113.9", 5000),
    headers: list[tuple[bytes, bytes]] | None = None,
) -> Answer:
    """One call of an ASGI application, checked against the protocol."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers or [],
        "client": client,
        "server": ("127.0.0.1", 80),
    }
    start, *bodies = await messages_of(app, scope)
    assert start["type"] == "http.response.start"
    assert {message["type"] for message in bodies} == {"http.response.body"}
    for name, value in start["headers"]:
        assert isinstance(name, bytes)
        assert isinstance(value, bytes)
        assert name == name.lower()
        assert b"\n" not in value
        assert b"\r" not in value
    fields = [(name.decode(), value.decode()) for name, value in start["headers"]]
    return Answer(start["status"], fields, b"".join(body.get("body", b"") for body in bodies))


def ask(app: Callable[..., Any], *args: Any, **kwargs: Any) -> Answer:
    """As asgi_call(), in an event loop of its own."""
    return asyncio.run(asgi_call(app, *args, **kwargs))


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """The least that is an application."""
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/plain"), (b"content-length", b"5")],
        }
    )
    await send({"type": "http.response.body", "body": b"hello"})


def limited(limit: Any = "2/minute", app: Any = hello, **options: Any) -> RateLimitMiddleware:
    """`app` under the middleware, by default on a clock that stands at 1,700,000,000 s."""
    options.setdefault("clock", tg.ManualClock(1_700_000_000 * 10**9))
    return RateLimitMiddleware(app, limit=limit, **options)


def statuses(app: Any, times: int, **options: Any) -> list[int]:
    """The answers to several calls."""
    return [ask(app, **options).status for _ in range(times)]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that sends back the messages of a WebSocket until it is closed."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        payload = {name: message.get(name) for name in ("text", "bytes")}
        await send({"type": "websocket.send", **payload})


def check_two_a_minute(first: Answer, second: Answer, third: Answer) -> None:
    """Checks the answers of hello() within ``2/minute``, at the instant 1,700,000,000."""
    assert first.status == second.status == 200
    assert first.body == b"hello"
    assert first.fields == [
        ("content-type", "text/plain"),
        ("content-length", "5"),
        ("x-ratelimit-limit", "2"),
        ("x-ratelimit-remaining", "1"),
        ("x-ratelimit-reset", "1700000030"),
        ("ratelimit-policy", '"2/minute";q=2;w=60'),
        ("ratelimit", '"2/minute";r=1;t=30'),
    ]
    assert third.status == 429
    assert third["content-type"] == "application/problem+json"
    assert third["retry-after"] == "30"
    assert third["x-ratelimit-remaining"] == "0"
    assert int(third["content-length"]) == len(third.body)
    assert third.json()["violated-policies"] == ["2/minute"]
    assert third.json()["retry_after"] == 30
