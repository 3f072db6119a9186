"""The type stubs of the log reader list exactly the names that it has."""

from __future__ import annotations

import ast
from pathlib import Path

import tidegate
from tidegate.tuning import _logs

STUBS = ast.parse((Path(tidegate.__file__).parent / "tuning/_logs.pyi").read_text())


def names(body: list[ast.stmt]) -> set[str]:
    return {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def test_every_name_is_in_the_stubs() -> None:
    assert names(STUBS.body) == {name for name in dir(_logs) if not name.startswith("_")}


def test_every_member_is_in_the_stubs() -> None:
    stub = next(node for node in STUBS.body if isinstance(node, ast.ClassDef))
    real = {name for name in vars(_logs.Reader) if not name.startswith("_")}
    assert names(stub.body) - {"__init__"} == real
