"""The rooms of the Python package: which modules are where, and which may import which."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import imported_by

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "tidegate"

# By room, from the ground up: its modules (a folder stands for all that it holds and no other
# room names), and the rooms below it that these may import. docs/design.md has the same table.
ROOMS: dict[str, tuple[str, str]] = {
    "core": (
        "_core, _stubs/, types, limiter.background, limiter.checks, limiter.errors, "
        "limiter.usage_cost",
        "",
    ),
    "storage": ("limiter.storage/", "core"),
    "load": ("limiter.load/, load", "core"),
    "quotas": ("limiter.quotas/, quotas", "core"),
    "rules": ("rules/", "core"),
    "database": (
        "rules.sql/, rules.background_writer, rules.usage, rules.violation, rules.violation_log, "
        "rules.violations",
        "core, rules",
    ),
    "limiter": ("limiter/", "core, storage, quotas, rules"),
    "web": (
        "web/, asgi, wsgi, keys, refusals, testing, pytest_plugin",
        "core, storage, rules, limiter",
    ),
    "frameworks": (
        "web.frameworks/, starlette, fastapi, flask, django",
        "core, storage, limiter, web",
    ),
    "metrics": ("web.metrics, prometheus, opentelemetry", "core, limiter, web"),
    "outbound": ("outbound/, httpx, requests", "core, limiter"),
    "contrib": ("contrib/, limits", "core, limiter"),
    "package": ("__init__, _elsewhere/", "core, rules, limiter, web, frameworks"),
    "tuning": ("tuning/", "core, storage, rules, limiter, metrics"),
    "anomalies": ("server.anomalies/, anomaly", "core"),
    "records": ("server.records/", "core, database"),
    "server": (
        "server/",
        "core, storage, quotas, rules, database, limiter, web, metrics, anomalies, records",
    ),
    "command line": (
        "cli/, __main__",
        "core, storage, rules, database, limiter, web, tuning, records, server",
    ),
}
# What a program that only limits never loads.
OTHER_COMPONENTS = {"tuning", "anomalies", "records", "server", "command line"}

FRAMEWORKS = {"django", "fastapi", "flask", "starlette", "werkzeug"}
# Documented by its framework in spite of its name.
DOCUMENTED = {"_get_current_object"}


def _modules() -> dict[str, Path]:
    """All modules of the package by name, with stubs in place of compiled ones."""
    found = {}
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


MODULES = _modules()


# Read when a test needs them, since each process of a run imports all tests.
@functools.cache
def _trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def _imported(tree: ast.Module) -> Iterator[str]:
    """The package's modules that a module imports: at its top, late, and only for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "tidegate" and rest:
                parent = rest.rpartition(".")[0] or "__init__"
                yield rest if rest in MODULES else parent


@functools.cache
def _imports() -> dict[str, set[str]]:
    return {name: set(_imported(tree)) - {name} for name, tree in _trees().items()}


def _room(module: str) -> str:
    """The room that names the module, or the nearest of the folders that it lies in."""
    found = [
        (len(member), room)
        for room, (members, _) in ROOMS.items()
        for member in members.split(", ")
        if module == member.rstrip("/")
        or (member.endswith("/") and module.startswith(member.replace("/", ".")))
    ]
    assert found, f"{module} is in no room"
    return max(found)[1]


def _cycle(start: str) -> list[str] | None:
    """An import cycle, as the path from a module back to itself; None if there is none."""
    waiting = [[start]]
    seen = set()
    while waiting:
        way = waiting.pop()
        for module in sorted(_imports()[way[-1]]):
            if module == start:
                return [*way, start]
            if module not in seen:
                seen.add(module)
                waiting.append([*way, module])
    return None


def test_modules_are_found() -> None:
    assert {"_core", "limiter.limiter", "web.request_limiter", "cli.demo.service"} <= set(MODULES)
    assert "limiter.base" in _imports()["limiter.limiter"]
    assert "limiter.loops" in _imports()["limiter.limiter"], "late imports are read"
    assert "limiter.plan" in _imports()["__init__"], "imports for type checkers are read"


def test_no_module_imports_itself_in_a_circle() -> None:
    assert [way for module in MODULES if (way := _cycle(module))] == []


def test_rooms_import_only_the_rooms_below_them() -> None:
    wrong = [
        f"{name} ({_room(name)}) imports {module} ({_room(module)})"
        for name, modules in _imports().items()
        for module in sorted(modules)
        if _room(module) not in {_room(name), *ROOMS[_room(name)][1].split(", ")}
    ]
    assert wrong == []


def test_rooms_import_only_what_the_table_has_above_them() -> None:
    above: set[str] = set()
    for room, (_, below) in ROOMS.items():
        assert set(filter(None, below.split(", "))) <= above, room
        above.add(room)


def test_the_limiter_needs_no_other_component() -> None:
    for room in ("limiter", "rules", "database", "web", "frameworks"):
        reached = [room]
        for each in reached:
            reached += [
                below for below in ROOMS[each][1].split(", ") if below not in {*reached, ""}
            ]
        assert not OTHER_COMPONENTS & set(reached), room


def test_every_permission_of_the_table_is_used() -> None:
    used = {(_room(name), _room(module)) for name in MODULES for module in _imports()[name]}
    allowed = {(room, each) for room, row in ROOMS.items() for each in row[1].split(", ") if each}
    assert allowed - used == set()


def test_the_table_of_rooms_is_that_of_the_design_document() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z ]+) \| (`.+) \| .+ \| (.+) \|$", text, re.MULTILINE)
    documented = {
        room: (members.replace("`", ""), "" if below == "nothing" else below)
        for room, members, below in rows
    }
    assert documented == ROOMS


def test_the_package_holds_only_faces_and_rooms() -> None:
    """At most 30 of them, with few ways between them."""
    files = {path.name for path in PACKAGE.glob("*.py*") if path.is_file()} - {"py.typed"}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in files | folders if re.match("_[a-z]", name)} == {"_core.pyi"}
    assert len(files | folders) <= 30
    # Parts of the stubs of _core are no module of their own.
    top = {name: name.partition(".")[0].replace("_stubs", "_core") for name in MODULES}
    ways = {(top[name], top[module]) for name in MODULES for module in _imports()[name]}
    assert len({(start, end) for start, end in ways if start != end}) <= 95


def test_importing_tidegate_loads_only_the_limiter_and_storages() -> None:
    found = {name for name in imported_by("import tidegate") if "tidegate" in name}
    loaded = {name.partition(".")[2] or "__init__" for name in found}
    assert {_room(name) for name in loaded} == {"core", "storage", "limiter", "package"}
    assert "limiter.loops" not in loaded


@pytest.mark.parametrize(
    ("room", "others"), [("core", ("logs", "server")), ("logs", ("core", "server"))]
)
def test_libraries_include_only_those_below_them(room: str, others: tuple[str, ...]) -> None:
    files = [path for path in (ROOT / "cpp" / room).rglob("*.*") if path.suffix in {".cc", ".h"}]
    assert files
    of_core = {path.name for path in (ROOT / "cpp" / "core").iterdir()} | {"tidegate"}
    forbidden = {*others, *(of_core if "core" in others else ())}
    for path in files:
        included = re.findall(r'#include "(\w+)/', path.read_text(encoding="utf-8"))
        assert not forbidden & set(included), path


def test_modules_that_the_extension_names_exist() -> None:
    sources = (ROOT / "python" / "bindings").rglob("*.cc")
    named = {
        name
        for source in sources
        for name in re.findall(
            r'import\("tidegate\.([\w.]+)"\)', source.read_text(encoding="utf-8")
        )
    }
    assert named
    assert named <= set(MODULES)


def _root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else None


def test_only_the_room_of_frameworks_touches_private_parts_of_frameworks() -> None:
    touched = []
    for name, tree in _trees().items():
        if name.startswith("web.frameworks."):
            continue
        of_frameworks = {
            alias.asname or alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
            if (getattr(node, "module", None) or alias.name).partition(".")[0] in FRAMEWORKS
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                owner, attribute = node.value, node.attr
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("getattr", "setattr")
                and isinstance(node.args[1], ast.Constant)
            ):
                owner, attribute = node.args[0], str(node.args[1].value)
            else:
                continue
            is_private = attribute.startswith("_") and not attribute.startswith("__")
            if is_private and attribute not in DOCUMENTED and _root(owner) in of_frameworks:
                touched.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert touched == []
