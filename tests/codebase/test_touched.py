"""`make touched` finds the tests that are near to a change."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import nearest  # noqa: E402
import touched  # noqa: E402


def _files(folder: str, suffix: str) -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob(f"*{suffix}"))


@pytest.fixture(autouse=True)
def _without_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive has none, and asking git about each file takes long."""
    monkeypatch.setattr(nearest, "_changed_together", lambda changed, root: {})


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("python/tidegate/limiter/plan.py", "tests/python/limiter/test_plan.py"),
        ("python/tidegate/web/headers.py", "tests/python/web/test_headers.py"),
        ("python/tidegate/tuning/recommend.py", "tests/python/tuning/test_recommend.py"),
        ("python/bindings/limiter/limiter.cc", "tests/python/limiter/test_limiter.py"),
        ("cpp/core/limits/limit_parse.cc", "tests/cpp/limit_parse_test.cc"),
        ("cpp/core/table/table.cc", "tests/cpp/table_test.cc"),
        ("cpp/include/tidegate/limit.h", "tests/cpp/limit_test.cc"),
        ("tests/cpp/table_test.cc", "tests/cpp/table_test.cc"),
        ("tests/python/web/test_asgi.py", "tests/python/web/test_asgi.py"),
    ],
)
def test_the_nearest_test_is_that_of_the_file(changed: str, test: str) -> None:
    assert nearest.nearest(changed)[0] == test


@pytest.mark.parametrize(
    ("folder", "suffix"), [("python/tidegate", ".py"), ("cpp", ".cc"), ("python/bindings", ".cc")]
)
def test_few_tests_are_near_a_file_and_none_has_none(folder: str, suffix: str) -> None:
    counts = {each: len(nearest.nearest(each)) for each in _files(folder, suffix)}
    assert len(counts) > 20
    assert [each for each, count in counts.items() if not 1 <= count <= nearest.MOST] == []


def test_a_name_leads_to_the_module_that_defines_it(tmp_path: Path) -> None:
    for name, text in {
        "python/tidegate/__init__.py": "from tidegate._one import One\n",
        "python/tidegate/_one.py": "class One: ...\n",
        "python/tidegate/_other.py": "",
        "tests/test_a.py": "import tidegate as tg\ntg.One()\n",
        "tests/test_b.py": "from tidegate import (\n    One as Once,\n)\n",
        "tests/test_c.py": "import helper\n",
        "tests/helper.py": "from tidegate import _other\n",
        "tests/test_d.py": "import os\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    near = nearest.nearest("python/tidegate/_one.py", tmp_path)
    assert near == ["tests/test_a.py", "tests/test_b.py"]
    assert nearest.nearest("python/tidegate/_other.py", tmp_path) == ["tests/test_c.py"]


def test_suites_of_each_kind_are_found() -> None:
    source = "TEST(A, X) {}\nTEST_F(B, X) {}\nTEST_P(C, X) {}\nTYPED_TEST(D, X) {}\nTEST(A, Y) {}\n"
    assert nearest.suites(source) == ["A", "B", "C", "D"]


def test_documents_and_settings_have_tests_too() -> None:
    _, of_page = touched.tests_of(["docs/web.md"])
    links, code = of_page
    assert links.endswith("test_its_links_lead_somewhere[docs/web.md]")
    assert code.endswith("test_its_code_runs[docs/web.md]")
    assert touched.tests_of(["Makefile", "pyproject.toml"]) == ([], [touched.REPOSITORY])


def test_no_test_begins_once_its_seconds_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(touched.time, "monotonic", lambda: now[0])
    said: list[str] = []
    reporter: Any = SimpleNamespace(write_line=said.append)
    bound = touched.Bound(2.0)
    assert bound.pytest_runtest_protocol() is None
    now[0] += 1.9
    assert bound.pytest_runtest_protocol() is None
    bound.pytest_terminal_summary(reporter)
    assert said == []
    now[0] += 0.2
    assert bound.pytest_runtest_protocol() is True
    bound.pytest_terminal_summary(reporter)
    assert said[0].startswith("1 tests and 0 files that are near were left out")


def test_the_nearest_file_is_collected_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    now = [100.0]
    monkeypatch.setattr(touched.time, "monotonic", lambda: now[0])
    module = request.node.getparent(pytest.Module)
    bound = touched.Bound(2.0)
    now[0] += 5.0
    assert bound.pytest_make_collect_report(module) is None
    report = bound.pytest_make_collect_report(module)
    assert report is not None
    assert report.result == []
    assert bound.pytest_runtest_protocol() is None
