"""The stubs, which document the extension, have all of its names and no others."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import tidegate
from tidegate import _core
from tidegate.limiter.base import Absent

PACKAGE = Path(tidegate.__file__).parent
STUBS = ast.parse((PACKAGE / "_core.pyi").read_text())
for part in sorted((PACKAGE / "_stubs").glob("*.pyi")):
    STUBS.body += ast.parse(part.read_text()).body
INHERITED = set(dir(object)) | {"__module__", "__dict__", "__weakref__", "__doc__"}


def names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


def test_every_name_is_there() -> None:
    stubbed = names(STUBS.body)
    public = {name for name in dir(_core) if not name.startswith("_")} | {"__version__"}
    assert set(stubbed) == public


def test_every_member_is_there() -> None:
    for name, node in names(STUBS.body).items():
        if not isinstance(node, ast.ClassDef):
            continue
        real = {
            member
            for member, value in vars(getattr(_core, name)).items()
            if not member.startswith("_pybind11")
            and member not in INHERITED
            and not (inspect.getdoc(value) or "").startswith("Absent: ")
        }
        stubbed = set(names(node.body)) - INHERITED
        assert stubbed == real - {"__reduce__"}, name


def test_all_that_is_public_is_documented() -> None:
    for name, node in names(STUBS.body).items():
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            assert ast.get_docstring(node), name
        if isinstance(node, ast.ClassDef):
            overloaded = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
            for member in node.body:
                if not isinstance(member, ast.FunctionDef) or member.name.startswith("_"):
                    continue
                if overloaded.count(member.name) > 1:
                    continue
                assert ast.get_docstring(member), f"{name}.{member.name}"


def test_help_describes_every_public_name() -> None:
    for name in tidegate.__all__:
        public = getattr(tidegate, name)
        assert name == "__version__" or inspect.getdoc(public), name
        if not inspect.isclass(public) or issubclass(public, Exception):
            continue
        for member in dir(public):
            if member.startswith("_") or isinstance(inspect.getattr_static(public, member), Absent):
                continue
            assert inspect.getdoc(getattr(public, member)), f"{name}.{member}"


def test_late_imports_are_listed_too() -> None:
    assert set(tidegate.__all__) <= set(dir(tidegate))


def test_signatures_can_be_read() -> None:
    limiter = tidegate.Limiter("1/minute")
    for call in (limiter.hit, limiter.allow, limiter.peek):
        assert list(inspect.signature(call).parameters) == ["key", "cost"]
    assert list(inspect.signature(limiter.refund).parameters) == ["key", "cost", "decision"]
    assert list(inspect.signature(limiter.hit_many).parameters) == ["keys", "costs"]
    assert str(inspect.signature(tidegate.ManualClock.now_ns)) == "(self)"
    assert str(inspect.signature(tidegate.Limiter.peek)) == "(self, /, key, cost=1)"
    assert list(inspect.signature(tidegate.Limit).parameters) == [
        "limit", "period", "burst", "algorithm", "name", "shadow", "id", "max_debt", "oversize",
    ]  # fmt: skip


def test_help_on_decisions_is_that_of_the_stubs() -> None:
    stub = names(STUBS.body)["Decision"]
    assert isinstance(stub, ast.ClassDef)
    assert inspect.getdoc(tidegate.Decision) == ast.get_docstring(stub)
    for name, member in names(stub.body).items():
        if isinstance(member, ast.FunctionDef) and not name.startswith("_"):
            assert inspect.getdoc(getattr(tidegate.Decision, name)) == ast.get_docstring(member)


def test_help_on_limits_is_that_of_the_stubs() -> None:
    assert inspect.getdoc(tidegate.Limit) == ast.get_docstring(names(STUBS.body)["Limit"])


def stated_parameters(function: ast.FunctionDef) -> dict[str, bool]:
    """The parameters of a stub, and whether each has a default."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    first = len(positional) - len(args.defaults)
    found = {arg.arg: number >= first for number, arg in enumerate(positional)}
    found |= {
        arg.arg: default is not None for arg, default in zip(args.kwonlyargs, args.kw_defaults)
    }
    found |= {arg.arg: False for arg in (args.vararg, args.kwarg) if arg is not None}
    return {name: default for name, default in found.items() if name not in ("self", "cls")}


def real_parameters(function: object) -> dict[str, bool] | None:
    """The same of a compiled function, as pybind11 or its text signature says; None if neither."""
    text = getattr(function, "__text_signature__", None)
    if text:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
        return {p.name: p.default is not p.empty for p in parameters if p.name != "self"}
    text = (getattr(function, "__doc__", None) or "").partition("\n")[0]
    match = re.match(r"\w+\((.*)\) -> ", text)
    if match is None:
        return None
    flat = match[1]
    while (shorter := re.sub(r"\[[^\[\]]*\]", "", flat)) != flat:  # the types of generics
        flat = shorter
    found = {}
    for each in filter(None, flat.split(", ")):
        name = each.partition(":")[0].partition("=")[0].strip(" */")
        if name and name != "self":
            found[name] = "=" in each
    return found


def test_every_parameter_is_there() -> None:
    compared = 0
    for name, node in names(STUBS.body).items():
        if isinstance(node, ast.FunctionDef):
            members = {name: (node, getattr(_core, name))}
        elif isinstance(node, ast.ClassDef):
            functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            plain = [each for each in functions if not each.decorator_list]
            members = {
                f"{name}.{each.name}": (each, vars(getattr(_core, name)).get(each.name))
                for each in plain
            }
        else:
            continue
        for full, (stub, function) in members.items():
            real = real_parameters(function)
            # Slots of types name no parameters, and options of stores pass through.
            if real is None or {"args", "kwargs", "value"} & real.keys():
                continue
            assert stated_parameters(stub) == real, full
            compared += 1
    assert compared > 50
