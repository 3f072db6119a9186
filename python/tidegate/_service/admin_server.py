"""The second port of the service: admin API, dashboard, metrics and probes, under uvicorn."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Callable

from tidegate._errors import ConfigurationError

try:
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse, Response
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"the admin API needs the package {error.name}; expected `pip install 'tidegate[server]'`, "
        "or admin.listen: null"
    ) from None

if TYPE_CHECKING:
    from tidegate._service.settings import Address, Tls

__all__ = ["AdminServer", "expect_readable", "probes"]

_PATIENCE = 5.0


def probes(is_ready: Callable[[], bool], ping: Callable[[], str | None], registry: Any) -> FastAPI:
    """Adds ``/livez``, ``/readyz`` and, with a registry, ``/metrics``, which need no token.

    `ping` returns why the storage does not answer.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/livez")
    def live() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    def ready() -> JSONResponse:
        if not is_ready():
            reason = "the service is about to end, or has not started"
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        # A storage that does not answer does not make the service unready, since the fallback
        # decides.
        return JSONResponse({"status": "ready", "storage": ping() or "answers"})

    if registry is not None:
        from tidegate._service.metrics import render

        @app.get("/metrics")
        def metrics() -> Response:
            text, content_type = render(registry)
            return Response(text, media_type=content_type)

    return app


class AdminServer:
    """Runs uvicorn on its own thread, so that the main thread can handle signals."""

    def __init__(self, app: FastAPI, tls: Tls | None) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="on",
                timeout_graceful_shutdown=int(_PATIENCE),
                **_tls_options(tls),
            )
        )
        self._thread: threading.Thread | None = None

    def start(self, address: Address) -> tuple[str, int]:
        """Listens and answers. Raises ConfigurationError if the address is not available."""
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
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="tidegate admin", daemon=True
        )
        self._thread.start()
        host, port = listener.getsockname()[:2]
        return host, port

    def stop(self) -> None:
        """Stops the server after waiting a few seconds for requests in flight."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(2 * _PATIENCE)


def expect_readable(tls: Tls) -> None:
    """Raises ConfigurationError for an invalid certificate or key."""
    # uvicorn reads the files on its own thread, where an error would go unnoticed.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"admin.tls has {tls.certificate}, {tls.key}"
            + (f" and {tls.client_ca}" if tls.client_ca else "")
            + f", which cannot be read: {error}; expected files in PEM"
        ) from None


def _tls_options(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    expect_readable(tls)
    options: dict[str, Any] = {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    if tls.client_ca is not None:
        options |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options
