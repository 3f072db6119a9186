"""Spans of requests to the admin port."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tidegate import ConfigurationError
from tidegate.server.telemetry import start_traces
from tidegate.server.tracing import traced

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def client(spans: InMemorySpanExporter) -> TestClient:
    api = FastAPI()

    @api.get("/rules/{rule}")
    def rule(rule: str) -> str:
        if rule == "none":
            raise HTTPException(404)
        if rule == "broken":
            raise LookupError(rule)
        return rule

    @api.get("/livez")
    def livez() -> str:
        return "ok"

    app = FastAPI()
    app.mount("/v1", api)
    app.mount("/", api)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return TestClient(traced(app, provider), raise_server_exceptions=False)


def one(spans: InMemorySpanExporter) -> ReadableSpan:
    [span] = spans.get_finished_spans()
    return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_has_a_span_with_its_route_and_status(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    assert client.get("/v1/rules/api").status_code == 200
    span = one(spans)
    assert span.kind is SpanKind.SERVER
    assert span.name == "GET /rules/{rule}"
    found = attributes(span)
    assert found["http.request.method"] == "GET"
    assert found["url.path"] == "/v1/rules/api"
    assert found["http.response.status_code"] == 200
    assert span.status.status_code is StatusCode.UNSET


def test_a_span_continues_the_trace_of_the_request(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    client.get("/rules/api", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    span = one(spans)
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE


def test_spans_of_exceptions_have_errors_but_refusals_have_none(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    assert client.get("/rules/none").status_code == 404
    assert one(spans).status.status_code is StatusCode.UNSET
    spans.clear()
    assert client.get("/rules/broken").status_code == 500
    span = one(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_probes_have_no_spans(client: TestClient, spans: InMemorySpanExporter) -> None:
    assert client.get("/livez").status_code == 200
    assert spans.get_finished_spans() == ()


def test_a_missing_exporter_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(
        ConfigurationError, match=r"telemetry\.traces needs the package .*pip install"
    ):
        start_traces(None)
