"""The servers that tests start know nothing of those before them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import redis_server
from redis_server import RedisServer


def test_a_server_has_nothing_of_an_earlier_one_at_its_port(
    server_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--cluster-enabled", "yes")
    with RedisServer(server_directory, *arguments) as earlier:
        assert earlier.command("CLUSTER", "ADDSLOTS", "12182") == b"+OK\r\n"
        earlier.command("SET", "foo", "bar")  # whose slot that is
        assert earlier.command("SAVE") == b"+OK\r\n"

    monkeypatch.setattr(redis_server, "free_port", lambda *, bus: earlier.port)
    with RedisServer(server_directory, *arguments) as server:
        assert server.port == earlier.port
        assert server.command("DBSIZE") == b":0\r\n"
        assert server.command("CLUSTER", "ADDSLOTS", "12182") == b"+OK\r\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tests/undertaker.py needs /proc")
def test_a_run_that_is_killed_finds_its_servers_by_their_environment(server: RedisServer) -> None:
    assert server.process is not None
    environment = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert os.environb[b"PATH"] in environment
