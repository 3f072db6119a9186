"""A limiter of Redis whose hooks refer back to it is freed with its connection and its threads."""

from __future__ import annotations

import gc
import os
import time
import weakref
from typing import Any

import pytest
import tidegate
from polling import eventually
from proxy import Proxy
from redis_server import PATIENT, RedisServer

HOWS = ["on_breaker", "on_script_error", "password", "clock"]


class Service:
    """Refers to a limiter that refers back to it by `how`."""

    def __init__(self, port: int, how: str, options: str = PATIENT) -> None:
        functions: dict[str, Any] = {
            "on_breaker": self.on_breaker,
            "on_script_error": self.on_script_error,
            "password": self.password,
            "clock": self.now,
        }
        self.told: list[bool] = []
        self.asked = 0
        self.uri = f"redis://127.0.0.1:{port}/0?{options}&clock=client"
        self.limiter = tidegate.Limiter("100/minute", storage=self.uri, **{how: functions[how]})

    def on_breaker(self, opened: bool, why: str) -> None:
        self.told.append(opened)

    def on_script_error(self, message: str) -> None:
        pass

    def password(self) -> str:
        self.asked += 1
        return ""

    def now(self) -> int:
        return time.time_ns()


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def connections(server: RedisServer) -> int:
    return server.command("CLIENT", "LIST").count(b"name=tidegate ")


@pytest.mark.parametrize("how", HOWS)
def test_a_cycle_is_freed_with_its_connection_and_threads(
    own_server: RedisServer, how: str
) -> None:
    # Other tests may have left clients of the shared server.
    server = own_server
    gc.collect()
    before = threads()
    services = [Service(server.port, how) for _ in range(20)]
    assert not any(service.limiter.hit("k").degraded for service in services)
    shared = how == "clock"  # which belongs to the limiter, not to its storage
    assert connections(server) == (1 if shared else 20)
    dead = [weakref.ref(service) for service in services]
    del services
    gc.collect()
    assert [each() for each in dead] == [None] * 20
    eventually(lambda: connections(server) == 0)
    eventually(lambda: threads() <= before)


def test_a_client_that_ends_makes_no_further_connection(own_server: RedisServer) -> None:
    def received() -> int:
        lines = own_server.command("INFO", "stats").splitlines()
        name = b"total_connections_received:"
        return int(next(line[len(name) :] for line in lines if line.startswith(name)))

    before = threads()
    limiter = tidegate.Limiter("100/minute", storage=own_server.uri())
    assert not limiter.hit("k").degraded
    made = received()
    del limiter
    gc.collect()
    eventually(lambda: threads() <= before)
    assert received() == made + 1, "that of the second question"


def test_hooks_are_called_as_long_as_the_limiter_lives(server: RedisServer) -> None:
    proxy = Proxy(server.port)
    told: list[bool] = []

    def limiter() -> tidegate.Limiter:
        hasty = "timeout=0.5&connect_timeout=1&breaker_failures=1&breaker_open=0.2"
        return tidegate.Limiter(
            "100/minute",
            storage=f"redis://127.0.0.1:{proxy.port}/0?{hasty}",
            on_breaker=lambda opened, why: told.append(opened),
        )

    try:
        made = limiter()
        eventually(lambda: not made.hit("k").degraded)
        gc.collect()
        storage = made.storage
        del made  # the storage alone keeps them too
        gc.collect()
        made = tidegate.Limiter("100/minute", storage=storage)
        proxy.mode = "reset"
        eventually(lambda: made.hit("k").degraded and told == [True])
        proxy.mode = "pass"
        eventually(lambda: not made.hit("k").degraded)
        assert told[:2] == [True, False]
    finally:
        proxy.close()


def test_a_password_function_is_asked_at_each_connection(server: RedisServer) -> None:
    service = Service(server.port, "password")
    eventually(lambda: not service.limiter.hit("k").degraded)
    gc.collect()
    asked = service.asked
    server.command("CLIENT", "KILL", "TYPE", "normal")
    eventually(lambda: not service.limiter.hit("k").degraded and service.asked > asked)


def test_limiters_with_equal_functions_share_a_connection(server: RedisServer) -> None:
    service = Service(server.port, "on_breaker")
    other = tidegate.Limiter("5/minute", storage=service.uri, on_breaker=service.on_breaker)
    assert other.storage is service.limiter.storage
    apart = Service(server.port, "on_breaker")
    assert apart.limiter.storage is not service.limiter.storage
