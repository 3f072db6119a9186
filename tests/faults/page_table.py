"""Reads and replaces the table of a campaign in a page of Markdown."""

from __future__ import annotations

import re
from pathlib import Path


class PageTable:
    """The part of a page between two comments."""

    def __init__(self, name: str) -> None:
        self.begin, self.end = f"<!-- {name} begins -->", f"<!-- {name} ends -->"

    def faults(self, page: str) -> list[str]:
        """Returns the names of the faults that the table of `page` lists."""
        text = page.partition(self.begin)[2].partition(self.end)[0]
        return re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)

    def rewrite(self, path: Path, table: str) -> None:
        """Replaces the table of the page at `path`."""
        before, found, rest = path.read_text(encoding="utf-8").partition(self.begin)
        after = rest.partition(self.end)[2]
        if not found:
            raise ValueError(f"expected {self.begin} in {path}, found none")
        path.write_text(f"{before}{self.begin}\n\n{table}\n{self.end}{after}", encoding="utf-8")
