"""The result of a replay: its columns, totals, exports, and how they are displayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from processes import imported_by
from tidegate import ConfigurationError, Limit, Limiter, ManualClock, Plan, RuleSet, tuning

SECOND = 10**9
START = 1_700_000_000 * SECOND
TIMES = [START + n * SECOND for n in range(6)]
USERS = ["ann", "bob", "ann", "ann", "<b>", "ann"]


@pytest.fixture
def result() -> tuning.Replay:
    return tuning.replay("2/minute", USERS, TIMES)


def test_the_columns_have_the_decision_of_each_request(result: tuning.Replay) -> None:
    assert result.allowed.dtype == np.bool_
    assert result.allowed.tolist() == [True, True, True, False, True, False]
    assert result.remaining.tolist() == [1, 1, 0, 0, 1, 0]
    assert result.retry_after.tolist() == [0, 0, 0, 27, 0, 25]
    assert list(result.rule) == ["2/minute"] * 6
    assert result.delay.tolist() == [0] * 6
    assert result.waited.tolist() == [0] * 6
    assert result.times.tolist() == TIMES
    assert result.limits == (Limit("2/minute"),)
    assert len(result) == 6
    assert result.refused == 2
    assert result.refused_share == pytest.approx(1 / 3)
    assert result.total_attempts == 6
    assert result.refused_attempts == 2
    assert result.notes == ()


def test_totals_begin_with_the_most_refused_key(result: tuning.Replay) -> None:
    totals = result.totals()
    assert totals.to_dict() == {
        "key": ["ann", "bob", "<b>"],
        "requests": [4, 1, 1],
        "allowed": [2, 1, 1],
        "refused": [2, 0, 0],
        "refused_share": [0.5, 0.0, 0.0],
    }


def test_totals_by_one_of_several_keys() -> None:
    keys = {"user": USERS, "ip": [1, 1, 1, 2, 2, 2], "path": ["/"] * 6}
    result = tuning.replay({"user": "2/minute"}, keys, TIMES, clients="obey")
    assert result.totals("ip")["requests"].tolist() == [3, 3]
    assert result.totals("path").to_dict()["attempts"] == [result.total_attempts]
    with pytest.raises(ConfigurationError, match="by 'city'; expected one of 'user', 'ip'"):
        result.totals("city")


def test_totals_leave_out_names_without_requests() -> None:
    keys = tuning.Keys(np.array([1], np.uint32), ["a", "b"])
    assert tuning.replay("1/hour", keys, [START]).totals().to_dict()["key"] == ["b"]


def test_columns_that_were_not_asked_for_are_errors() -> None:
    result = tuning.replay("2/minute", USERS, TIMES, columns=["retry_after"])
    assert result.retry_after[3] == 27
    assert result.refused == 2
    assert result.rule[0] == "2/minute"
    with pytest.raises(ConfigurationError, match="remaining was not asked for; expected"):
        _ = result.remaining
    assert "remaining" not in result.frame().columns
    several = tuning.replay(["2/minute", "9/hour"], USERS, TIMES, columns=[])
    with pytest.raises(ConfigurationError, match="rule was not asked for"):
        _ = several.rule
    assert list(several.frame().columns) == ["time", "key", "allowed"]


@pytest.mark.parametrize("columns", [["room"], "rule", 3])
def test_unknown_columns_are_errors(columns: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a list of remaining, retry_after"):
        tuning.replay("2/minute", USERS, TIMES, columns=columns)


def test_leaky_buckets_have_a_delay() -> None:
    result = tuning.replay("1/second burst 3", ["a"] * 3, [START] * 3, algorithm="leaky-bucket")
    assert result.delay.tolist() == [0, 1, 2]
    assert result.frame()["delay"].tolist() == [0, 1, 2]


def test_exports_have_a_row_for_each_request(result: tuning.Replay) -> None:
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["key"].tolist() == USERS
    assert frame["allowed"].tolist() == result.allowed.tolist()
    assert frame["time"].iloc[3] == pd.Timestamp(TIMES[3])
    of_polars = result.to_polars()
    assert isinstance(of_polars, pl.DataFrame)
    assert of_polars["key"].to_list() == USERS
    assert of_polars["rule"].to_list() == ["2/minute"] * 6
    table = result.to_arrow()
    assert isinstance(table, pa.Table)
    assert table.column("key").to_pylist() == USERS
    assert table.column("retry_after").to_pylist() == [0, 0, 0, 27, 0, 25]
    assert result.to_dict()["key"] == USERS
    assert list(frame.columns) == of_polars.columns == table.column_names == list(result.to_dict())


def test_missing_and_int_keys_are_exported() -> None:
    rules = RuleSet({"rules": [{"id": "api", "by": "user", "limits": "1/minute"}]})
    users = [7, None, 7]
    result = tuning.replay(rules, {"user": users}, TIMES[:3])
    assert list(result.rule) == ["api", None, "api"]
    assert result.to_polars()["user"].to_list() == [7, None, 7]
    assert result.to_arrow().column("user").to_pylist() == [7, None, 7]
    assert [None if each != each else each for each in result.to_pandas()["user"]] == users
    ints = tuning.replay("1/minute", np.array([3, 4, 3]), TIMES[:3])
    for exported in (ints.to_pandas()["key"].tolist(), ints.to_polars()["key"].to_list()):
        assert exported == [3, 4, 3]


def test_a_replay_is_displayed_as_text_and_html(result: tuning.Replay) -> None:
    assert repr(result) == "Replay(2/minute: 6 requests, 2 refused (33.3 %))"
    page = result._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b></td>" not in page
    assert "6 requests, 2 refused" in page
    shown = repr(result.totals())
    assert shown.splitlines()[0].split() == [
        "key", "requests", "allowed", "refused", "refused_share",
    ]  # fmt: skip
    assert len({len(line) for line in shown.splitlines()}) == 1
    assert repr(tuning.as_keys(USERS)) == "Keys(6 of 3 names: 'ann', 'bob', '<b>')"


def test_long_tables_are_shortened_in_display() -> None:
    frame = tuning.Frame({"n": np.arange(1_000), "x": np.linspace(0, 1, 1_000)})
    assert len(repr(frame).splitlines()) == 12
    assert "1,000 rows" in repr(frame)
    assert "1,000 rows" in frame._repr_html_()
    with pytest.raises(KeyError, match="'y' is no column; expected one of n, x"):
        _ = frame["y"]
    with pytest.raises(ConfigurationError, match="expected one length"):
        tuning.Frame({"a": np.arange(2), "b": np.arange(3)})


def test_a_replay_without_requests_has_empty_results() -> None:
    for limit in ("1/minute", ["1/minute", "2/hour"]):
        result = tuning.replay(limit, [], [], clients="obey")
        assert len(result) == 0
        assert result.refused_share == 0
        assert len(result.totals()) == 0
        assert result.retry_after.tolist() == []
        assert "0 requests" in repr(result)
        assert "0 requests" in result._repr_html_()
    empty = tuning.replay({"a": "1/minute"}, {"a": []}, np.array([], "datetime64[s]"))
    assert len(empty.to_pandas()) == 0


def test_a_note_says_how_a_concurrency_limit_is_replayed() -> None:
    limit = Limit(1, 10, algorithm="concurrency")
    result = tuning.replay(limit, ["a"] * 3, [START, START + SECOND, START + 10 * SECOND])
    assert result.allowed.tolist() == [True, False, True]
    assert "lease" in result.notes[0]
    assert "lease" in result._repr_html_()


def test_equal_limits_under_two_keys_are_distinguished() -> None:
    result = tuning.replay(
        {"user": "1/hour", "ip": "1/hour"}, {"user": ["a", "b"], "ip": ["x", "x"]}, TIMES[:2]
    )
    assert list(result.rule)[1] == "ip: 1/hour"


def test_limiters_and_plans_can_be_replayed() -> None:
    clock = ManualClock()
    users = Limiter(["2/minute", "9/hour"], clock=clock, prefix="users")
    assert tuning.replay(users, USERS, TIMES).limits == users.limits
    everybody = Limiter("4/minute", clock=clock, prefix="all", storage=users.storage)
    result = tuning.replay(Plan([users, everybody]), [USERS, ["all"] * 6], TIMES)
    assert result.limits == (*users.limits, *everybody.limits)
    assert users.stats().allowed == 0


@pytest.mark.parametrize(
    ("limit", "keys", "costs", "message"),
    [
        ({}, {}, None, "no limit was given; expected at least one"),
        ([], ["a"], None, "no limit was given"),
        ("often", ["a"], None, "cannot read the limit 'often'"),
        (3, ["a"], None, "the limit is 3 of type int"),
        ({"ip": "1/hour"}, ["a"], None, r"of type list; expected a dict with a column"),
        ({"ip": "1/hour"}, {"user": ["a"]}, None, "no 'ip'; expected a column of keys for each"),
        ({"ip": "1/hour"}, {"ip": ["a", "b"]}, None, "2 keys 'ip' were given with 1 times"),
        ({"ip": "1/hour"}, {"ip": [None]}, None, "keys 'ip' have None of type NoneType at index 0"),
        ({"ip": "1/hour"}, {"ip": ["a"]}, {"user": [1]}, "costs were given for 'user'"),
        ({"ip": "1/hour"}, {"ip": ["a"]}, {"ip": [0]}, "the cost at index 0 is 0"),
    ],
)
def test_arguments_that_do_not_match_are_errors(
    limit: Any, keys: Any, costs: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tuning.replay(limit, keys, [START], costs)


def test_plans_that_do_not_match_their_columns_are_errors() -> None:
    one = Limiter("1/hour", clock=(clock := ManualClock()))
    other = Limiter("1/hour", clock=clock, storage=one.storage)
    with pytest.raises(ConfigurationError, match="expected a list with a column for each limiter"):
        tuning.replay(Plan([one]), ["a", "b"], TIMES[:2])
    with pytest.raises(ConfigurationError, match="together; expected prefixes that tell them"):
        tuning.replay(Plan([one, other]), [["a"], ["b"]], TIMES[:1])
    apart = Limiter("1/hour", clock=clock, storage=one.storage, prefix="apart")
    with pytest.raises(ConfigurationError, match="the costs of a plan of 2 limiters"):
        tuning.replay(Plan([one, apart]), [["a"], ["b"]], TIMES[:1], [1])


def test_a_progress_bar_is_shown_if_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    tuning.replay("2/minute", USERS, TIMES, progress=True)
    assert "replay" in capfd.readouterr().err
    tuning.replay("2/minute", USERS, TIMES)
    assert capfd.readouterr().err == ""


def test_importing_tidegate_does_not_import_tuning_or_numpy() -> None:
    found = imported_by("import tidegate")
    assert [name for name in found if "tuning" in name or name == "numpy"] == []


def test_tuning_imports_no_optional_library_but_numpy() -> None:
    found = imported_by("from tidegate import tuning; tuning.replay('1/hour', ['a'], [1])")
    assert found & {"pandas", "polars", "pyarrow", "tqdm", "matplotlib"} == set()


def test_names_that_utf8_cannot_encode_are_exported_as_escapes() -> None:
    result = tuning.replay("2/minute", ["\ud800", "a", "\ud800"], TIMES[:3])
    assert result.to_arrow()["key"].to_pylist() == ["\\ud800", "a", "\\ud800"]
    assert result.to_polars()["key"].to_list() == ["\\ud800", "a", "\\ud800"]


def test_a_note_names_rules_whose_attribute_was_not_given() -> None:
    rules = RuleSet(
        {
            "rules": [
                {"id": "users", "by": "user", "limits": "1/minute"},
                {"id": "all", "by": [], "limits": "5/minute"},
            ]
        }
    )
    for limit in (rules, Limiter(rules=rules)):
        result = tuning.replay(limit, {"usr": USERS}, TIMES)
        assert result.notes == (
            "The rule users counts by user, which was not given: it applied to no request.",
        )
    assert tuning.replay(rules, {"user": USERS}, TIMES).notes == ()


@pytest.mark.parametrize("count", [2**32 - 1, 2**32, 2**40])
def test_remaining_units_beyond_32_bits_are_not_truncated(count: int) -> None:
    result = tuning.replay(f"{count}/minute", ["a", "a"], [START, START])
    assert result.remaining.tolist() == [count - 1, count - 2]
    assert result.remaining.dtype == np.int64


def test_the_units_that_a_quota_carries_count_as_remaining() -> None:
    month = 31 * 24 * 3600 * 10**9
    limit = f"quota {2**32 - 1}/month rollover {2**32 - 1}"
    result = tuning.replay(limit, ["a", "a"], [START, START + month])
    assert result.remaining.tolist() == [2**32 - 2, 2 * (2**32 - 1) - 2]
