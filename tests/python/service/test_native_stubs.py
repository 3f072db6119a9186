"""The type stubs of the server's extension list exactly the names that it has, private ones too."""

from __future__ import annotations

import ast
from pathlib import Path

import tidegate
from tidegate.server import _native

STUBS = ast.parse((Path(tidegate.__file__).parent / "server/_native.pyi").read_text())
CLASSES = [node for node in STUBS.body if isinstance(node, ast.ClassDef)]
INHERITED = {*dir(object), "__module__", "__dict__"}


def test_every_name_is_in_the_stubs() -> None:
    found = {name for name in dir(_native) if not name.startswith("__")}
    functions = {node.name for node in STUBS.body if isinstance(node, ast.FunctionDef)}
    assert {node.name for node in CLASSES} | functions == found


def test_every_member_is_in_the_stubs() -> None:
    for stub in CLASSES:
        listed = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
        members = vars(getattr(_native, stub.name))
        real = {name for name in members if not name.startswith("_pybind11")}
        assert listed - INHERITED == real - INHERITED, stub.name


def test_the_release_has_no_services_of_the_tests() -> None:
    """Those are in tests/extension. What is private would be for no one else."""
    members = {name for node in CLASSES for name in vars(getattr(_native, node.name))}
    private = {name for name in {*dir(_native), *members} if name.startswith("_")}
    assert {name for name in private if not name.startswith(("__", "_pybind11"))} == set()
