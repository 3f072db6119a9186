"""The servers that tests start know nothing of those before them."""

from __future__ import annotations

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
