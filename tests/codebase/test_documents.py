"""The Python in the documents runs, and their links lead somewhere."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.limiter.storage.options import REDIS_OPTIONS, StorageOptions
from tidegate.testing import configured

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
    """The settings of a Django project, for code that is typed into one."""
    from django.conf import settings

    if not settings.configured:
        settings.configure()


@pytest.fixture
def _own_configuration() -> Iterator[None]:
    with configured():
        yield


@pytest.mark.usefixtures("_own_configuration")
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
        # The decorator reads its module's source, so lines must keep their numbers.
        exec(compile("\n" * line + source, str(document), "exec"), namespace)


def _anchors(document: Path) -> set[str]:
    """Returns the fragments that lead into a page: its headings, as the site spells them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_its_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    outside_code = re.sub(r"^```.*?^```$|`[^`]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:)([^)\s]+)\)", outside_code)
    targets += re.findall(r"^\[[^\]]+\]: (?!https?:)(\S+)", outside_code, re.MULTILINE)
    targets += [f"{name}.md" for name in re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text)]
    lost = []
    for target in targets:
        path, _, anchor = target.partition("#")
        page = document.parent / path if path else document
        if not page.exists() or (anchor and anchor not in _anchors(page)):
            lost.append(target)
    assert lost == []


def test_the_readme_is_short_and_leads_to_the_rest() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text) <= 6000
    paths = re.findall(r"\]\((?!https?:)([^)]+)\)", text)
    assert {"CONTRIBUTING.md", "docs/tutorial.md", "docs/images/flow.svg"} <= set(paths)


def test_links_of_the_page_for_a_package_index_are_absolute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They lead to the files that the README names, pictures as such."""
    from scikit_build_core.metadata.fancy_pypi_readme import dynamic_metadata

    monkeypatch.chdir(ROOT)
    page = dynamic_metadata("readme", {}, {"name": "tidegate", "version": "0"})
    assert isinstance(page, dict)
    home = r"https://(?:raw\.githubusercontent|github)\.com/tidegate/tidegate/(?:blob/)?main/"
    readme = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)]+)\)", page["text"])
    assert [re.sub(f"^{home}", "", link) for link in links] == readme
    assert [link for link in links if not link.startswith("https://")] == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page["text"])
    assert pictures
    assert [p for p in pictures if not p.startswith("https://raw.githubusercontent.com/")] == []


def test_urls_of_the_package_are_those_of_the_repository() -> None:
    urls = re.findall(r'^\w+ = "(https://[^"]+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert urls
    assert all(url.startswith("https://github.com/tidegate/tidegate") for url in urls)


def test_the_first_program_of_the_readme_refuses_the_sixth_request() -> None:
    """It answers as the README shows."""
    from starlette.testclient import TestClient

    document = ROOT / "README.md"
    line, block = _blocks(document)[0]
    assert len([each for each in block.splitlines() if each]) <= 10
    namespace: dict[str, Any] = {"__name__": "app"}
    exec(compile("\n" * line + block, str(document), "exec"), namespace)
    client = TestClient(namespace["app"])
    answers = [client.get("/report") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    shown = re.findall(r"^```http\n(.*?)^```$", document.read_text("utf-8"), re.M | re.S)[0]
    status, *fields = shown.splitlines()
    assert status == "HTTP/1.1 429 Too Many Requests"
    assert len(fields) > 3
    for field in fields:
        name, _, value = field.partition(": ")
        assert answers[-1].headers[name] == value


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_reference_has_all_options_of_storages() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", _page("reference/storage-options.md"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert set(listed) == set(StorageOptions.__annotations__) | {"clock"}
    assert sorted(set(listed) - {"capacity", "clock"}) == sorted(set(REDIS_OPTIONS) - {"clock"})


LISTED = re.findall(r"automodule:: (\S+)", _page("reference/api.md"))
# Some pages and an example import these, of which no release promises anything.
UNPROMISED = {
    "tidegate._core",
    "tidegate.server",
    "tidegate.server.admin.app",
    "tidegate.server.admin.oidc",
}


def test_the_reference_has_all_public_modules() -> None:
    """All faces, and of the rooms those that it names: what it does not list is private."""
    faces = {path.stem for path in (ROOT / "python" / "tidegate").glob("[a-z]*.py")}
    assert len(LISTED) == len(set(LISTED))
    assert {f"tidegate.{name}" for name in faces} | {"tidegate"} <= set(LISTED)
    for name in set(LISTED) - {f"tidegate.{face}" for face in faces}:
        assert name.split(".")[1:2] in ([], ["rules"], ["tuning"]), name


@pytest.mark.parametrize("name", LISTED)
def test_the_reference_has_all_that_a_module_exports(name: str) -> None:
    module = importlib.import_module(name)
    page = _page("reference/api.md")
    left_out = re.findall(rf"automodule:: {name}\n(?:   :.*\n)*?   :exclude-members: (.+)", page)
    for each in {*"".join(left_out).split(", ")} & {*module.__all__}:
        elsewhere = any(
            getattr(importlib.import_module(other), each, None) is getattr(module, each)
            for other in set(LISTED) - {name, "tidegate"}
        )
        assert elsewhere or re.search(rf"autoclass:: {name}\.{each}\b", page), each
    for each in module.__all__:
        assert hasattr(module, each)


def test_what_users_read_imports_only_what_is_public() -> None:
    code = [
        *(path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")),
        *(block for document in DOCUMENTS for _, block in _blocks(document)),
    ]
    imported = {
        name
        for text in code
        for name in re.findall(r"^ *(?:from|import) (tidegate(?:\.\w+)*)", text, re.MULTILINE)
    }
    assert "tidegate.fastapi" in imported
    assert imported - {*LISTED} == UNPROMISED


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
