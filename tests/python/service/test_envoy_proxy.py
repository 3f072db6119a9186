"""A real Envoy in front of a service, with tidegate as its rate limit service.

Envoy lets requests pass if it gets no answer within 20 ms, so a broken service looks like one that
allows them. In these tests it refuses such requests, and waits a second; one test has its
defaults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
import yaml
from envoy_tools import EXAMPLES, Envoy, Upstream, validate
from metrics import exposed, of
from polling import eventually
from prometheus_client import CollectorRegistry, generate_latest
from proxy import Proxy
from redis_server import RedisServer
from servers import Answer, Client
from tidegate import _core
from tidegate.limiter.storage.uri import open_store

native = pytest.importorskip("tidegate.server._native", reason="the system has no epoll")
from service_testing import call  # noqa: E402
from tidegate.server.envoy import DescriptorFiles, follow  # noqa: E402
from tidegate.server.metrics import ReferenceCounters  # noqa: E402

MIDNIGHT = 1_700_006_400 * 10**9


class Tidegate:
    """The service with the limits of examples/envoy, which the test may change."""

    def __init__(
        self,
        directory: Path,
        storage: Any = "memory://",
        clock: Any = None,
        *,
        quota_mode: bool = False,
        **options: Any,
    ) -> None:
        self.limits = directory / "limits.yaml"
        if not self.limits.exists():
            shutil.copy(EXAMPLES / "limits.yaml", self.limits)
        self.store = storage if not isinstance(storage, str) else open_store(storage, {})
        native_clock = None if clock is None else _core.native_clock(clock)
        self.service = native.EnvoyService(self.store._native(), native_clock, "edge", **options)
        self.source = DescriptorFiles(self.limits, interval=0.02, quota_mode=quota_mode)
        follow(self.source, self.service)
        self.front: Any = None
        self.port = 0
        self.start()

    def start(self) -> None:
        """Listens, on the same port as before if the service was stopped."""
        self.front = native.Front()
        self.front.route(self.service)
        self.port = self.front.listen("127.0.0.1", self.port)
        self.front.start()

    def stop(self) -> None:
        self.front.stop()

    def close(self) -> None:
        self.stop()
        self.source.close()


@dataclasses.dataclass
class Edge:
    """Envoy, the service behind it, and tidegate."""

    envoy: Envoy
    upstream: Upstream
    tidegate: Tidegate
    ask: Client

    def get(self, path: str = "/", **headers: str) -> Answer:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask(path, headers=fields)


@pytest.fixture
def clock() -> tg.ManualClock:
    return tg.ManualClock(start_ns=MIDNIGHT)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    # Paths of Unix sockets are short; those of pytest are not.
    with (
        tempfile.TemporaryDirectory(prefix="tg") as directory,
        RedisServer(Path(directory)) as server,
    ):
        yield server


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@contextlib.contextmanager
def edge_of(
    directory: Path,
    upstream: Upstream,
    tidegate: Tidegate,
    options: dict[str, Any] | None = None,
    response_headers: dict[str, str] | None = None,
    routes: list[dict[str, Any]] | None = None,
) -> Iterator[Edge]:
    try:
        envoy = Envoy(directory, upstream.port, tidegate.port, options, response_headers, routes)
        try:
            client = Client(("127.0.0.1", envoy.port), timeout=30)
            yield Edge(envoy, upstream, tidegate, client)
            client.close()
        finally:
            envoy.close()
    finally:
        tidegate.close()


@pytest.fixture
def edge(tmp_path: Path, upstream: Upstream, clock: tg.ManualClock) -> Iterator[Edge]:
    with edge_of(tmp_path, upstream, Tidegate(tmp_path, clock=clock)) as edge:
        yield edge


def test_a_request_within_its_limits_passes_with_header_fields(edge: Edge) -> None:
    answer = edge.get("/search?q=1", x_user="7")
    assert (answer.status, answer.body) == (200, b"ok")
    assert answer["x-ratelimit-limit"] == "20, 100;w=60, 20;w=60, 50;w=1"
    assert answer["x-ratelimit-remaining"] == "19"
    assert answer["x-ratelimit-reset"] == "60"
    assert edge.envoy.stats() == {"ok": 1, "over_limit": 0, "error": 0}


def test_a_request_over_a_limit_gets_429_and_does_not_reach_the_service(edge: Edge) -> None:
    answers = [edge.get("/search", x_user="7") for _ in range(21)]
    assert [answer.status for answer in answers] == [200] * 20 + [429]
    refused = answers[-1]
    assert refused["x-envoy-ratelimited"] == "true"
    assert refused["x-ratelimit-remaining"] == "0"
    assert refused["x-ratelimit-reset"] == "60"
    assert edge.upstream.requests == 20
    assert edge.envoy.stats() == {"ok": 20, "over_limit": 1, "error": 0}


def test_descriptors_of_one_request_are_charged_together_or_not_at_all(edge: Edge) -> None:
    for _ in range(20):
        assert edge.get("/search", x_user="7").status == 200
    for _ in range(5):
        assert edge.get("/search", x_user="7").status == 429
    # The refused requests did not count towards the user's 100: 79 more pass, and none after.
    statuses = [edge.get("/", x_user="7").status for _ in range(81)]
    assert statuses == [200] * 80 + [429]
    assert edge.get("/", x_user="acme").status == 200
    assert edge.get("/", x_user="8").status == 200


def test_the_window_ends_when_the_header_says(edge: Edge, clock: tg.ManualClock) -> None:
    clock.advance(59)
    for _ in range(20):
        edge.get("/search", x_user="7")
    assert edge.get("/search", x_user="7")["x-ratelimit-reset"] == "1"
    clock.advance(1)
    assert edge.get("/search", x_user="7").status == 200


def test_a_bucket_and_a_second_limit_bound_a_partner(edge: Edge) -> None:
    statuses = [edge.get(x_partner="p").status for _ in range(41)]
    assert statuses == [200] * 40 + [429]
    assert edge.get(x_partner="another").status == 200


def test_a_limit_in_shadow_refuses_nothing_and_is_counted(edge: Edge) -> None:
    assert {edge.get().status for _ in range(60)} == {200}
    rows = edge.tidegate.service.stats()["descriptors"]
    (shadow,) = [row for row in rows if row["path"] == "remote_address"]
    assert (shadow["within_limit"], shadow["shadow_mode"]) == (50, 10)


def test_a_new_version_of_the_limits_comes_into_force_but_an_invalid_one_does_not(
    edge: Edge,
) -> None:
    limits = edge.tidegate.limits
    text = limits.read_text()
    assert edge.get(x_user="7").status == 200
    limits.write_text(text.replace("requests_per_unit: 100\n", "requests_per_unit: 0\n"))
    eventually(lambda: edge.get(x_user="7").status == 429)
    limits.write_text(text.replace("requests_per_unit: 100\n", "requests_per_unit: many\n"))
    eventually(lambda: edge.tidegate.source.refused == 1)
    assert edge.get(x_user="7").status == 429
    limits.write_text(text)
    eventually(lambda: edge.get(x_user="7").status == 200)
    assert edge.envoy.stats()["error"] == 0


def test_the_service_restarts_and_its_counts_stay(edge: Edge) -> None:
    for _ in range(20):
        assert edge.get("/search", x_user="7").status == 200
    edge.tidegate.stop()
    assert edge.get("/", x_user="8").status == 500  # failure_mode_deny
    assert edge.envoy.stats()["error"] == 1
    edge.tidegate.start()
    eventually(lambda: edge.get("/", x_user="8").status == 200)
    assert edge.get("/search", x_user="7").status == 429


def test_a_slow_redis_does_not_delay_requests(
    tmp_path: Path, upstream: Upstream, server: RedisServer
) -> None:
    """A limit in this process decides if Redis does not answer in time."""
    proxy = Proxy(server.port)
    try:
        store = open_store(f"redis://127.0.0.1:{proxy.port}?timeout=0.05", {})
        with edge_of(tmp_path, upstream, Tidegate(tmp_path, store)) as edge:
            eventually(lambda: edge.get(x_user="7").status == 200)
            proxy.mode = "hole"
            statuses = {edge.get(x_user=str(i)).status for i in range(30)}
            assert statuses == {200}
            assert edge.tidegate.service.stats()["degraded"] > 0
            assert edge.envoy.stats()["error"] == 0
    finally:
        proxy.close()


def test_redis_and_memory_count_the_same(
    tmp_path: Path, upstream: Upstream, server: RedisServer
) -> None:
    store = open_store(f"redis://127.0.0.1:{server.port}?timeout=20&connect_timeout=20", {})
    tidegate = Tidegate(tmp_path, store)
    # No window of a year ends during the test.
    tidegate.limits.write_text(tidegate.limits.read_text().replace("unit: minute", "unit: year"))
    eventually(lambda: _until_reset(tidegate) > 60)
    with edge_of(tmp_path, upstream, tidegate, {"timeout": "20s"}) as edge:
        statuses = [edge.get("/search", x_user="7").status for _ in range(22)]
        assert statuses == [200] * 20 + [429] * 2
        assert edge.envoy.stats() == {"ok": 20, "over_limit": 2, "error": 0}


def _until_reset(tidegate: Tidegate) -> float:
    body = b'{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"probe"}]}]}'
    answer = call(tidegate.service, "POST", "/json", body=body)[2].decode()
    return float(answer.split('"durationUntilReset":"')[1].split("s")[0])


def test_with_envoy_s_defaults_every_request_is_decided(
    tmp_path: Path, upstream: Upstream, clock: tg.ManualClock
) -> None:
    """Envoy waits 20 ms, and lets requests without an answer pass, so errors must stay 0.

    On a machine that is busy with other things an answer may be late once, so each of several users
    makes 200 requests, and those of one user must all be decided.
    """
    defaults = {"timeout": None, "failure_mode_deny": None}
    users = itertools.count(7)
    with edge_of(tmp_path, upstream, Tidegate(tmp_path, clock=clock), defaults) as edge:
        eventually(lambda: edge.get().status == 200 and edge.envoy.stats()["ok"] > 0)

        def all_are_decided() -> bool:
            user, before = str(next(users)), edge.envoy.stats()
            statuses = [edge.get("/search", x_user=user).status for _ in range(200)]
            if edge.envoy.stats()["error"] > before["error"]:
                return False
            assert statuses == [200] * 20 + [429] * 180
            return True

        eventually(all_are_decided, 60)


TWO_QUOTAS = """
domain: edge
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 2}, metadata: {route: user}}
- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 4}, metadata: {route: all}}
"""


def test_the_switches_of_the_reference_hold_through_envoy(
    tmp_path: Path, upstream: Upstream, clock: tg.ManualClock
) -> None:
    """QUOTA_MODE, LIMIT_RESPONSE_HEADERS_ENABLED and RESPONSE_DYNAMIC_METADATA, as in quota.sh."""
    (tmp_path / "limits.yaml").write_text(TWO_QUOTAS)
    tidegate = Tidegate(
        tmp_path, clock=clock, quota_mode=True, response_headers=True, request_metadata=True
    )
    told = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:{})%"
    shown = {"x-domain": told.format("domain"), "x-route": told.format("metadata:route")}
    off = {"enable_x_ratelimit_headers": None}
    with edge_of(tmp_path, upstream, tidegate, off, shown) as edge:
        answers = [edge.get(x_user="7") for _ in range(5)]
        assert [each.status for each in answers] == [200] * 4 + [429]
        assert [each["x-ratelimit-remaining"] for each in answers] == ["1", "0", "0", "0", "0"]
        assert answers[0]["x-domain"] == "edge"
        # Of what both say, the first counts; the user's quota is used up after two requests.
        assert [each["x-route"] for each in answers[:4]] == ["user", "user", "all", "all"]


def test_the_switch_for_shadow_refuses_nothing_through_envoy(
    tmp_path: Path, upstream: Upstream, clock: tg.ManualClock
) -> None:
    """SHADOW_MODE"""
    with edge_of(tmp_path, upstream, Tidegate(tmp_path, clock=clock, shadow_mode=True)) as edge:
        assert {edge.get("/search", x_user="7").status for _ in range(25)} == {200}
        assert edge.tidegate.service.stats()["shadow_mode"] == 5


VECTORS = Path(__file__).parents[2] / "vectors"
SCRIPTS: dict[str, Any] = yaml.safe_load((VECTORS / "envoy_scripts.yaml").read_text())
LIMITS: dict[str, Any] = next(
    table["file"]
    for table in yaml.safe_load((VECTORS / "envoy_reference.yaml").read_text())
    if table["source"].startswith("examples/ratelimit/config/example.yaml")
)
FILTER = "envoy.filters.http.ratelimit"
_TYPES = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3"


def route_of(path: str, descriptors: list[dict[str, Any]]) -> dict[str, Any]:
    """A route of Envoy with a descriptor for each of the vectors' lists of entries."""
    limits = []
    for each in descriptors:
        actions: list[dict[str, Any]] = [
            {"request_headers": {"header_name": name, "descriptor_key": name}}
            for name in each.get("headers", [])
        ]
        actions += [
            {"generic_key": {"descriptor_key": key, "descriptor_value": value}}
            for key, value in each.get("values", {}).items()
        ]
        if "metadata" in each:
            where = {"key": FILTER, "path": [{"key": name} for name in each["metadata"]]}
            told = {"descriptor_key": each["key"], "metadata_key": where, "source": "DYNAMIC"}
            actions.append({"metadata": told})
        limit: dict[str, Any] = {"actions": actions}
        if "hits" in each:
            limit["hits_addend"] = {"number": each["hits"]}
        if "after" in each:
            limit["apply_on_stream_done"] = each["after"]
        limits.append(limit)
    name = f"%DYNAMIC_METADATA({FILTER}:metadata:service_with_quota:name)%"
    return {
        "match": {"path": path},
        "route": {"cluster": "service"},
        "request_headers_to_add": [{"header": {"key": "x-service", "value": name}}],
        "typed_per_filter_config": {
            FILTER: {
                "@type": f"{_TYPES}.RateLimitPerRoute",
                "vh_rate_limits": "INCLUDE",
                "rate_limits": limits,
            }
        },
    }


@pytest.mark.parametrize("script", SCRIPTS["scripts"], ids=lambda script: script["source"])
def test_a_script_of_the_reference_gets_its_answers_through_envoy(
    tmp_path: Path, upstream: Upstream, clock: tg.ManualClock, script: dict[str, Any]
) -> None:
    (tmp_path / "limits.yaml").write_text(yaml.safe_dump(LIMITS))
    routes = [route_of(*each) for each in SCRIPTS["routes"].items()]
    tidegate = Tidegate(tmp_path, clock=clock)
    with edge_of(tmp_path, upstream, tidegate, {"domain": "rl"}, routes=routes) as edge:
        for ask in script["asks"]:
            if "wait" in ask:
                clock.advance(ask["wait"])
                continue
            answers = []
            for expected in ask["answers"]:
                answer = edge.ask(ask["get"], headers=ask.get("headers", {}))
                assert answer.status in (200, 429), answer
                served = expected if expected == "ok" else upstream.fields.get("x-service")
                answers.append("limited" if answer.status == 429 else served)
            assert answers == ask["answers"], ask
        assert edge.envoy.stats()["error"] == 0
        registry = CollectorRegistry()
        registry.register(ReferenceCounters(tidegate.service.stats, most=99))
        found = exposed(generate_latest(registry).decode())
        for name, counts in script.get("counters", {}).items():
            for key, count in counts.items():
                assert of(found, name, domain="rl", key1=key) == count


TOKENS = """
domain: edge
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000}}
"""
USER = [{"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}]


def route_with(rate_limits: list[Any]) -> dict[str, Any]:
    """Only in the settings of the filter for a route has a descriptor hits of its own."""
    settings = {"@type": f"{_TYPES}.RateLimitPerRoute", "rate_limits": rate_limits}
    return {
        "match": {"prefix": "/"},
        "route": {"cluster": "service"},
        "typed_per_filter_config": {FILTER: settings},
    }


@pytest.mark.parametrize("all_or_none", [True, False])
def test_what_a_response_has_used_is_reported_by_envoy_and_owed(
    tmp_path: Path, upstream: Upstream, clock: tg.ManualClock, all_or_none: bool
) -> None:
    """apply_on_stream_done, as Envoy AI Gateway uses it: a peek before, and a report after."""
    (tmp_path / "limits.yaml").write_text(TOKENS)
    tidegate = Tidegate(tmp_path, clock=clock, all_or_none=all_or_none)
    rate_limits = [
        {"actions": USER, "hits_addend": {"number": 0}},
        {
            "actions": USER,
            "hits_addend": {"format": "%BYTES_SENT%"},
            "apply_on_stream_done": True,
        },
    ]
    upstream.body = b"x" * 2500

    def reported() -> int:
        rows = tidegate.service.stats()["descriptors"]
        return int(sum(row["total_hits"] for row in rows if row["path"] == "user"))

    routes = [route_with(rate_limits)]
    with edge_of(tmp_path, upstream, tidegate, routes=routes) as edge:
        assert edge.get(x_user="7").status == 200
        eventually(lambda: reported() == 2500)
        assert edge.get(x_user="7").status == 429
        assert edge.get(x_user="8").status == 200
        eventually(lambda: reported() == 5000)
        clock.advance(60)
        assert edge.get(x_user="7").status == 429, "500 of the 2,500 are owed still"
        clock.advance(60)
        assert edge.get(x_user="7").status == 200
        eventually(lambda: reported() == 7500)
        assert edge.envoy.stats()["error"] == 0


def test_one_hit_that_envoy_reports_without_a_number_needs_a_word_in_the_limit(
    tmp_path: Path, upstream: Upstream, clock: tg.ManualClock
) -> None:
    limit = "rate_limit: {unit: minute, requests_per_unit: 2, reports: true}"
    (tmp_path / "limits.yaml").write_text(f"domain: edge\ndescriptors: [{{key: user, {limit}}}]")
    tidegate = Tidegate(tmp_path, clock=clock)
    done = [{"actions": USER, "apply_on_stream_done": True}]

    def over() -> int:
        return int(sum(row["over_limit"] for row in tidegate.service.stats()["descriptors"]))

    with edge_of(tmp_path, upstream, tidegate, routes=[route_with(done)]) as edge:
        for _ in range(5):
            assert edge.get(x_user="7").status == 200
        eventually(lambda: over() == 3)


def test_envoy_accepts_the_example() -> None:
    assert validate(EXAMPLES / "envoy.yaml") == ""


def test_envoy_accepts_what_the_example_for_istio_adds(tmp_path: Path) -> None:
    patches = yaml.safe_load((EXAMPLES / "istio.yaml").read_text())["spec"]["configPatches"]
    added = {patch["applyTo"]: patch["patch"]["value"] for patch in patches}
    config = yaml.safe_load((EXAMPLES / "envoy.yaml").read_text())
    (listener,) = config["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"][0] = added["HTTP_FILTER"]
    manager["route_config"]["virtual_hosts"][0].update(added["VIRTUAL_HOST"])
    service = added["HTTP_FILTER"]["typed_config"]["rate_limit_service"]["grpc_service"]
    config["static_resources"]["clusters"][1]["name"] = service["envoy_grpc"]["cluster_name"]
    path = tmp_path / "istio.json"
    path.write_text(json.dumps(config))
    assert validate(path) == ""


def test_the_descriptors_of_the_example_for_contour_have_limits() -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / "contour.yaml").read_text()))
    settings = yaml.safe_load(documents[1]["data"]["contour.yaml"])["rateLimitService"]
    limits = yaml.safe_load((EXAMPLES / "limits.yaml").read_text())
    assert settings["domain"] == limits["domain"]
    policy = documents[2]["spec"]["virtualhost"]["rateLimitPolicy"]["global"]
    (entry,) = policy["descriptors"][0]["entries"]
    (address,) = policy["descriptors"][1]["entries"]
    assert address == {"remoteAddress": {}}  # the key is remote_address
    known = {each["key"] for each in limits["descriptors"]}
    assert {entry["requestHeader"]["descriptorKey"], "remote_address"} <= known
