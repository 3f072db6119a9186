"""Creates OpenTelemetry spans of requests to the admin port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["traced"]

# Monitoring requests these paths all the time.
_QUIET = frozenset(("/livez", "/readyz", "/metrics"))


def traced(app: Any, provider: TracerProvider) -> Any:
    """Wraps `app`, an ASGI application, in a span for each request, except probes and metrics.

    A span continues the trace that the header traceparent names (W3C Trace Context). Its name is
    the method and the route; its attributes are those of the semantic conventions for HTTP servers.
    """
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = provider.get_tracer("tidegate")
    propagator = TraceContextTextMapPropagator()

    async def with_span(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] in _QUIET:
            await app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        method = scope["method"]
        attributes = {
            "http.request.method": method,
            "url.path": scope["path"],
            "url.scheme": scope["scheme"],
        }
        with tracer.start_as_current_span(
            method, propagator.extract(headers), SpanKind.SERVER, attributes
        ) as span:

            async def send_noting_status(message: Any) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(StatusCode.ERROR)
                await send(message)

            try:
                await app(scope, receive, send_noting_status)
            finally:
                route = getattr(scope.get("route"), "path", None)
                if route is not None:
                    span.set_attribute("http.route", route)
                    span.update_name(f"{method} {route}")

    return with_span
