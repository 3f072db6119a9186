"""The tables that campaigns write into pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_table import PageTable

TABLE = PageTable("the table")


def test_the_rest_of_a_page_stays_when_its_table_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{TABLE.begin}\nold\n{TABLE.end}\nafter\n")
    for name in ("a-fault", "another"):
        TABLE.rewrite(path, f"| `{name}` | 1 |")
        text = path.read_text()
        assert text == f"before\n{TABLE.begin}\n\n| `{name}` | 1 |\n{TABLE.end}\nafter\n"
        assert TABLE.faults(text) == [name]


def test_a_page_without_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("nothing\n")
    with pytest.raises(ValueError, match="expected <!-- the table begins --> in"):
        TABLE.rewrite(path, "| `a-fault` | 1 |")
    assert path.read_text() == "nothing\n"
