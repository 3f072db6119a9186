"""The front over HTTP/1.1: requests, keep-alive, pipelining, and refusals."""

from __future__ import annotations

import json

import plain_http
import pytest
from fronts import MakeFront
from polling import eventually

HEAD = b"POST /echo HTTP/1.1\r\nHost: test\r\n"


def test_a_request_is_answered(make_front: MakeFront) -> None:
    served = make_front()
    with plain_http.client() as client:
        answer = client.post(served.url + "/echo", content=b"hello")
        assert (answer.status_code, answer.content) == (200, b"hello")
        assert answer.headers["x-peer"] == "127.0.0.1"
        assert answer.headers["date"].endswith("GMT")
        assert client.get(served.url + "/nowhere").status_code == 404
        assert client.put(served.url + "/echo").status_code == 405
        assert client.get(served.url + "/echoes/below?q=1").status_code == 200
        head = client.head(served.url + "/echo")
        assert (head.status_code, head.content) == (200, b"")
    assert served.count("requests_http1") == 5
    assert served.count("connections_accepted") == 1


def test_pipelined_requests_are_answered_in_order(make_front: MakeFront) -> None:
    served = make_front()
    bodies = [b"%d" % i * (i % 50) for i in range(1000)]
    with served.connect() as client:
        client.send(b"".join(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(b), b) for b in bodies))
        assert [client.read_response()[2] for _ in bodies] == bodies


def test_pipelined_requests_are_answered_in_order_by_another_thread(make_front: MakeFront) -> None:
    served = make_front()
    one = b"POST /later HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\n%03d"
    with served.connect() as client:
        client.send(b"".join(one % i for i in range(200)))
        assert [client.read_response()[2] for _ in range(200)] == [b"%03d" % i for i in range(200)]
    assert served.count("answers_later") == 200


def test_a_big_answer_of_many_pipelined_requests_arrives_whole(make_front: MakeFront) -> None:
    served = make_front()
    request = HEAD + b"Content-Length: 0\r\nX-Answer-Size: 300000\r\n\r\n"
    with served.connect() as client:
        client.send(request * 20)
        for _ in range(20):
            assert len(client.read_response()[2]) == 300_000


def test_a_request_may_arrive_byte_by_byte(make_front: MakeFront) -> None:
    served = make_front()
    whole = HEAD + b"Content-Length: 5\r\n\r\nhello"
    chunked = (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: 1\r\n\r\n"
    )
    with served.connect() as client:
        for request in (whole, chunked, whole):
            for byte in request:
                client.send(bytes([byte]))
            assert client.read_response()[2] == b"hello"


def test_expect_continue_is_answered_with_100(make_front: MakeFront) -> None:
    served = make_front()
    with served.connect() as client:
        client.send(HEAD + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.read_response()[0] == 100
        client.send(b"hello")
        assert client.read_response()[2] == b"hello"


def test_a_client_that_ends_its_side_gets_its_answer(make_front: MakeFront) -> None:
    served = make_front(holds=True)
    with served.connect() as client:
        client.send(b"POST /later HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nhi")
        eventually(lambda: served.later.waiting == 1)
        client.sock.shutdown(1)
        served.later.release()
        assert client.read_to_end().endswith(b"\r\n\r\nhi")


@pytest.mark.parametrize(
    ("version", "header", "keeps"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: keep-alive\r\n", True),
    ],
)
def test_keep_alive_follows_version_and_header(
    make_front: MakeFront, version: bytes, header: bytes, keeps: bool
) -> None:
    served = make_front()
    with served.connect() as client:
        client.send(b"GET /echo HTTP/" + version + b"\r\nHost: test\r\n" + header + b"\r\n")
        _, headers, _ = client.read_response()
        assert headers["connection"] == ("keep-alive" if keeps else "close")
        if keeps:
            client.send(b"GET /echo HTTP/1.1\r\nHost: test\r\n\r\n")
            assert client.read_response()[0] == 200
        else:
            assert client.read_to_end() == b""


MALFORMED = {
    "length and chunks": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "one length twice": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "a huge length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
    "two codings": HEAD
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": HEAD + b"X: a\r\n b\r\n\r\n",
    "a folded first header": b"GET /echo HTTP/1.1\r\n X: a\r\nHost: test\r\n\r\n",
    "a bare CR in a value": HEAD + b"X: a\rb\r\n\r\n",
    "a bare LF in a value": HEAD + b"X: a\nY: b\r\n\r\n",
    "a NUL in a value": HEAD + b"X: a\0b\r\n\r\n",
    "a space before the colon": HEAD + b"Content-Length : 3\r\n\r\nabc",
    "a space in a name": HEAD + b"Content Length: 3\r\n\r\nabc",
    "an empty name": HEAD + b": 3\r\n\r\n",
    "no colon": HEAD + b"Content-Length\r\n\r\n",
    "no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no version": b"GET /echo\r\nHost: test\r\n\r\n",
    "a space in the target": b"GET /echo x HTTP/1.1\r\nHost: test\r\n\r\n",
    "a tab in the target": b"GET /echo\tx HTTP/1.1\r\nHost: test\r\n\r\n",
    "chunks of HTTP/1.0": b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk without its end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "a chunk with a bare LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "a chunk with CR and more": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\rXabc\r\n0\r\n\r\n",
    "a signed chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    "a chunk of 0x": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    # Ways to hide a body that Node.js's parsers once read otherwise than proxies before them.
    "a line that begins with CR": HEAD + b"X: a\r\n\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a head that CR LF CR ends": HEAD + b"Content-Length: 3\r\n\rX\r\n\r\nabc",
    "CRs between two headers": HEAD + b"X: a\r\rContent-Length: 3\r\n\r\nabc",
    "a space before a length": HEAD + b" Content-Length: 3\r\n\r\nabc",
    "a tab before the colon": HEAD + b"Content-Length\t: 3\r\n\r\nabc",
    "a coding on the next line": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a coding after a bare LF": HEAD + b"Transfer-Encoding:\n chunked\r\n\r\n0\r\n\r\n",
    "a vertical tab before a coding": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a space after a chunk's size": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
    "a CR in a chunk's extension": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n3;a\rb\r\nabc\r\n0\r\n\r\n",
    "an LF in a chunk's extension": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a head that LFs end": b"GET /echo HTTP/1.1\nHost: test\n\n\r\n\r\n",
    "a preface of HTTP/2 in HTTP/1.1": b"PRI * HTTP/1.1\r\nHost: test\r\n\r\n",
    "a method of RTSP": b"DESCRIBE /echo HTTP/1.1\r\nHost: test\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 \r\n\r\n",
}


@pytest.mark.parametrize("shape", MALFORMED)
def test_a_malformed_request_is_answered_400_and_the_connection_closed(
    make_front: MakeFront, shape: str
) -> None:
    served = make_front()
    with served.connect() as client:
        client.send(MALFORMED[shape] + b"GET /hidden HTTP/1.1\r\nHost: test\r\n\r\n")
        status, headers, body = client.read_response()
        assert status == (413 if shape == "a huge length" and status == 413 else 400), body
        assert headers["connection"] == "close"
        assert "; expected " in json.loads(body)["detail"]
        assert client.read_to_end() == b""
    assert served.count("errors_protocol") == 1
    assert served.count("requests_http1") == 0


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /echo HTTP/1.1\r\nHost: test\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET /echo HTTP/1.1\r\nHost: t\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (HEAD + b"Content-Length: 1001\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n", 413),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 20_000, 413),
        (HEAD + b"Expect: wonders\r\n\r\n", 417),
        (b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\n\r\n", 501),
        (b"BREW /echo HTTP/1.1\r\nHost: test\r\n\r\n", 501),
        (b"GET /echo HTTP/2.0\r\nHost: test\r\n\r\n", 505),
    ],
)
def test_oversized_and_unsupported_requests_are_refused(
    make_front: MakeFront, request_bytes: bytes, status: int
) -> None:
    served = make_front(body_bytes=1000)
    with served.connect() as client:
        client.send(request_bytes)
        assert client.read_response()[0] == status
        assert client.read_to_end() == b""


def test_an_absolute_target_means_its_path(make_front: MakeFront) -> None:
    served = make_front()
    with served.connect() as client:
        client.send(b"GET http://test/echo?a=b HTTP/1.1\r\nHost: test\r\n\r\n")
        assert client.read_response()[0] == 200


def test_a_failed_or_dropped_call_is_answered_500(make_front: MakeFront) -> None:
    served = make_front(holds=True)
    with served.connect() as client:
        client.send(b"GET /echo HTTP/1.1\r\nHost: test\r\nX-Answer-Size: many\r\n\r\n")
        assert client.read_response()[0] == 500
        client.send(b"POST /later HTTP/1.1\r\nHost: test\r\n\r\n")
        eventually(lambda: served.later.waiting == 1)
        served.later.drop()
        assert client.read_response()[0] == 500
    assert served.count("errors_service") == 2
