"""Envoy's rate limit service over a socket, called by grpcio with the stubs of Envoy's protos."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
import tidegate as tg
from envoy_tools import GrpcClient
from tidegate import _core
from tidegate.limiter.storage.uri import open_store

native = pytest.importorskip("tidegate.server._native", reason="the system has no epoll")
from tidegate.rules.document import read_text  # noqa: E402
from tidegate.server.envoy_descriptors import Descriptors  # noqa: E402

LIMITS = """
domain: d
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3, name: per-user, reports: false}
  - {key: ip, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: spare, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 9},
     metadata: {service: {name: s, weights: [1.5, true, null]}}}
"""
MIDNIGHT = 1_700_006_400 * 10**9


@pytest.fixture
def port() -> Iterator[int]:
    clock = tg.ManualClock(start_ns=MIDNIGHT)
    service = native.EnvoyService(
        open_store("memory://", {})._native(), _core.native_clock(clock), response_headers=True
    )
    service.use(Descriptors([read_text(LIMITS, "yaml", "<text>")]).tree)
    front = native.Front()
    front.route(service)
    port = front.listen("127.0.0.1", 0)
    front.start()
    yield port
    front.stop()


@pytest.fixture
def ask(port: int) -> Iterator[GrpcClient]:
    with GrpcClient(f"127.0.0.1:{port}") as client:
        yield client


def descriptor(key: str, value: str, **more: Any) -> dict[str, Any]:
    return {"entries": [{"key": key, "value": value}], **more}


def test_the_stubs_of_envoy_read_every_field_of_the_answer(ask: GrpcClient) -> None:
    user = descriptor("user", "1", hitsAddend="2")
    others = [descriptor(key, "") for key in ("free", "quota", "spare")]
    answer = ask(domain="d", descriptors=[user, *others])
    assert answer == {
        "overallCode": "OK",
        "statuses": [
            {
                "code": "OK",
                "currentLimit": {"requestsPerUnit": 3, "unit": "DAY", "name": "per-user"},
                "limitRemaining": 1,
                "durationUntilReset": "86400s",
            },
            {"code": "OK", "limitRemaining": 4294967295},
            {
                "code": "OVER_LIMIT",
                "currentLimit": {"unit": "DAY"},
                "durationUntilReset": "86400s",
            },
            {
                "code": "OK",
                "currentLimit": {"requestsPerUnit": 9, "unit": "DAY"},
                "limitRemaining": 8,
                "durationUntilReset": "86400s",
            },
        ],
        "responseHeadersToAdd": [
            {"key": "X-RateLimit-Limit", "value": "0"},
            {"key": "X-RateLimit-Remaining", "value": "0"},
            {"key": "X-RateLimit-Reset", "value": "86400"},
        ],
        "dynamicMetadata": {
            "metadata": {"service": {"name": "s", "weights": [1.5, True, None]}},
            "quotaModeEnabled": True,
            "quotaModeViolations": [2.0],
        },
    }
    answer = ask(domain="d", descriptors=[user, descriptor("ip", "a")])
    assert answer["overallCode"] == "OVER_LIMIT"
    assert [each["limitRemaining"] for each in answer["statuses"]] == [1, 100]


def test_a_request_may_send_its_own_limit(ask: GrpcClient) -> None:
    limit = {"requestsPerUnit": 1, "unit": "HOUR"}
    first = ask(domain="d", descriptors=[descriptor("k", "v", limit=limit)])
    assert first["statuses"][0]["currentLimit"] == limit
    assert ask(domain="d", descriptors=[descriptor("k", "v", limit=limit)])["overallCode"] == (
        "OVER_LIMIT"
    )


def test_an_invalid_request_is_refused_with_a_reason_and_the_connection_stays(
    ask: GrpcClient,
) -> None:
    assert ask(domain="d") == {
        "error": "INVALID_ARGUMENT",
        "reason": "there is no descriptor; expected at least one",
    }
    assert ask(descriptors=[descriptor("user", "1")])["error"] == "INVALID_ARGUMENT"
    many = descriptor("user", "1", hitsAddend=str(2**32 + 1))
    assert "expected at most 4294967296" in ask(domain="d", descriptors=[many])["reason"]
    assert ask(domain="d", descriptors=[descriptor("user", "1")])["overallCode"] == "OK"


def test_an_unknown_domain_has_no_limits(ask: GrpcClient) -> None:
    answer = ask(domain="unknown", descriptors=[descriptor("user", "1")])
    assert answer == {"overallCode": "OK", "statuses": [{"code": "OK"}]}


def test_json_over_http_returns_the_same_answer(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def post(body: Any, method: str = "POST") -> tuple[int, Any]:
        text = body if isinstance(body, str) else json.dumps(body)
        connection.request(method, "/json", text)
        response = connection.getresponse()
        return response.status, response.read()

    request = {"domain": "d", "descriptors": [descriptor("user", "1", hitsAddend=3)]}
    status, body = post(request)
    assert (status, json.loads(body)["overallCode"]) == (200, "OK")
    status, body = post(request)
    assert (status, json.loads(body)["overallCode"]) == (429, "OVER_LIMIT")
    status, body = post("{")
    assert (status, list(json.loads(body))) == (400, ["error"])
    assert post(request, "GET")[0] == 405
    connection.close()
