"""A `tidegate serve` whose sockets another process takes over, or that systemd gave its sockets."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import check_wire as wire
import grpc
import httpx
import plain_http
import pytest
from busy_threads import BusyThreads
from polling import eventually
from processes import running
from serving import SETTINGS, Served
from tidegate import ConfigurationError
from tidegate.cli.serve import _Succession
from tidegate.cli.successor import Outbox
from tidegate.server.inherited import InheritedSockets, inherited_sockets
from tidegate.server.service import Service
from tidegate.server.settings import Address, Settings

# A drain as long as the test: connections are closed since they had an answer, never since the
# machine was slow.
LONG = SETTINGS + "drain: 3600\n"


class Callers(BusyThreads):
    """Threads that ask as fast as they are answered, and keep what was not answered."""

    def __init__(self, served: Served) -> None:
        self.answered = [0, 0, 0]
        self._url = f"{served.checks}/v1/ratelimit/check"
        super().__init__(self._kept_alive, self._anew, self._grpc)

    def _one(self, client: httpx.Client) -> None:
        answer = client.post(self._url, json={"userId": "1", "endpoint": "/a"})
        assert answer.status_code == 200, answer.text

    def _kept_alive(self) -> Iterator[None]:
        with plain_http.client(timeout=300) as client:
            while True:
                self._one(client)
                self.answered[0] += 1
                yield

    def _anew(self) -> Iterator[None]:
        while True:
            with plain_http.client(timeout=300) as client:
                self._one(client)
                self.answered[1] += 1
                yield

    def _grpc(self) -> Iterator[None]:
        with grpc.insecure_channel(self._url.split("/")[2]) as channel:
            call = channel.unary_unary("/tidegate.v1.RateLimiter/Check", bytes, bytes)
            ask = wire.request({"user": "1", "endpoint": "/a"})
            while True:
                answer = call(ask, timeout=300)
                assert wire.CheckResponse(answer).limit == 3, answer
                self.answered[2] += 1
                yield

    def ask_more(self) -> None:
        before = list(self.answered)
        eventually(
            lambda: self.errors or all(now > then + 9 for now, then in zip(self.answered, before)),
            300,
        )


def test_no_request_fails_while_a_process_takes_over(directory: Path) -> None:
    served = Served(directory, LONG)
    admin = f"{served.admin}/livez"
    try:
        with Callers(served) as callers:
            callers.ask_more()
            served.process.send_signal(signal.SIGUSR2)
            assert served.process.wait(300) == 0, served.log.read_text()
            callers.ask_more()
            assert plain_http.get(admin, timeout=300).status_code == 200
        assert callers.errors == []
        # Of how many depends on whether an interval of anomaly detection has ended meanwhile.
        said = r"anomaly detection goes on, with what is usual of \d+ callers"
        assert re.search(said, served.log.read_text()), served.log.read_text()[-20_000:]
        assert "TIDEGATE_PREDECESSOR" not in served.log.read_text()
    finally:
        for successor in re.findall(r"the process (\d+) has taken over", served.log.read_text()):
            os.kill(int(successor), signal.SIGKILL)
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


def test_a_successor_that_cannot_start_leaves_the_service_as_it_is(served: Served) -> None:
    url = f"{served.checks}/v1/ratelimit/check"
    (served.directory / "rules.yaml").write_text("rules: [{id: x, limits: many}]\n")
    served.process.send_signal(signal.SIGUSR2)
    said = "the process that was to take over ended with status"
    eventually(lambda: said in served.log.read_text(), 120)
    assert plain_http.post(url, json={"userId": "1", "endpoint": "/a"}).json()["limit"] == 3
    assert served.end() == 0


def test_sockets_that_systemd_opened_are_taken(directory: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        checks, admin = one.getsockname()[1], two.getsockname()[1]
        (directory / "tidegate.yaml").write_text(SETTINGS)
        program = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
            "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '2'}; "
            "os.execv(sys.executable, [sys.executable, '-m', 'tidegate', 'serve'])"
        )
        environment = {
            **os.environ,
            "TIDEGATE_CHECKS__LISTEN": f"127.0.0.1:{checks}",
            "TIDEGATE_ADMIN__LISTEN": f"127.0.0.1:{admin}",
        }
        numbers = [os.dup(one.fileno()), os.dup(two.fileno())]
        with running(
            [sys.executable, "-c", program, *map(str, numbers)],
            cwd=directory,
            env=environment,
            pass_fds=numbers,
        ):
            # The connections wait in the sockets until the service has started.
            url = f"http://127.0.0.1:{checks}/v1/ratelimit/check"
            answer = plain_http.post(url, json={"userId": "1", "endpoint": "/a"}, timeout=300)
            assert answer.json()["limit"] == 3
            assert plain_http.get(f"http://127.0.0.1:{admin}/livez", timeout=300).status_code == 200
        for number in numbers:
            os.close(number)


class Parts:
    """What a succession uses of a service."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False

    def sockets(self) -> list[tuple[str, int]]:
        self.asked.append("sockets")
        return [("checks", -1)] if self.fails else []

    def stay(self) -> None:
        self.asked.append("stay")

    def hand_on(self, send: Callable[[bytes], object]) -> None:
        self.asked.append("hand_on")


def open_descriptors() -> set[str]:
    return {each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")}


def test_a_process_that_cannot_be_started_leaves_everything_as_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Parts()
    succession = _Succession(service, -1)
    service.fails = True
    before = open_descriptors()
    succession.begin()  # a descriptor cannot be copied
    service.fails = False
    monkeypatch.setattr("tidegate.cli.successor._command", lambda: ["/no/such/program"])
    succession.begin()
    assert open_descriptors() == before
    assert service.asked == ["sockets", "stay"] * 2
    assert caplog.text.count("no process could be started that takes over") == 2


def test_a_second_signal_while_a_process_starts_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = [sys.executable, "-c", "input()"]
    monkeypatch.setattr("tidegate.cli.successor._command", lambda: hangs)
    ended = threading.Event()
    monkeypatch.setattr(Parts, "stay", lambda self: ended.set())
    service = Parts()
    succession = _Succession(service, -1)
    reader, writer = os.pipe()
    stdin = os.dup(0)
    os.dup2(reader, 0)
    try:
        succession.begin()
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(reader)
    succession.begin()
    os.close(writer)  # the process reads the end of its input, and ends
    assert ended.wait(300)
    assert service.asked == ["sockets"]
    assert "which is to take over, has not answered checks yet" in caplog.text


def test_nobody_waits_for_a_process_that_does_not_read() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        outbox = Outbox(ours, most=2**20)
        first, second = b"a" * 2**23, b"b\n"  # more than the socket takes
        outbox.put(first)  # the first message may have any length
        with pytest.raises(BlockingIOError, match="does not read"):
            outbox.put(second)
        with pytest.raises(BlockingIOError, match="does not read"):
            outbox.put(b"")  # nothing follows a message that is left out
        assert not outbox.close(0)


def test_what_waits_for_a_process_arrives_in_order_before_the_end() -> None:
    ours, its = socket.socketpair()
    with its, its.makefile("rb") as lines:
        outbox = Outbox(ours)
        sent = [b"%d" % i * 2**16 + b"\n" for i in range(9)]
        for line in sent:
            outbox.put(line)
        assert [lines.readline() for _ in sent] == sent
        assert outbox.close(300)
        ours.close()
        assert lines.readline() == b""


def test_a_process_that_is_gone_is_an_error() -> None:
    ours, its = socket.socketpair()
    its.close()
    with ours:
        outbox = Outbox(ours)
        outbox.put(b"lost\n")
        assert not outbox.close(300)
        with pytest.raises(BrokenPipeError):
            outbox.put(b"more\n")


def passed(*sockets: socket.socket, **environment: str) -> dict[str, str]:
    names = ",".join(f"checks={each.detach()}" for each in sockets)
    return {"TIDEGATE_HANDED_OVER": names, **environment}


def test_a_socket_at_another_address_than_the_settings_say_is_not_taken() -> None:
    """Checks need no token at a loopback address, so one at another address must not count."""
    wide = socket.create_server(("0.0.0.0", 0))
    port = wide.getsockname()[1]
    found = inherited_sockets(passed(wide))
    assert found.take("checks", Address(host="127.0.0.1", port=port)) == []
    assert found.take("admin", Address(host="0.0.0.0", port=port)) == []
    (taken,) = found.take("checks", Address(host="0.0.0.0", port=port))
    taken.close()
    found.close()


def test_a_host_without_an_address_is_an_error() -> None:
    found = inherited_sockets(passed(socket.create_server(("127.0.0.1", 0))))
    host = "a" * 64  # no name has a part as long
    with pytest.raises(ConfigurationError, match=r"has no address \(.*\); expected one of this"):
        found.take("checks", Address(host=host, port=1))
    found.close()


def test_the_admin_api_takes_one_socket(directory: Path) -> None:
    (directory / "rules.yaml").write_text("rules: []\n")
    free = {"listen": "127.0.0.1:0"}
    settings = Settings(
        rules=directory / "rules.yaml",
        database=f"sqlite:///{directory / 'tidegate.db'}",
        checks=free,
        admin=free,
    )
    two = [("admin", socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
    service = Service(settings, inherited=InheritedSockets(two))
    try:
        with pytest.raises(
            ConfigurationError, match=r"2 sockets at .* were passed for the admin API; expected one"
        ):
            service.start()
    finally:
        service.close()
    assert [each.fileno() for _, each in two] == [-1, -1]


def test_sockets_of_systemd_that_no_setting_names_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = socket.create_server(("127.0.0.1", 0))
    place = re.escape(str(given.getsockname()))
    monkeypatch.setattr("tidegate.server.inherited._FIRST_OF_SYSTEMD", given.detach())
    found = inherited_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
    with pytest.raises(
        ConfigurationError, match=f"sockets at {place}, which no setting names; exp"
    ):
        found.close()


def test_variables_of_another_process_mean_nothing() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "7", "LISTEN_FDNAMES": "a", "PATH": "/"}
    inherited_sockets(environment).close()
    assert environment == {"PATH": "/"}
    with pytest.raises(ConfigurationError, match="expected the descriptors of sockets that listen"):
        inherited_sockets({"TIDEGATE_HANDED_OVER": "checks=none"})
