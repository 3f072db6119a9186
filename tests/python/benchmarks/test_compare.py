"""The comparison of the benchmarks of two builds: figures, rounds in turn, and what cannot run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info < (3, 10):
    pytest.skip("the benchmarks need Python 3.10 or newer", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import compare
import report
from compare import Figure


def _printed(ns: float, rate: float, share: float = 0.9) -> dict[str, Any]:
    table = {
        "title": "Hits",
        "headers": ["", "ns/call", "best", "req/s", "x bare", "keys"],
        "lines": [["hit", f"{ns}", "1.0", f"{rate:,}", "2.00x", "1,000"], ["none", *"-----"]],
    }
    target = {"what": "share of bare", "value": share, "bound": 0.9, "at_least": True}
    return {"tables": [table], "targets": [target]}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        *((("ns/call",), False), (("p99 us",), False), (("bytes/key",), False)),
        *((("cores at 35,000/s",), False), (("us of CPU each",), False), (("added_ms",), False)),
        *((("req/s",), True), (("MB/s",), True), (("M requests/s",), True), (("keys",), None)),
        *((("requests",), None), (("> 1 ms",), None), (("share",), None)),
        (("median", "echo, HTTP/2", "Requests a second"), True),
        (("median", "tidegate, latency us", "Redis: calls/s, or microseconds"), False),
        (("median", "recommend", "Seconds for 10 M requests"), False),
    ],
)
def test_words_say_whether_more_is_better(texts: tuple[str, ...], expected: bool | None) -> None:
    assert compare.more_is_better(*texts) is expected


def test_figures_are_the_rates_the_costs_and_the_targets_of_a_run() -> None:
    assert compare.figures(_printed(40, 1000)) == {
        "Hits | hit | ns/call": Figure(40, False),
        "Hits | hit | req/s": Figure(1000, True),
        "target | share of bare": Figure(0.9, True),
    }


def test_a_ratio_is_the_median_of_the_rounds_and_above_one_where_the_new_build_is_slower() -> None:
    old = [compare.figures(_printed(ns, rate)) for ns, rate in ((40, 1000), (80, 500), (40, 1000))]
    new = [compare.figures(_printed(ns, rate)) for ns, rate in ((42, 980), (84, 490), (40, 2000))]
    (cost, rate, share), others = compare.changes(old, new)
    assert (cost.old, cost.new, cost.slower) == (40, 42, True)
    assert (cost.ratio, cost.least, cost.most) == pytest.approx((1.05, 1, 1.05))
    assert (rate.ratio, rate.least, rate.most) == pytest.approx((1000 / 980, 0.5, 1000 / 980))
    assert (rate.slower, share.ratio, others) == (False, 1, [])
    text = " ".join(compare.text_of(cost).split())
    assert text == "40 42 1.050 (1.000 to 1.050) SLOWER Hits | hit | ns/call"
    assert "SLOWER" not in compare.text_of(rate)


def test_a_figure_that_a_run_lacks_or_that_is_not_above_zero_is_named() -> None:
    old = {"a": Figure(1, False), "b": Figure(0, False), "gone": Figure(2, True)}
    new = {"a": Figure(1, False), "b": Figure(3, False), "here": Figure(2, True)}
    found, others = compare.changes([old], [new])
    assert [change.name for change in found] == ["a"]
    assert others == ["b", "gone", "here"]


def test_builds_run_in_turn_and_what_one_cannot_run_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order = []

    def run(bench: report.Bench, quick: bool, build: report.Build) -> dict[str, Any]:
        order.append((bench.name, build.tree))
        if (bench.name, build.tree) == ("web", "before"):
            raise report.Skipped("it ended with status 1: no such option")
        return _printed(40 if build.tree == "before" else 44, 1000)

    monkeypatch.setattr(report, "run", run)
    builds = {"old": report.Build(tree="before"), "new": report.Build(tree="after")}
    found = compare.compare(["call", "web"], 2, False, builds)
    assert order == [
        *(("call", "before"), ("call", "after"), ("call", "after"), ("call", "before")),
        ("web", "before"),
    ]
    assert found["web"] == {"not_compared": "old: it ended with status 1: no such option"}
    slower = {each["name"]: each["slower"] for each in found["call"]["figures"]}
    assert slower == {
        "Hits | hit | ns/call": True,
        "Hits | hit | req/s": False,
        "target | share of bare": False,
    }
    printed = capsys.readouterr().out
    assert "web: NOT COMPARED, old: it ended with status 1: no such option" in printed
    assert "SLOWER" in printed


def test_a_program_is_that_of_the_build(tmp_path: Path) -> None:
    """Both are fake: the interpreter prints the figures, and so does the program in C++."""
    interpreter, program = tmp_path / "python", tmp_path / "benchmarks" / "cpp" / "core_bench"
    program.parent.mkdir(parents=True)
    document = {"benchmarks": [{"name": "Hit", "real_time": 26.0, "time_unit": "ns"}]}
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(document)}\nEND\n")
    figures = json.dumps({"printed": _printed(40, 1000)})
    interpreter.write_text(
        '#!/bin/sh\nfor last; do :; done\ntest -d "$TIDEGATE_BUILD_TREE" || exit 1\n'
        f"cat >\"$last\" <<'END'\n{figures}\nEND\n"
    )
    for each in (interpreter, program):
        each.chmod(0o755)
    build = report.Build(str(interpreter), str(tmp_path))
    assert report.run(report.BENCHES["call"], True, build) == _printed(40, 1000)
    (table,) = report.run(report.BENCHES["core"], True, build)["tables"]
    assert table["lines"] == [["Hit", "26"]]
