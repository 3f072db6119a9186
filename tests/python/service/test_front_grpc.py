"""The front over gRPC: unary calls, health and reflection, with the clients of grpcio."""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc
import pytest
from fronts import ECHO, LATER, MakeFront, Served, http2_client
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from polling import eventually

GRPC = (("content-type", "application/grpc"), ("te", "trailers"))
V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.fixture
def served(make_front: MakeFront) -> Served:
    return make_front(holds=True, body_bytes=1 << 20)


@pytest.fixture
def channel(served: Served) -> Iterator[grpc.Channel]:
    # Otherwise channels to one address share a connection, and ports are used again.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{served.port}", options=options) as channel:
        yield channel


def error_of(call: grpc.UnaryUnaryMultiCallable, *args: object, **kwargs: object) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        call(*args, **kwargs)
    return raised.value


def test_a_call_is_answered(channel: grpc.Channel, served: Served) -> None:
    echo = channel.unary_unary(ECHO)
    for message in (b"hello", b"", b"x" * 500_000):
        assert echo(message) == message
    assert served.count("requests_grpc") == 3


def test_a_service_may_answer_from_another_thread(channel: grpc.Channel, served: Served) -> None:
    calls = [channel.unary_unary(LATER).future(b"%d" % i) for i in range(50)]
    eventually(lambda: served.later.waiting == 50)
    served.later.release()
    assert [call.result(timeout=30) for call in calls] == [b"%d" % i for i in range(50)]


def test_the_message_of_a_status_may_be_in_any_language(channel: grpc.Channel) -> None:
    refused = error_of(channel.unary_unary(ECHO), b"x", metadata=[("x-fail", "100% bad")])
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.details() == "100% bad"


def test_errors_of_the_front_have_a_status_of_grpc(channel: grpc.Channel, served: Served) -> None:
    unknown = error_of(channel.unary_unary("/no.Service/Method"), b"")
    assert unknown.code() is grpc.StatusCode.UNIMPLEMENTED
    assert unknown.details() == "the gRPC method is unknown; expected one of this server"
    big = error_of(channel.unary_unary(ECHO), b"x" * (2 << 20))
    assert big.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert channel.unary_unary(ECHO)(b"the connection survives") == b"the connection survives"
    assert served.count("connections_accepted") == 1


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_packed_message_is_unpacked(
    channel: grpc.Channel, served: Served, how: grpc.Compression
) -> None:
    longest = random.Random(7).randbytes(12_000).ljust(1 << 20, b"x")  # packed, a hundredth
    for message in (b"x" * 1000, b"x" * (64 << 10), longest):
        assert channel.unary_unary(ECHO)(message, compression=how) == message
    for message, most in ((longest + b"x", 1 << 20), (b"x" * (64 << 10) + b"x", 64 << 10)):
        bomb = error_of(channel.unary_unary(ECHO), message, compression=how)
        assert bomb.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"the message unpacks to more than {most} bytes; expected" in bomb.details()
    assert served.count("bytes_in") < 50_000, "the client packed them"


def test_a_packed_message_of_a_stream_is_unpacked(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    name = "grpc.health.v1.Health" + " " * 1000
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
    (answer,) = stub.ServerReflectionInfo(iter([asked]), compression=grpc.Compression.Gzip)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_an_unknown_encoding_is_refused_with_those_that_are_known(served: Served) -> None:
    with http2_client(served) as client:
        headers = (*GRPC, ("grpc-encoding", "snappy"))
        refused = client.answer(client.request(ECHO, b"\1\0\0\0\1x", headers=headers))[0]
        assert refused["grpc-status"] == "12"
        assert refused["grpc-accept-encoding"] == "identity,deflate,gzip"
        plain = client.answer(client.request(ECHO, b"\0\0\0\0\1x", headers=headers))[1]
        assert plain.startswith(b"\0\0\0\0\1x")


def test_a_call_needs_exactly_one_message(channel: grpc.Channel) -> None:
    stream = channel.stream_unary(ECHO)
    for messages in ([], [b"a", b"b"]):
        with pytest.raises(grpc.RpcError) as raised:
            stream(iter(messages))
        assert raised.value.details().endswith("; expected one")


def test_a_call_ends_with_its_deadline(channel: grpc.Channel, served: Served) -> None:
    with http2_client(served) as client:
        timeout = (("grpc-timeout", "50m"),)
        late = client.request(LATER, b"\0\0\0\0\0", headers=GRPC + timeout)
        headers, body = client.answer(late)
        assert (headers["grpc-status"], body) == ("4", b"")
        assert served.later.waiting == 1
        served.later.release()
        malformed = client.request(ECHO, b"\0\0\0\0\0", headers=(*GRPC, ("grpc-timeout", "soon")))
        assert client.answer(malformed)[0]["grpc-status"] == "13"
    assert served.count("timeouts_answer") == 1


def test_a_cancelled_call_leaves_the_connection(channel: grpc.Channel, served: Served) -> None:
    call = channel.unary_unary(LATER).future(b"x")
    eventually(lambda: served.later.waiting == 1)
    call.cancel()
    eventually(lambda: served.count("resets") == 1)
    served.later.release()
    assert channel.unary_unary(ECHO)(b"x") == b"x"


def test_a_dropped_call_is_an_internal_error(channel: grpc.Channel, served: Served) -> None:
    call = channel.unary_unary(LATER).future(b"x")
    eventually(lambda: served.later.waiting == 1)
    served.later.drop()
    assert call.exception(timeout=30).code() is grpc.StatusCode.INTERNAL
    assert served.count("errors_service") == 1


def test_malformed_frames_are_refused(served: Served) -> None:
    with http2_client(served) as client:
        for body, status in (
            (b"", "13"),
            (b"\0\0\0", "13"),
            (b"\0\0\0\0\5abc", "13"),
            (b"\0\xff\xff\xff\xff", "8"),
            (b"\1\0\0\0\0", "13"),
            (b"\2\0\0\0\0", "13"),
            (b"\0\0\0\0\1ab", "12"),
        ):
            headers, _ = client.answer(client.request(ECHO, body, headers=GRPC))
            assert (headers[":status"], headers["grpc-status"]) == ("200", status), body
        get = client.request(ECHO, None, method="GET", headers=GRPC)
        assert client.answer(get)[0][":status"] == "405"
        other = (("content-type", "application/grpc-web"),)
        assert client.answer(client.request(ECHO, b"", headers=other))[0][":status"] == "415"


def test_health_is_reported_for_each_name(channel: grpc.Channel, served: Served) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    statuses = health_pb2.HealthCheckResponse

    def check(name: str) -> int:
        request = health_pb2.HealthCheckRequest(service=name)
        return int(stub.Check(request).status)

    assert check("") == statuses.SERVING
    unknown = error_of(stub.Check, health_pb2.HealthCheckRequest(service="ratelimit"))
    assert unknown.code() is grpc.StatusCode.NOT_FOUND
    served.health.set("ratelimit", True)
    assert check("ratelimit") == statuses.SERVING
    served.health.set("ratelimit", False)
    assert check("ratelimit") == statuses.NOT_SERVING
    malformed = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert error_of(malformed, b"\x0a\xff").code() is grpc.StatusCode.INVALID_ARGUMENT


def test_watchers_receive_each_change_of_health(channel: grpc.Channel, served: Served) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    statuses = health_pb2.HealthCheckResponse
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="ratelimit"), timeout=60)
    assert next(watch).status == statuses.SERVICE_UNKNOWN
    served.health.set("ratelimit", True)
    served.health.set("ratelimit", True)  # no change
    assert next(watch).status == statuses.SERVING
    served.health.set("ratelimit", False)
    assert next(watch).status == statuses.NOT_SERVING
    served.health.set("ratelimit", True)
    assert next(watch).status == statuses.SERVING
    assert served.front.drain(30)
    assert next(watch).status == statuses.NOT_SERVING
    with pytest.raises(grpc.RpcError) as ended:
        next(watch)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_watch_ends_at_its_deadline(channel: grpc.Channel, served: Served) -> None:
    with http2_client(served) as client:
        watch = client.request(
            "/grpc.health.v1.Health/Watch",
            b"\0\0\0\0\0",
            headers=(*GRPC, ("grpc-timeout", "50m")),
        )
        headers, body = client.answer(watch)
        assert headers["grpc-status"] == "4"
        assert body == b"\0\0\0\0\2\x08\x01"


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_describes_all_methods(channel: grpc.Channel, version: str) -> None:
    # Both versions have the same messages.
    request_type = reflection_pb2.ServerReflectionRequest
    method = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    call = channel.stream_stream(
        method,
        request_serializer=request_type.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    name = f"grpc.reflection.{version}.ServerReflection"
    asked = [
        request_type(list_services=""),
        request_type(file_containing_symbol="grpc.health.v1.Health.Check"),
        request_type(file_by_filename=f"grpc/reflection/{version}/reflection.proto"),
        request_type(file_containing_symbol=name),
        request_type(file_containing_symbol="no.Symbol"),
        request_type(all_extension_numbers_of_type="x"),
    ]
    listed, health, by_name, by_symbol, missing, extensions = call(iter(asked))
    names = [service.name for service in listed.list_services_response.service]
    assert names == sorted(names)
    assert {name, "grpc.health.v1.Health", "tidegate.test.Echo"} <= set(names)
    (file,) = health.file_descriptor_response.file_descriptor_proto
    described = FileDescriptorProto.FromString(file)
    assert described.name == "grpc/health/v1/health.proto"
    assert [service.name for service in described.service] == ["Health"]
    assert by_name.file_descriptor_response == by_symbol.file_descriptor_response
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert extensions.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert listed.original_request == asked[0]


def test_grpcio_s_client_reads_the_reflection(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    assert len(list(stub.ServerReflectionInfo(iter([request])))) == 1


def test_reflection_can_be_switched_off(make_front: MakeFront) -> None:
    served = make_front(reflection=False)
    with http2_client(served) as client:
        assert client.answer(client.request(V1, b"", headers=GRPC))[0]["grpc-status"] == "12"


def test_a_call_with_too_many_headers_has_a_status_of_grpc(make_front: MakeFront) -> None:
    with http2_client(make_front(header_bytes=2000)) as client:
        for more in ((("x", "y"),) * 150, (("x", "y" * 2000),)):
            # The content type may be left out too.
            for headers in ((*GRPC, *more), (*more, *GRPC)):
                answer, _ = client.answer(client.request(ECHO, b"\0\0\0\0\0", headers=headers))
                assert (answer[":status"], answer["grpc-status"]) == ("200", "8")
