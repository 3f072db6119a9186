"""Runs the notebooks of examples/notebooks and writes their output as pages of docs/notebooks.

The site is built without the package, and so without running the notebooks. Run this after a
change of a notebook or of a picture, and commit the result. tests/python/tuning/test_notebooks.py
compares the texts.
"""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"
PAGES = ROOT / "docs" / "notebooks"
PICTURES = ROOT / "docs" / "images" / "notebooks"


def page_of(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook that was run, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream":
                if output.name == "stdout":
                    parts.append(_as_text(output.text))
            elif "image/png" in data:
                file = _file_name(name, cell.source, pictures)
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![What this draws](../images/notebooks/{file})")
            elif "text/html" in data:
                parts.append(data["text/html"].replace("<p></p>", ""))
            elif "text/plain" in data:
                parts.append(_as_text(data["text/plain"]))
    return "\n\n".join(parts) + "\n", pictures


def _file_name(name: str, source: str, taken: dict[str, bytes]) -> str:
    """Names a picture by the plot that it shows, so that pictures before it hardly matter."""
    drawn = re.findall(r"plots\.(\w+)", source)[-1]
    stem = f"{name}-{drawn}"
    number = sum(file.startswith(stem) for file in taken)
    return f"{stem}-{number + 1}.png" if number else f"{stem}.png"


def _as_text(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def main() -> None:
    """Renders the given notebooks, or all of them."""
    import nbformat
    from nbclient import NotebookClient

    names = sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    PAGES.mkdir(exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    for name in names:
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        NotebookClient(notebook, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
        page, pictures = page_of(notebook, name)
        for old in PICTURES.glob(f"{name}-*.png"):
            old.unlink()
        for file, content in pictures.items():
            (PICTURES / file).write_bytes(content)
        (PAGES / f"{name}.md").write_text(page, encoding="utf-8")
        print(f"docs/notebooks/{name}.md, {len(pictures)} pictures")


if __name__ == "__main__":
    main()
