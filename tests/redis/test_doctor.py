"""The reports of `tidegate doctor` on good servers and on bad ones."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
import tidegate
from polling import eventually
from redis_server import PATIENT, PROGRAM, RedisServer
from tidegate.cli.main import main

Doctor = Callable[..., "tuple[int, dict[str, Any]]"]
Start = Callable[..., RedisServer]

SECRET = "s3cret-and-long"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    def examine(uri: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        code = main(["doctor", uri, "--json", "--samples", "50", *arguments])
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err
        report: dict[str, Any] = json.loads(printed.out)
        assert report["exit_code"] == code
        return code, report

    return examine


def said(report: dict[str, Any], level: str, topic: str) -> str:
    """What the findings of that level and topic say."""
    return "\n".join(
        finding["text"]
        for finding in report["findings"]
        if (finding["level"], finding["topic"]) == (level, topic)
    )


def uri_of(server: RedisServer, user: str) -> str:
    return f"redis://{user}:{SECRET}@127.0.0.1:{server.port}/0?{PATIENT}"


def grant(server: RedisServer, user: str, *rules: str) -> str:
    """The URI by which a user of those rules logs in."""
    assert server.command("ACL", "SETUSER", user, "reset", "on", f">{SECRET}", *rules) == b"+OK\r\n"
    return uri_of(server, user)


def test_a_good_server_is_usable(server: RedisServer, doctor: Doctor) -> None:
    code, report = doctor(server.uri())
    assert code == 0
    assert report["verdict"] == "fine"
    assert report["server"]["kind"] in ("Redis", "Valkey")
    assert report["topology"] == "standalone"
    assert all(report["commands"].values())
    assert abs(report["clock_offset_ms"]) < 100
    for name in ("ping_latency_ms", "check_latency_ms"):
        ranks = report[name]
        assert 0 < ranks["p50"] <= ranks["p90"] <= ranks["p99"] <= ranks["max"]
    assert "after a restart all limits start from zero" in said(report, "note", "persistence")


def test_it_leaves_no_key(server: RedisServer, doctor: Doctor) -> None:
    assert doctor(server.uri())[0] == 0
    assert server.command("DBSIZE") == b":0\r\n"
    assert server.calls()["evalsha"] > 50


def test_it_charges_nobody_else(server: RedisServer, doctor: Doctor) -> None:
    server.command("SET", "tg:mine", "1")
    assert doctor(server.uri())[0] == 0
    assert server.command("KEYS", "*") == b"*1\r\n$7\r\ntg:mine\r\n"


def test_the_words(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", server.uri(), "--samples", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"redis://127.0.0.1:{server.port}/0"
    assert lines[1].split() == ["ok", "connection", "the", "server", "answers"]
    assert lines[-1] == "This Redis is fine."


def test_as_a_command(server: RedisServer) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "doctor", server.uri(), "--samples", "5"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_unix_socket(server: RedisServer, doctor: Doctor) -> None:
    assert doctor(f"redis+unix://{server.path}?{PATIENT}")[0] == 0


def test_nobody_listens(doctor: Doctor) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, report = doctor(f"redis://user:{SECRET}@127.0.0.1:{taken.getsockname()[1]}")
    assert code == 2
    assert "no server listens" in said(report, "problem", "connection")


def test_somebody_listens_and_says_nothing(doctor: Doctor) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        code, report = doctor(f"redis://127.0.0.1:{deaf.getsockname()[1]}?connect_timeout=0.2")
    assert code == 2
    assert said(report, "problem", "connection")


def test_a_wrong_password(own_server: RedisServer, doctor: Doctor) -> None:
    own_server.command("ACL", "SETUSER", "app", "on", ">right", "~*", "+@all")
    code, report = doctor(uri_of(own_server, "app"))
    assert code == 2
    assert "the user or the password is wrong" in said(report, "problem", "connection")


def test_no_password(own_server: RedisServer, doctor: Doctor) -> None:
    own_server.command("CONFIG", "SET", "requirepass", SECRET)
    own_server.password = SECRET
    code, report = doctor(own_server.uri())
    assert code == 2
    assert "requires a password" in str(report["findings"])


@pytest.mark.parametrize("command", ["time", "evalsha", "eval", "set", "ping", "pexpire"])
def test_a_user_who_may_not(own_server: RedisServer, doctor: Doctor, command: str) -> None:
    code, report = doctor(grant(own_server, "app", "~*", "+@all", f"-{command}"))
    assert code == 2
    assert not report["commands"].pop(command.upper())
    assert all(report["commands"].values())
    assert command.upper() in said(report, "problem", "commands")
    assert f"+{command}" in said(report, "note", "commands")


@pytest.mark.parametrize(
    "refused", [["hset"], ["hget"], ["hdel", "pttl"], ["hset", "hget", "hgetall", "hdel", "pttl"]]
)
def test_a_user_who_may_not_reserve(
    own_server: RedisServer, doctor: Doctor, refused: list[str]
) -> None:
    uri = grant(own_server, "app", "~*", "+@all", *(f"-{command}" for command in refused))
    code, report = doctor(uri)
    assert code == 1
    assert {name for name, fine in report["commands"].items() if not fine} == {
        command.upper() for command in refused
    }
    warning = said(report, "warning", "commands")
    assert all(command.upper() in warning for command in refused)
    assert "reservations need them" in warning
    assert report["check_latency_ms"]
    with tidegate.Limiter("100/minute; 5/second", storage=uri) as limiter:
        assert limiter.hit("k").allowed
        assert limiter.charge("k", 3)
        assert limiter.peek("k").remaining == 1
        assert limiter.stats().errors == 0


def test_the_clients_clock_needs_no_time(own_server: RedisServer, doctor: Doctor) -> None:
    uri = grant(own_server, "app", "~*", "+@all", "-time")
    assert "clock=client" in said(doctor(uri)[1], "note", "commands")
    code, report = doctor(f"{uri}&clock=client")
    assert code == 0
    assert "unknown" in said(report, "note", "clock")
    assert report["check_latency_ms"]


def test_a_user_of_other_keys(own_server: RedisServer, doctor: Doctor) -> None:
    uri = grant(own_server, "app", "~limits:*", "+@all")
    code, report = doctor(uri)
    assert code == 2
    assert "key" in said(report, "problem", "commands")
    assert doctor(uri, "--prefix", "limits")[0] == 0


def test_the_rules_that_it_names_are_enough(own_server: RedisServer, doctor: Doctor) -> None:
    _, report = doctor(grant(own_server, "app", "~*"))
    advice = said(report, "note", "commands")
    rules = advice.partition("ACL SETUSER USER ")[2].split()
    code, report = doctor(grant(own_server, "app", *rules))
    assert code == 0
    assert "stay unknown" in said(report, "note", "server")
    assert report["check_latency_ms"]
    assert f"{' '.join(rules[1:])}\n" in (ROOT / "docs" / "redis.md").read_text()


def test_every_command_of_a_script_is_tried(server: RedisServer, doctor: Doctor) -> None:
    called = {
        command
        for script in (ROOT / "lua").glob("*.lua")
        for command in re.findall(r"redis\.p?call\('([A-Z]+)'", script.read_text())
    }
    assert called
    assert called <= set(doctor(server.uri())[1]["commands"])


def test_a_reservation_is_made_and_settled_by_the_rules_that_it_names(
    own_server: RedisServer, doctor: Doctor
) -> None:
    _, report = doctor(grant(own_server, "app", "~*"))
    rules = said(report, "note", "commands").partition("ACL SETUSER USER ")[2].split()
    uri = grant(own_server, "app", *rules)
    with tidegate.Limiter("100/minute", storage=uri) as limiter:
        limiter.commit(limiter.reserve("k", 50, ttl=60).token, 7)
        assert limiter.peek("k").remaining == 93
        assert limiter.stats().errors == 0


def test_a_replica(start: Start, doctor: Doctor) -> None:
    master = start()
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    code, report = doctor(replica.uri())
    assert code == 2
    assert report["topology"] == "replica"
    assert f"127.0.0.1:{master.port}" in said(report, "problem", "topology")


def test_a_node_of_a_cluster(start: Start, doctor: Doctor) -> None:
    node = start("--cluster-enabled", "yes")
    code, report = doctor(node.uri())
    assert code == 2
    assert report["topology"] == "cluster"
    assert said(report, "problem", "topology")


def test_a_sentinel(server_directory: Path, doctor: Doctor) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = server_directory / f"sentinel-{port}.conf"
    settings.write_text(f"port {port}\nbind 127.0.0.1\n")
    with processes.running([PROGRAM, str(settings), "--sentinel"], stdout=subprocess.DEVNULL):
        eventually(
            lambda: socket.create_connection(("127.0.0.1", port)).close() is None, despite=OSError
        )
        code, report = doctor(f"redis://127.0.0.1:{port}?{PATIENT}")
    assert code == 2
    assert report["topology"] == "sentinel"
    assert "holds no keys" in said(report, "problem", "topology")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_limits_that_may_be_evicted(start: Start, doctor: Doctor, policy: str) -> None:
    server = start("--maxmemory", "100mb", "--maxmemory-policy", policy)
    code, report = doctor(server.uri())
    assert code == 1
    assert report["memory"]["policy"] == policy
    assert "may evict limits" in said(report, "warning", "memory")


def test_a_bound_without_eviction(start: Start, doctor: Doctor) -> None:
    server = start("--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
    assert doctor(server.uri())[0] == 0


def test_memory_that_is_full(start: Start, doctor: Doctor) -> None:
    server = start("--maxmemory-policy", "noeviction")
    server.command("CONFIG", "SET", "maxmemory", "1")
    code, report = doctor(server.uri())
    assert code == 2
    assert "memory is full" in said(report, "problem", "commands")
    assert "noeviction refuses writes" in said(report, "warning", "memory")


def test_a_disk_at_each_check(start: Start, doctor: Doctor) -> None:
    server = start("--appendonly", "yes", "--appendfsync", "always")
    # Of two of an option the server takes the last.
    assert server.command("CONFIG", "GET", "appendonly").endswith(b"yes\r\n")
    code, report = doctor(server.uri())
    assert code == 1
    assert "waits for the disk" in said(report, "warning", "persistence")


def test_a_timeout_that_is_too_short(server: RedisServer, doctor: Doctor) -> None:
    code, report = doctor(f"redis://127.0.0.1:{server.port}?timeout=0.000001")
    assert code == 2
    assert "most checks take longer" in said(report, "problem", "latency")


@pytest.mark.parametrize(
    ("uri", "arguments"),
    [
        ("memory://", ()),
        (f"http://user:{SECRET}@localhost", ()),
        (f"redis://user:{SECRET}@localhost:99999", ()),
        (f"redis://user:{SECRET}@localhost?timeout=soon", ()),
        (f"redis://user:{SECRET}@localhost?no_such=1", ()),
        ("redis://localhost", ("--samples", "0")),
    ],
)
def test_invalid_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], uri: str, arguments: tuple[str, ...]
) -> None:
    assert main(["doctor", uri, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "expected" in printed.err
    assert SECRET not in printed.err


def counted(server: RedisServer, limit: str, prefix: str) -> None:
    with tidegate.Limiter(limit, storage=server.uri(), prefix=prefix) as limiter:
        assert limiter.hit("k")


def test_counts_under_the_default_prefix_are_a_warning(server: RedisServer, doctor: Doctor) -> None:
    assert doctor(server.uri())[0] == 0
    counted(server, "5/minute", "tg")  # another service, perhaps
    counted(server, "7/hour", "tg:app.login")
    counted(server, "40/hour burst 1000", "tg")
    code, report = doctor(server.uri())
    assert code == 1
    text = said(report, "warning", "counts")
    assert "of the limits 5/minute, app.login:7/hour, 1 more: services with one prefix" in text
    assert len(report["counts"]["limits"]) == 3


def test_counts_under_a_chosen_prefix_are_a_note(server: RedisServer, doctor: Doctor) -> None:
    counted(server, "5/minute", "shop")
    counted(server, "6/minute", "shopping")
    counted(server, "8/minute", "tg")
    code, report = doctor(server.uri(), "--prefix", "shop")
    assert code == 0
    assert "of the limits 5/minute: expected if only this" in said(report, "note", "counts")
    assert report["counts"]["limits"] == ["5/minute"]
    assert doctor(server.uri(), "--prefix", "other")[0] == 0


def test_a_limit_without_a_short_name_is_counted(server: RedisServer, doctor: Doctor) -> None:
    counted(server, "40/hour burst 1000", "shop")
    report = doctor(server.uri(), "--prefix", "shop")[1]
    assert "of the limits 1 whose names are digests" in said(report, "note", "counts")


def test_without_scan_it_says_so(own_server: RedisServer, doctor: Doctor) -> None:
    everything_else = ("~*", "+@all", "-scan")
    code, report = doctor(grant(own_server, "app", *everything_else))
    assert code == 0
    assert "SCAN is refused" in said(report, "note", "counts")
