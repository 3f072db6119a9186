"""The services on leased Redis: checks of hot keys are decided without asking."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import tidegate as tg
from lease_calls import scripts
from redis_server import PATIENT, RedisServer
from tidegate.limiter.storage.uri import open_store
from tidegate.rules import RuleSet

if not sys.platform.startswith("linux"):
    pytest.skip("the service is for Linux", allow_module_level=True)

from tidegate.server import _native

# A call a test makes is far less than a lease has.
LIMIT = "6000000/minute"
OPTIONS = f"{PATIENT}&deny_cache_max=0"
LEASED = f"{OPTIONS}&mode=leased&lease=10"
CHECKS = 200


@contextlib.contextmanager
def client_of(service: Any) -> Iterator[http.client.HTTPConnection]:
    """A connection to a real front."""
    front = _native.Front()
    front.route(service)
    port = front.listen("127.0.0.1", 0)
    front.start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()
        front.stop()


def post(connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
    headers = {"content-type": "application/json"}
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.status == 200
    return json.loads(answer.read())


def envoy(store: Any) -> Any:
    tree = _native.DescriptorTree()
    tree.add_descriptor(tree.add_domain("edge"), "user", limits=[LIMIT])
    service = _native.EnvoyService(store._native())
    service.use(tree)
    return service


def ask_envoy(connection: http.client.HTTPConnection, user: str) -> None:
    entries = [{"key": "user", "value": user}]
    asked = {"domain": "edge", "descriptors": [{"entries": entries}]}
    assert post(connection, "/json", asked)["overallCode"] == "OK"


def ask_rest(connection: http.client.HTTPConnection, user: str) -> None:
    assert post(connection, "/v1/ratelimit/check", {"userId": user})["allowed"]


def checks(rules: list[dict[str, str]], store: Any) -> Any:
    limiter: Any = tg.Limiter(rules=RuleSet({"rules": rules}), storage=store)
    return _native.CheckService(limiter._native(), require_token=False)


ONE_RULE = [{"id": "user", "by": "user", "limit": LIMIT}]
TWO_RULES = [*ONE_RULE, {"id": "all", "by": "global", "limit": LIMIT}]
SERVICES = {
    "Envoy": (envoy, ask_envoy),
    "REST": (lambda store: checks(ONE_RULE, store), ask_rest),
    "REST, two rules": (lambda store: checks(TWO_RULES, store), ask_rest),
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_hot_key_costs_next_to_no_command(server: RedisServer, name: str) -> None:
    make, ask = SERVICES[name]
    store = open_store(server.uri(LEASED), {})
    stats = tg.Limiter("1/hour", storage=store).stats  # with the counters of the store
    fewest = CHECKS
    with client_of(make(store)) as connection:
        for _ in range(20):
            # A lease grows with its key's calls, and ends on a machine that stands still.
            before, leased = scripts(server), stats().leased
            for _ in range(CHECKS):
                ask(connection, "7")
            sent = scripts(server) - before
            # What no lease decides is a command; the other commands are questions.
            assert sent >= CHECKS - (stats().leased - leased)
            fewest = min(fewest, sent)
            if fewest <= CHECKS // 20:
                break
        assert fewest <= CHECKS // 20
    assert stats().script_errors == stats().degraded == 0


# Of two rules, one is of all calls, and hot.
@pytest.mark.parametrize("name", ["Envoy", "REST"])
def test_cold_keys_cost_what_they_cost_in_strict_mode(server: RedisServer, name: str) -> None:
    make, ask = SERVICES[name]
    sent = {}
    for mode, options in (("strict", OPTIONS), ("leased", LEASED)):
        with client_of(make(open_store(server.uri(options), {}))) as connection:
            ask(connection, "a key that loads the script")
            before = server.calls()
            for i in range(CHECKS):
                ask(connection, f"{mode} {i}")
            after = server.calls()
            sent[mode] = {n: after[n] - before.get(n, 0) for n in ("evalsha", "get", "set")}
    assert sent["leased"] == sent["strict"]
    assert sent["strict"]["evalsha"] == CHECKS
