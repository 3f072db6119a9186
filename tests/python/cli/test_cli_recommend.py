"""`tidegate recommend`: its answers in each output, and what it says of bad input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from log_files import burst_log, habits_log
from tidegate.cli.main import main

Captured = pytest.CaptureFixture[str]


def ask(capsys: Captured, *arguments: object, code: int = 0) -> str:
    assert main(["recommend", *map(str, arguments)]) == code
    return capsys.readouterr().out


def answer(capsys: Captured, *arguments: object, code: int = 0) -> Any:
    return json.loads(ask(capsys, *arguments, "--output", "json", code=code))


def test_the_least_limit_that_refuses_so_many_clients(tmp_path: Path, capsys: Captured) -> None:
    told = answer(capsys, habits_log(tmp_path), "--refuse-clients", "10%")
    assert (told["limit"], told["clients_touched"], told["clients"]) == ("9/minute", 10, 100)
    told = answer(capsys, habits_log(tmp_path), "--refuse-clients", "0.1%")
    assert (told["limit"], told["clients_touched"]) == ("10/minute", 0)


def test_the_least_limit_that_refuses_so_many_requests(tmp_path: Path, capsys: Captured) -> None:
    told = answer(capsys, habits_log(tmp_path), "--refuse-requests", "0.02", "--period", "hour")
    assert told["limit"].endswith("/hour")
    assert 0 < told["refused_share"] <= 0.02


def test_as_a_table_and_as_csv(tmp_path: Path, capsys: Captured) -> None:
    log = habits_log(tmp_path)
    assert "9/minute" in ask(capsys, log, "--refuse-clients", "10%").splitlines()[0]
    text = ask(capsys, log, "--refuse-clients", "10%", "--output", "csv")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["limit"], row["p50"], row["max"]) == ("9/minute", "5", "10")


def test_for_each_value_of_a_column(tmp_path: Path, capsys: Captured) -> None:
    told = answer(capsys, burst_log(tmp_path), "--per", "path")
    assert {name: each["limit"] for name, each in told["groups"].items()} == {
        "/": "2/minute",
        "/0": "3/minute",
        "/1": "3/minute",
    }
    text = ask(capsys, burst_log(tmp_path), "--per", "path", "--output", "csv")
    assert {row["group"] for row in csv.DictReader(io.StringIO(text))} == {"/", "/0", "/1"}


def test_a_backtest_that_keeps_its_promise(tmp_path: Path, capsys: Captured) -> None:
    told = answer(capsys, habits_log(tmp_path), "--refuse-clients", "10%", "--backtest")
    assert told["kept"] is True
    assert [part["clients_touched"] for part in told["parts"]] == [10, 10]
    assert "kept" in ask(capsys, habits_log(tmp_path), "--refuse-clients", "10%", "--backtest")


def test_a_backtest_that_breaks_its_promise_exits_with_1(tmp_path: Path, capsys: Captured) -> None:
    log = habits_log(tmp_path)
    lines = log.read_text().splitlines(keepends=True)
    # In the second half everybody comes twice as often.
    log.write_text("".join(lines[: len(lines) // 2] + [x * 2 for x in lines[len(lines) // 2 :]]))
    told = answer(capsys, log, "--refuse-clients", "1%", "--backtest", code=1)
    assert told["kept"] is False
    rows = ask(capsys, log, "--refuse-clients", "1%", "--backtest", "--output", "csv", code=1)
    assert [row["part"] for row in csv.DictReader(io.StringIO(rows))] == ["first", "second"]


def test_plot_writes_a_picture_of_the_recommendation(tmp_path: Path, capsys: Captured) -> None:
    picture = tmp_path / "out.png"
    ask(capsys, habits_log(tmp_path), "--refuse-clients", "1%", "--plot", picture)
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--refuse-clients", "1"], "expected a share such as 0.1%"),
        (["--refuse-clients", "110%"], "expected a share such as 0.1%"),
        (["--refuse-requests", "few"], "--refuse-requests is 'few'"),
        (["--period", "fortnight"], "fortnight"),
        (["--algorithm", "concurrency"], "concurrency"),
        (["--split", "2", "--backtest"], "split"),
        (["--per", "tenant"], "has no column 'tenant'"),
        (["--per", "path", "--backtest"], "--per was given with --backtest"),
        (["--plot", "out"], "expected a name that ends in"),
    ],
)
def test_what_cannot_be_understood(
    arguments: list[str], said: str, tmp_path: Path, capsys: Captured
) -> None:
    assert main(["recommend", str(habits_log(tmp_path)), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]


def test_two_promises_are_one_too_many(tmp_path: Path, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["recommend", "x.log", "--refuse-clients", "1%", "--refuse-requests", "1%"])
    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_a_split_of_no_backtest(tmp_path: Path, capsys: Captured) -> None:
    assert main(["recommend", str(habits_log(tmp_path)), "--split", "0.3"]) == 2
    assert "--split was given without --backtest" in capsys.readouterr().err


def test_the_option_that_names_no_column_is_named(tmp_path: Path, capsys: Captured) -> None:
    assert main(["recommend", str(habits_log(tmp_path)), "--per", "nope"]) == 2
    assert "--per is 'nope', and the log has no column" in capsys.readouterr().err
