"""The report of all benchmarks, and that documents claim no figures that are not in it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info < (3, 10):
    pytest.skip("the benchmarks need Python 3.10 or newer", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import combine
import harness
import machine
import report
import report_page
from json_text import json_text

ROOT = Path(__file__).resolve().parents[3]


def test_a_figure_is_the_median_of_its_runs_with_the_least_and_the_most() -> None:
    found = combine.cell(["1,000.5 ns", "1,200.0 ns", "900 ns"])
    assert found == {"value": 1000.5, "least": 900, "most": 1200, "unit": " ns"}
    assert combine.with_spread(found) == "1,000 ns (900 to 1,200)"
    assert combine.with_spread(combine.cell(["0.97x", "0.97x"])) == "0.970x"
    assert combine.with_spread(combine.cell(["-", "-"])) == "-"
    # A cell that is no number in one of the runs has no median.
    assert combine.cell(["3", "-"]) == {"text": "3"}
    assert combine.cell(["12 of 50"]) == {"text": "12 of 50"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (0.0123, "0.012"), (0.9671, "0.967"), (0.9996, "1.00"), (1, "1")),
        *((9.999, "10.0"), (52.31, "52.3"), (99.96, "100"), (123.4, "123"), (4847, "4,847")),
        *((9999, "10.0 k"), (14_210, "14.2 k"), (999_900, "1.00 M"), (17_100_000, "17.1 M")),
        *((-2.5, "-2.50"), (float("inf"), "inf")),
    ],
)
def test_numbers_are_shown_with_three_digits(value: float, text: str) -> None:
    assert combine.shown(value) == text


def test_tables_of_several_runs_become_one() -> None:
    runs = [
        [
            {
                "title": "T",
                "headers": ["", "ns", "allowed"],
                "lines": [["a", ns, "100%"], ["b", "5", "-"]],
            }
        ]
        for ns in ("10.0", "30.0", "20.0")
    ]
    (table,) = combine.tables(runs)
    assert (table["title"], table["headers"]) == ("T", ["", "ns", "allowed"])
    assert [line["name"] for line in table["lines"]] == ["a", "b"]
    assert table["lines"][0]["cells"][0] == {"value": 20, "least": 10, "most": 30, "unit": ""}
    assert table["lines"][1]["cells"][1] == {"text": "-"}


def _target(value: float, bound: float, *, at_least: bool) -> dict[str, Any]:
    return {
        "what": "w",
        "value": value,
        "bound": bound,
        "at_least": at_least,
        "unit": "x",
        "note": "",
    }


@pytest.mark.parametrize(("at_least", "reached"), [(True, False), (False, True)])
def test_a_target_is_reached_where_the_median_reaches_it(at_least: bool, reached: bool) -> None:
    runs = [[_target(value, 3, at_least=at_least)] for value in (1, 2, 9)]
    (found,) = combine.targets(runs)
    assert (found["value"], found["least"], found["most"]) == (2, 1, 9)
    assert found["reached"] is reached


def test_other_programs_are_read_as_the_python_ones() -> None:
    run = {"name": "Hit", "run_type": "iteration", "real_time": 26.04, "time_unit": "ns"}
    mean = {**run, "run_type": "aggregate", "name": "Hit_mean"}
    (table,) = combine.google({"benchmarks": [run, mean]})["printed"]["tables"]
    assert table["lines"] == [["Hit", "26.04"]]
    (table,) = combine.governor({"check_ns": 44.0, "quick": True, "crate": "x"})["printed"][
        "tables"
    ]
    assert table["lines"] == [["check_ns", "44"]]


def test_what_a_benchmark_prints_is_in_its_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_printed", {"tables": [], "targets": []})
    harness.print_table("T", ["", "ns"], [["a", "10.0"]])
    harness.print_targets([harness.Target("w", 2, 3, at_least=False)])
    harness.write_json(tmp_path / "figures.json", "some", {})
    printed = json.loads((tmp_path / "figures.json").read_text())["printed"]
    (table,) = combine.tables([printed["tables"]])
    assert table["lines"][0]["cells"][0]["value"] == 10
    assert combine.targets([printed["targets"]])[0]["reached"]


def _bench(tables: list[Any], targets: list[Any] | None = None) -> dict[str, Any]:
    facts = {**machine.facts(), "versions": {"limits": "5.8.0"}, "when": "2030-01-01"}
    facts |= {"load_before": 0.1, "revision": "abc"}
    return {
        "machine": facts,
        "quick": False,
        "runs": 2,
        "tables": combine.tables([tables, tables]),
        "targets": combine.targets([targets or []]),
    }


def _report() -> dict[str, Any]:
    """One in which every figure of the README was measured, and another benchmark was not."""
    benches: dict[str, Any] = {}
    for line in report_page.HEADLINES:
        for bench, *rest in (
            found.split(" | ") for text in line for found in re.findall(r"\{([^}]+)\}", text)
        ):
            tables, targets = benches.setdefault(bench, ({}, []))
            if len(rest) == 2:
                tables.setdefault(rest[1], []).append([rest[0], f"{len(tables) + 41.3}"])
            else:
                targets.append({**_target(10.2, 12, at_least=True), "what": rest[0]})
    made = {
        name: _bench(
            [
                {"title": f"By {column}", "headers": ["", column], "lines": lines}
                for column, lines in tables.items()
            ],
            targets,
        )
        for name, (tables, targets) in benches.items()
    }
    facts = made["call"]["machine"]
    return report.merged(
        {},
        {**made, "web": made["web"], "envoy": {"machine": facts, "quick": False, "skipped": "why"}},
    )


def test_the_page_says_machine_versions_figures_targets_and_misses_in_this_order() -> None:
    text = report_page.generated(_report())
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["The machine", "Versions", "Figures", "Targets", "Missed"]
    assert "| limits | 5.8.0 |" in text
    assert "### A decision in memory" in text
    assert "| tidegate hit, token-bucket | 42.3 |" in text
    missed = text.partition("## Missed")[2]
    assert "Redis: 100 tasks, checks/s over limits async, fixed window: 10.2x; expected" in missed
    assert "Envoy's rate limit service was not measured: why" in missed


def test_the_lines_of_the_readme_come_from_the_report() -> None:
    lines = report_page.headlines(_report())
    assert lines.count("\n") == len(report_page.HEADLINES) + 1
    assert "| one decision in memory | 42.3 ns | `floodgate-rs` 42.3 ns" in lines
    assert "`limits` 10.2x, `throttled-py` 10.2x" in lines
    incomplete = _report()
    del incomplete["benches"]["call"]
    with pytest.raises(KeyError, match="call"):
        report_page.headlines(incomplete)
    with pytest.raises(KeyError, match="no line 'x'"):
        report_page.headline(_report(), "{call | x | ns/call}")


def test_a_part_of_the_benchmarks_replaces_that_part_of_the_report() -> None:
    before = _report()
    measured = {"shm": {**before["benches"]["shm"], "runs": 7}}
    after = report.merged(before, measured)
    assert after["benches"]["shm"]["runs"] == 7
    assert after["benches"]["call"] == before["benches"]["call"]
    assert list(after["benches"]) == [n for n in report.BENCHES if n in before["benches"]]


def test_a_benchmark_that_cannot_run_is_said_to_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = report.Bench("core", (str(tmp_path / "none"),), kind="google")
    monkeypatch.setitem(report.BENCHES, "core", missing)
    found = report.measure(["core"], runs=2, quick=True)
    assert found["core"]["skipped"] == f"there is no {tmp_path / 'none'}"
    assert report._last("first\nNo such file: /srv/build/some.py, or ./x/y\n\n") == (
        "No such file: some.py, or ./x/y"
    )


def test_json_in_the_repository_has_plain_lists_on_one_line() -> None:
    value = {"a": [1, 2.5, None, "x, [y"], "b": [], "c": [{"d": [1]}, [2, 3]]}
    text = json_text(value)
    assert json.loads(text) == value
    assert '"d": [1]' in text
    assert "[2, 3]" in text


def test_every_benchmark_is_in_the_report_and_has_a_question() -> None:
    programs = {
        path.stem.removeprefix("bench_")
        for path in (ROOT / "benchmarks" / "python").glob("bench_*.py")
    }
    assert programs | {"core", "governor"} == set(report.BENCHES)
    assert set(report_page.QUESTIONS) == set(report.BENCHES)


def test_each_question_with_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = report_page.draw(_report(), tmp_path)
    assert {path.name for path in drawn} >= {"bench-call.png", "bench-web.png"}
    shown = re.findall(r"\(images/(bench-\w+\.png)\)", report_page.generated(_report()))
    assert sorted(shown) == sorted(path.name for path in drawn)


def test_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{report_page.BEGIN}\nold\n{report_page.END}\nafter\n")
    report_page.replace(path, "new")
    assert path.read_text() == (f"before\n{report_page.BEGIN}\n\nnew\n\n{report_page.END}\nafter\n")
    path.write_text("none")
    with pytest.raises(ValueError, match="expected both"):
        report_page.replace(path, "new")


def test_the_report_is_published_once_it_has_all_figures_of_the_readme(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    readme, page = tmp_path / "README.md", tmp_path / "docs" / "benchmarks.md"
    for path in (readme, page):
        path.write_text(f"{report_page.BEGIN}\nold\n{report_page.END}\n")
    incomplete = _report()
    del incomplete["benches"]["web"]
    assert not report.publish(incomplete, tmp_path)
    assert "old" in readme.read_text()
    assert "old" in page.read_text()
    assert not (tmp_path / "docs" / "benchmarks.json").exists()

    assert report.publish(_report(), tmp_path)
    assert json.loads((tmp_path / "docs" / "benchmarks.json").read_text()) == _report()
    figures = _numbers(_between_markers(page))
    assert _numbers(_between_markers(readme)) - figures == {"1"}  # "1x"


def test_the_report_builds_the_programs_that_its_benchmarks_run() -> None:
    made = re.search(
        r"^bench-report:.*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert made is not None
    built = re.findall(r"--target ([\w ]+)", made[0])
    named = {
        name
        for each in report.BENCHES.values()
        if each.kind == "python"
        for name in re.findall(
            r"benchmarks/cpp/(\w+)",
            (ROOT / "benchmarks" / "python" / f"bench_{each.name}.py").read_text(),
        )
    }
    named |= {each.arguments[0] for each in report.BENCHES.values() if each.kind == "google"}
    assert len(named) > 1
    assert named - set(" ".join(built).split()) == set()


# --------------------------------------------------------------- claims of the documents


def _between_markers(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return text.partition(report_page.BEGIN)[2].partition(report_page.END)[0]


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?", re.sub(r"`[^`]*`", "", text)))


def test_the_figures_of_the_readme_are_in_the_report() -> None:
    lines = [line for line in _between_markers(ROOT / "README.md").splitlines() if "|" in line]
    assert len(lines) == len(report_page.HEADLINES) + 2
    figures = {number for line in lines[2:] for number in _numbers("".join(line.split("|")[2:]))}
    assert len(figures) > 10
    assert figures - _numbers(_between_markers(ROOT / "docs" / "benchmarks.md")) - {"1"} == set()


def test_the_documents_are_those_that_the_report_makes() -> None:
    """Once a report was made on a quiet machine, nobody edits its figures by hand."""
    path = ROOT / "docs" / "benchmarks.json"
    if not path.exists():
        pytest.skip("there is no docs/benchmarks.json: `make bench-report` has not run yet")
    found = json.loads(path.read_text(encoding="utf-8"))
    page = _between_markers(ROOT / "docs" / "benchmarks.md")
    assert page.strip() == report_page.generated(found).strip()
    assert not any(bench["quick"] for bench in found["benches"].values())


# Time for a call and rates, as benchmarks find them: 52 ns, 0.8 µs, 17 M/s, 94x.
_CLAIM = re.compile(r"(?<![\w.,])(\d+(?:,\d{3})*(?:\.\d+)?)(?:x\b| ?(?:ns|µs|us)\b| ?[kM]/s)")
# Longer times and shares are settings, except in sentences that say how they were found.
_TIME = re.compile(r"(?<![\w.,])(\d+(?:,\d{3})*(?:\.\d+)?) ?(?:(?:ms|s|seconds)\b|%)")
_FOUND = re.compile(r"\b(?:medians?|slowest|fastest|measured|p\d\d|takes? (?:about|up to))\b")
# These hold figures of their own: the report and the surge, campaigns, and what decisions were
# made on at their time.
_OWN = {"benchmarks.md", "surge.md", "reliability.md"}


def _claimed(text: str) -> set[str]:
    """The figures in a page that only a measurement can have found."""
    sentences = re.split(r"(?<=[.:;|])\s+|\n\n", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    times = {number for each in sentences if _FOUND.search(each) for number in _TIME.findall(each)}
    return times | set(_CLAIM.findall(text))


@pytest.mark.parametrize(
    ("text", "claimed"),
    [
        ("A hit takes 52 ns. It waits for 30 s.", {"52"}),
        ("The median is 1.5 ms, and p99 is within 20 %.", {"1.5", "20"}),
        ("A move takes about 66 ms; after 10 s it ends.", {"66"}),
        ("```sh\nsleep 5 s  # takes about 5 s\n```\n4x as fast", {"4"}),
    ],
)
def test_a_time_is_a_claim_where_a_sentence_says_how_it_was_found(
    text: str, claimed: set[str]
) -> None:
    assert _claimed(text) == claimed


def test_no_document_claims_a_figure_that_is_not_in_the_report() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"]
    claims = {
        (str(path.relative_to(ROOT)), number)
        for path in [ROOT / "README.md", *pages]
        if path.name not in _OWN and "_build" not in path.parts
        for number in _claimed(path.read_text(encoding="utf-8"))
    }
    assert len(claims) > 5
    reported = _numbers(_between_markers(ROOT / "docs" / "benchmarks.md"))
    assert {claim for claim in claims if claim[1] not in reported | {"1"}} == set()
