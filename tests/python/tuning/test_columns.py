"""Keys, times and costs are read in every form that callers have them in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tidegate import ConfigurationError, tuning
from tidegate.tuning.times import as_times

NAMES = ["ann", "bob", "ann", "Zoë", "bob", "a much longer name than others", "ann"]
INTS = [7, -3, 7, 2**40, -3, 0, 7]
NS = 1_700_000_000_000_000_000

TEXT_COLUMNS: dict[str, Callable[[list[str]], Any]] = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "numpy U": np.array,
    "numpy object": lambda names: np.array(names, dtype=object),
    "numpy strided": lambda names: np.array([*names, *names])[: len(names)][::-1][::-1],
    "pandas object": lambda names: pd.Series(names, dtype=object),
    "pandas string": lambda names: pd.Series(names, dtype="string"),
    "pandas str": pd.Series,
    "pandas category": lambda names: pd.Series(names, dtype="category"),
    "pandas Categorical": pd.Categorical,
    "pandas CategoricalIndex": pd.CategoricalIndex,
    "pandas Index": pd.Index,
    "pandas arrow": lambda names: pd.Series(names, dtype=pd.ArrowDtype(pa.string())),
    "polars": pl.Series,
    "polars Categorical": lambda names: pl.Series(names, dtype=pl.Categorical),
    "polars Enum": lambda names: pl.Series(names, dtype=pl.Enum(["x", *dict.fromkeys(names)])),
    "polars in chunks": lambda names: pl.concat([pl.Series(names[:2]), pl.Series(names[2:])]),
    "polars slice": lambda names: pl.Series(["no", *names, "no"])[1:-1],
    "arrow": pa.array,
    "arrow large": lambda names: pa.array(names, pa.large_string()),
    "arrow view": lambda names: pa.array(names, pa.string_view()),
    "arrow slice": lambda names: pa.array(["no", *names, "no"])[1:-1],
    "arrow dictionary": lambda names: pa.array(names).dictionary_encode(),
    "arrow chunked": lambda names: pa.chunked_array([names[:3], names[3:]]),
    "arrow chunked dictionary": lambda names: pa.chunked_array(
        [pa.array(part).dictionary_encode() for part in (names[:3], names[3:])]
    ),
}


@pytest.mark.parametrize("form", TEXT_COLUMNS)
def test_text_keys_are_read_in_every_form(form: str) -> None:
    keys = tuning.as_keys(TEXT_COLUMNS[form](NAMES))
    assert keys.codes.dtype == np.uint32
    assert list(keys) == NAMES
    assert keys[3] == "Zoë"
    assert len(set(keys.codes.tolist())) == 4
    assert len(keys) == 7
    assert list(keys[2:4]) == NAMES[2:4]
    assert list(keys[np.array(NAMES) == "ann"]) == ["ann"] * 3
    assert keys.to_numpy().tolist() == NAMES


@pytest.mark.parametrize("form", sorted(set(TEXT_COLUMNS) - {"polars Enum"}))
def test_an_empty_column_has_no_keys(form: str) -> None:
    keys = tuning.as_keys(TEXT_COLUMNS[form]([]))
    assert len(keys) == 0
    assert list(keys) == []


BYTES_COLUMNS: dict[str, Callable[[list[bytes]], Any]] = {
    "list": list,
    "numpy S": np.array,
    "arrow": pa.array,
    "arrow large": lambda keys: pa.array(keys, pa.large_binary()),
    "arrow fixed": lambda keys: pa.array([key[:2] for key in keys], pa.binary(2)),
    "polars": pl.Series,
}


@pytest.mark.parametrize("form", BYTES_COLUMNS)
def test_bytes_keys_are_read_in_every_form(form: str) -> None:
    given = [b"ab", b"\xff\x01", b"ab", b"\x00c"]
    assert list(tuning.as_keys(BYTES_COLUMNS[form](given))) == given


INT_COLUMNS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "int64": np.array,
    "big-endian": lambda ints: np.array(ints, dtype=">i8"),
    "pandas": pd.Series,
    "pandas Int64": lambda ints: pd.Series(ints, dtype="Int64"),
    "pandas category": lambda ints: pd.Series(ints, dtype="category"),
    "polars": pl.Series,
    "arrow": pa.array,
}


@pytest.mark.parametrize("form", INT_COLUMNS)
def test_int_keys_are_read_in_every_form(form: str) -> None:
    keys = tuning.as_keys(INT_COLUMNS[form](INTS))
    assert list(keys) == INTS
    assert len(keys.names) == 4


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_int_keys_of_every_width_are_read(kind: str) -> None:
    info = np.iinfo(kind)
    for given in ([info.max, info.min, 1, info.max], [5, 6, 5, 5]):
        column = np.array(given, dtype=kind)
        assert list(tuning.as_keys(column)) == given
        assert list(tuning.as_keys(pl.Series(column))) == given


def test_many_ints_are_numbered_in_order_of_first_appearance() -> None:
    random = np.random.default_rng(1)
    for ids in (np.arange(70_000), random.integers(0, 2**62, 70_000)):
        given = random.choice(ids, 200_000)
        keys = tuning.as_keys(given)
        assert (keys.names[keys.codes] == given).all()
        assert len(np.unique(given)) == len(keys.names)
        firsts = np.unique(keys.codes, return_index=True)[1]
        assert (np.diff(firsts) > 0).all()


def test_a_text_and_its_utf8_bytes_are_one_key_as_in_a_limiter() -> None:
    assert len(tuning.as_keys(["Zoë", "Zoë".encode()]).names) == 1


def test_unused_categories_are_not_keys() -> None:
    column = pd.Series(pd.Categorical(["b", "c"], categories=["a", "b", "c"]))
    assert list(tuning.as_keys(column).names) == ["b", "c"]


def test_a_keys_column_is_used_unchanged() -> None:
    keys = tuning.Keys(np.array([1, 0, 1], np.uint32), ["a", "b"])
    result = tuning.replay("1/hour", keys, [1, 2, 3])
    assert result.allowed.tolist() == [True, True, False]
    assert result.keys["key"].names is keys.names


@pytest.mark.parametrize(
    "codes", [np.array([0, 2, 1], np.uint32), np.array([0, 1, 1]), [0, 1, 1]], ids=str
)
def test_codes_without_a_name_are_errors(codes: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"index 1.*below 2|expected a column of uint32"):
        tuning.replay("1/hour", tuning.Keys(codes, ["a", "b"]), [1, 2, 3])


BAD_KEYS: dict[str, tuple[Any, str]] = {
    "None": (["a", None], r"None of type NoneType at index 1"),
    "an empty text": (["a", ""], r"'' of type str at index 1"),
    "an empty text of NumPy": (np.array(["a", ""]), r"'' of type str at index 1"),
    "empty bytes": (pa.array([b"a", b""]), r"b'' of type bytes at index 1"),
    "a float": (["a", 1.5], r"1\.5 of type float at index 1"),
    "ints among texts": (["a", 3], r"3 of type int at index 1"),
    "floats": (np.array([1.5, 2.0]), r"float64.*1\.5"),
    "bools": (np.array([True, False]), r"bool.*True"),
    "times": (np.array(["2026"], "datetime64[D]").repeat(2), r"datetime64"),
    "too large an int": ([1, 2**70], r"at index 1; expected ints of 64 bits"),
    "two dimensions": (np.zeros((2, 2), int), r"2 dimensions"),
    "one text": ("ab", r"'ab' of type str"),
    "an int": (3, r"3 of type int"),
    "a dict": ({"a": 1}, r"of type dict"),
    "a frame of pandas": (pd.DataFrame({"a": ["x"]}), r"DataFrame of pandas"),
    "a frame of polars": (pl.DataFrame({"a": ["x", "y"]}), r"the format \+s"),
    "a missing category": (pd.Series(["a", None], dtype="category"), r"None.*at index 1"),
    "a missing text of pandas": (pd.Series(["a", None], dtype="string"), r"at index 1"),
    "a missing int of pandas": (pd.Series([1, None], dtype="Int64"), r"at index 1"),
    "a null of Arrow": (pa.array(["a", None]), r"None.*at index 1"),
    "a null int of Arrow": (pa.array([1, None]), r"None.*at index 1"),
    "a null of a dictionary": (pa.array(["a", None]).dictionary_encode(), r"None.*at index 1"),
    "floats of Arrow": (pa.array([1.5, 2.0]), r"the format g; expected texts"),
    "timestamps of Arrow": (pa.array([1, 2], pa.timestamp("s", "UTC")), r"timestamps"),
}


@pytest.mark.parametrize("case", BAD_KEYS)
def test_an_invalid_key_is_an_error_with_its_position(case: str) -> None:
    column, message = BAD_KEYS[case]
    with pytest.raises(ConfigurationError, match=message) as raised:
        tuning.replay("1/hour", column, [1, 2])
    assert "expected" in str(raised.value)


WHEN = [
    datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone.utc),
    datetime(2026, 3, 1, 14, 0, 1, tzinfo=timezone(timedelta(hours=2))),
    datetime(2026, 3, 1, 12, 0, 2, tzinfo=timezone.utc),
]
WHEN_NS = [1_772_366_400_123_456_000, 1_772_366_401_000_000_000, 1_772_366_402_000_000_000]
UTC = [when.astimezone(timezone.utc) for when in WHEN]

TIME_COLUMNS: dict[str, Callable[[], Any]] = {
    "ints": lambda: WHEN_NS,
    "an array": lambda: np.array(WHEN_NS),
    "an array of uint64": lambda: np.array(WHEN_NS, dtype=np.uint64),
    "datetimes": lambda: WHEN,
    "an array of datetimes": lambda: np.array(WHEN, dtype=object),
    "scalars of NumPy": lambda: [np.datetime64(ns, "ns") for ns in WHEN_NS],
    "ints of NumPy": lambda: [np.int64(ns) for ns in WHEN_NS],
    "datetime64[ns]": lambda: np.array(WHEN_NS).view("datetime64[ns]"),
    "datetime64[us]": lambda: (np.array(WHEN_NS) // 1000).view("datetime64[us]"),
    "datetime64[100ns]": lambda: (np.array(WHEN_NS) // 100).view("datetime64[100ns]"),
    "pandas without a zone": lambda: pd.Series(np.array(WHEN_NS).view("datetime64[ns]")),
    "pandas with a zone": lambda: pd.Series(pd.to_datetime(UTC)).dt.tz_convert("Asia/Tokyo"),
    "pandas index": lambda: pd.DatetimeIndex(UTC),
    "pandas objects": lambda: pd.Series([pd.Timestamp(when) for when in WHEN], dtype=object),
    "pandas arrow": lambda: pd.Series(UTC, dtype=pd.ArrowDtype(pa.timestamp("ns", "UTC"))),
    "polars": lambda: pl.Series(UTC),
    "polars in another zone": lambda: pl.Series(UTC).dt.convert_time_zone("America/New_York"),
    "polars ints": lambda: pl.Series(WHEN_NS),
    "arrow": lambda: pa.array(UTC, pa.timestamp("us", "UTC")),
    "arrow with an offset": lambda: pa.array(UTC, pa.timestamp("ns", "+02:00")),
    "arrow chunked": lambda: pa.chunked_array([pa.array([each]) for each in WHEN_NS]),
}


@pytest.mark.parametrize("form", TIME_COLUMNS)
def test_times_are_read_in_every_form(form: str) -> None:
    result = tuning.replay("1/hour", [1, 2, 3], TIME_COLUMNS[form]())
    assert result.times.tolist() == WHEN_NS


def test_nanoseconds_of_pandas_are_kept() -> None:
    when = pd.Timestamp(WHEN_NS[0] + 7, tz="UTC")
    assert tuning.replay("1/hour", ["a"], [when]).times.tolist() == [WHEN_NS[0] + 7]


@pytest.mark.parametrize(
    ("unit", "ns"),
    [
        ("Y", 1_767_225_600 * 10**9),
        ("M", 1_772_323_200 * 10**9),
        ("D", 1_772_323_200 * 10**9),
        ("h", 1_772_366_400 * 10**9),
        ("s", 1_772_366_400 * 10**9),
        ("ms", 1_772_366_400_123 * 10**6),
        ("us", WHEN_NS[0]),
        ("ns", WHEN_NS[0]),
    ],
)
def test_datetime64_is_read_in_every_unit(unit: str, ns: int) -> None:
    times = np.array(["2026-03-01T12:00:00.123456"], dtype="datetime64[us]")
    assert as_times(times.astype(f"datetime64[{unit}]")).ns.tolist() == [ns]


def test_datetime64_finer_than_nanoseconds_is_read() -> None:
    times = np.array([1_999], dtype="datetime64[ps]")
    assert as_times(times).ns.tolist() == [1]


def test_times_are_copied_only_if_needed() -> None:
    ints = np.array(WHEN_NS)
    assert as_times(ints).ns is ints
    assert np.shares_memory(as_times(ints.view("datetime64[ns]")).ns, ints)


BAD_TIMES: dict[str, tuple[Any, str]] = {
    "NaT": (np.array(["2026", "NaT"], "datetime64[s]"), r"index 1 is NaT"),
    "NaT of pandas": (pd.Series(pd.to_datetime(["2026-01-01", None])), r"index 1 is NaT"),
    "NaT among objects": ([pd.Timestamp(NS, tz="UTC"), pd.NaT], r"index 1 is NaT"),
    "None": ([1, None], r"index 1 is None"),
    "a null of polars": (pl.Series([1, None]), r"index 1 is missing"),
    "a null of Arrow": (pa.array([1, None], pa.timestamp("s", "UTC")), r"index 1 is missing"),
    "a float": ([1, 2.5], r"index 1 is 2\.5 of type float"),
    "floats": (np.array([1.5, 2.5]), r"float64.*1\.5.*expected nanoseconds"),
    "NaN": ([1, float("nan")], r"index 1 is nan"),
    "a text": ([1, "2026-01-01"], r"index 1 is '2026-01-01' of type str"),
    "texts": (np.array(["a", "b"]), r"<U1"),
    "a bool": ([1, True], r"index 1 is True of type bool"),
    "negative": ([1, -1], r"index 1 is -1; expected one from 1970"),
    "before 1970": (np.array(["1970", "1969"], "datetime64[Y]"), r"index 1 is 1969; expected"),
    "long before": (np.array([0, -(2**62)], "datetime64[Y]"), r"index 1 is"),
    "far": ([1, 2**62 + 1], r"index 1 is 4611686018427387905; expected"),
    "beyond 64 bits": ([1, 2**70], r"index 1 is"),
    "beyond int64": (np.array([1, 2**63], np.uint64), r"index 1 is 9223372036854775808"),
    "far days": (np.array([0, 2**40], "datetime64[D]"), r"index 1 is"),
    "far hours": (np.array([0, 2**62], "datetime64[h]"), r"index 1 is"),
    "far seconds": (np.array([0, 2**62], "datetime64[s]"), r"index 1 is"),
    "far microseconds": (np.array([0, 2**62], "datetime64[us]"), r"index 1 is"),
    "no zone": ([UTC[0], datetime(2026, 3, 1)], r"at index 1 .*has no time zone"),
    "no zone of polars": (pl.Series([datetime(2026, 3, 1)] * 2), r"without a time zone"),
    "no zone of Arrow": (pa.array([1, 2], pa.timestamp("s")), r"without a time zone"),
    "dates of Arrow": (pa.array([1, 2], pa.date32()), r"the format tdD"),
    "texts of Arrow": (pa.array(["a", "b"]), r"the times are texts"),
    "one int": (3, r"3 of type int"),
    "one text": ("12", r"'12' of type str"),
    "two dimensions": (np.zeros((2, 1), int), r"2 dimensions"),
    "too few": ([1], r"2 keys were given with 1 times"),
    "too many": ([1, 2, 3], r"2 keys were given with 3 times"),
    "none": ([], r"2 keys were given with 0 times"),
}


@pytest.mark.parametrize("case", BAD_TIMES)
def test_an_invalid_time_is_an_error_with_its_position(case: str) -> None:
    column, message = BAD_TIMES[case]
    with pytest.raises(ConfigurationError, match=message) as raised:
        tuning.replay("1/hour", ["a", "b"], column)
    assert "expected" in str(raised.value)


@pytest.mark.parametrize("column", [list, np.array, pl.Series], ids=["list", "NumPy", "polars"])
@pytest.mark.parametrize("scale", [1, 10**3, 10**6], ids=["seconds", "ms", "us"])
def test_present_times_in_another_unit_are_errors(scale: int, column: Any) -> None:
    times = column([1_700_000_000 * scale + 1, 1_700_000_001 * scale])
    with pytest.raises(ConfigurationError, match=r"which look like .*expected nanoseconds"):
        tuning.replay("1/hour", ["a", "b"], times)


def test_small_times_that_match_no_unit_are_accepted() -> None:
    tuning.replay("1/hour", ["a", "b"], [0, 10**9])
    made_up = np.array([1_700_000_001, 1_700_000_002], "datetime64[ns]")
    assert tuning.replay("1/hour", ["a", "b"], made_up).allowed.all()
    tuning.replay("1/hour", ["a", "b"], np.array([17, 18], "datetime64[s]"))


BAD_COSTS: dict[str, tuple[Any, str]] = {
    "zero": ([1, 0], r"index 1 is 0 of type int; expected an int from 1"),
    "zero of NumPy": (np.array([1, 0]), r"index 1 is 0"),
    "negative": (np.array([1, -5]), r"index 1 is -5"),
    "a float": ([1, 2.0], r"index 1 is 2\.0 of type float"),
    "floats": (np.array([1.0, 2.0]), r"float64.*1\.0.*expected ints"),
    "bools": (np.array([True, True]), r"bool"),
    "None": ([1, None], r"index 1 is None"),
    "a null": (pl.Series([1, None]), r"index 1 is None"),
    "too large": ([1, 2**63], r"index 1 is"),
    "too large of NumPy": (np.array([1, 2**63], np.uint64), r"index 1 is 9223372036854775808"),
    "texts": (["a", "b"], r"index 0 is 'a'"),
    "texts of Arrow": (pa.array(["a", "b"]), r"the costs are texts"),
    "one": (1, r"1 of type int"),
    "too few": ([1], r"1 costs were given with 2 times"),
}


@pytest.mark.parametrize("case", BAD_COSTS)
def test_an_invalid_cost_is_an_error_with_its_position(case: str) -> None:
    column, message = BAD_COSTS[case]
    with pytest.raises(ConfigurationError, match=message) as raised:
        tuning.replay("1/hour", ["a", "b"], [1, 2], column)
    assert "expected" in str(raised.value)


@pytest.mark.parametrize(
    "column",
    [[2, 3], np.array([2, 3], np.uint8), pd.Series([2, 3]), pl.Series([2, 3]), pa.array([2, 3])],
    ids=lambda column: type(column).__module__,
)
def test_costs_are_read_in_every_form(column: Any) -> None:
    result = tuning.replay("9/hour", ["a", "a"], [1, 2], column)
    assert result.remaining.tolist() == [7, 4]


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 2 has texts of any length")
def test_numpy_texts_of_variable_length_are_read() -> None:
    texts = np.dtypes.StringDType
    assert list(tuning.as_keys(np.array(NAMES, dtype=texts()))) == NAMES
    some = np.array(["a", None, "b"], dtype=texts(na_object=None))
    with pytest.raises(ConfigurationError, match=r"have None .* at index 1; expected keys"):
        tuning.as_keys(some)


@pytest.mark.parametrize("column", [{1, 2}, frozenset([1, 2]), bytearray(b"ab")])
def test_sets_and_single_keys_are_not_columns(column: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"expected keys: .* as an array"):
        tuning.replay("1/minute", column, [NS, NS])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "a"], "the names of the keys have 'a' .* twice; expected each name once"),
        (["a", ""], "the keys have '' of type str at index 1; expected keys"),
        (["a", None], "the keys have None of type NoneType at index 1; expected keys"),
    ],
)
def test_invalid_names_of_keys_are_errors(names: list[Any], message: str) -> None:
    codes = np.arange(len(names), dtype=np.uint32)
    with pytest.raises(ConfigurationError, match=message):
        tuning.as_keys(tuning.Keys(codes, names))


def test_unused_names_may_be_empty() -> None:
    keys = tuning.Keys(np.zeros(2, np.uint32), ["a", ""])
    assert list(tuning.as_keys(keys)) == ["a", "a"]
