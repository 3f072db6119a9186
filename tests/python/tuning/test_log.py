"""A log has columns, can be filtered and becomes tables; reading returns what servers wrote."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate import tuning
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError

DATA = Path(__file__).resolve().parents[3] / "examples" / "data" / "nasa-1995-08-01.log.gz"


@pytest.fixture(scope="module")
def log() -> tuning.Log:
    return tuning.read_log(DATA)


def test_a_real_log_is_read_as_a_regular_expression_reads_it(log: tuning.Log) -> None:
    pattern = re.compile(r'(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) [^"]*" (\d+) (\d+|-)')
    lines = gzip.decompress(DATA.read_bytes()).decode().splitlines()
    found = [match.groups() for line in lines if (match := pattern.fullmatch(line))]
    assert len(log) == len(lines) == len(found)
    assert log.bad == 0
    assert list(log["ip"]) == [row[0] for row in found]
    assert list(log["path"]) == [row[3].partition("?")[0] for row in found]
    assert log["status"].tolist() == [int(row[4]) for row in found]
    assert log["bytes"].tolist() == [0 if row[5] == "-" else int(row[5]) for row in found]
    times = [datetime.strptime(row[1], "%d/%b/%Y:%H:%M:%S %z").timestamp() for row in found]
    assert log.times.tolist() == [int(time) * 10**9 for time in times]


def test_a_log_describes_itself(log: tuning.Log) -> None:
    assert log.format == "common"
    assert log.columns == ["status", "bytes", "ip", "user", "method", "path"]
    assert "path" in log
    assert "tier" not in log
    assert log["time"] is log.times
    with pytest.raises(KeyError, match="has no column 'tier'; expected one of time, status"):
        log["tier"]
    assert repr(log).startswith(f"<Log of {len(log):,} requests (common) from 1995-08-01T")
    html = log._repr_html_()
    assert "<table>" in html
    assert "whole seconds" in html


def test_html_escapes_what_clients_sent() -> None:
    log = tuning.read_log(io.BytesIO(b"ts,ip\n" + b"1769861100,1\n" * 3 + b"<script>,1\n"))
    assert "<script>" not in log._repr_html_()


def test_where_takes_globs_numbers_lists_and_functions(log: tuning.Log) -> None:
    paths = Counter(log["path"])
    images = log.where(path="/images/*")
    assert len(images) == sum(n for path, n in paths.items() if path.startswith("/images/"))
    assert set(images["path"]) <= {path for path in paths if path.startswith("/images/")}
    assert len(log.where(path=["/images/*", "/"], status=[200, 304], method="GET")) == sum(
        (path == "/" or path.startswith("/images/")) and status in (200, 304) and method == "GET"
        for path, status, method in zip(log["path"], log["status"].tolist(), log["method"])
    )
    assert len(log.where(status=lambda status: status >= 400)) == int((log["status"] >= 400).sum())
    short = log.where(path=lambda names: [len(name) < 5 for name in names])
    assert all(len(path) < 5 for path in short["path"])
    with pytest.raises(ArgumentTypeError, match="compared with '200'; expected a number"):
        log.where(status="200")


def test_select_takes_masks_indices_and_slices(log: tuning.Log) -> None:
    mask = np.arange(len(log)) % 2 == 0
    for chosen in (mask, np.flatnonzero(mask), slice(None, None, 2), mask.tolist()):
        part = log.select(chosen)
        assert part.times.tolist() == log.times[mask].tolist()
        assert part["ip"][3] == log["ip"][6]
    assert len(log.select([])) == 0
    assert repr(log.select([])).startswith("<Log of no requests")
    with pytest.raises(ConfigurationError, match="the mask has 2 values; expected one for each"):
        log.select([True, False])
    with pytest.raises(ConfigurationError, match="expected indices that rise"):
        log.select([len(log) - 1, 0])
    with pytest.raises(ArgumentTypeError, match="chosen by float64; expected a mask"):
        log.select([0.5])


def test_the_columns_of_a_log_can_be_replayed(log: tuning.Log) -> None:
    result = tuning.replay("10/minute", log["ip"], log.times)
    assert len(result.allowed) == len(log)
    assert 0 < int(np.count_nonzero(result.allowed)) < len(log)


def test_a_log_can_be_converted_to_tables(log: tuning.Log) -> None:
    part = log.select(slice(0, 100))
    assert part.to_dict()["ip"] == list(part["ip"])
    assert part.frame()["time"].dtype == "datetime64[ns]"
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = part.to_pandas()
    assert table["ip"].astype(str).tolist() == list(part["ip"])
    assert table["time"][0] == pandas.Timestamp(int(part.times[0]))


# ------------------------------------------------------- what was written is read back

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
# nginx writes these characters unchanged and escapes all others.
PLAIN = set(map(chr, range(32, 127))) - {'"', "\\"}
REQUESTS = st.fixed_dictionaries(
    {
        "second": st.integers(10**8, 2**32),
        "ip": st.ip_addresses().map(str),
        "user": st.text("abcdefgh0123456789@._-", min_size=1, max_size=8),
        "method": st.sampled_from(["GET", "POST", "PATCH"]),
        "path": TEXTS.map(lambda text: "/" + re.sub(r"[?# ]|://", "", text)),
        "status": st.integers(100, 599),
        "bytes": st.integers(0, 2**50),
        "agent": TEXTS,
        "duration_ms": st.integers(0, 10**7),
    }
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def escaped(text: str) -> str:
    return "".join(chr(byte) if chr(byte) in PLAIN else f"\\x{byte:02X}" for byte in text.encode())


def expected(requests: list[dict[str, object]], *, subtract: bool) -> list[tuple[object, ...]]:
    rows = []
    for request in requests:
        duration = request["duration_ms"] * 10**6
        rows.append(
            (
                request["second"] * 10**9 - (duration if subtract else 0),
                request["ip"],
                request["user"],
                request["method"],
                request["path"],
                request["status"],
                request["bytes"],
                request["agent"] or "-",
                duration,
            )
        )
    return sorted(rows, key=lambda row: row[0])


def read_back(log: tuning.Log) -> list[tuple[object, ...]]:
    names = ["ip", "user", "method", "path", "status", "bytes", "user_agent", "duration_ns"]
    columns = [log.times.tolist(), *(log.to_dict()[name] for name in names)]
    return list(zip(*columns))


@settings(deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=20))
def test_requests_written_by_nginx_are_read_back(requests: list[dict[str, object]]) -> None:
    lines = []
    for request in requests:
        zone = timezone(timedelta(hours=request["second"] % 24 - 12))
        at = (EPOCH + timedelta(seconds=request["second"])).astimezone(zone)
        target = f"{request['method']} {escaped(request['path'])}?q HTTP/1.1"
        lines.append(
            f'{request["ip"]} - {request["user"]} [{at:%d/%b/%Y:%H:%M:%S %z}] "{target}" '
            f'{request["status"]} {request["bytes"]} "-" "{escaped(request["agent"])}" '
            f"{request['duration_ms'] / 1000:.3f}\n"
        )
    log = tuning.read_log(io.BytesIO("".join(lines).encode()))
    assert log.bad == 0
    assert read_back(log) == expected(requests, subtract=True)


@settings(deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=20), st.booleans())
def test_requests_written_as_json_are_read_back(
    requests: list[dict[str, object]], ascii_only: bool
) -> None:
    lines = [
        json.dumps(
            {
                "time": f"{EPOCH + timedelta(seconds=request['second'])}",
                "client": {"ip": request["ip"]},
                "user": request["user"],
                "method": request["method"],
                "url": request["path"] + "?q",
                "status": request["status"],
                "bytes": request["bytes"],
                "user_agent": request["agent"],
                "duration_ms": request["duration_ms"],
            },
            ensure_ascii=ascii_only,
        )
        for request in requests
    ]
    log = tuning.read_log(io.BytesIO("\n".join(lines).encode()))
    assert log.bad == 0
    assert read_back(log) == expected(requests, subtract=False)


@settings(deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=20), st.sampled_from(",;\t|"), st.booleans())
def test_requests_written_as_csv_are_read_back(
    requests: list[dict[str, object]], delimiter: str, quote_all: bool
) -> None:
    text = io.StringIO()
    writer = csv.writer(
        text, delimiter=delimiter, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    )
    names = ["time", "ip", "user", "method", "path", "status", "bytes", "user_agent", "duration_ms"]
    writer.writerow(names)
    for request in requests:
        at = EPOCH + timedelta(seconds=request["second"])
        values = {**request, "time": at.isoformat(), "user_agent": request["agent"]}
        writer.writerow([values[name] for name in names])
    log = tuning.read_log(io.BytesIO(text.getvalue().encode()), format="csv", delimiter=delimiter)
    assert log.bad == 0
    assert read_back(log) == expected(requests, subtract=False)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda log: tuning.replay("5/minute", log),
            r'replay\("100/minute", log\["ip"\], log.times\)',
        ),
        (
            lambda log: tuning.replay(log, "5/minute"),
            r'replay\("100/minute", log\["ip"\], log.times\)',
        ),
        (lambda log: tuning.recommend(log), r'recommend\(log\["ip"\], log.times\)'),
        (lambda log: tuning.recommend("5/minute", log), r'recommend\(log\["ip"\], log.times\)'),
        (lambda log: tuning.compare(["5/minute"], keys=log), r'compare\("100/minute", log'),
        (lambda log: tuning.what_if(log), r'what_if\(log\["ip"\], log.times\)'),
        (lambda log: tuning.backtest(log), r'backtest\(log\["ip"\], log.times\)'),
        (lambda log: tuning.least_limits(log, "minute"), r'log\["ip"\], log.times, "minute"\)'),
    ],
)
def test_a_log_in_the_place_of_its_columns_is_refused(call: Any, said: str) -> None:
    line = b'203.0.113.9 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1'
    log = tuning.read_log(io.BytesIO(line))
    with pytest.raises(
        ConfigurationError, match=f"was given a Log; expected its columns: .*{said}"
    ):
        call(log)
