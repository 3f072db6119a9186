"""The Python in the documents runs, and their links lead somewhere."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate as tg
from tidegate.limiter.storage.options import REDIS_OPTIONS, StorageOptions
from tidegate.testing import configured

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _blocks(document: Path) -> list[tuple[int, str]]:
    text = document.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(1)), match[1])
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


# Those in docs/migrate are programs of their own, which tests/python/migrate/test_migrate.py runs,
# the pages of notebooks are made by running these, and those of the API show signatures.
RUN_ELSEWHERE = ("migrate", "notebooks", "api")
SCRIPTS = [d for d in DOCUMENTS if _blocks(d) and d.parent.name not in RUN_ELSEWHERE]


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


FENCED = r"^(?P<fence>```+|~~~+).*?^(?P=fence)$"


def _without_code(text: str) -> str:
    text = re.sub(FENCED, "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)


def _anchors(document: Path) -> set[str]:
    """The fragments that lead into a page: its headings, as forges and the site spell them."""
    text = re.sub(FENCED, "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w -]", "", shown.strip().lower()).replace(" ", "-")
        again = (f"{slug}-{number}" for number in itertools.count(1))
        anchors.add(slug if slug not in anchors else next(a for a in again if a not in anchors))
    return anchors


def _links(text: str) -> list[str]:
    """The targets in this place of a document's links, pictures and definitions of links."""
    text = _without_code(text)
    return [
        *re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text),
        *re.findall(r"^\[[^\]]+\]: (?!https?:)(\S+)", text, re.MULTILINE),
    ]


def _lost(document: Path, text: str) -> list[str]:
    lost = []
    for target in _links(text):
        path, _, anchor = target.partition("#")
        page = document.parent / path if path else document
        inside = ROOT in page.resolve().parents
        if not (inside and page.exists()) or (anchor and anchor not in _anchors(page)):
            lost.append(target)
    return lost


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_its_links_lead_somewhere(document: Path) -> None:
    assert _lost(document, document.read_text(encoding="utf-8")) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    """Among links that lead somewhere, and code that looks like a link."""
    text = (
        "[a](web.md) [b](web.md#who-is-counted) [c](https://example.org) `[d](no.md)`\n"
        "```text\n[e](no.md)\n```\n"
        "[f](no.md) [g](web.md#no) [h](#no) ![i](images/no.png)\n[j]: no.md\n[k](../..)"
    )
    expected = ["no.md", "web.md#no", "#no", "images/no.png", "../..", "no.md"]
    assert _lost(ROOT / "docs" / "tutorial.md", text) == expected


def _only_of_sphinx(text: str) -> list[str]:
    """What a forge shows as it is written: roles, directives, substitutions, targets."""
    fenced = re.findall(r"^[`~:]{3,}\{[\w:-]+\}.*$", text, re.MULTILINE)
    prose = re.sub(FENCED, "", text, flags=re.MULTILINE | re.DOTALL)
    # What is first begins there: `/users/{id}`, `/{id}/diff` is code twice and no role.
    role_or_code = r"(\{[a-z][\w:-]*\}`[^`]+`)|(`+)(?!`).*?(?<!`)\2(?!`)"
    roles = [role for role, _ in re.findall(role_or_code, prose, re.DOTALL) if role]
    targets = re.findall(r"^\([\w-]+\)=$", prose, re.MULTILINE)
    return [*fenced, *roles, *targets]


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_it_is_plain_markdown(document: Path) -> None:
    """So that a checkout and a forge show what the site shows."""
    assert _only_of_sphinx(document.read_text(encoding="utf-8")) == []


def test_markup_that_only_sphinx_knows_is_found() -> None:
    text = (
        "See {doc}`web` and {ref}`a <b>`, `/users/{id}`, `/{id}/diff`.\n\n(name)=\n\n"
        "```{note}\nA note.\n```\n:::{tip}\n:::\n```python\nf'{a}'\n```\n"
    )
    expected = ["```{note}", ":::{tip}", "{doc}`web`", "{ref}`a <b>`", "(name)="]
    assert _only_of_sphinx(text) == expected


@pytest.mark.parametrize(
    ("page", "language", "source"),
    [
        ("reference/cpp.md", "cpp", "tests/cpp/consumer/main.cc"),
        ("reference/grpc.md", "protobuf", "proto/tidegate/v1/ratelimit.proto"),
        ("service/checks.md", "nginx", "examples/nginx/nginx.conf"),
    ],
)
def test_a_page_shows_a_program_as_it_is(page: str, language: str, source: str) -> None:
    shown = re.findall(rf"^```{language}\n(.*?)^```$", _page(page), re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in shown[0].splitlines()]
    whole = [line.strip() for line in (ROOT / source).read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 20
    assert any(whole[at : at + len(lines)] == lines for at in range(len(whole)))


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
    namespace: dict[str, Any] = {"__name__": "app", "clock": tg.ManualClock(10**18)}
    block = block.replace('rate_limit("5/minute")', 'rate_limit("5/minute", clock=clock)')
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


def test_the_reference_has_all_public_headers() -> None:
    headers = {path.name for path in (ROOT / "cpp" / "include" / "tidegate").glob("*.h")}
    shown = re.findall(r"^\| \[tidegate/(\w+\.h)\]", _page("reference/cpp.md"), re.MULTILINE)
    assert sorted(shown) == sorted(headers)


def test_code_that_is_python_is_marked_so_that_it_runs() -> None:
    blocks = [
        f"{_name(document)}: {block.splitlines()[0]}"
        for document in DOCUMENTS
        for block in re.findall(r"^```text\n(.*?)^```$", document.read_text(), re.M | re.S)
        if re.match(r"(?:\w+ = |import |from |tg\.)", block)
    ]
    assert blocks == []
