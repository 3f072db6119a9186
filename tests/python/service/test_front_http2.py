"""The front over HTTP/2: requests, errors of one stream, and floods."""

from __future__ import annotations

import struct

import h2.errors
import h2.events
import plain_http
import pytest
from fronts import Http2Client, MakeFront, http2_client
from polling import eventually

ENHANCE_YOUR_CALM = int(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def test_a_request_is_answered(make_front: MakeFront) -> None:
    served = make_front()
    with plain_http.client(http1=False, http2=True) as client:
        answer = client.post(served.url + "/echo", content=b"hello")
        assert (answer.http_version, answer.status_code, answer.content) == (
            "HTTP/2",
            200,
            b"hello",
        )
        big = bytes(range(256)) * 3000
        assert client.post(served.url + "/echo", content=big).content == big
        assert client.get(served.url + "/nowhere").status_code == 404
        assert client.head(served.url + "/echo").content == b""
    assert served.count("requests_http2") == 4


def test_many_streams_are_answered_by_another_thread(make_front: MakeFront) -> None:
    served = make_front(holds=True)
    with http2_client(served) as client:
        streams = {client.request("/later", b"%d" % i): b"%d" % i for i in range(100)}
        eventually(lambda: served.later.waiting == 100)
        served.later.release()
        bodies: dict[int, bytes] = {}
        while len(bodies) < 100:
            for event in client.events():
                if isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] = event.data
        assert bodies == streams


def test_an_error_of_one_stream_does_not_affect_the_others(make_front: MakeFront) -> None:
    served = make_front(body_bytes=1000, header_bytes=2000, holds=True)
    with http2_client(served) as client:
        kept = client.request("/later", b"kept")
        big = client.request("/echo", b"x" * 1001, end=False)
        assert client.answer(big)[0][":status"] == "413"
        long = client.request("/echo", None, headers=(("x", "y" * 3000),), end=False)
        assert client.answer(long)[0][":status"] == "431"
        many = client.request("/echo", None, headers=(("x", "y"),) * 150)
        assert client.answer(many)[0][":status"] == "431"
        wrong = client.request("/tidegate.test.Echo/Echo", b"{}")
        assert client.answer(wrong)[0][":status"] == "415"
        assert client.answer(client.request("/echo", b"fine"))[1] == b"fine"
        served.later.release()
        assert client.answer(kept)[1] == b"kept"
    assert served.count("errors_protocol") == 4


def test_no_stream_remains_after_its_client_has_gone(make_front: MakeFront) -> None:
    served = make_front(holds=True)
    with http2_client(served) as client:
        client.request("/later", b"lost")
        eventually(lambda: served.later.waiting == 1)
    eventually(lambda: served.count("connections_open") == 0)
    served.later.release()


def test_rapid_reset_ends_the_connection(make_front: MakeFront) -> None:
    served = make_front(reset_burst=50, resets_per_second=1, holds=True)
    with http2_client(served) as client:
        for _ in range(52):
            stream = client.request("/later", b"x")
            client.h2.reset_stream(stream)
            client.flush_quietly()
        assert client.goaway() == ENHANCE_YOUR_CALM
    assert served.count("floods") == 1
    assert served.count("resets") <= 50


def test_resets_that_the_client_provokes_end_the_connection(make_front: MakeFront) -> None:
    """A window of more than 2^31 bytes makes the server reset the stream."""
    served = make_front(reset_burst=50, resets_per_second=1, holds=True)
    with http2_client(served) as client:
        for _ in range(52):
            stream = client.request("/later", b"x")
            client.sock.sendall(frame(8, 0, stream, b"\x7f\xff\xff\xff"))
        assert client.goaway() == ENHANCE_YOUR_CALM
    assert served.count("floods") == 1


FLOODS = {
    "PING": lambda stream: frame(6, 0, 0, bytes(8)),
    "SETTINGS": lambda stream: frame(4, 0, 0, b""),
    "PRIORITY": lambda stream: frame(2, 0, stream, bytes(5)),
    "empty DATA": lambda stream: frame(0, 0, stream, b""),
    "unknown frames": lambda stream: frame(0xF0, 0, 0, b""),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_frames_ends_the_connection(make_front: MakeFront, kind: str) -> None:
    served = make_front(control_frame_burst=50, control_frames_per_second=1)
    with http2_client(served) as client:
        stream = client.request("/echo", b"x", end=False)
        client.sock.sendall(FLOODS[kind](stream) * 60)
        assert client.goaway() == ENHANCE_YOUR_CALM
    assert served.count("floods") == 1


def test_a_flood_of_continuations_ends_the_connection(make_front: MakeFront) -> None:
    served = make_front()
    with http2_client(served) as client:
        client.sock.sendall(frame(1, 0, 1, b"\x82") + frame(9, 0, 1, b"") * 20)
        assert client.goaway() == ENHANCE_YOUR_CALM


def test_more_streams_than_the_bound_are_refused(make_front: MakeFront) -> None:
    served = make_front(streams=10, holds=True)
    with http2_client(served) as client:
        client.h2.remote_settings[3] = 1000  # ignore the bound that the server announces
        client.events()
        client.h2.remote_settings[3] = 1000
        client.h2.remote_settings.acknowledge()
        for _ in range(10):
            client.request("/later", b"x")
        eventually(lambda: served.later.waiting == 10)
        client.sock.sendall(frame(1, 5, 101, b"\x83\x84\x86\x41\x04test"))
        codes = []
        while not codes:
            events = client.events()
            codes = [
                event.error_code
                for event in events
                if isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated))
            ]
            assert events
    assert served.later.waiting == 10


def test_bytes_that_are_not_http2_end_the_connection(make_front: MakeFront) -> None:
    served = make_front()
    with served.connect() as client:
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n")
        client.read_to_end()
    eventually(lambda: served.count("connections_open") == 0)


def test_a_preface_may_arrive_in_pieces(make_front: MakeFront) -> None:
    served = make_front()

    class Slow(Http2Client):
        def flush(self) -> None:
            for byte in self.h2.data_to_send():
                self.sock.sendall(bytes([byte]))

    with Slow(served.connect().sock) as client:
        assert client.answer(client.request("/echo", b"slow"))[1] == b"slow"
