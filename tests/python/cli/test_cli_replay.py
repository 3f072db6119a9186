"""`tidegate replay`: its answers in each output, its options, and what it says of bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from log_files import LOG_NOTE, burst_log, line
from processes import imported_by
from tidegate.cli.main import main

Captured = pytest.CaptureFixture[str]


def ask(capsys: Captured, *arguments: object) -> tuple[str, str]:
    """What a command that succeeds prints, and says beside it."""
    assert main(["replay", *map(str, arguments)]) == 0
    return capsys.readouterr()


def answer(capsys: Captured, *arguments: object) -> Any:
    return json.loads(ask(capsys, *arguments, "--output", "json")[0])


def refusal(capsys: Captured, *arguments: object) -> str:
    """What is said of a command that cannot be understood."""
    assert main(["replay", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_a_replay_is_printed_as_a_table(tmp_path: Path, capsys: Captured) -> None:
    out, err = ask(capsys, burst_log(tmp_path), "--limit", "2/minute")
    assert out.splitlines() == [
        "2/minute (token-bucket), by ip",
        "9 requests of 3 clients, 2026-03-01T12:00:00Z to 2026-03-01T12:01:02Z",
        "refused: 4 requests (44.4 %) of 1 client (33.3 %)",
        "",
        "ip         requests  allowed  refused  refused_share",
        "192.0.2.1         6        2        4         66.7 %",
    ]
    assert err.splitlines() == [LOG_NOTE]


def test_a_replay_that_refuses_nobody_says_so(tmp_path: Path, capsys: Captured) -> None:
    out, _ = ask(capsys, burst_log(tmp_path), "--limit", "100/minute")
    assert out.splitlines()[-1] == "refused: nobody"


def test_as_csv_with_all_clients(tmp_path: Path, capsys: Captured) -> None:
    out, _ = ask(capsys, burst_log(tmp_path), "--limit", "2/minute", "--output", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["ip"], row["requests"], row["refused"]) for row in rows] == [
        ("192.0.2.1", "6", "4"),
        ("192.0.2.2", "2", "0"),
        ("192.0.2.3", "1", "0"),
    ]


def test_a_replay_is_printed_as_json(tmp_path: Path, capsys: Captured) -> None:
    told = answer(capsys, burst_log(tmp_path), "--limit", "2/minute", "--most", "1")
    assert told["limits"] == ["2/minute"]
    assert (told["requests"], told["refused"], told["clients_touched"]) == (9, 4, 1)
    assert told["refused_by"] == {"2/minute": 4}
    assert [row["ip"] for row in told["clients_listed"]] == ["192.0.2.1"]
    assert told["notes"] == [LOG_NOTE.partition(": ")[2]]


def test_several_limits_are_one_plan(tmp_path: Path, capsys: Captured) -> None:
    log = burst_log(tmp_path)
    told = answer(capsys, log, "--limit", "4/second", "--limit", "5/minute")
    assert told["refused_by"] == {"4/second": 2, "5/minute": 0}
    assert answer(capsys, log, "--limit", "4/second; 5/minute") == told
    out, _ = ask(capsys, log, "--limit", "4/second", "--limit", "5/minute")
    assert "of them: 2 by 4/second, 0 by 5/minute" in out


def test_clients_that_obey_try_again_until_they_pass(tmp_path: Path, capsys: Captured) -> None:
    out, _ = ask(capsys, burst_log(tmp_path), "--limit", "2/minute", "--clients", "obey")
    assert "refused: nobody" in out
    assert "attempts: 19 of clients that obey Retry-After, of which 10 were refused" in out


def test_by_another_column_and_by_several(tmp_path: Path, capsys: Captured) -> None:
    log = burst_log(tmp_path)
    told = answer(capsys, log, "--limit", "2/minute", "--by", "user")
    assert {row["user"]: row["refused"] for row in told["clients_listed"]} == {
        "ann": 4,
        "-": 0,
        "bob": 0,
    }
    _, err = ask(capsys, log, "--limit", "2/minute", "--by", "user")
    assert "note: 2 of 9 requests have no user; they count as one client, named -." in err
    told = answer(capsys, log, "--limit", "2/minute", "--by", "ip+path")
    assert {row["ip+path"]: row["refused"] for row in told["clients_listed"]} == {
        "192.0.2.1+/0": 1,
        "192.0.2.1+/1": 1,
        "192.0.2.2+/": 0,
        "192.0.2.3+/": 0,
    }


def test_the_algorithm_is_an_option(tmp_path: Path, capsys: Captured) -> None:
    told = answer(
        capsys, burst_log(tmp_path), "--limit", "2/minute", "--algorithm", "sliding-log"
    )  # fmt: skip
    assert told["algorithm"] == "sliding-log"


def test_comparing_limits_and_algorithms(tmp_path: Path, capsys: Captured) -> None:
    log = burst_log(tmp_path)
    told = answer(capsys, log, "--limit", "2/minute", "--limit", "5/minute", "--compare")
    assert [(row["limit"], row["refused"]) for row in told["rows"]] == [
        ("2/minute", 4),
        ("5/minute", 1),
    ]
    out, _ = ask(capsys, log, "--limit", "2/minute", "--compare")
    assert out.split("\n", 1)[0].split() == [
        "token-bucket",
        "leaky-bucket",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ]
    (refused,) = [row for row in out.splitlines() if row.split()[:1] == ["refused"]]
    assert refused.split()[1:] == ["4"] * 5
    told = answer(capsys, log, "--limit", "2/minute", "--limit", "4/s; 5/minute", "--compare")
    assert [row["name"] for row in told["rows"]] == ["2/minute", "4/s; 5/minute"]
    assert told["rows"][1]["refused"] == 2
    out, _ = ask(capsys, log, "--limit", "2/minute", "--compare", "--output", "csv")
    assert next(csv.DictReader(io.StringIO(out)))["algorithm"] == "token-bucket"


def test_names_that_a_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    log = tmp_path / "odd.log"
    log.write_bytes(
        line(0, "192.0.2.1", "/é").encode() + line(1, "192.0.2.1", "/\xff").encode("latin-1")
    )
    command = [sys.executable, "-m", "tidegate", "replay", str(log), "--by", "path"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for output, shown in (("csv", "/\\xe9,1"), ("json", '"/\\u00e9"'), ("table", "2 clients")):
        done = subprocess.run(
            [*command, "--limit", "1/minute", "--output", output],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert shown in done.stdout


def test_from_a_pipe_and_compressed_and_by_glob(tmp_path: Path, capsys: Captured) -> None:
    log = burst_log(tmp_path, compressed=True)
    command = [sys.executable, "-m", "tidegate", "replay", "-", "--limit", "2/minute"]
    done = subprocess.run(command, input=log.read_bytes(), capture_output=True, check=True)
    assert b"refused: 4 requests" in done.stdout
    out, _ = ask(capsys, tmp_path / "*.gz", "--limit", "2/minute")
    assert "refused: 4 requests" in out
    out, _ = ask(capsys, log, log, "--limit", "2/minute")
    assert "18 requests of 3 clients" in out


def test_bad_lines_are_told_and_left_out(tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "some.log"
    log.write_text(line(0, "192.0.2.1") * 5 + "\x1b[31mno request\n")
    out, err = ask(capsys, log, "--limit", "2/minute")
    assert "5 requests of 1 client" in out
    assert f"{log}:6: " in err
    assert "?[31mno request" in err, "no terminal acts on what a log holds"
    assert "\x1b" not in err


def test_columns_and_zone_of_the_log(tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "some.csv"
    log.write_text("when,tenant\n" + "2026-03-01 12:00:00,acme\n" * 3)
    options = ["--column", "time=when", "--column", "org=tenant", "--format", "csv"]
    told = answer(
        capsys, log, *options, "--by", "org", "--limit", "2/minute", "--time-zone", "Europe/Berlin"
    )
    assert told["first"] == "2026-03-01T11:00:00Z"
    assert told["clients_listed"][0]["org"] == "acme"


def test_a_bar_shows_how_far_it_has_come(tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("tqdm")
    _, err = ask(capsys, burst_log(tmp_path), "--limit", "2/minute", "--progress")
    assert "read" in err
    _, err = ask(capsys, burst_log(tmp_path), "--limit", "2/minute")
    assert err.splitlines() == [LOG_NOTE]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plot_writes_a_picture_in_the_format_of_its_ending(
    ending: str, tmp_path: Path, capsys: Captured
) -> None:
    picture = tmp_path / f"out.{ending}"
    ask(capsys, burst_log(tmp_path), "--limit", "2/minute", "--plot", picture)
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert picture.read_bytes().startswith(starts[ending])


def test_pictures_of_plans_and_comparisons(tmp_path: Path, capsys: Captured) -> None:
    log = burst_log(tmp_path)
    for number, more in enumerate((["--limit", "9/hour"], ["--compare"])):
        picture = tmp_path / f"{number}.png"
        ask(capsys, log, "--limit", "2/minute", *more, "--plot", picture)
        assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.log", "--limit", "2/minute"], "nothing.log"),
        (["burst.log", "--limit", "fast"], "expected COUNT/"),
        (
            ["burst.log", "--limit", "2/minute", "--by", "tenant"],
            "has no column 'tenant'; expected",
        ),
        (["burst.log", "--limit", "2/minute", "--plot", "out.doc"], "expected a name that ends in"),
        (
            ["burst.log", "--limit", "2/minute", "--plot", "no/where/out.png"],
            "a folder that exists",
        ),
        (["burst.log", "--limit", "2/m", "--limit", "2/m"], "expected each once"),
        (["burst.log", "--limit", "2/minute", "--most", "-1"], "expected 0 and more"),
        (["burst.log", "--limit", "2/minute", "--column", "time"], "expected NAME=FIELD"),
        (["burst.log", "--limit", "2/minute", "--algorithm", "best"], "best"),
        (["burst.log", "--limit", "2/minute", "--format", "xml"], "xml"),
        (["-", "-", "--limit", "2/minute"], "standard input was given twice"),
        (["burst.log", "--limit", "2/m", "--compare", "--clients", "obey"], "expected one of them"),
        (["empty.log", "--limit", "2/minute"], "holds no lines (nothing); expected a log"),
        (["zeros.log", "--limit", "2/minute"], "xpected"),
    ],
)
def test_what_cannot_be_understood(
    arguments: list[str], said: str, tmp_path: Path, capsys: Captured, monkeypatch: Any
) -> None:
    burst_log(tmp_path)
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "zeros.log").write_bytes(b"\0" * 1000)
    monkeypatch.chdir(tmp_path)
    err = refusal(capsys, *arguments)
    assert said in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("tidegate: ")


def test_without_numpy_it_says_what_to_install(
    tmp_path: Path, capsys: Captured, monkeypatch: Any
) -> None:
    for name in [each for each in sys.modules if each.startswith("tidegate.tuning")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.startswith("tidegate.tuning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delattr("tidegate.tuning", raising=False)
    assert "pip install 'tidegate[notebook]'" in refusal(
        capsys, burst_log(tmp_path), "--limit", "2/minute"
    )


def test_other_commands_import_nothing_of_it() -> None:
    found = imported_by("from tidegate.cli.main import main; main(['version'])")
    assert found & {"numpy", "matplotlib", "tidegate.tuning"} == set()


def test_the_howto_shows_what_it_prints(capsys: Captured, monkeypatch: Any) -> None:
    root = Path(__file__).resolve().parents[3]
    page = (root / "docs" / "howto" / "choose-a-limit.md").read_text(encoding="utf-8")
    _, command, rest = re.split(r"^\$ tidegate replay (.+)\n", page, maxsplit=1, flags=re.M)
    monkeypatch.chdir(root)
    out, err = ask(capsys, *command.split())
    assert rest.startswith(err + out + "```")


def test_all_algorithms_and_one_of_them(tmp_path: Path, capsys: Captured) -> None:
    log = burst_log(tmp_path)
    options = ["--compare", "--algorithm", "sliding-log", "--limit", "2/minute"]
    assert "compares all algorithms; expected one of them" in refusal(capsys, log, *options)
    out, _ = ask(capsys, log, *options, "--limit", "3/minute", "--output", "csv")
    assert {row["algorithm"] for row in csv.DictReader(io.StringIO(out))} == {"sliding-log"}
