"""docs/migrate: programs before and after, each run for real, answer what the pages say."""

from __future__ import annotations

import importlib.metadata
import json
import re
import time

import pytest
from migrating import PAGES, groups, run
from redis_server import PATIENT, RedisServer

# fastapi-limiter 0.2 replaced it under the same name, so that only one can be installed.
NOT_INSTALLED = "fastapi-limiter 0.1.6"

CASES = [
    pytest.param(group, program, id=f"{group.name}-{program.side}-{number}")
    for page in sorted(PAGES.glob("*.md"))
    for group in groups(page)
    for number, program in enumerate(group.programs, 1)
    if program.about != NOT_INSTALLED
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis"), "--unixsocket", "") as server:
        yield server


@pytest.mark.parametrize(("group", "program"), CASES)
def test_it_answers_what_the_page_says(group, program, server, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(program.source, encoding="utf-8")
    # Ours waits for a slow machine rather than to decide without the server.
    options = "" if program.side == "before" else PATIENT
    began = 0.0
    # Windows of a day begin at midnight: a run across it is no answer.
    while time.time() // 86400 != began // 86400:
        began = time.time()
        server.command("FLUSHALL")
        output = run(path, group, {"REDIS_URL": server.uri(options).rstrip("?")})
    if group.is_web:
        expected = [statuses for *_, statuses in group.requests()]
        assert json.loads(output) == expected
    else:
        assert output == group.expected


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_before_and_after_stand_side_by_side(page):
    found = groups(page)
    assert bool(found) == (page.stem != "index")
    # None is left that would not be run.
    fences = page.read_text(encoding="utf-8").count("```python\n")
    assert fences == sum(len(group.programs) for group in found)
    for group in found:
        sides = [program.side for program in group.programs]
        assert sides[0] == "before"
        assert "after" in sides
        if group.is_web:
            assert any(429 in statuses for *_, statuses in group.requests())


def test_the_versions_that_the_pages_name_are_those_that_are_run():
    abouts = {
        program.about
        for page in PAGES.glob("*.md")
        for group in groups(page)
        for program in group.programs
        if program.side == "before"
    }
    assert NOT_INSTALLED in abouts
    for about in abouts - {NOT_INSTALLED}:
        name, version = re.fullmatch(r"(\S+) (\S+)", about).groups()
        assert importlib.metadata.version(name) == version
