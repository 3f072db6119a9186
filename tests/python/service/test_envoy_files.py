"""The files of Envoy's rate limit service: fields, mistakes, and changes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from envoy_examples import MESSAGING
from polling import eventually
from tidegate import _core
from tidegate.limiter.storage.uri import open_store
from tidegate.rules.problems import RulesError

native = pytest.importorskip("tidegate.server._native", reason="the system has no epoll")
from service_testing import call  # noqa: E402
from tidegate.rules.document import read_file  # noqa: E402
from tidegate.server.envoy import DescriptorFiles, follow  # noqa: E402
from tidegate.server.envoy_descriptors import Descriptors  # noqa: E402

MIDNIGHT = 1_700_006_400 * 10**9


class Service:
    """An EnvoyService on a clock that stands still, called with JSON."""

    def __init__(self, **options: Any) -> None:
        self.clock = tg.ManualClock(start_ns=MIDNIGHT)
        # The capsules keep their objects alive.
        self.native = native.EnvoyService(
            open_store("memory://", {})._native(),
            _core.native_clock(self.clock),
            "tests",
            **options,
        )

    def ask(self, *descriptors: dict[str, str] | list[tuple[str, str]], domain: str = "d") -> Any:
        body = {
            "domain": domain,
            "descriptors": [
                {"entries": [{"key": k, "value": v} for k, v in dict(each).items()]}
                for each in descriptors
            ],
        }
        status, _, answer = call(self.native, "POST", "/json", body=json.dumps(body).encode())
        return status, json.loads(answer)

    def remaining(self, *descriptors: dict[str, str], domain: str = "d") -> list[int | None]:
        """Returns what remains of each descriptor's limit; None without a limit."""
        _, answer = self.ask(*descriptors, domain=domain)
        return [
            status.get("limitRemaining") if "currentLimit" in status else None
            for status in answer["statuses"]
        ]


def compiled(tmp_path: Path, *texts: str) -> Descriptors:
    documents = []
    for i, text in enumerate(texts):
        path = tmp_path / f"{i}.yaml"
        path.write_text(text)
        documents.append(read_file(path, keep_texts=True))
    return Descriptors(documents)


def problems(tmp_path: Path, *texts: str) -> list[str]:
    with pytest.raises(RulesError) as raised:
        compiled(tmp_path, *texts)
    return [str(each).replace(str(tmp_path) + os.sep, "") for each in raised.value.problems]


def in_force(tmp_path: Path, *texts: str, **options: Any) -> Service:
    service = Service(**options)
    service.native.use(compiled(tmp_path, *texts).tree)
    return service


def test_the_messaging_example_of_envoy_limits_as_it_does(tmp_path: Path) -> None:
    service = in_force(tmp_path, MESSAGING)
    marketing = {"message_type": "marketing", "to_number": "2061234567"}
    for left in range(4, -1, -1):
        status, answer = service.ask(marketing, {"to_number": "2061234567"}, domain="messaging")
        assert status == 200
        assert [each["limitRemaining"] for each in answer["statuses"]] == [left, 95 + left]
    status, answer = service.ask(marketing, {"to_number": "2061234567"}, domain="messaging")
    assert status == 429
    assert [each["code"] for each in answer["statuses"]] == ["OVER_LIMIT", "OK"]
    assert answer["statuses"][0]["durationUntilReset"] == "86400s"


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [
        ("second", 1),
        ("MINUTE", 60),
        ("hour", 3600),
        ("day", 86400),
        ("week", 7 * 86400),
        ("month", 30 * 86400),
        ("year", 365 * 86400),
    ],
)
def test_units_have_the_lengths_that_envoy_gives_them(
    tmp_path: Path, unit: str, seconds: int
) -> None:
    text = f"""
        domain: d
        descriptors:
          - key: k
            rate_limit: {{unit: {unit}, requests_per_unit: 2}}
    """
    service = in_force(tmp_path, text)
    _, answer = service.ask({"k": "v"})
    status = answer["statuses"][0]
    assert status["currentLimit"] == {"requestsPerUnit": 2, "unit": unit.upper()}
    until = int(status["durationUntilReset"].rstrip("s"))
    assert until == seconds - MIDNIGHT // 10**9 % seconds


def test_values_are_read_as_texts(tmp_path: Path) -> None:
    text = """
        domain: d
        descriptors:
          - {key: n, value: 007, rate_limit: {unit: second, requests_per_unit: 1}}
          - {key: n, value: yes, rate_limit: {unit: second, requests_per_unit: 2}}
          - {key: n, value: 2024-01-01, rate_limit: {unit: second, requests_per_unit: 3}}
          - {key: n, value: "", rate_limit: {unit: second, requests_per_unit: 4}}
    """
    service = in_force(tmp_path, text)
    values = ["007", "yes", "2024-01-01", "7"]
    assert [service.remaining({"n": value}) for value in values] == [[0], [1], [2], [3]]


def test_fields_beyond_those_of_envoy_set_limits(tmp_path: Path) -> None:
    text = """
        domain: d
        descriptors:
          - key: bucket
            rate_limit: {unit: second, requests_per_unit: 1, algorithm: token-bucket, burst: 7}
          - key: period
            rate_limit: {requests_per_unit: 5, period: 90 seconds}
          - key: multiplied
            rate_limit: {requests_per_unit: 5, unit: minute, unit_multiplier: 5}
          - key: several
            rate_limit: {limits: [10/second, 12/hour], algorithm: sliding-window}
          - key: one
            rate_limit: {limits: 3/minute}
    """
    service = in_force(tmp_path, text)
    keys = ["bucket", "period", "multiplied", "several", "one"]
    assert service.remaining(*({key: "v"} for key in keys)) == [6, 4, 4, 9, 2]
    _, answer = service.ask({"multiplied": "v"})
    assert answer["statuses"][0]["currentLimit"] == {"requestsPerUnit": 5}
    assert answer["statuses"][0]["durationUntilReset"] == "300s"


def test_a_domain_may_charge_each_descriptor_on_its_own(tmp_path: Path) -> None:
    text = """
        domain: {name}
        {switch}
        descriptors:
          - {{key: a, rate_limit: {{unit: day, requests_per_unit: 9}}}}
          - {{key: b, rate_limit: {{unit: day, requests_per_unit: 0}}}}
    """
    service = in_force(
        tmp_path,
        text.format(name="together", switch=""),
        text.format(name="apart", switch="all_or_none: false"),
    )
    assert service.remaining({"a": ""}, {"b": ""}, domain="together") == [9, 0]
    assert service.remaining({"a": ""}, {"b": ""}, domain="apart") == [8, 0]


def test_settings_of_descriptors_reach_the_service(tmp_path: Path) -> None:
    text = """
        domain: d
        descriptors:
          - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
          - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
          - {key: free, rate_limit: {unlimited: true}}
          - {key: file, value: a*, share_threshold: true,
             rate_limit: {unit: day, requests_per_unit: 9}}
          - {key: named, rate_limit: {name: low, unit: day, requests_per_unit: 0}}
          - {key: other, rate_limit: {replaces: [{name: low}], unit: day, requests_per_unit: 5}}
          - {key: told, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
          - {key: route, value_to_metric: true, descriptors: [
             {key: user, rate_limit: {unit: day, requests_per_unit: 5}}]}
    """
    service = in_force(tmp_path, text)
    status, answer = service.ask({"shadow": ""}, {"quota": ""}, {"free": ""})
    assert status == 429  # the only quota is exceeded
    assert [each["code"] for each in answer["statuses"]] == ["OK", "OVER_LIMIT", "OK"]
    assert answer["dynamicMetadata"] == {"quotaModeEnabled": True, "quotaModeViolations": [1]}
    assert service.remaining({"file": "a1"}, {"file": "a2"}) == [7, 7]
    assert service.remaining({"named": ""}, {"other": ""}) == [None, 4]
    service.ask({"told": "v"}, {"route": "r", "user": "u"})
    paths = {each["path"]: each for each in service.native.stats()["descriptors"]}
    assert paths["told_v"]["total_hits"] == 1
    assert paths["route_r.user"]["within_limit"] == 1
    assert paths["shadow"]["shadow_mode"] == 1
    assert paths["file_a*"]["total_hits"] == 2


MISTAKES = [
    ("domain: ''", ["0.yaml:1: domain: is ''; expected a text"]),
    ("[]", ["0.yaml:1: is []; expected a domain with descriptors"]),
    ("domain: d\ndescriptors: 5", ["0.yaml:2: descriptors: is '5'; expected a list"]),
    (
        "domain: d\ndescriptors:\n- value: v",
        ["0.yaml:3: descriptors[0].key: is None; expected a text"],
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  limit: 5\n- key: b\n  shadow_mode: perhaps",
        [
            "0.yaml:4: descriptors[0].limit: is not a field; expected key, value, rate_limit, "
            "descriptors, metadata, shadow_mode, quota_mode, share_threshold, detailed_metric, "
            "value_to_metric",
            "0.yaml:6: descriptors[1].shadow_mode: is 'perhaps'; expected true or false",
        ],
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  value: v\n- key: a\n  value: v",
        [
            "0.yaml:5: descriptors[1]: has the key 'a' and the value 'v', as "
            "0.yaml:3 (descriptors[0]) has; expected them once"
        ],
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  share_threshold: true",
        [
            "0.yaml:3: descriptors[0]: is not accepted: share_threshold is set; expected it with "
            "a value that has a '*'"
        ],
    ),
]
LIMIT_MISTAKES = [
    ("5", "rate_limit: is '5'; expected a mapping"),
    ("{}", "rate_limit: has no requests_per_unit; expected it, limits or unlimited: true"),
    ("{requests_per_unit: 5}", "rate_limit.unit: is None; expected second, minute, hour, day"),
    ("{requests_per_unit: 5, unit: fortnight}", "rate_limit.unit: is 'fortnight'; expected second"),
    (
        "{requests_per_unit: -5, unit: day}",
        "rate_limit.requests_per_unit: is '-5'; expected a whole number from 0 up",
    ),
    ("{requests_per_unit: 4294967296, unit: day}", "expected at most 4294967295"),
    ("{unlimited: true, unit: day}", "rate_limit.unit: stands beside unlimited"),
    ("{limits: [5/day], unit: day}", "rate_limit.unit: stands beside limits"),
    ("{limits: []}", "rate_limit.limits: is []; expected limits: ['100/minute']"),
    ("{limits: [5/fortnight]}", "5/fortnight"),
    ("{limits: [5/day, 6/day]}", "'5/day' and '6/day' have the same period"),
    ("{requests_per_unit: 5, period: 1 day, unit: day}", "unit: stands beside period"),
    ("{limits: [5/day], reports: 3}", "rate_limit.reports: is '3'; expected true or false"),
    ("{unlimited: true, reports: true}", "rate_limit.reports: stands beside unlimited"),
    (
        "{requests_per_unit: 5, unit: day, burst: 9}",
        "rate_limit.burst: is for buckets, and the algorithm is fixed-window",
    ),
    ("{requests_per_unit: 5, unit: day, algorithm: guess}", "guess"),
    ("{requests_per_unit: 5, unit: day, algorithm: concurrency}", "nobody would release"),
    ("{requests_per_unit: 5, unit: day, replaces: [low]}", "expected a list of - name: NAME"),
    (
        "{requests_per_unit: 5, unit: day, name: a, replaces: [{name: a}]}",
        "is not accepted: the limit replaces itself",
    ),
    ("{requests_per_unit: 5, unit: day, name: [a]}", "rate_limit.name: is ['a']; expected a text"),
    ("{requests_per_unit: 5, unit: day, per: second}", "rate_limit.per: is not a field"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert problems(tmp_path, text) == expected


@pytest.mark.parametrize(("limit", "expected"), LIMIT_MISTAKES)
def test_a_mistake_in_a_limit_is_named_with_its_place(
    tmp_path: Path, limit: str, expected: str
) -> None:
    text = f"domain: d\ndescriptors:\n- key: a\n  rate_limit: {limit}\n"
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(("0.yaml:4: descriptors[0].", "0.yaml:3: descriptors[0]: "))
    assert expected in problem


def test_a_domain_that_two_files_have_is_refused_with_both_places(tmp_path: Path) -> None:
    assert problems(tmp_path, "domain: d", "# the same\ndomain: d") == [
        "1.yaml:2: domain: is 'd', which 0.yaml:1 (domain) has; expected each domain once, "
        "or envoy.merge_domains: true"
    ]


def test_limits_that_replace_each_other_in_a_circle_are_refused(tmp_path: Path) -> None:
    entry = "- {{key: {0}, rate_limit: {{unit: day, requests_per_unit: 1, name: {0}, {1}}}}}\n"
    text = "domain: d\ndescriptors:\n" + "".join(
        entry.format(name, f"replaces: [{{name: {other}}}]")
        for name, other in [("a", "b"), ("b", "c"), ("c", "a"), ("x", "y")]
    )
    found = problems(tmp_path, text)
    assert len(found) == 3
    assert found[0] == (
        "0.yaml:3: descriptors[0].rate_limit.replaces: leads back to 'a', so that none of them "
        "would apply; expected no circle"
    )


def test_replacing_an_unknown_name_causes_a_warning(tmp_path: Path) -> None:
    text = """
        domain: d
        descriptors:
          - {key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: lost}]}}
    """
    (note,) = compiled(tmp_path, text).notes
    assert "no limit is named 'lost'" in note


def test_a_document_that_expands_to_too_much_is_refused(tmp_path: Path) -> None:
    levels = "\n".join(
        f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]" if i else "x0: &x0 [a]" for i in range(9)
    )
    (problem,) = problems(tmp_path, f"domain: d\n{levels}\n")
    assert "aliases stand for more than" in problem


def test_a_folder_has_a_domain_in_each_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MESSAGING)
    (tmp_path / "b.yml").write_text("domain: b")
    (tmp_path / ".hidden.yaml").write_text("no YAML: [")
    (tmp_path / "notes.txt").write_text("none either")
    (tmp_path / "folder.yaml").mkdir()
    source = DescriptorFiles(tmp_path)
    assert source.current.domains == ["messaging", "b"]
    assert source.current.limits == 2


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match=r"has no file; expected \.yaml or \.yml"):
        DescriptorFiles(tmp_path)


def write(path: Path, count: int) -> None:
    limit = f"{{unit: day, requests_per_unit: {count}}}"
    path.write_text(f"domain: d\ndescriptors:\n- {{key: k, rate_limit: {limit}}}")


def test_a_new_version_is_in_force_and_usage_stays(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    write(path, 5)
    service = Service()
    with DescriptorFiles(path, interval=0.01) as source:
        end = follow(source, service.native)
        assert service.remaining({"k": ""}) == [4]
        write(path, 500)
        eventually(lambda: _is_500(service))
        assert service.remaining({"k": ""}) == [498]
        end()


def _is_500(service: Service) -> bool:
    _, answer = service.ask({"k": "another"})
    return bool(answer["statuses"][0]["currentLimit"]["requestsPerUnit"] == 500)


def test_an_invalid_version_is_counted_and_logged_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "limits.yaml"
    write(path, 5)
    service = Service()
    source = DescriptorFiles(path)
    service.native.use(source.current.tree)
    path.write_text("domain: d\ndescriptors:\n- key: 5\n  rate: 5")
    with caplog.at_level(logging.ERROR, "tidegate"):
        assert not source.refresh()
    assert source.refused == 1
    assert "descriptors[0].rate: is not a field" in caplog.text
    assert f"{source!r}: a new version of the descriptors was refused" in caplog.text
    assert service.remaining({"k": ""}) == [4]
    write(path, 6)
    assert source.refresh()
    assert source.last_error is None


def test_a_version_that_the_store_refuses_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    write(path, 5)
    service = Service()
    with DescriptorFiles(path) as source:
        follow(source, service.native)
        # A tree that services use accepts no more descriptors.
        with pytest.raises(ValueError, match="the tree is in use"):
            source.current.tree.add_domain("another")
        assert service.remaining({"k": ""}) == [4]


def test_swapping_a_link_makes_a_new_version(tmp_path: Path) -> None:
    """Kubernetes mounts a ConfigMap in this way: config/limits.yaml -> ..data/limits.yaml."""
    for version, count in (("v1", 5), ("v2", 7)):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "limits.yaml", count)
    config = tmp_path / "config"
    config.mkdir()
    data = config / "..data"
    data.symlink_to(tmp_path / "v1")
    (config / "limits.yaml").symlink_to(data / "limits.yaml")
    source = DescriptorFiles(config)
    service = Service()
    service.native.use(source.current.tree)
    assert service.remaining({"k": ""}) == [4]
    swapped = config / "..tmp"
    swapped.symlink_to(tmp_path / "v2")
    swapped.replace(data)
    assert source.refresh()
    service.native.use(source.current.tree)
    assert service.remaining({"k": ""}) == [5]


def test_adding_or_removing_a_file_makes_a_new_version(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("domain: a")
    source = DescriptorFiles(tmp_path)
    (tmp_path / "b.yaml").write_text("domain: b")
    assert source.refresh()
    assert source.current.domains == ["a", "b"]
    (tmp_path / "a.yaml").unlink()
    assert source.refresh()
    assert source.current.domains == ["b"]
    (tmp_path / "b.yaml").unlink()
    assert not source.refresh()
    assert source.refused == 1
    assert source.current.domains == ["b"]


def test_a_page_of_another_site_asks_nothing(tmp_path: Path) -> None:
    """A browser sends a text or a form to any address, also to a port of the loopback."""
    service = in_force(tmp_path, MESSAGING)
    body = json.dumps({"domain": "messaging", "descriptors": [{"entries": [{"key": "to_number"}]}]})
    page = ("origin", "https://site.example")

    def status(*headers: tuple[str, str]) -> int:
        found: int = call(service.native, "POST", "/json", headers, body.encode())[0]
        return found

    assert status() == 200
    assert status(("content-type", "application/x-www-form-urlencoded")) == 200
    assert status(page, ("content-type", "application/json")) == 200
    assert status(page, ("content-type", "text/plain;application/json")) == 415
    assert status(page) == 415


def test_stats_count_requests_of_each_kind(tmp_path: Path) -> None:
    service = in_force(tmp_path, MESSAGING)
    service.ask({"to_number": "1"}, domain="messaging")
    service.ask({"other": "1"}, domain="messaging")
    service.ask({"other": "1"}, domain="unknown")
    assert call(service.native, "POST", "/json", body=b"{")[0] == 400
    grpc = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    assert call(service.native, "POST", grpc, body=b"\xff", grpc=True)[0] == 3
    stats = service.native.stats()
    paths = stats.pop("descriptors")
    assert stats == {
        "requests": 5,
        "over_limit": 0,
        "invalid": 2,
        "unknown_domain": 1,
        "no_limit": 2,
        "degraded": 0,
        "shadow_mode": 0,
        "blocked": 0,
        "throttled": 0,
        "written_off": 0,
    }
    assert {
        "domain": "messaging",
        "path": "to_number",
        "total_hits": 1,
        "within_limit": 1,
        "near_limit": 0,
        "over_limit": 0,
        "shadow_mode": 0,
    } in paths
