"""The command, and the explanations of `check`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import processes
import pytest
import tidegate as tg
from tidegate.cli.explain import burst_chart, in_words, span
from tidegate.cli.main import main
from tidegate.types import ALGORITHMS


def test_version_prints_the_version_and_the_components(capsys):
    assert main(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == tg.__version__
    assert second.startswith("components: limiter, tuning")


@pytest.mark.parametrize(
    ("component", "statement"),
    [
        ("tuning", "import tidegate.tuning as t; t.read_log('access.log')"),
        ("server", "import tidegate.server.service"),
    ],
)
def test_a_component_that_was_not_built_is_named_at_its_first_use(component, statement):
    module = {"tuning": "tidegate.tuning._logs", "server": "tidegate.server._native"}[component]
    code = f"import sys; sys.modules[{module!r}] = None; import tidegate; {statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ConfigurationError: this installation has no {component} component" in done.stderr
    assert "expected a build with it" in done.stderr


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "tidegate", "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == tg.__version__


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
@pytest.mark.parametrize("arguments", ["rules schema", "check 5/minute", "--version", "--help"])
def test_output_that_cannot_be_written_is_said_in_one_line(arguments):
    command = [sys.executable, "-m", "tidegate", *arguments.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "tidegate: the output: No space left on device\n",
    )


@pytest.mark.parametrize(
    ("arguments", "closed", "code", "error"),
    [
        ("check 5/minute", ">&-", 0, ""),
        ("replay --limit 5/minute -", "<&-", 2, "tidegate: <stdin> holds no lines"),
        ("check many", "2>&-", 2, ""),
    ],
)
def test_a_stream_that_the_caller_closed_causes_no_traceback(arguments, closed, code, error):
    command = f"{sys.executable} -m tidegate {arguments} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.startswith(error)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_reader_that_closes_the_pipe_causes_no_traceback():
    command = [sys.executable, "-m", "tidegate", "check", "10/second; 100/hour"]
    reader, writer = os.pipe()
    os.close(reader)  # before the command can write anything
    with processes.running(command, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        assert process.stderr.read() == b""
        process.wait()
    assert process.returncode == 1


def test_check_explains_a_limit(capsys):
    assert main(["check", "10/second burst 40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "10/second burst 40  (token-bucket)",
        "",
        "  10 calls per second on average, and up to 40 at once after a rest.",
        "  One more passes every 100 ms; a burst that was used up is full again after 4 s.",
        "",
        "  A client makes 60 calls at once, and goes on at twice the rate (█ passes, ░ refused):",
    ]
    assert re.fullmatch(r"   at once  █{27}░{13}  40 pass 20 refused", lines[7])
    assert re.fullmatch(r"  to 0\.5 s  ███░░░░ +5 pass  5 refused", lines[8])
    assert len(lines) == 20


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (
            "quota 10000/month rollover 10",
            [
                "10,000 units in each calendar month, which begins at midnight (UTC).",
                "Of the units that are left, at most 10 are carried over, and last one month.",
            ],
        ),
        (
            "quota 9/week anchor 7 in Asia/Kolkata rollover 5 rollover 50% for 3 periods "
            "first prorated",
            [
                "9 units in each calendar week, which begins at midnight (Asia/Kolkata, anchor 7).",
                "Of the units that are left, at most 5 and at most 50% of the quota are carried "
                "over, and last 3 weeks.",
                "A new key has only the share for the rest of its first period.",
            ],
        ),
        (
            "quota 1/day",
            [
                "1 unit in each calendar day, which begins at midnight (UTC).",
                "Units that are left at its end are not carried over.",
            ],
        ),
    ],
)
def test_check_says_what_a_quota_means(quota, said, capsys):
    assert main(["check", quota]) == 0
    shown = capsys.readouterr().out.split("\n\n")[1]
    assert [line.strip() for line in shown.splitlines()] == said


def test_check_of_several_limits(capsys):
    assert main(["check", "5/2 seconds; 100/hour"]) == 0
    out = capsys.readouterr().out
    assert "5/2 seconds  (token-bucket)" in out
    assert "100/hour  (token-bucket)" in out
    assert out.count("A client makes") == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_check_of_every_algorithm(algorithm, capsys):
    assert main(["check", "6/minute", "--algorithm", algorithm]) == 0
    out = capsys.readouterr().out
    assert f"6/minute  ({algorithm})" in out
    assert "6 pass 3 refused" in out


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "text", ["1/ns", "1000/us", "7/3 s", "1000000/h", "3/month", "1/year", "9/50 years"]
)
def test_every_limit_can_be_shown(text, algorithm):
    limit = tg.parse(text, algorithm=algorithm)
    assert len(in_words(limit)) == 2
    lines = burst_chart([limit], plain=True)
    assert len(lines) == 15
    assert all(line.isascii() for line in lines)
    assert max(map(len, lines[1:])) <= 100


def test_the_chart_counts_what_single_calls_would():
    limit = tg.Limit("7/10 seconds", algorithm="sliding-window")
    rows = [
        re.search(r"([\d,]+) pass +([\d,]+) refused$", line) for line in burst_chart([limit])[2:]
    ]
    clock = tg.ManualClock(0)
    limiter = tg.Limiter(limit, clock=clock)
    asked = 0
    for number, row in enumerate(rows):
        results = []
        if number == 0:
            results = [limiter.allow("client") for _ in range(11)]
        for instant in range(1, 21) if number else ():
            now_ns = (number - 1) * 10**9 + instant * 10**9 // 20
            clock.set_ns(now_ns)
            due = 14 * now_ns // 10**10
            results += [limiter.allow("client") for _ in range(due - asked)]
            asked = due
        assert (int(row[1]), int(row[2])) == (sum(results), len(results) - sum(results))


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (1, "1 ns"),
        (1500, "1.5 us"),
        (600e6, "600 ms"),
        (1e9 / 7, "143 ms"),
        (12e9, "12 s"),
        (90e9, "1.5 min"),
        (36e11, "1 h"),
        (86400e9 * 36500, "36,500 d"),
    ],
)
def test_a_span_is_shown_in_the_units_that_fit(ns, text):
    assert span(ns) == text


def test_a_terminal_that_knows_no_blocks():
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "check", "7/s"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"(# passes, . refused)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "lots"], "tidegate: cannot read the limit 'lots'"),
        (["check", "5/minute", "--algorithm", "magic"], "unknown algorithm 'magic'"),
        (["check", ""], "tidegate: "),
        (["check", "\udcff/s"], "tidegate: "),
    ],
)
def test_what_is_no_limit(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [[], ["check"], ["sail"], ["demo", "--lines", "0"]])
def test_what_is_no_command(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: tidegate" in capsys.readouterr().err


def test_the_demo_names_the_extra_that_is_missing(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "tidegate: the demo needs fastapi and uvicorn: pip install 'tidegate[demo]'\n"
    )
