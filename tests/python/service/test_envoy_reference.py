"""What envoyproxy/ratelimit answers by its own tests, and files that it reads, of us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
import yaml
from metrics import exposed, of
from prometheus_client import CollectorRegistry, generate_latest
from tidegate import _core
from tidegate.limiter.storage.uri import open_store
from tidegate.rules.problems import RulesError

native = pytest.importorskip("tidegate.server._native", reason="the system has no epoll")
from service_testing import call  # noqa: E402
from tidegate.rules.document import read_file  # noqa: E402
from tidegate.server.envoy_descriptors import Descriptors  # noqa: E402
from tidegate.server.metrics import DescriptorCounters, ReferenceCounters  # noqa: E402

VECTORS = Path(__file__).parents[2] / "vectors"
TABLES: list[dict[str, Any]] = yaml.safe_load((VECTORS / "envoy_reference.yaml").read_text())
FILES: list[dict[str, str]] = yaml.safe_load((VECTORS / "envoy_files.yaml").read_text())
MIDNIGHT = 1_700_006_400 * 10**9


class Service:
    """A service of a file, on a clock that stands still."""

    def __init__(
        self, tmp_path: Path, *texts: str, files: dict[str, Any] | None = None, **options: Any
    ) -> None:
        paths = [tmp_path / f"limits{i}.yaml" for i in range(len(texts))]
        for path, text in zip(paths, texts):
            path.write_text(text)
        self.descriptors = Descriptors(
            [read_file(path, keep_texts=True, typed="metadata") for path in paths], **(files or {})
        )
        self.clock = tg.ManualClock(start_ns=MIDNIGHT)
        self.native = native.EnvoyService(
            open_store("memory://", {})._native(),
            _core.native_clock(self.clock),
            "tests",
            **options,
        )
        self.native.use(self.descriptors.tree)

    def ask(self, *descriptors: str, **fields: Any) -> Any:
        """The answer to a request of descriptors such as "key=value, key=value"."""
        body = {
            "domain": self.descriptors.domains[0],
            "descriptors": [{"entries": entries(each), **fields} for each in descriptors],
        }
        _, _, answer = call(self.native, "POST", "/json", body=json.dumps(body).encode())
        return json.loads(answer)

    def hits(self) -> dict[str, int]:
        return {
            row["path"]: row["total_hits"]
            for row in self.native.stats()["descriptors"]
            if row["total_hits"]
        }


def entries(text: str) -> list[dict[str, str]]:
    pairs = [each.split("=", 1) for each in text.split(", ")]
    return [{"key": key, "value": value} for key, value in pairs]


def limit_of(status: dict[str, Any]) -> str | None:
    if "currentLimit" in status:
        limit = status["currentLimit"]
        return f"{limit.get('requestsPerUnit', 0)}/{limit['unit']}"
    return "unlimited" if status.get("limitRemaining") == 2**32 - 1 else None


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["source"].split(",")[0])
def test_limits_and_counters_are_those_of_the_reference(
    tmp_path: Path, table: dict[str, Any]
) -> None:
    service = Service(tmp_path, yaml.safe_dump(table["file"]))
    left: dict[str, int] = {}
    for row in table["asks"]:
        before = service.hits()
        (status,) = service.ask(row["entries"])["statuses"]
        assert limit_of(status) == row["limit"], row
        counted = {path for path, hits in service.hits().items() if hits != before.get(path, 0)}
        assert counted == ({row["metric"]} if row["limit"] else set()), row
        left[row["entries"]] = status.get("limitRemaining", 0)
        if "as" in row:
            assert left[row["entries"]] == left[row["as"]] - 1, row
            left[row["as"]] -= 1


@pytest.mark.parametrize("each", FILES, ids=lambda each: each["source"])
def test_a_file_is_read_or_refused_as_by_the_reference(
    tmp_path: Path, each: dict[str, str]
) -> None:
    if "refused" not in each:
        Service(tmp_path, each["file"])
        return
    with pytest.raises(RulesError) as raised:
        Service(tmp_path, each["file"])
    assert each["refused"] in str(raised.value)


def test_a_count_beside_unlimited_causes_a_warning(tmp_path: Path) -> None:
    text = "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, requests_per_unit: 5}}]"
    service = Service(tmp_path, text)
    (note,) = service.descriptors.notes
    assert note.endswith("stands beside unlimited, so it has no effect")
    assert limit_of(service.ask("a=1")["statuses"][0]) == "unlimited"


QUOTAS = """
domain: quota
descriptors:
- {key: service, value: one, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1},
   metadata: {with_quota: {name: one, first: one}, order: 1}}
- {key: service, value: two, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2},
   metadata: {with_quota: {name: two, last: two}, order: 2, flags: [yes, "yes", 1.5, 010, null]}}
- {key: user, rate_limit: {unit: minute, requests_per_unit: 9}}
"""


def test_a_request_is_refused_once_all_of_its_quotas_are_exceeded(tmp_path: Path) -> None:
    # integration-test/scripts/quota.sh: the third request is refused.
    service = Service(tmp_path, QUOTAS)
    asked = ("service=one", "user=1", "service=two")
    first, second, third = (service.ask(*asked) for _ in range(3))
    assert [each["overallCode"] for each in (first, second, third)] == ["OK", "OK", "OVER_LIMIT"]
    assert "quotaModeViolations" not in first["dynamicMetadata"]
    assert second["dynamicMetadata"]["quotaModeViolations"] == [0]
    assert third["dynamicMetadata"]["quotaModeViolations"] == [0, 2]
    # A refused request costs nothing, and says so.
    assert [each["statuses"][1]["limitRemaining"] for each in (first, second, third)] == [8, 7, 7]
    assert service.ask("user=1")["statuses"][0]["limitRemaining"] == 6
    # Alone, one that is exceeded refuses; a minute later none is.
    assert service.ask("service=one")["overallCode"] == "OVER_LIMIT"
    service.clock.advance(60)
    assert service.ask(*asked)["overallCode"] == "OK"


def test_peeks_beside_exceeded_quotas_are_refused(tmp_path: Path) -> None:
    # integration-test/scripts/multiservice-tokenquota.sh: usage is charged by the response.
    service = Service(tmp_path, QUOTAS)
    answers = []
    for _ in range(4):
        told = service.ask("service=one", "service=two", hitsAddend=0)
        answers.append(told["overallCode"])
        name = told["dynamicMetadata"].get("metadata", {}).get("with_quota", {}).get("name")
        if name is not None:
            service.ask(f"service={name}")
    assert answers == ["OK", "OK", "OK", "OVER_LIMIT"]


def test_metadata_of_descriptors_within_their_limits_are_sent(tmp_path: Path) -> None:
    service = Service(tmp_path, QUOTAS)
    both = service.ask("service=one", "service=two")["dynamicMetadata"]["metadata"]
    # Of fields that both have, the first is kept; objects are merged. Values keep their types.
    assert both == {
        "with_quota": {"name": "one", "first": "one", "last": "two"},
        "order": 1,
        "flags": [True, "yes", 1.5, 8, None],
    }
    rest = service.ask("service=one", "service=two")["dynamicMetadata"]["metadata"]
    assert rest["with_quota"] == {"name": "two", "last": "two"}
    assert "metadata" not in service.ask("service=one", "service=two")["dynamicMetadata"]
    assert "dynamicMetadata" not in service.ask("user=1")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("metadata: text", "metadata: is 'text'; expected a mapping"),
        ("metadata: {a: 2026-01-02}", "expected texts, finite numbers, true, false, null, lists"),
        ("metadata: {a: .nan}", "expected texts, finite numbers, true, false, null, lists"),
        ("value: a, share_threshold: true", "expected it with a value that has a '*'"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, field: str, message: str) -> None:
    limit = "rate_limit: {unit: day, requests_per_unit: 1}"
    with pytest.raises(RulesError) as raised:
        Service(tmp_path, f"domain: d\ndescriptors: [{{key: a, {field}, {limit}}}]")
    assert message in str(raised.value)


def test_a_wildcard_in_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RulesError) as raised:
        Service(tmp_path, "domain: d\ndescriptors: [{key: 'a*', rate_limit: {unlimited: true}}]")
    assert "the key has a '*'; expected wildcards in values alone" in str(raised.value)


def test_a_limit_of_a_request_is_not_refused_by_that_of_the_file(tmp_path: Path) -> None:
    # Both count under one key, so a refusal by the smaller one must not be remembered for both.
    service = Service(
        tmp_path,
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}]",
    )
    own = {"limit": {"requestsPerUnit": 3, "unit": "MINUTE"}}
    assert service.ask("a=1")["overallCode"] == "OK"
    assert service.ask("a=1")["overallCode"] == "OVER_LIMIT"
    assert service.ask("a=1", **own)["overallCode"] == "OK"
    assert service.ask("a=1")["overallCode"] == "OVER_LIMIT"
    assert service.ask("a=1", **own)["overallCode"] == "OK"
    assert service.ask("a=1", **own)["overallCode"] == "OVER_LIMIT"


def test_the_switch_for_quotas_holds_for_all_limits(tmp_path: Path) -> None:
    # QUOTA_MODE=true
    text = """
    domain: d
    descriptors:
    - {key: a, rate_limit: {unit: minute, requests_per_unit: 1}}
    - {key: b, rate_limit: {unit: minute, requests_per_unit: 2}}
    """
    service = Service(tmp_path, text, files={"quota_mode": True})
    answers = [service.ask("a=1", "b=1") for _ in range(3)]
    assert [each["overallCode"] for each in answers] == ["OK", "OK", "OVER_LIMIT"]
    assert answers[1]["dynamicMetadata"] == {"quotaModeEnabled": True, "quotaModeViolations": [0]}


def test_files_of_one_domain_are_merged_by_a_switch(tmp_path: Path) -> None:
    # MERGE_DOMAIN_CONFIG=true
    limit = "rate_limit: {unit: minute, requests_per_unit"
    one = f"domain: d\ndescriptors: [{{key: a, {limit}: 1}}}}]"
    two = f"domain: d\ndescriptors: [{{key: b, {limit}: 2}}}}]"
    service = Service(tmp_path, one, two, files={"merge_domains": True})
    assert service.descriptors.domains == ["d"]
    statuses = service.ask("a=1", "b=1")["statuses"]
    assert [limit_of(each) for each in statuses] == ["1/MINUTE", "2/MINUTE"]
    again = f"domain: d\ndescriptors: [{{key: b, {limit}: 3}}}}]"
    with pytest.raises(RulesError, match=r"has the key 'b' and the value None, as .*limits1"):
        Service(tmp_path, one, two, again, files={"merge_domains": True})
    with pytest.raises(RulesError, match=r"is True, and None at .*; expected one value in all"):
        Service(tmp_path, one, two + "\nall_or_none: true", files={"merge_domains": True})


def test_metadata_say_what_the_request_asked_by_a_switch(tmp_path: Path) -> None:
    # RESPONSE_DYNAMIC_METADATA=true; service/ratelimit_test.go, TestRatelimitToMetadata
    service = Service(tmp_path, QUOTAS, request_metadata=True)
    assert service.ask("key1=val1")["dynamicMetadata"] == {
        "domain": "quota",
        "descriptors": [{"entries": ["key1=val1"]}],
    }
    told = service.ask("service=one, a=b", "service=one", hitsAddend=1)["dynamicMetadata"]
    assert told == {
        "domain": "quota",
        "descriptors": [
            {"entries": ["service=one", "a=b"], "hitsAddend": 1},
            {"entries": ["service=one"], "hitsAddend": 1},
        ],
        "metadata": {"with_quota": {"name": "one", "first": "one"}, "order": 1},
        "quotaModeEnabled": True,
    }


COUNTED = """
domain: messaging
descriptors:
- {key: message_type, value: marketing, descriptors: [
    {key: to_number, rate_limit: {unit: day, requests_per_unit: 5}}]}
- {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: user, detailed_metric: true, rate_limit: {unlimited: true}}
"""


def metrics_of(collector: Any) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def test_each_descriptor_has_counters_in_prometheus(tmp_path: Path) -> None:
    service = Service(tmp_path, COUNTED)
    for _ in range(6):
        service.ask("message_type=marketing, to_number=1")
    service.ask("shadow=1")
    samples = exposed(metrics_of(DescriptorCounters(service.native.stats, most=9)))

    def count(name: str, descriptor: str) -> float | None:
        labels = {"domain": "messaging", "descriptor": descriptor}
        return of(samples, f"tidegate_envoy_descriptor_{name}_total", **labels)

    path = "message_type_marketing.to_number"
    assert count("hits", path) == 6
    assert count("within_limit", path) == 5
    assert count("near_limit", path) == 1
    assert count("over_limit", path) == 1
    assert count("shadow_mode", path) == 0
    assert count("shadow_mode", "shadow") == 1


def test_a_path_that_requests_brought_keeps_its_counters_once_a_file_has_it(tmp_path: Path) -> None:
    service = Service(tmp_path, COUNTED)
    service.ask("user=m")
    named = COUNTED + "- {key: user, value: m, rate_limit: {unlimited: true}}\n"
    service.native.use(Service(tmp_path, named).descriptors.tree)
    service.ask("user=m")
    hits = [
        row["total_hits"]
        for row in service.native.stats()["descriptors"]
        if row["path"] == "user_m"
    ]
    assert hits == [2]


def test_dashboards_of_the_reference_find_its_names(tmp_path: Path) -> None:
    service = Service(tmp_path, COUNTED)
    service.ask("message_type=marketing, to_number=1")
    service.ask("shadow=1")
    text = metrics_of(ReferenceCounters(service.native.stats, most=9))
    keys = 'domain="messaging",key1="message_type_marketing",key2="to_number"'
    assert f"ratelimit_service_rate_limit_total_hits{{{keys}}} 1.0" in text
    assert f"ratelimit_service_rate_limit_within_limit{{{keys}}} 1.0" in text
    shadow = 'domain="messaging",key1="shadow"'
    assert f"ratelimit_service_rate_limit_shadow_mode{{{shadow}}} 1.0" in text
    assert 'ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 2.0' in text
    assert 'ratelimit_service_should_rate_limit_error{err_type="service_error"} 0.0' in text


def test_the_names_in_metrics_are_bounded_and_kept(tmp_path: Path) -> None:
    service = Service(tmp_path, COUNTED)
    collector = DescriptorCounters(service.native.stats, most=5)
    service.ask("user=m")

    def hits() -> dict[str, float]:
        name = "tidegate_envoy_descriptor_hits_total"
        samples = exposed(metrics_of(collector))
        return {dict(key[1])["descriptor"]: n for key, n in samples.items() if key[0] == name}

    first = hits()
    assert first["user_m"] == 1
    assert len(first) == 5  # with the limits that requests bring
    for i in range(50):
        service.ask(f"user=a{i}")
    # Names that sort before it do not take its place.
    assert hits() == {**first, "(others)": 50.0}
