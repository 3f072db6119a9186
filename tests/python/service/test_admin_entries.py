"""Lists of requests to allow and to block, costs of operations, and the settings in effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from admin_client import AdminService, add_api_rule
from tidegate.server.settings import Settings

BLOCK, ALLOW, COSTS = "/ratelimit/lists/block", "/ratelimit/lists/allow", "/ratelimit/costs"
ABUSE = {"id": "abuse", "user": "42", "reason": "scrapes"}


def test_a_caller_is_blocked_and_let_in_again(any_service: AdminService) -> None:
    add_api_rule(any_service)
    asked = {"user": "42", "tier": "free", "endpoint": "/api/posts"}
    answer = any_service.ask("POST", BLOCK, ABUSE, role="operator", params={"comment": "ticket 7"})
    assert answer.status_code == 201, answer.text
    decision = any_service.limiter.check(**asked)
    assert (decision.allowed, decision.rule) == (False, "abuse")
    assert any_service.ask("GET", BLOCK, role="viewer").json()["entries"] == [ABUSE]
    assert any_service.ask("GET", ALLOW, role="viewer").json()["entries"] == []
    assert any_service.ask("POST", BLOCK, ABUSE, role="operator").status_code == 409
    gone = any_service.ask("DELETE", f"{BLOCK}/abuse", role="operator")
    assert gone.status_code == 200, gone.text
    assert any_service.limiter.check(**asked)
    assert any_service.ask("DELETE", f"{BLOCK}/abuse", role="operator").status_code == 404
    entries = [entry for entry in any_service.audit() if entry["action"].startswith("block")]
    assert [(entry["action"], entry["before"], entry["after"]) for entry in entries] == [
        ("block.add", [], [ABUSE]),
        ("block.delete", [ABUSE], []),
    ]
    versions = any_service.ask("GET", "/ratelimit/versions").json()
    assert [each["comment"] for each in versions[:2]] == [None, "ticket 7"]


def test_a_list_is_replaced_as_a_whole(service: AdminService) -> None:
    service.ask("POST", BLOCK, ABUSE)
    office = {"id": "office", "networks": ["10.0.0.0/8"]}
    assert service.ask("PUT", ALLOW, [office]).status_code == 428
    etag = service.ask("GET", ALLOW).headers["etag"]
    assert service.ask("PUT", ALLOW, [office], headers={"If-Match": etag}).status_code == 200
    assert service.ask("PUT", ALLOW, [], headers={"If-Match": etag}).status_code == 412
    assert service.ask("GET", BLOCK).json()["entries"] == [ABUSE]
    assert service.limiter.check(user="1", ip="10.1.2.3").rule == "office"
    assert service.ask("PUT", BLOCK, [], headers={"If-Match": "*"}).status_code == 200
    assert service.ask("GET", ALLOW).json()["entries"] == [office]


def test_the_audit_log_has_the_entries_of_a_list_that_differ(service: AdminService) -> None:
    entries = {id: {"id": id, "user": id} for id in "abcd"}
    for id in "abc":
        assert service.ask("POST", BLOCK, entries[id]).status_code == 201
    assert service.ask("DELETE", f"{BLOCK}/b").status_code == 200
    listed = [entries[id] for id in "adc"]
    assert service.ask("PUT", BLOCK, listed, headers={"If-Match": "*"}).status_code == 200
    assert service.ask("PUT", BLOCK, [], headers={"If-Match": "*"}).status_code == 200
    assert [(entry["before"], entry["after"]) for entry in service.audit()] == [
        ([], [entries["a"]]),
        ([], [entries["b"]]),
        ([], [entries["c"]]),
        ([entries["b"]], []),
        ([], [entries["d"]]),
        (listed, []),
    ]


def test_changed_costs_apply_to_checks_at_once(any_service: AdminService) -> None:
    add_api_rule(any_service)
    costs = [{"endpoints": ["/api/search"], "cost": 4, "priority": "background"}]
    answer = any_service.ask("PUT", COSTS, costs, headers={"If-Match": "*"})
    assert answer.status_code == 200, answer.text
    body = any_service.ask("GET", COSTS, role="viewer").json()
    assert body["entries"] == costs
    decision = any_service.limiter.check(user="42", tier="free", endpoint="/api/search")
    assert decision.remaining == 6
    assert any_service.ask("GET", "/ratelimit/document").json()["costs"] == costs


@pytest.mark.parametrize(
    ("method", "path", "body", "where"),
    [
        ("POST", BLOCK, {"user": "42"}, None),
        ("POST", BLOCK, {"id": "a/b", "user": "42"}, None),
        ("POST", BLOCK, {"id": "x", "networks": ["nowhere"]}, "networks"),
        ("PUT", BLOCK, [{"id": "x", "networks": ["nowhere"]}], "[0].networks"),
        ("PUT", COSTS, [{"cost": 2}, {"cost": 0}], "[1].cost"),
        ("PUT", COSTS, [{}], "[0]"),
        ("PUT", COSTS, {"cost": 2}, None),
        ("PUT", "/ratelimit/lists/other", [], None),
    ],
)
def test_an_invalid_entry_is_named_and_not_written(
    service: AdminService, method: str, path: str, body: object, where: str | None
) -> None:
    answer = service.ask(method, path, body, headers={"If-Match": "*"})
    assert answer.status_code == 422, answer.text
    if where is not None:
        assert where in str(answer.json()["problems"])
    assert service.rows("select * from rate_limit_lists") == []
    assert service.rows("select * from operation_costs") == []
    assert service.rows("select * from audit_log") == []


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [("POST", BLOCK, "viewer"), ("DELETE", f"{BLOCK}/x", "viewer"), ("PUT", COSTS, "operator")],
)
def test_a_lower_role_may_not_change_lists_and_costs(
    service: AdminService, method: str, path: str, role: str
) -> None:
    assert service.ask(method, path, {}, role=role).status_code == 403


def test_the_settings_in_effect_have_no_password(tmp_path: Path, service: AdminService) -> None:
    settings = Settings(
        storage="redis://me:p@ss/w:rd@host/0?password=hidden&timeout=1",
        database="postgresql://ada:hidden@host/service?sslpassword=hidden",
    )
    shown = settings.shown()
    assert shown["storage"] == "redis://me:***@host/0?password=***&timeout=1"
    assert shown["database"] == "postgresql://ada:***@host/service?sslpassword=***"
    assert shown["checks"]["listen"] == {"host": "127.0.0.1", "port": 8080}
    service.app.state.admin.settings = shown
    assert service.ask("GET", "/settings", role="viewer").status_code == 403
    assert service.ask("GET", "/settings", role="operator").json() == shown
    service.app.state.admin.settings = None
    assert service.ask("GET", "/settings", role="operator").status_code == 404


@pytest.mark.parametrize(
    "entry",
    [
        {"networks": ["0.0.0.0/0"]},
        {"networks": ["10.0.0.0/8", "128.0.0.0/1"]},
        {"networks": ["::/0"], "methods": ["GET"]},
        {"networks": ["::ffff:0:0/96"]},
        {"networks": ["::/80"]},
        {"networks": [f"{first}.0.0.0/8" for first in range(256)]},
        {"ip": [f"{first:x}::/20" for first in range(0x2000, 0x3000)]},
        {"networks": ["0.0.0.0/0"], "from": "2020-01-01"},
        {"endpoints": ["/a", "**"], "reason": "launch"},
        {"endpoints": ["/", "/*", "/*/{any}/**"]},
        {"tiers": ["free", "premium"]},
        {"methods": ["GET"]},
        {"priority": "normal"},
    ],
)
@pytest.mark.parametrize("path", [ALLOW, BLOCK])
def test_an_entry_for_everybody_needs_an_admin(
    service: AdminService, path: str, entry: dict[str, object]
) -> None:
    refused = service.ask("POST", path, {"id": "all", **entry}, role="operator")
    assert refused.status_code == 403
    assert "the entry is for everybody; expected a user, an endpoint" in refused.json()["detail"]
    assert service.ask("GET", path).json()["entries"] == []
    made = service.ask("POST", path, {"id": "all", **entry})
    assert made.status_code == 201, made.text
    one = {"id": "one", **entry, "user": "42"}
    assert service.ask("POST", path, one, role="operator").status_code == 201


@pytest.mark.parametrize("path", [ALLOW, BLOCK])
@pytest.mark.parametrize(
    "networks",
    [
        [[f"{first}.0.0.0/9", f"{first}.128.0.0/9"] for first in range(1, 6)],
        [[f"{first:x}00::/19"] for first in range(0x20, 0x25)],
    ],
)
def test_entries_that_are_for_everybody_together_need_an_admin(
    service: AdminService, path: str, networks: list[list[str]]
) -> None:
    def add(id: str, role: str = "operator", **entry: object) -> int:
        answer = service.ask("POST", path, {"id": id, **entry}, role=role)
        assert answer.status_code in (201, 403), answer.text
        if answer.status_code == 403:
            assert "the networks of the list are for everybody together" in answer.json()["detail"]
        return answer.status_code

    assert add("wide", "admin", networks=["0.0.0.0/0"]) == 201  # what admins add does not count
    assert add("over", networks=networks[4], until="2000-01-31") == 201
    for number, few in enumerate(networks[:4]):
        assert add(f"few{number}", networks=few, methods=["GET"]) == 201
    assert add("more", networks=networks[4]) == 403
    assert add("more", ip=networks[4]) == 403
    assert add("more", networks=networks[4], tiers=["free"], endpoints=["/a", "/*"]) == 403
    assert add("again", networks=networks[0]) == 201  # the same addresses
    assert add("a-user", user="42") == 201
    assert add("an-endpoint", endpoints=["/a"], networks=["0.0.0.0/0"]) == 201
    assert service.ask("DELETE", f"{path}/few0", role="operator").status_code == 200
    assert service.ask("DELETE", f"{path}/again", role="operator").status_code == 200
    assert add("more", networks=networks[4]) == 201
    assert add("one", networks=networks[0]) == 403
    assert add("one", "admin", networks=networks[0]) == 201
    assert service.ask("PUT", path, [], headers={"If-Match": "*"}).status_code == 200
    assert add("one", networks=networks[0]) == 201


def test_an_operator_blocks_a_botnet_of_5000_networks(service: AdminService) -> None:
    networks = [f"{1 + i % 200}.{i // 200}.{i % 256}.0/24" for i in range(5000)]
    assert len({*networks}) == 5000
    botnet = {"id": "botnet", "networks": networks, "reason": "at 3 am"}
    assert service.ask("POST", BLOCK, botnet, role="operator").status_code == 201
    for network in (networks[0], networks[4999]):
        assert service.limiter.check(user="1", ip=network.replace("0/24", "9")).rule == "botnet"
    more = {"id": "more", "networks": [f"201.0.{i}.0/24" for i in range(256)]}
    assert service.ask("POST", BLOCK, more, role="operator").status_code == 201


@pytest.mark.parametrize("path", [ALLOW, BLOCK])
def test_an_entry_may_have_a_begin_and_an_end(any_service: AdminService, path: str) -> None:
    add_api_rule(any_service)
    end = "2099-01-31T12:00:00+00:00"
    entry = {"id": "abuse", "user": "42", "from": "2000-01-01", "until": end}
    made = any_service.ask("POST", path, entry, role="operator")
    assert made.status_code == 201, made.text
    known = {**entry, "from": "2000-01-01T00:00:00+00:00"}
    assert any_service.ask("GET", path).json()["entries"] == [known]
    assert any_service.limiter.check(user="42", tier="free", endpoint="/api/x").rule == "abuse"
    assert any_service.ask("DELETE", f"{path}/abuse", role="operator").status_code == 200
    entries = [entry for entry in any_service.audit() if entry["action"].endswith(".delete")]
    assert [entry["before"] for entry in entries] == [[known]]
