"""Clients generated from the published proto understand the service."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from check_service import Service
from tidegate.server import _native

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")

PROTO = Path(__file__).resolve().parents[4] / "proto"
RULES = {
    "rules": [
        {"id": "api", "by": "user", "endpoint": "/api/{id}", "limit": ["2/minute", "9/hour"]},
        {"id": "leaky", "by": "ip", "limit": "1/second burst 3", "algorithm": "leaky-bucket"},
        {"id": "trial", "by": "tenant", "limit": "1/day", "shadow": True},
    ],
    "block": [{"id": "abuse", "user": "evil"}],
}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """The modules of messages and of stubs."""
    folder = tmp_path_factory.mktemp("generated")
    include = Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROTO}", f"-I{include}", f"--python_out={folder}"]
    arguments += [f"--grpc_python_out={folder}", "tidegate/v1/ratelimit.proto"]
    assert protoc.main(arguments) == 0
    # The package `tidegate` exists already, so the modules are found by their folder.
    source = folder / "tidegate" / "v1"
    stubs = (source / "ratelimit_pb2_grpc.py").read_text(encoding="utf-8")
    (source / "ratelimit_pb2_grpc.py").write_text(
        stubs.replace("from tidegate.v1 import ratelimit_pb2", "import ratelimit_pb2"),
        encoding="utf-8",
    )
    sys.path.insert(0, str(source))
    try:
        yield (
            importlib.import_module("ratelimit_pb2"),
            importlib.import_module("ratelimit_pb2_grpc"),
        )
    finally:
        sys.path.remove(str(source))


@pytest.fixture
def stub(generated: tuple[Any, Any]) -> Iterator[Any]:
    service = Service(RULES)
    front = _native.Front({})
    front.route(service.native)
    port = front.listen("127.0.0.1", 0)
    front.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield generated[1].RateLimiterStub(channel)
    finally:
        front.stop()


def test_a_check_has_all_fields(stub: Any, generated: tuple[Any, Any]) -> None:
    messages = generated[0]
    ask = messages.CheckRequest(
        attributes={"user": b"42", "endpoint": b"/api/7", "tenant": b"\xff"}, with_outcomes=True
    )
    first, second, third = (stub.Check(ask, timeout=10) for _ in range(3))
    assert (first.allowed, first.limit, first.remaining, first.rule) == (True, 2, 1, "api")
    assert first.reset_after.ToNanoseconds() == 30 * 10**9
    assert first.reset_time.ToNanoseconds() == 1_700_000_030_500_000_000
    assert not first.HasField("retry_after")
    assert first.decision
    assert [(o.name, o.limit, o.allowed, o.shadow) for o in second.outcomes] == [
        ("api:2/minute", 2, True, False),
        ("api:9/hour", 9, True, False),
        ("trial", 1, False, True),
    ]
    assert (third.allowed, third.remaining, third.decision) == (False, 0, b"")
    assert third.retry_after.ToNanoseconds() == 30 * 10**9
    assert third.outcomes[0].retry_after.ToNanoseconds() == 30 * 10**9


def test_the_answer_has_a_delay_or_no_limit(stub: Any, generated: tuple[Any, Any]) -> None:
    messages = generated[0]
    ask = messages.CheckRequest(attributes={"ip": b"192.0.2.1"})
    delays = [stub.Check(ask, timeout=10).delay.ToNanoseconds() for _ in range(3)]
    assert delays == [0, 10**9, 2 * 10**9]
    free = stub.Check(messages.CheckRequest(), timeout=10)
    assert (free.allowed, free.HasField("limit"), free.HasField("remaining")) == (
        True,
        False,
        False,
    )
    never = stub.Peek(messages.CheckRequest(attributes={"ip": b"::1"}, cost=4), timeout=10)
    assert (never.allowed, never.HasField("retry_after")) == (False, False)


def test_peek_refund_reset_and_status_are_understood(stub: Any, generated: tuple[Any, Any]) -> None:
    messages = generated[0]
    attributes = {"user": b"42", "endpoint": b"/api/7"}
    checks = [messages.CheckRequest(attributes=attributes) for _ in range(3)]
    answers = stub.CheckMany(messages.CheckManyRequest(checks=checks), timeout=10).answers
    assert [answer.allowed for answer in answers] == [True, True, False]
    refund = messages.RefundRequest(attributes=attributes, decision=answers[0].decision)
    assert stub.Refund(refund, timeout=10) == messages.RefundResponse()
    known = messages.StatusRequest(attributes={"user": b"42"})
    (rule,) = stub.Status(known, timeout=10).rules
    assert (rule.rule, list(rule.endpoints)) == ("api", ["/api/{id}"])
    assert [(limit.name, limit.remaining) for limit in rule.limits] == [
        ("api:2/minute", 1),
        ("api:9/hour", 8),
    ]
    assert stub.Reset(messages.ResetRequest(attributes=attributes), timeout=10) == (
        messages.ResetResponse()
    )
    assert [limit.remaining for limit in stub.Status(known, timeout=10).rules[0].limits] == [2, 9]
    listed = stub.Status(messages.StatusRequest(attributes={"user": b"evil"}), timeout=10)
    assert (list(listed.rules), listed.list, listed.list_allows) == ([], "abuse", False)
