"""The sockets of a front: ports, Unix sockets, several loops, and children of fork()."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from fronts import MakeFront, RawClient, new_front
from polling import eventually
from service_testing import EchoService
from tidegate import ConfigurationError
from tidegate.server import _native

GET = b"GET /echo HTTP/1.1\r\nHost: test\r\n\r\n"


def unix_client(path: Path) -> RawClient:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    sock.connect(str(path))
    return RawClient(sock)


def two_on_one_socket(path: Path, loops: int) -> tuple[_native.Front, _native.Front]:
    """A front that listens at `path`, and another that has taken its socket over."""
    first, _, _ = new_front()
    first.listen_unix(str(path))
    first.start()
    second, _, _ = new_front(loops=loops)
    second.adopt([os.dup(number) for number in first.share_sockets()])
    return first, second


def test_a_front_listens_at_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "front.sock"
    front, _, _ = new_front(loops=2)
    front.listen_unix(str(path), mode=0o660)
    front.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    for _ in range(20):
        with unix_client(path) as client:
            client.send(GET)
            status, headers, _ = client.read_response()
            assert (status, headers["x-peer"]) == (200, str(path))
    front.stop()
    assert not path.exists()


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "front.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.listen()
    front, _, _ = new_front()
    with pytest.raises(OSError, match="at which another process listens"):
        front.listen_unix(str(path))
    left.close()
    front.listen_unix(str(path))
    front.start()
    with unix_client(path) as client:
        client.send(GET)
        assert client.read_response()[0] == 200
    front.stop()


def test_a_file_at_the_path_of_a_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    front, _, _ = new_front()
    with pytest.raises(OSError, match="which is a file; expected a free path"):
        front.listen_unix(str(path))
    assert path.read_text() == "data"
    with pytest.raises(ConfigurationError, match="expected 1 to 107 bytes"):
        front.listen_unix("x" * 200)


def test_a_port_that_another_front_has_is_refused_with_one_loop_and_with_several() -> None:
    first, _, _ = new_front(loops=2)
    port = first.listen("127.0.0.1", 0)
    for loops in (1, 2):
        second, _, _ = new_front(loops=loops)
        with pytest.raises(OSError, match=f"127.0.0.1 port {port}: The address could not be bound"):
            second.listen("127.0.0.1", port)
    first.stop()


def test_several_loops_share_a_port(make_front: MakeFront) -> None:
    served = make_front(loops=3)
    for _ in range(50):
        with served.connect() as client:
            client.send(GET)
            assert client.read_response()[0] == 200
    assert served.count("connections_accepted") == 50


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 2)])
def test_every_socket_of_another_front_is_accepted_at(before: int, after: int) -> None:
    first, _, _ = new_front(loops=before)
    port = first.listen("127.0.0.1", 0)
    first.start()
    sockets = [os.dup(number) for number in first.share_sockets()]
    assert len(sockets) == before
    second, _, _ = new_front(loops=after)
    second.adopt(sockets)
    second.start()
    first.stop()
    for _ in range(20):  # the system chooses a socket by the client's port
        with RawClient(socket.create_connection(("127.0.0.1", port), timeout=30)) as client:
            client.send(GET)
            assert client.read_response()[0] == 200
    assert second.stats()["connections_accepted"] == 20
    second.stop()


def test_a_shared_unix_socket_keeps_its_path(tmp_path: Path) -> None:
    path = tmp_path / "front.sock"
    first, second = two_on_one_socket(path, loops=2)
    first.stop()
    second.start()
    with unix_client(path) as client:
        client.send(GET)
        assert client.read_response()[1]["x-peer"] == str(path)
    second.stop()


def test_a_unix_path_goes_if_nobody_took_the_socket_over(tmp_path: Path) -> None:
    path = tmp_path / "front.sock"
    first, second = two_on_one_socket(path, loops=1)
    second.start()
    assert second.share_sockets() != []
    second.unshare_sockets()
    second.stop()
    assert path.exists()  # it is not that of the front that found it
    first.unshare_sockets()
    first.stop()
    assert not path.exists()


def test_what_does_not_listen_is_not_taken_over() -> None:
    front, _, _ = new_front()
    with (
        socket.socket() as other,
        pytest.raises(
            ConfigurationError,
            match="is no socket that listens; expected a stream socket that does",
        ),
    ):
        front.adopt([os.dup(other.fileno())])


@pytest.mark.skipif(not socket.has_ipv6, reason="the system has no IPv6")
def test_the_address_of_an_ipv6_client_is_reported() -> None:
    front, _, _ = new_front()
    try:
        port = front.listen("::1", 0)
    except OSError as error:
        pytest.skip(f"the machine has no IPv6 address: {error}")
    front.start()
    with RawClient(socket.create_connection(("::1", port), timeout=30)) as client:
        client.send(GET)
        assert client.read_response()[1]["x-peer"] == "::1"
    front.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 1}, 'the option is "speed"; expected one of the front'),
        ({"loops": 0}, "loops is 0 of type int; expected an int from 1 to 2147483647"),
        ({"loops": 1.5}, "loops is 1.5 of type float; expected an int"),
        ({"loops": True}, "loops is True of type bool; expected an int"),
        ({"streams": 10**30}, "; expected an int"),
        ({"idle_seconds": -1}, "; expected a number of seconds"),
        ({"idle_seconds": float("nan")}, "; expected a number of seconds"),
        ({"idle_seconds": "5"}, "; expected a number of seconds"),
        ({"reflection": 1}, "reflection is 1 of type int; expected True or False"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _native.Front(options)


def test_calls_in_the_wrong_order_are_refused() -> None:
    front, _, _ = new_front()
    with pytest.raises(RuntimeError, match=r"; expected listen\(\) before start\(\)"):
        front.start()
    with pytest.raises(ConfigurationError, match="the port is 65536; expected 0 to 65535"):
        front.listen("127.0.0.1", 65536)
    with pytest.raises(ConfigurationError, match="expected the address of an interface"):
        front.listen("no address", 0)
    front.listen("127.0.0.1", 0)
    front.start()
    assert front.running
    with pytest.raises(RuntimeError, match=r"listen\(\) is called after start\(\); expected"):
        front.listen("127.0.0.1", 0)
    with pytest.raises(RuntimeError, match=r"route\(\) is called after start\(\); expected"):
        front.route(EchoService())
    front.stop()
    front.stop()
    assert not front.running
    assert front.drain(0)


def test_a_route_that_is_taken_is_refused() -> None:
    front, _, _ = new_front()
    with pytest.raises(ConfigurationError, match="twice; expected one that no other service"):
        front.route(EchoService())


def _child(front: _native.Front, ready: Any, end: Any) -> None:
    assert not front.running
    assert front.drain(1)
    front.stop()
    assert front.stats()["connections_open"] == 0
    ready.set()
    end.wait(60)


def test_a_child_process_does_not_serve(make_front: MakeFront) -> None:
    """The child keeps neither connections nor the port, and the parent continues to serve."""
    served = make_front()
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    with served.connect() as open_before:
        open_before.send(GET)
        assert open_before.read_response()[0] == 200
        child = context.Process(target=_child, args=(served.front, ready, end))
        child.start()
        try:
            assert ready.wait(60)
            open_before.send(GET)
            assert open_before.read_response()[0] == 200
            with served.connect() as client:
                client.send(GET)
                assert client.read_response()[0] == 200
            served.front.stop()
            assert open_before.read_to_end() == b""
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", served.port))
                again.listen()
        finally:
            end.set()
            child.join(60)
    assert child.exitcode == 0


def test_accepting_pauses_without_descriptors_and_continues(make_front: MakeFront) -> None:
    import resource

    served = make_front()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(4)]
    taken: list[int] = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        with contextlib.suppress(OSError):  # too many open files
            while True:
                taken.append(os.dup(0))
        for sock in waiting:
            sock.settimeout(30)
            sock.connect(("127.0.0.1", served.port))
        eventually(lambda: served.count("accept_failures") >= 2)
        for fd in taken:
            os.close(fd)
        taken.clear()
        for sock in waiting:
            sock.sendall(GET)
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
        for sock in waiting:
            sock.close()
    # The front tries once in 100 ms, and not in a loop.
    assert served.count("accept_failures") < 1000
