"""Runs the second port under uvicorn: admin API, dashboard, metrics and probes."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any, Callable

from tidegate.limiter.errors import ConfigurationError

try:
    import anyio
    import uvicorn
    from anyio.to_thread import run_sync
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response

    from tidegate.server.admin_connections import Bounds, Connections, Loop
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"the admin API needs the package {error.name}; expected `pip install 'tidegate[server]'`, "
        "or admin.listen: null"
    ) from None

from tidegate.keys import client_ip
from tidegate.server.admin_tls import Certificate
from tidegate.server.native import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.server.settings import Address, Tls

__all__ = ["AdminServer", "behind_proxies", "for_hosts", "probes"]

# Seconds that requests in flight may take when the server ends.
_PATIENCE = 2
# The threads of probes and metrics, which must answer even if all other requests wait for a
# database: otherwise a supervisor would end the process.
_THREADS = 8


def probes(is_ready: Callable[[], bool], ping: Callable[[], str | None], registry: Any) -> FastAPI:
    """Adds ``/livez``, ``/readyz`` and, with a registry, ``/metrics``, which need no token.

    `ping` returns the reason why the storage does not answer, or None.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    threads = anyio.CapacityLimiter(_THREADS)

    @app.get("/livez")
    async def live() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def ready() -> JSONResponse:
        if not is_ready():
            reason = "the service is about to end, or has not started"
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        # A storage that does not answer does not make the service unready, since the fallback
        # decides.
        silence = await run_sync(ping, limiter=threads)
        return JSONResponse({"status": "ready", "storage": silence or "answers"})

    if registry is not None:
        from tidegate.server.metrics import render

        @app.get("/metrics")
        async def metrics() -> Response:
            text, content_type = await run_sync(render, registry, limiter=threads)
            return Response(text, media_type=content_type)

    return app


def _with_head(app: Any) -> Any:
    """Wraps `app`, an ASGI application, to answer HEAD like GET. uvicorn drops the body."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await app(scope, receive, send)

    return answer


def behind_proxies(app: Any, trusted: Sequence[str]) -> Any:
    """Wraps `app`, an ASGI application, to see the address of the client of `trusted` proxies.

    They write it into X-Forwarded-For, which is believed of nobody else. Raises ConfigurationError
    for a proxy that is no address, no network and not "unix".
    """
    client_of = client_ip(trusted_proxies=trusted, ipv6_prefix=128)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            address = client_of(Request(scope))
            if address is not None:
                scope = {**scope, "client": (address, 0)}
        await app(scope, receive, send)

    return answer


def for_hosts(app: Any, names: Sequence[str]) -> Any:
    """Wraps `app`, an ASGI application, to refuse requests that are not for this machine by Host.

    Otherwise a web site whose name leads to a loopback address could ask through a browser.
    """

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), b"")
            shown = host.decode("latin-1")
            if not _native.accepts_host(shown, names):
                problem = {
                    "type": "about:blank",
                    "title": "Misdirected Request",
                    "status": 421,
                    "detail": f"the host is {shown!a:.80}; expected an address, localhost or one "
                    "of admin.hosts",
                }
                refusal = JSONResponse(problem, 421, media_type="application/problem+json")
                await refusal(scope, receive, send)
                return
        await app(scope, receive, send)

    return answer


class AdminServer:
    """Runs uvicorn on its own thread, so that the main thread can handle signals."""

    def __init__(self, app: Any, tls: Tls | None, bounds: Bounds | None = None) -> None:
        self._connections = Connections(bounds or Bounds())
        self._certificate = None if tls is None else Certificate(tls)
        config = uvicorn.Config(
            _with_head(app),
            http=self._connections.protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            timeout_graceful_shutdown=_PATIENCE,
        )
        config.load()
        if self._certificate is not None:
            config.ssl = self._certificate.context
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None

    def start(self, address: Address, inherited: socket.socket | None = None) -> tuple[str, int]:
        """Listens and answers, at `inherited` if it is given.

        Raises ConfigurationError if the address is not available.
        """
        listener = inherited or self._listen(address)
        self._listener = listener
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="tidegate admin", daemon=True
        )
        self._thread.start()
        host, port = listener.getsockname()[:2]
        return host, port

    def _listen(self, address: Address) -> socket.socket:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address.host, address.port))
        except OSError as error:
            listener.close()
            raise ConfigurationError(
                f"the admin API cannot listen at {address}: {error.strerror}; expected a free "
                "address"
            ) from None
        listener.listen(128)
        return listener

    def fileno(self) -> int:
        """The descriptor of the listening socket, after start()."""
        return -1 if self._listener is None else self._listener.fileno()

    def _run(self, listener: socket.socket) -> None:
        loop = Loop(self._connections)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._server.serve(sockets=[listener]))
        finally:
            loop.close()

    def reload(self) -> None:
        """Reads the certificate again, if there is one. Raises ConfigurationError."""
        if self._certificate is not None:
            self._certificate.reload()

    def begin_to_stop(self) -> None:
        """Accepts no more connections. Requests in flight have a few seconds."""
        self._server.should_exit = True

    def stop(self) -> None:
        """Stops the server after waiting a few seconds for requests in flight."""
        self.begin_to_stop()
        if self._thread is not None:
            self._thread.join(_PATIENCE + 1)
