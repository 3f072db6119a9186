"""The Python in the documents runs, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tidegate._storage.options import REDIS_OPTIONS, StorageOptions

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _blocks(document: Path) -> list[tuple[int, str]]:
    text = document.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(1)), match[1])
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


# Those in docs/migrate are programs of their own, which tests/python/migrate/test_migrate.py runs.
SCRIPTS = [d for d in DOCUMENTS if _blocks(d) and d.parent.name != "migrate"]


@pytest.fixture(autouse=True)
def _django() -> None:
    """What is typed into a Django project has its settings."""
    from django.conf import settings

    if not settings.configured:
        settings.configure()


@pytest.mark.parametrize("document", SCRIPTS, ids=_name)
def test_its_code_runs(document: Path, tmp_path: Path) -> None:
    """Block after block, in one namespace, as a reader would type them."""
    namespace: dict[str, Any] = {"__name__": "document"}
    for line, block in _blocks(document):
        # Shared memories of the host are not ours to make, and servers of examples not to look for.
        source = re.sub(r"shm://(?=\w)", f"shm://{tmp_path}/", block)
        source = re.sub(
            r"(?<=[/@])(?:redis\.internal|localhost)(?::6379)?(?=[/\"?])", "127.0.0.1:1", source
        )
        # The decorator looks at its module's source, so lines have to be where they are.
        exec(compile("\n" * line + source, str(document), "exec"), namespace)


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_its_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    targets += [f"{name}.md" for name in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text)]
    assert [t for t in targets if not (document.parent / t).exists()] == []


def test_links_of_the_readme_serve_a_package_index_too() -> None:
    """They are absolute, and lead to files of this repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    home = (
        r"https://(?:raw\.githubusercontent|github)\.com/tidegate/tidegate/(?:(?:blob|tree)/)?main/"
    )
    paths = re.findall(rf"{home}([^)\s]+)", text)
    assert "CONTRIBUTING.md" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert re.findall(r"\]\((?!https://)[^)]+\)", text) == []
    labels = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
    outside_code = re.sub(r"^```.*?^```$|`[^`]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"\[([^\]]+)\](?![(:])", outside_code)) == labels
    urls = re.findall(r'^\w+ = "(https://[^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert urls
    assert all(url.startswith("https://github.com/tidegate/tidegate") for url in urls)


def test_the_first_program_of_the_readme_refuses_the_sixth_request() -> None:
    from starlette.testclient import TestClient

    document = ROOT / "README.md"
    line, block = _blocks(document)[0]
    assert len([each for each in block.splitlines() if each]) <= 10
    namespace: dict[str, Any] = {"__name__": "app"}
    exec(compile("\n" * line + block, str(document), "exec"), namespace)
    client = TestClient(namespace["app"])
    assert [client.get("/report").status_code for _ in range(6)] == [200] * 5 + [429]


def test_the_readme_names_the_packages_that_a_build_needs() -> None:
    script = (ROOT / "scripts" / "install-deps.sh").read_text(encoding="utf-8")
    for_builds = script[: script.index("case ${1:-} in")]
    needed = set(re.findall(r"\bpackage ([a-z][a-z0-9+-]+) ", for_builds)) - {"python3"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^apt-get install (.+)$", readme, re.MULTILINE)[0].split())
    assert needed <= listed


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_reference_has_all_options_of_storages() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", _page("reference/storage-options.md"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert set(listed) == set(StorageOptions.__annotations__) | {"clock"}
    assert sorted(set(listed) - {"capacity", "clock"}) == sorted(set(REDIS_OPTIONS) - {"clock"})


def test_the_reference_has_all_public_modules() -> None:
    package = ROOT / "python" / "tidegate"
    public = {f"tidegate.{path.stem}" for path in package.glob("[a-z]*.py")}
    public |= {f"tidegate.rules.{path.stem}" for path in package.glob("rules/[a-z]*.py")}
    public |= {f"tidegate.tuning.{path.stem}" for path in package.glob("tuning/[a-z]*.py")}
    public |= {"tidegate", "tidegate.rules", "tidegate.tuning"}
    assert set(re.findall(r"automodule:: (\S+)", _page("reference/api.md"))) == public


def test_the_reference_has_all_public_headers() -> None:
    headers = {path.name for path in (ROOT / "cpp" / "include" / "tidegate").glob("*.h")}
    shown = re.findall(r"include/tidegate/(\w+\.h)$", _page("reference/cpp.md"), re.MULTILINE)
    assert sorted(shown) == sorted(headers)


def test_code_that_is_python_is_marked_so_that_it_runs() -> None:
    blocks = [
        f"{_name(document)}: {block.splitlines()[0]}"
        for document in DOCUMENTS
        for block in re.findall(r"^```text\n(.*?)^```$", document.read_text(), re.M | re.S)
        if re.match(r"(?:\w+ = |import |from |tg\.)", block)
    ]
    assert blocks == []
