"""What single settings change in a service that runs."""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from metrics import exposed
from running_service import Running
from tidegate.rules.sql.connection import engine_of
from tidegate.rules.sql.schema import violations
from tidegate.rules.sql.service_tables import usage_hours

DESCRIPTORS = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: tenant, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 1000}}
"""


def rows_of(url: str, table: sa.Table, column: str) -> list[Any]:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = list(connection.execute(sa.select(table.c[column]).order_by(column)).scalars())
    engine.dispose()
    return found


@pytest.mark.parametrize(
    ("most", "counted"),
    [
        # The limits that requests bring have a counter too: "overrides".
        (1000, {"overrides": 0, "path": 1, "tenant": 2, "user": 3}),
        (3, {"overrides": 0, "path": 1, "tenant": 2, "(others)": 3}),
        (0, {"(others)": 6}),
    ],
)
def test_named_in_metrics_bounds_the_descriptors_with_counters_of_their_own(
    tmp_path: Path, most: int, counted: dict[str, int]
) -> None:
    running = Running(tmp_path, limits=DESCRIPTORS, envoy={"named_in_metrics": most})
    try:
        for times, key in enumerate(("path", "tenant", "user"), start=1):
            for _ in range(times):
                running.descriptors({key: "1"})
        samples = exposed(running.admin("GET", "/metrics").text)
    finally:
        running.service.stop()
    name = "tidegate_envoy_descriptor_hits_total"
    assert {
        dict(labels)["descriptor"]: hits for (each, labels), hits in samples.items() if each == name
    } == counted


@pytest.mark.parametrize(
    ("user_key", "user"), [("user", "42"), ("tenant", "7"), ("", "descriptor:path=/a")]
)
def test_user_key_names_the_entry_under_whose_value_a_request_is_recorded(
    tmp_path: Path, user_key: str, user: str
) -> None:
    running = Running(tmp_path, limits=DESCRIPTORS, envoy={"user_key": user_key})
    try:
        running.descriptors({"path": "/a", "user": "42", "tenant": "7"})
        running.service.recording.take()
        recorded = [row.user for each in running.service.recording.recent() for row in each.rows]
    finally:
        running.service.stop()
    assert set(recorded) == {user}
    assert set(rows_of(running.url, usage_hours, "user_id")) == {user}


def test_violations_are_kept_for_their_own_number_of_days(tmp_path: Path) -> None:
    running = Running(
        tmp_path, limits=DESCRIPTORS, usage={"keep_days": 5, "keep_violations_days": 2}
    )
    try:
        engine = engine_of(running.url)
        now = dt.datetime.now(dt.timezone.utc)
        with engine.begin() as connection:
            for days in (1, 3, 6):
                at = now - dt.timedelta(days=days)
                named = {"endpoint": f"{days} days ago"}
                counts = {"attempted_count": 1, "caller": "user:1", "attributes": {}}
                connection.execute(sa.insert(violations).values(timestamp=at, **named, **counts))
                connection.execute(sa.insert(usage_hours).values(hour=at, user_id="1", **named))
        engine.dispose()
        running.descriptors({"user": "42"})
    finally:
        running.service.stop()  # writes the refusal
    assert rows_of(running.url, violations, "endpoint") == ["1 days ago", "edge"]
    assert rows_of(running.url, usage_hours, "endpoint") == ["1 days ago", "3 days ago", "edge"]


@pytest.mark.parametrize(("least", "written"), [(0, ["edge"]), (2**62, [])])
def test_nothing_is_added_to_the_history_while_the_disk_has_less_than_least_free_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, least: int, written: list[str]
) -> None:
    with caplog.at_level(logging.WARNING, "tidegate"):
        running = Running(tmp_path, limits=DESCRIPTORS, usage={"least_free_bytes": least})
        running.descriptors({"user": "42"})
        running.service.stop()
    assert rows_of(running.url, usage_hours, "endpoint") == written
    assert rows_of(running.url, violations, "endpoint") == written
    said = f"nothing is added to the history below {least / 2**20:.0f} MiB"
    assert (said in caplog.text) is (written == [])
