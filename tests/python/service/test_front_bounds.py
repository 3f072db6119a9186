"""The bounds of the front: connections, output, and time."""

from __future__ import annotations

import os
import socket

import h2.events
import pytest
from fronts import MakeFront, http2_client
from polling import eventually

HEAD = b"POST /echo HTTP/1.1\r\nHost: test\r\n"
GRPC = (("content-type", "application/grpc"),)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_connections_above_the_bound_are_closed(make_front: MakeFront) -> None:
    served = make_front(connections=3, loops=2)
    clients = [served.connect() for _ in range(3)]
    for client in clients:
        client.send(HEAD + b"\r\n")
        assert client.read_response()[0] == 200
    with served.connect() as refused:
        assert refused.read_to_end() == b""
    assert served.count("connections_refused") == 1
    clients.pop().sock.close()
    eventually(lambda: served.count("connections_open") == 2)
    with served.connect() as taken:
        taken.send(HEAD + b"\r\n")
        assert taken.read_response()[0] == 200
    for client in clients:
        client.sock.close()


def test_thousands_of_idle_connections_take_little_memory(make_front: MakeFront) -> None:
    served = make_front()
    count = 2500
    with served.connect() as first:
        first.send(HEAD + b"\r\n")
        first.read_response()
        before = resident_bytes()
        sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                sockets.append(socket.create_connection(("127.0.0.1", served.port), timeout=30))
                sockets[-1].sendall(HEAD + b"Content-Length: 2\r\n\r\nhi")
            for sock in sockets:
                assert sock.recv(1000).endswith(b"hi")
            assert served.count("connections_open") == count + 1
            # Some of this memory belongs to the sockets of this test.
            assert (resident_bytes() - before) / count < 4096
            first.send(HEAD + b"\r\n")
            assert first.read_response()[0] == 200
        finally:
            for sock in sockets:
                sock.close()
    eventually(lambda: served.count("connections_open") == 0)


def test_a_request_that_takes_too_long_is_answered_408(make_front: MakeFront) -> None:
    served = make_front(request_seconds=0.2)
    beginnings = [
        b"GET",
        HEAD,
        HEAD + b"Content-Length: 5\r\n\r\nhell",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
    ]
    for beginning in beginnings:
        with served.connect() as client:
            client.send(beginning)
            answer = client.read_to_end()
            if beginning != b"GET":  # this might become the preface of HTTP/2
                assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    with served.connect() as client:
        client.send(b"PRI * HT")
        assert client.read_to_end() == b""
    assert served.count("timeouts_request") == len(beginnings) + 1


def test_the_connection_stays_if_a_stream_takes_too_long(make_front: MakeFront) -> None:
    served = make_front(request_seconds=0.2)
    with http2_client(served) as client:
        slow = client.request("/echo", b"x", end=False)
        assert client.answer(slow)[0][":status"] == "408"
        slow = client.request("/tidegate.test.Echo/Echo", b"\0", headers=GRPC, end=False)
        assert client.answer(slow)[0]["grpc-status"] == "4"
        assert client.answer(client.request("/echo", b"quick"))[1] == b"quick"
    assert served.count("timeouts_request") == 2


def test_a_service_that_takes_too_long_is_answered_504(make_front: MakeFront) -> None:
    served = make_front(answer_seconds=0.2, holds=True)
    with served.connect() as client:
        client.send(b"POST /later HTTP/1.1\r\nHost: test\r\n\r\n")
        assert client.read_response()[0] == 504
    with http2_client(served) as http2:
        assert http2.answer(http2.request("/later", b""))[0][":status"] == "504"
        served.later.release()
        assert http2.answer(http2.request("/echo", b"x"))[1] == b"x"
    assert served.count("timeouts_answer") == 2


def test_idle_connections_are_closed(make_front: MakeFront) -> None:
    served = make_front(idle_seconds=0.2)
    with served.connect() as silent:
        assert silent.read_to_end() == b""
    with served.connect() as client:
        client.send(HEAD + b"\r\n")
        client.read_response()
        assert client.read_to_end() == b""
    with http2_client(served) as http2:
        http2.answer(http2.request("/echo", b"x"))
        assert http2.goaway() == 0
    assert served.count("timeouts_idle") == 3


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_client_that_does_not_read_is_closed(make_front: MakeFront, size: int) -> None:
    served = make_front(take_seconds=0.3)
    request = HEAD + b"X-Answer-Size: %d\r\n\r\n" % size
    with served.connect() as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sock.settimeout(0.1)
        try:
            for _ in range(400):
                client.send(request)
        except OSError:  # the server reads no more, or has closed
            pass
        eventually(lambda: served.count("slow_readers") == 1)
        eventually(lambda: served.count("connections_open") == 0)
    assert served.count("requests_http1") < 200


def test_a_stream_that_is_not_read_is_reset(make_front: MakeFront) -> None:
    """The client opens no window for the stream."""
    served = make_front(take_seconds=0.3)
    with http2_client(served) as client:
        stream = client.request("/echo", headers=(("x-answer-size", "200000"),))
        reset = False
        while not reset:
            events = client.events()
            assert events
            reset = any(isinstance(event, h2.events.StreamReset) for event in events)
        with pytest.raises(h2.exceptions.StreamClosedError):
            client.h2.send_data(stream, b"")
    assert served.count("slow_readers") == 1


def test_the_unread_answers_of_a_connection_are_bounded(make_front: MakeFront) -> None:
    served = make_front(output_bytes=1_000_000)
    with http2_client(served) as client:
        for _ in range(10):
            client.request("/echo", headers=(("x-answer-size", "200000"),))
        eventually(lambda: client.events() == [])
    assert served.count("slow_readers") == 1
    eventually(lambda: served.count("connections_open") == 0)


def test_a_body_as_long_as_a_request_may_have_fits_into_the_bound_of_its_connection(
    make_front: MakeFront,
) -> None:
    served = make_front(input_bytes=1_000, body_bytes=16_000)
    with http2_client(served) as client:
        stream = client.request("/echo", b"x" * 16_000)
        assert len(client.answer(stream)[1]) == 16_000


def test_the_unfinished_bodies_of_a_connection_are_bounded(make_front: MakeFront) -> None:
    served = make_front(input_bytes=50_000, body_bytes=20_000)
    with http2_client(served) as client:
        streams = [client.request("/echo", b"x" * 15_000, end=False) for _ in range(4)]
        assert client.answer(streams[-1])[0][":status"] == "503"
        client.h2.send_data(streams[0], b"y", end_stream=True)
        client.flush()
        assert len(client.answer(streams[0])[1]) == 15_001
