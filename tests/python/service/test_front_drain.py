"""The end of a front: by a drain, at once, or with the process."""

from __future__ import annotations

import subprocess
import sys
import threading

import grpc
import h2.events
import httpx
import plain_http
import pytest
from fronts import LATER, MakeFront, http2_client
from polling import eventually


def test_a_drain_waits_for_calls_in_progress(make_front: MakeFront) -> None:
    served = make_front(holds=True)
    results: list[bool] = []
    with served.connect() as http1, http2_client(served) as http2, served.connect() as idle:
        http1.send(b"POST /later HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nh1")
        stream = http2.request("/later", b"h2")
        idle.send(b"GET /echo HTTP/1.1\r\nHost: test\r\n\r\n")
        idle.read_response()
        eventually(lambda: served.later.waiting == 2)
        drain = threading.Thread(target=lambda: results.append(served.front.drain(60)))
        drain.start()
        assert idle.read_to_end() == b""
        # The first GOAWAY announces the end, the second names the last stream.
        last: list[int] = []
        while len(last) < 2:
            last += [
                event.last_stream_id
                for event in http2.events()
                if isinstance(event, h2.events.ConnectionTerminated)
            ]
        assert last == [2**31 - 1, stream]
        assert drain.is_alive()
        with pytest.raises(ConnectionRefusedError):
            served.connect()
        served.later.release()
        _, headers, body = http1.read_response()
        assert (headers["connection"], body) == ("close", b"h1")
        assert http1.read_to_end() == b""
        drain.join(60)
    assert results == [True]


def test_a_drain_ends_after_its_time(make_front: MakeFront) -> None:
    served = make_front(holds=True)
    with served.connect() as client:
        client.send(b"POST /later HTTP/1.1\r\nHost: test\r\n\r\n")
        eventually(lambda: served.later.waiting == 1)
        assert not served.front.drain(0.05)
        served.front.stop()
        assert client.read_to_end() == b""
    served.later.release()


def test_a_drain_under_load_loses_no_answer(make_front: MakeFront) -> None:
    """Clients see whole answers, or connections that accept no more requests."""
    served = make_front(loops=2)
    wrong: list[object] = []
    answered = [0]

    def load_grpc() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{served.port}", options=options) as channel:
            call = channel.unary_unary(LATER)
            while True:
                try:
                    answer = call(b"x" * 1000, timeout=30)
                except grpc.RpcError as error:
                    if "connect" not in error.details():
                        wrong.append(error)
                    return
                answered[0] += 1
                if answer != b"x" * 1000:
                    wrong.append(answer)

    def load_http1() -> None:
        with plain_http.client(timeout=30) as client:
            while True:
                try:
                    answer = client.post(served.url + "/later", content=b"x" * 1000)
                except httpx.ConnectError:
                    return  # the port is closed
                except httpx.RemoteProtocolError:
                    continue  # the connection was closed before it read the request
                except httpx.TransportError as error:
                    wrong.append(error)
                    return
                answered[0] += 1
                if (answer.status_code, len(answer.content)) != (200, 1000):
                    wrong.append(answer)

    threads = [threading.Thread(target=load) for load in [load_grpc, load_http1] * 3]
    for thread in threads:
        thread.start()
    eventually(lambda: answered[0] > 200)
    assert served.front.drain(60)
    for thread in threads:
        thread.join(60)
    assert wrong == []
    eventually(lambda: served.count("connections_open") == 0)


def test_a_stop_ends_at_once(make_front: MakeFront) -> None:
    served = make_front(holds=True)
    with http2_client(served) as client, served.connect() as idle:
        client.request("/later", b"x")
        eventually(lambda: served.later.waiting == 1)
        served.front.stop()
        assert idle.read_to_end() == b""
        eventually(lambda: client.events() == [])
    eventually(lambda: served.count("connections_open") == 0)
    served.later.release()  # nobody waits for the answer any more


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "del front, later", "front.stop()"])
def test_a_process_ends_with_calls_in_progress(end: str) -> None:
    program = f"""
import socket, sys, time
from service_testing import LaterService
from tidegate.server import _native
front, later = _native.Front(), LaterService(holds=True)
front.route(later)
port = front.listen("127.0.0.1", 0)
front.start()
client = socket.create_connection(("127.0.0.1", port))
client.sendall(b"POST /later HTTP/1.1\\r\\nHost: test\\r\\n\\r\\n" )
for _ in range(60_000):
    if later.waiting:
        break
    time.sleep(0.001)
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
