"""Quotas on the dashboard and over the admin API: the state of a user's quotas, and top-ups."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_client import Clock, add_api_rule
from dashboard_client import HOSTILE, DashboardService
from tidegate import ConfigurationError, StorageError
from tidegate.server.records import idempotency_keys
from tidegate.server.records.idempotency_keys import OnceKey

ASKED = {"user": "42", "tier": "free", "endpoint": "/api/*"}
LIMITS = {"free": ["quota 100/month rollover 50", "1000/minute"], "premium": "quota 400/month"}
QUOTA = "api:quota 100/month rollover 50"


@pytest.fixture
def dashboard(tmp_path: Path, migrated_sqlite: Path, clock: Clock) -> Iterator[DashboardService]:
    shutil.copyfile(migrated_sqlite, tmp_path / "service.db")
    with DashboardService(f"sqlite:///{tmp_path / 'service.db'}", clock) as made:
        add_api_rule(made, limits=LIMITS)
        made.run("insert into user_tiers (user_id, tier) values ('42', 'free')")
        yield made


def figures_of(text: str) -> dict[str, str]:
    found = re.findall(r"<dt>([^<]+)</dt><dd[^>]*>([^<]*)</dd>", text)
    return {name: value.replace("\u202f", "") for name, value in found}


def test_the_page_shows_the_present_counts(dashboard: DashboardService) -> None:
    dashboard.limiter.check(cost=85, **ASKED)
    dashboard.limiter.top_up(
        {**ASKED}, 7, expires_at=dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)
    )
    text = dashboard.browser().get("/quotas?user=42").text
    assert figures_of(text) == {
        "Available": "22",
        "Used": "85",
        "Base": "100",
        "Carried": "0",
        "Topped up": "7",
        "Resets at (UTC)": "2001-10-01 00:00:00",
    }
    assert "80 % or more used" not in text
    assert re.findall(r'<th scope="row">(base|top-up)</th>', text) == ["base", "top-up"]
    assert "2030-01-01 00:00:00" in text
    assert 'action="/dashboard/quotas/top-up"' not in text
    dashboard.limiter.check(cost=10, **ASKED)
    assert "80 % or more used" in dashboard.browser().get("/quotas?user=42").text
    parts = dashboard.browser().get("/live/quotas?user=42").json()["parts"]
    assert figures_of(parts["now"])["Used"] == "95"


def test_the_tier_of_a_user_selects_the_quota(dashboard: DashboardService) -> None:
    dashboard.run("update user_tiers set tier = 'premium'")
    assert figures_of(dashboard.browser().get("/quotas?user=42").text)["Base"] == "400"


def test_a_user_without_a_quota_is_told_so(dashboard: DashboardService) -> None:
    add_api_rule(dashboard, id="search", endpoints=["/search"], limits="5/minute")
    text = dashboard.browser().get("/quotas?user=42").text
    assert text.count("<h3") == 1
    dashboard.run("update user_tiers set tier = 'other'")
    assert "No quota of the rules in force counts this user" in (
        dashboard.browser().get("/quotas?user=42").text
    )


def test_quotas_configured_in_the_database_are_shown_too(dashboard: DashboardService) -> None:
    dashboard.run(
        "insert into user_quotas values "
        "('42', 'monthly', '{\"limit\": 10000}', '2026-01-30 10:00:00')"
    )
    text = dashboard.browser().get("/quotas?user=42").text
    assert figures_of(text)["Base"] == "100"
    assert "10000" in text
    assert "10000" in dashboard.browser().get("/quotas").text
    assert "10000" not in dashboard.browser().get("/quotas?user=43").text


def test_the_audit_log_records_an_operator_s_top_up(dashboard: DashboardService) -> None:
    dashboard.limiter.check(cost=100, **ASKED)
    operator = dashboard.browser("operator")
    form = {"user": "42", "quota": QUOTA, "units": "50", "priority": "3", "reason": "a launch"}
    answer = operator.post("/quotas/top-up", **form, expires="2030-01-31")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/dashboard/quotas?user=42&added=1",
    )
    text = operator.get("/quotas?user=42&added=1").text
    assert "The units were added" in text
    assert figures_of(text)["Available"] == "50"
    assert "2030-02-01 00:00:00" in text
    assert "a launch" in text
    assert dashboard.limiter.check(cost=50, **ASKED)
    action, actor, target, after = dashboard.rows(
        "select action, actor, target, after from audit_log order by id desc limit 1"
    )[0]
    assert (action, target) == ("quota.top_up", "user:42")
    assert "operator of the tests" in actor
    assert json.loads(after)["units"] == 50


def test_unlocking_a_key_leaves_what_was_bought_and_records_what_it_took(
    dashboard: DashboardService,
) -> None:
    dashboard.limiter.top_up({**ASKED}, 5_000)
    assert dashboard.limiter.check(cost=103, **ASKED)
    operator = dashboard.browser("operator")
    shown = operator.ask("GET", "/key", params={**ASKED, "ask": "1"}).text
    assert "103 used units are forgotten" in shown
    assert operator.post("/key/unlock", **ASKED, confirmed="yes").status_code == 303
    assert dashboard.limiter.quota_status(**ASKED)[QUOTA].available == 5_097
    (said,) = dashboard.rows("select before from audit_log order by id desc limit 1")
    took = json.loads(said[0])["quotas"][QUOTA]
    assert took == {
        "used": 103,
        "base": 100,
        "carried": 0,
        "topped_up": 5_000,
        "available": 4_997,
    }


def test_a_reset_deletes_top_ups_only_if_it_is_asked_to(dashboard: DashboardService) -> None:
    dashboard.limiter.top_up({**ASKED}, 5_000)
    body = {"attributes": ASKED}
    for everything, left in ((False, 5_100), (True, 100)):
        answer = dashboard.ask(
            "POST", "/ratelimit/reset", {**body, "everything": everything}, role="operator"
        )
        assert answer.json()["quotas"][QUOTA]["topped_up"] == 5_000
        assert dashboard.limiter.quota_status(**ASKED)[QUOTA].available == left


def test_the_change_of_a_tier_counts_from_its_instant(dashboard: DashboardService) -> None:
    before = dashboard.limiter.quota_status(**ASKED)[QUOTA]
    answer = dashboard.ask("PUT", "/users/42", {"tier": "premium"}, role="operator")
    assert answer.status_code == 200
    asked = {**ASKED, "tier": "premium"}
    (upgraded,) = dashboard.limiter.quota_status(**asked).values()
    assert before.available == 100
    assert 100 < upgraded.available < 400


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"units": "0"}, 422),
        ({"units": ""}, 422),
        ({"units": "1.5"}, 422),
        ({"units": "1e3"}, 422),
        ({"units": "9" * 40}, 422),
        ({"units": str(2**53)}, 422),
        ({"priority": "101"}, 422),
        ({"expires": "2026-01-30"}, 422),
        ({"expires": "9999-12-31"}, 422),
        ({"expires": "soon"}, 422),
        ({"quota": "nothing"}, 422),
        ({"user": ""}, 422),
        ({"user": "x" * 256}, 422),
        ({"csrf": "another"}, 403),
    ],
)
def test_an_invalid_top_up_is_refused(
    dashboard: DashboardService, form: dict[str, str], status: int
) -> None:
    operator = dashboard.browser("operator")
    good = {"csrf": operator.csrf(), "user": "42", "quota": QUOTA, "units": "5"}
    answer = operator.ask("POST", "/quotas/top-up", {**good, **form})
    assert answer.status_code == status, answer.text
    assert dashboard.rows("select * from quota_top_ups") == []
    assert dashboard.rows("select * from audit_log where action like 'quota%'") == []
    assert dashboard.limiter.quota_status(**ASKED)[QUOTA].available == 100


def test_a_viewer_cannot_top_up(dashboard: DashboardService) -> None:
    form = {"user": "42", "quota": QUOTA, "units": "5"}
    assert dashboard.browser("viewer").post("/quotas/top-up", **form).status_code == 403
    answer = dashboard.ask("POST", "/quotas/top-ups", {"user": "42", "units": 5}, role="check")
    assert answer.status_code == 403


def test_the_admin_api_reads_and_tops_up(dashboard: DashboardService) -> None:
    new = {"user": "42", "units": 5, "expires_at": "2030-01-01T00:00:00Z", "reason": "sorry"}

    answer = dashboard.ask("POST", "/quotas/top-ups", new, role="operator")
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["id"], made["quota"], made["units"], made["priority"]) == (1, QUOTA, 5, 0)
    body = dashboard.ask("GET", "/quotas?user=42", role="viewer").json()
    assert body["tier"] == "free"
    (quota,) = body["quotas"]
    assert (quota["rule"], quota["name"], quota["limit"]) == ("api", QUOTA, 100)
    assert (quota["available"], quota["topped_up"], quota["used"]) == (105, 5, 0)
    assert quota["resets_at"] == "2001-10-01T00:00:00Z"
    assert quota["grants"][-1] == {
        "kind": "top-up",
        "units": 5,
        "left": 5,
        "expires_at": "2030-01-01T00:00:00Z",
        "priority": 0,
    }
    assert [each["reason"] for each in body["top_ups"]] == ["sorry"]
    assert dashboard.ask("GET", "/quotas", role="viewer").status_code == 422


def test_one_of_several_quotas_must_be_named(dashboard: DashboardService) -> None:
    add_api_rule(dashboard, id="yearly", endpoints=["/other"], limits="quota 9000/year")

    answer = dashboard.ask("POST", "/quotas/top-ups", {"user": "42", "units": 5})
    assert answer.status_code == 422
    assert QUOTA in answer.json()["detail"]
    assert "yearly" in answer.json()["detail"]
    new = {"user": "42", "units": 5, "quota": "yearly"}
    assert dashboard.ask("POST", "/quotas/top-ups", new).status_code == 201
    text = dashboard.browser("operator").get("/quotas?user=42").text
    assert text.count("<h3") == text.count("<option") == 2


def test_one_top_up_too_many_is_undone_and_reported(dashboard: DashboardService) -> None:

    new = {"user": "42", "units": 5}
    for _ in range(16):
        assert dashboard.ask("POST", "/quotas/top-ups", new).status_code == 201
    answer = dashboard.ask("POST", "/quotas/top-ups", new)
    assert answer.status_code == 422, answer.text
    assert len(dashboard.rows("select * from quota_top_ups")) == 16
    last = dashboard.rows("select action from audit_log order by id desc limit 1")[0]
    assert last[0] == "quota.top_up_failed"


def test_a_form_that_is_sent_twice_adds_its_units_once(dashboard: DashboardService) -> None:
    operator = dashboard.browser("operator")

    def loaded() -> dict[str, str]:
        found = re.search(r'name="once" value="([^"]+)"', operator.get("/quotas?user=42").text)
        assert found is not None
        return {"user": "42", "quota": QUOTA, "units": "5", "once": found[1]}

    form = loaded()
    for _ in range(2):
        answer = operator.post("/quotas/top-up", **form)
        assert (answer.status_code, "added=1" in answer.headers["location"]) == (303, True)
    assert topped_up(dashboard) == 5
    assert len(dashboard.rows("select * from quota_top_ups")) == 1
    assert operator.post("/quotas/top-up", **form | {"units": "6"}).status_code == 422
    assert operator.post("/quotas/top-up", **loaded()).status_code == 303
    assert topped_up(dashboard) == 10, "a page that was loaded again has a form of its own"


def test_a_form_that_is_sent_again_while_the_first_is_handled_is_refused(
    dashboard: DashboardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = dashboard.browser("operator")
    form = {"user": "42", "quota": QUOTA, "units": "5", "once": "k-1"}
    operator.post("/quotas/top-up", **form)
    monkeypatch.setattr(OnceKey, "known", lambda *_: None)  # read before the first began
    answer = operator.post("/quotas/top-up", **form)
    assert (answer.status_code, topped_up(dashboard)) == (409, 5)


def keyed(dashboard: DashboardService, new: Any, key: str = "k-1", role: str = "operator") -> Any:
    headers = {"Idempotency-Key": key}
    return dashboard.ask("POST", "/quotas/top-ups", new, role=role, headers=headers)


def topped_up(dashboard: DashboardService) -> int:
    return dashboard.limiter.quota_status(**ASKED)[QUOTA].topped_up


def test_a_top_up_that_is_sent_again_adds_its_units_once(dashboard: DashboardService) -> None:
    new = {"user": "42", "units": 5, "expires_at": "2030-01-01T00:00:00Z", "reason": "sorry"}
    first = keyed(dashboard, new)
    assert first.status_code == 201, first.text
    dashboard.clock.advance(days=6)
    again = keyed(dashboard, {**new, "expires_at": "2030-01-01T01:00:00+01:00"})
    assert (again.status_code, again.json()) == (201, first.json())
    assert topped_up(dashboard) == 5
    assert len(dashboard.rows("select * from quota_top_ups")) == 1
    assert len(dashboard.rows("select * from audit_log where action = 'quota.top_up'")) == 1
    assert keyed(dashboard, new, key="k-2").status_code == 201
    assert keyed(dashboard, new, role="admin").status_code == 201, "the key of another client"
    assert topped_up(dashboard) == 15


def test_a_key_cannot_be_used_for_another_request(dashboard: DashboardService) -> None:
    keyed(dashboard, {"user": "42", "units": 5})
    other = keyed(dashboard, {"user": "42", "units": 6})
    assert (other.status_code, "expected a new key" in other.text) == (422, True)
    for wrong in ("", "x" * 256):
        assert keyed(dashboard, {"user": "42", "units": 5}, key=wrong).status_code == 422
    assert topped_up(dashboard) == 5


def test_a_key_is_forgotten_after_a_week(dashboard: DashboardService) -> None:
    new = {"user": "42", "units": 5}
    keyed(dashboard, new)
    dashboard.clock.advance(days=7)
    assert keyed(dashboard, new).status_code == 201
    assert topped_up(dashboard) == 10
    assert len(dashboard.rows("select * from idempotency_keys")) == 1


def test_the_number_of_kept_keys_is_bounded(
    dashboard: DashboardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_keys, "MOST_KEYS", 2)
    for key in ("a", "b", "c"):
        keyed(dashboard, {"user": "42", "units": 5}, key=key)
    assert len(dashboard.rows("select * from idempotency_keys")) == 2
    keyed(dashboard, {"user": "42", "units": 5}, key="c")
    assert topped_up(dashboard) == 15


def test_a_top_up_with_an_unknown_outcome_is_not_made_again(
    dashboard: DashboardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives = dashboard.limiter.top_up

    def gives_and_times_out(*args: Any, **more: Any) -> None:
        gives(*args, **more)
        raise StorageError("no reply in time")

    new = {"user": "42", "units": 5}
    monkeypatch.setattr(dashboard.limiter, "top_up", gives_and_times_out)
    assert keyed(dashboard, new).status_code == 503
    monkeypatch.undo()
    again = keyed(dashboard, new)
    assert (again.status_code, "begun and not ended" in again.text) == (409, True)
    assert topped_up(dashboard) == 5


def test_a_refused_top_up_may_be_sent_again(
    dashboard: DashboardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*args: Any, **more: Any) -> None:
        raise ConfigurationError("there are 16 top-ups; expected at most that many")

    new = {"user": "42", "units": 5}
    monkeypatch.setattr(dashboard.limiter, "top_up", refuses)
    assert keyed(dashboard, new).status_code == 422
    monkeypatch.undo()
    assert keyed(dashboard, new).status_code == 201
    assert keyed(dashboard, {**new, "quota": "none"}, key="k-2").status_code == 422
    assert keyed(dashboard, new, key="k-2").status_code == 201, "a bad request keeps no key"
    assert topped_up(dashboard) == 10


def test_a_key_is_refused_while_its_request_is_being_done(
    dashboard: DashboardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives = dashboard.limiter.top_up
    new = {"user": "42", "units": 5}
    meanwhile: list[int] = []

    def asks_again_and_gives(*args: Any, **more: Any) -> None:
        meanwhile.append(keyed(dashboard, new).status_code)
        # Both may have looked before either began.
        with monkeypatch.context() as both:
            both.setattr(OnceKey, "known", lambda *_: None)
            meanwhile.append(keyed(dashboard, new).status_code)
        gives(*args, **more)

    monkeypatch.setattr(dashboard.limiter, "top_up", asks_again_and_gives)
    assert keyed(dashboard, new).status_code == 201
    assert meanwhile == [409, 409]
    assert topped_up(dashboard) == 5


def test_the_page_says_that_the_storage_does_not_answer(
    dashboard: DashboardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**attributes: Any) -> Any:
        raise StorageError("connection refused")

    monkeypatch.setattr(dashboard.limiter, "quota_status", fails)
    answer = dashboard.browser("operator").get("/quotas?user=42")
    assert answer.status_code == 200
    assert "connection refused" in answer.text
    assert dashboard.ask("GET", "/quotas?user=42").status_code == 503


def test_names_are_escaped(dashboard: DashboardService) -> None:
    dashboard.ask("POST", "/quotas/top-ups", {"user": HOSTILE, "units": 5, "reason": HOSTILE})
    for path in ("/quotas", "/live/quotas"):
        answer = dashboard.browser("operator").ask("GET", path, params={"user": HOSTILE})
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
