"""The programs in docs/migrate, and what the pages say that they answer.

A page has fences of Python that begin with a comment, ``# before: slowapi 0.1.10`` or
``# after`` with whatever follows; each is a complete program. A fence of text that comes
after some of them says what all of these do: one line for requests (method, path, fields as
``Name:value``, then the statuses one after the other), or else what they print.

As a program, with the path of one of them, it serves that on a free port, sends the requests
that it is given on its input, and prints the statuses.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parents[2] / "docs" / "migrate"

_FENCE = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r"# (before|after)\b[:,]? *(.*)")
_REQUEST = re.compile(r"(?:GET|POST|PUT|PATCH|DELETE) ")
_STATUS = re.compile(r"\d{3}")


@dataclass(frozen=True)
class Program:
    side: str
    about: str
    source: str


@dataclass
class Group:
    """Programs of a page that do the same, and what that is."""

    name: str
    programs: list[Program] = field(default_factory=list)
    expected: str = ""

    def requests(self) -> list[tuple[str, str, dict[str, str], list[int]]]:
        """Method, path, fields and expected statuses, one line after the other."""
        found = []
        for line in self.expected.splitlines():
            method, path, *words = line.split()
            statuses = [int(word) for word in words if _STATUS.fullmatch(word)]
            pairs = [word.partition(":") for word in words if not _STATUS.fullmatch(word)]
            found.append((method, path, {name: value for name, _, value in pairs}, statuses))
        return found

    @property
    def is_web(self) -> bool:
        return _REQUEST.match(self.expected) is not None


def groups(page: Path) -> list[Group]:
    found = [Group(f"{page.stem}-1")]
    for kind, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == "text":
            found[-1].expected = text
            found.append(Group(f"{page.stem}-{len(found) + 1}"))
        elif (about := _PROGRAM.match(text)) is not None:
            found[-1].programs.append(Program(about[1], about[2], text))
    assert not found[-1].programs, f"{page.name} does not say what its last programs do"
    return found[:-1]


def run(path: Path, group: Group, environment: dict[str, str]) -> str:
    """What a program prints, or the lines of `group` with the statuses that it answered."""
    command = [sys.executable, str(path)]
    requests = [
        (method, name, fields, len(expected)) for method, name, fields, expected in group.requests()
    ] if group.is_web else None  # fmt: skip
    if requests is not None:
        command[1:1] = [__file__]
    result = subprocess.run(
        command,
        input=json.dumps(requests),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def _serve(path: Path, requests: list[Any]) -> list[list[int]]:
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the tests share
    from servers import asgi_server, wsgi_server

    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    sys.modules["program"] = program
    spec.loader.exec_module(program)
    is_async = inspect.iscoroutinefunction(type(program.app).__call__)
    with (asgi_server if is_async else wsgi_server)(program.app) as client:
        return [
            [client(name, method, headers=fields).status for _ in range(times)]
            for method, name, fields, times in requests
        ]


if __name__ == "__main__":
    print(json.dumps(_serve(Path(sys.argv[1]), json.load(sys.stdin))))
