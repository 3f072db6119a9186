"""The port beside the checks: admin API, dashboard, metrics and probes, under uvicorn."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

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
    from tidegate._service.service import Service
    from tidegate._service.settings import Address

__all__ = ["AdminServer", "probes"]

_PATIENCE = 5.0


def probes(service: Service) -> FastAPI:
    """``/livez``, ``/readyz`` and ``/metrics``, which need no token."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/livez")
    def live() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    def ready() -> JSONResponse:
        problem = None if service.is_ready else "the service is about to end, or has not started"
        if problem is None:
            # A storage that does not answer is no reason to take the service away: the fallback
            # decides. It is shown, and counted in the metrics.
            problem = service.store.ping()
            return JSONResponse({"status": "ready", "storage": problem or "answers"})
        return JSONResponse({"status": "not ready", "reason": problem}, 503)

    if service.settings.admin.public_metrics:
        from tidegate._service.metrics import registry_of, render

        registry = registry_of(service)

        @app.get("/metrics")
        def metrics() -> Response:
            text, content_type = render(registry)
            return Response(text, media_type=content_type)

    return app


class AdminServer:
    """uvicorn on a thread of its own, so that the main thread is there for signals."""

    def __init__(self, service: Service) -> None:
        app = probes(service)
        if service.settings.database is not None:
            from tidegate._service.admin.app import create_admin

            oidc: Any = service.settings.admin.oidc
            if oidc is not None:
                from tidegate._service.admin.oidc import Oidc

                oidc = Oidc(**oidc.model_dump())
            rules: Any = service.rules if hasattr(service.rules, "refresh") else None
            admin = create_admin(
                service.settings.database,
                rules=rules,
                limiter=service.limiter,
                oidc=oidc,
                on_change=lambda what, name: _changed(service, what),
            )
            app.mount("/", admin)
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=int(_PATIENCE),
            **_tls_options(service),
        )
        self._server = uvicorn.Server(self._config)
        self._thread: threading.Thread | None = None

    def start(self, address: Address) -> tuple[str, int]:
        """Listens and answers. Raises ConfigurationError where the address cannot be had."""
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
        """Ends it, and waits for requests in flight a few seconds."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(2 * _PATIENCE)


def _changed(service: Service, what: str) -> None:
    if what == "rules":
        getattr(service.rules, "refresh", lambda: None)()
    if service.snapshots is not None:
        service.snapshots.refresh()


def _tls_options(service: Service) -> dict[str, Any]:
    tls = service.settings.admin.tls
    if tls is None:
        return {}
    import ssl

    options: dict[str, Any] = {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    if tls.client_ca is not None:
        options |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options
