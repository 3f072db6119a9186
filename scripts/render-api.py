"""Writes the pages of the Python API from signatures and docstrings: docs/reference/api.md, api/.

Run this after a change of a public name, signature or docstring, and commit the result;
tests/codebase/test_reference.py fails otherwise. Nothing is imported, and nothing needs to be
built: griffe reads the sources and stubs. With `--check` nothing is written, and the exit status
is 1 if a page is not what this would write.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from api_contents import GROUPS, SECTIONS, TEXTS, Page

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
NOTE = (
    "<!-- Written by scripts/render-api.py from the sources: "
    "change signatures and docstrings there, and run it again. -->"
)
WIDTH = 88


AS_IN = re.compile(r"Like (\w+)\(\), without blocking the event loop[.:]?\s*", re.DOTALL)


class Sources:
    """The package as griffe reads it."""

    def __init__(self, path: Path) -> None:
        loader = griffe.GriffeLoader(search_paths=[str(path)])
        self.package: Any = loader.load("tidegate")
        loader.resolve_aliases(implicit=False, external=False)
        self.defaults = self._defaults_of_options()
        self.names = self._names()
        self.public = {
            self.item(name).path: name
            for entries in self.names.values()
            for names in entries.values()
            for name in names
        }

    def module(self, path: str) -> Any:
        _, _, rest = path.partition(".")
        return self.package[rest] if rest else self.package

    def item(self, name: str) -> Any:
        """The object with this public name."""
        module, _, attribute = name.rpartition(".")
        found = self.module(module).members[attribute]
        if not found.is_alias and found.is_module:  # a function in a module of its name
            found = found.members[attribute]
        return found.final_target if found.is_alias else found

    def exported(self, module: str) -> list[str]:
        exports = self.module(module).exports or []
        return [each if isinstance(each, str) else each.name for each in exports]

    def is_module(self, name: str) -> bool:
        """Whether this is a module, and no name that the module above it exports."""
        above, _, last = name.rpartition(".")
        if last in self.exported(above):
            return False
        try:
            return bool(self.module(name).is_module)
        except KeyError:
            return False

    def _names(self) -> dict[str, dict[str, list[str]]]:
        """The public names of each entry of each page; of a module those that no entry names."""
        pages = [page for section in SECTIONS.values() for page in section]
        named = [name for page in pages for name in page.names if not self.is_module(name)]
        alone = {self.item(name).path for name in named}
        result: dict[str, dict[str, list[str]]] = {}
        for page in pages:
            entries = result.setdefault(page.file, {})
            for entry in page.names:
                if not self.is_module(entry):
                    entries[entry] = [entry]
                    continue
                names = [f"{entry}.{name}" for name in self.exported(entry)]
                entries[entry] = [name for name in names if self.item(name).path not in alone]
        return result

    def _defaults_of_options(self) -> dict[str, str]:
        """The defaults of web options, as they are written."""
        value = self.module("tidegate.web.options")["DEFAULTS"].value
        table = ast.parse(str(value), mode="eval").body
        assert isinstance(table, ast.Dict)
        keys = [ast.literal_eval(key) for key in table.keys if key is not None]
        return {
            key: ast.unparse(each)
            for key, each in zip(keys, table.values)
            if not isinstance(each, ast.Name)
        }


# ------------------------------------------------------------------------------ types


class _Readable(ast.NodeTransformer):
    """Shows what a reader needs of an annotation: the type, not how it is checked."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        kind = ast.unparse(node.value)
        if kind == "Annotated":
            assert isinstance(node.slice, ast.Tuple)
            return self.visit(node.slice.elts[0])
        if kind == "Union":
            assert isinstance(node.slice, ast.Tuple)
            first, *others = (self.visit(each) for each in node.slice.elts)
            for each in others:
                first = ast.BinOp(first, ast.BitOr(), each)
            return first
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        is_name = isinstance(node.value, str) and re.fullmatch(r"[\w.]+\.\w+", node.value)
        return self.visit(ast.parse(node.value, mode="eval").body) if is_name else node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        return ast.Name(node.attr) if ast.unparse(node.value) == "_core" else node

    def visit_Name(self, node: ast.Name) -> Any:
        value = value_of_alias(self._module, node.id)
        if value.startswith("Annotated["):
            return self.visit(ast.parse(value, mode="eval").body)
        return ast.Name(node.id.lstrip("_"))


def value_of_alias(module: Any, name: str) -> str:
    """What `name` stands for in this module, as it is written; else an empty text."""
    try:
        found = module.members[name]
        found = found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError):
        return ""
    return str(found.value) if found.is_attribute and found.value is not None else ""


def readable(annotation: Any, module: Any) -> str:
    tree = _Readable(module).visit(ast.parse(str(annotation), mode="eval").body)
    return in_double_quotes(ast.unparse(ast.fix_missing_locations(tree)))


def in_double_quotes(code: str) -> str:
    return re.sub(r"'([^'\"\\]*)'", r'"\1"', code)


# ------------------------------------------------------------------------- signatures


def options_of(sources: Sources, annotation: Any) -> Iterator[str]:
    """The parameters that ``**options: Unpack[...]`` stands for; those of storages as one."""
    kind = annotation.slice
    options = sources.module(kind.canonical_path.rpartition(".")[0])[kind.canonical_name]
    every = [*reversed(options.mro()), options]
    of_web = any(each.name == "RequestOptions" for each in every)
    of_storages = False
    for each in every:
        if each.name == "StorageOptions":
            of_storages = True
            continue
        for option in each.members.values():
            if option.is_attribute and option.annotation is not None:
                shown = readable(option.annotation, each.module)
                yield f"{option.name}: {shown} = {_default(sources, option, of_web)}"
    if of_storages:
        yield "**storage_options"


def _default(sources: Sources, option: Any, of_web: bool) -> str:
    if of_web and option.name in sources.defaults:
        return in_double_quotes(sources.defaults[option.name])
    return "None" if re.search(r"\bNone\b", str(option.annotation)) else "..."


def parameters_of(sources: Sources, function: Any) -> list[str]:
    shown: list[str] = []
    seen_star = False
    kinds = griffe.ParameterKind
    parameters = list(function.parameters)
    for at, each in enumerate(parameters):
        if at == 0 and each.name in ("self", "cls"):
            continue
        if each.kind is kinds.keyword_only and not seen_star:
            shown.append("*")
            seen_star = True
        if _is_options(each):
            if not seen_star:
                shown.append("*")
            shown += options_of(sources, each.annotation)
            continue
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(each.kind, "")
        seen_star = seen_star or stars == "*"
        typed = ""
        if each.annotation is not None:
            typed = f": {readable(each.annotation, function.module)}"
        default = None if stars else each.default
        value = f" = {in_double_quotes(str(default))}" if default is not None else ""
        shown.append(f"{stars}{each.name}{typed}{value if typed else value.replace(' ', '')}")
        following = parameters[at + 1] if at + 1 < len(parameters) else None
        if each.kind is kinds.positional_only and (
            following is None or following.kind is not kinds.positional_only
        ):
            shown.append("/")
    return shown


def signature(sources: Sources, name: str, function: Any) -> str:
    """The call of `function`, on one line if it fits."""
    parameters = parameters_of(sources, function)
    labels = function.labels
    returns = ""
    if function.name not in ("__init__", "__new__") and function.returns is not None:
        returns = f" -> {readable(function.returns, function.module)}"
    start = f"{'await ' if 'async' in labels else ''}{name}"
    line = f"{start}({', '.join(parameters)}){returns}"
    if len(line) <= WIDTH:
        return line
    rows = "".join(f"    {each},\n" for each in parameters)
    return f"{start}(\n{rows}){returns}"


# -------------------------------------------------------------------------- docstrings


def as_markdown(text: str) -> str:
    """A docstring's code blocks are indented after ``::``, and its code is in doubled backticks."""
    lines = inspect.cleandoc(text).split("\n")
    result: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        begins_code = line.startswith("    ") and (not result or not result[-1])
        if not line.endswith("::") and not begins_code:
            result.append(line.replace("``", "`"))
            continue
        if begins_code:
            at -= 1
        elif line.strip() != "::":
            result.append(line[:-1].replace("``", "`"))
        code: list[str] = []
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" ")):
            code.append(lines[at])
            at += 1
        shown = inspect.cleandoc("\n".join(["", *code])).strip("\n")
        result += ["", f"```{_language(shown)}", shown, "```", ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(result)).strip()


def _language(code: str) -> str:
    try:
        ast.parse(code)
    except SyntaxError:
        return "text"
    return "python"


def text_of(item: Any) -> str:
    return as_markdown(item.docstring.value) if item.docstring else TEXTS.get(item.path, "")


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    match = re.match(r"(.+?[.:])(?: (?=[A-Z`])|$)", paragraph)
    return (match[1] if match else paragraph).rstrip(":.")


def in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ------------------------------------------------------------------------------- pages


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def members_of(item: Any) -> dict[str, Any]:
    """The public members, also those of bases in the package, in the order of the sources."""
    found: dict[str, Any] = {}
    for each in [*reversed(item.mro()), item]:
        if not each.path.startswith("tidegate."):
            continue
        for name, member in each.members.items():
            target = member.final_target if member.is_alias else member
            is_shown = target.is_attribute or (target.is_function and target.docstring)
            if "property" in target.labels and not target.docstring:
                is_shown = False
            if is_shown and not name.startswith("_"):
                found[name] = target
        for name, variants in each.overloads.items():
            if not name.startswith("_") and name not in each.members:
                found[name] = variants[-1]
    return {name: each for name, each in found.items() if name != "model_config"}


def bases_of(sources: Sources, item: Any) -> list[str]:
    """The bases that a reader can know: the public ones, and those of other packages."""
    shown = []
    for base in map(str, item.bases):
        name = base.partition("[")[0].rpartition(".")[2]
        ours = [each.path for each in item.mro() if each.name == name]
        public = sources.public.get(ours[0]) if ours else base
        if public is not None and public != sources.public.get(item.path):
            shown.append(public)
    return shown


def constructors_of(item: Any) -> list[Any]:
    """What a call of the class takes: several functions if it is overloaded; else at most one."""
    for each in [item, *item.mro()]:
        for name in ("__init__", "__new__"):
            variants = each.overloads.get(name)
            if variants:
                return list(variants)
            made = each.members.get(name)
            if made is not None and made.is_function and _says_what_it_takes(made):
                return [made]
    return []


def _says_what_it_takes(function: Any) -> bool:
    """Whether it has parameters, and not only ``*args, **kwargs``."""
    rest = list(function.parameters)[1:]
    return any(not each.kind.value.startswith("variadic") or _is_options(each) for each in rest)


def _is_options(parameter: Any) -> bool:
    return str(parameter.annotation).startswith("Unpack[")


def render_class(sources: Sources, public: str, item: Any) -> Iterator[str]:
    name = item.name
    made = [signature(sources, name, each) for each in constructors_of(item)]
    if made:
        yield "```python\n" + "\n".join(made) + "\n```"
    bases = bases_of(sources, item)
    if bases:
        yield f"A subclass of {', '.join(f'`{base}`' for base in bases)}."
    yield text_of(item)
    members = members_of(item)
    twins = {}
    for each in list(members):
        like = AS_IN.match(text_of(members[each]))
        if each.endswith("_async") and like and like[1] in members:
            twins[like[1]] = members.pop(each)
    is_enum = "Enum" in " ".join(map(str, item.bases))
    attributes = {
        each: member
        for each, member in members.items()
        if member.is_attribute and (member.docstring or member.annotation is not None or is_enum)
    }
    functions = {each: member for each, member in members.items() if member.is_function}
    groups = GROUPS.get(public)
    if groups is not None:
        listed = [each for names in groups.values() for each in names]
        rest = tuple(each for each in [*attributes, *functions] if each not in listed)
        groups = {**groups, "More": rest} if rest else groups
        functions = {each: functions[each] for each in [*listed, *rest] if each in functions}
        yield from _contents(name, groups, functions)
    if attributes:
        yield _table_of(attributes)
    for each, member in functions.items():
        yield f"### {name}.{each}"
        yield from render_function(sources, f"{name}.{each}", member, twins.get(each))


def _table_of(attributes: dict[str, Any]) -> str:
    rows = []
    for name, member in attributes.items():
        kind = member.annotation
        value = in_double_quotes(str(member.value))
        shown = readable(kind, member.module) if kind is not None else value
        said = text_of(member) or _description_in(str(member.value))
        rows.append(f"| `{name}` | `{in_a_cell(shown)}` | {in_a_cell(said)} |")
    return "\n".join(["| attribute | type | |", "|---|---|---|", *rows])


def _description_in(value: str) -> str:
    """What pydantic's ``Field(description=...)`` says."""
    for node in ast.walk(ast.parse(value, mode="eval")):
        if isinstance(node, ast.keyword) and node.arg == "description":
            return str(ast.literal_eval(node.value)).replace("*", r"\*")
    return ""


def _contents(name: str, groups: Any, functions: Any) -> Iterator[str]:
    rows = []
    for group, names in groups.items():
        links = [
            f"[`{each}`](#{anchor(f'{name}.{each}')})" if each in functions else f"`{each}`"
            for each in names
        ]
        rows.append(f"| {group} | {', '.join(links)} |")
    yield "\n".join(["| to | |", "|---|---|", *rows])


def render_function(sources: Sources, name: str, item: Any, twin: Any = None) -> Iterator[str]:
    """`twin` is the one that does the same without blocking an event loop."""
    is_method = "." in name
    owner = name.rpartition(".")[0]
    variants = item.parent.overloads.get(item.name)
    calls = [signature(sources, item.name, each) for each in variants or [item]]
    if _is_static(item) and is_method:
        calls = [f"{owner}.{call}" for call in calls]
    if twin is not None:
        calls.append(signature(sources, twin.name, twin))
    yield "```python\n" + "\n".join(calls) + "\n```"
    yield text_of(item)
    if twin is not None:
        more = AS_IN.sub("", text_of(twin))
        if more:
            yield f"`{twin.name}`: {more[:1].lower()}{more[1:]}"


def _is_static(item: Any) -> bool:
    return bool({"classmethod", "staticmethod"} & item.labels)


def render_attribute(item: Any) -> Iterator[str]:
    annotation = f": {item.annotation}" if item.annotation is not None else ""
    value = in_double_quotes(str(item.value))
    shown = f" = {value}" if item.value is not None and len(value) < 400 else ""
    yield f"```python\n{item.name}{annotation}{shown}\n```"
    yield text_of(item)


def render_page(sources: Sources, page: Page) -> str:
    names = sources.names[page.file]
    parts = [f"# {page.title}", NOTE, page.about]
    for entry in page.names:
        if sources.is_module(entry):
            if len(page.names) > 1:
                parts.append(f"## {entry}")
            parts.append(text_of(sources.module(entry)))
        for name in names[entry]:
            item = sources.item(name)
            parts.append(f"## {name}".replace("__", r"\_\_"))
            if item.is_class:
                parts += render_class(sources, name, item)
            elif item.is_function:
                parts += render_function(sources, item.name, item)
            else:
                parts += render_attribute(item)
    return "\n\n".join(part for part in parts if part) + "\n"


def render_index(sources: Sources) -> str:
    parts = [
        "# Python API",
        NOTE,
        "Every public name, by what it is for. [Limits and algorithms](../limits.md) says how\n"
        "limits are written, and [Options of storages](storage-options.md) which options each\n"
        "storage has; signatures call them `**storage_options`. A line that begins with `await`\n"
        "is a coroutine.",
    ]
    for section, pages in SECTIONS.items():
        parts.append(f"## {section}")
        for page in pages:
            parts.append(f"- [{page.title}](api/{page.file}.md)")
            rows = [
                f"| [{name}](api/{page.file}.md#{anchor(name)}) | "
                f"{in_a_cell(first_sentence(text_of(sources.item(name))))} |"
                for entry in page.names
                for name in sources.names[page.file][entry]
            ]
            parts.append("\n".join(["| name | |", "|---|---|", *rows]))
    parts.append("## Types in signatures")
    parts.append("Names that annotations use, and what they stand for.")
    rows = [f"| `{name}` | `{in_a_cell(value)}` |" for name, value in sorted(aliases_in(sources))]
    parts.append("\n".join(["| name | stands for |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def aliases_in(sources: Sources) -> set[tuple[str, str]]:
    """The aliases of types in annotations of what the pages show."""
    found: set[tuple[str, str]] = set()

    def look(expression: Any) -> None:
        if expression is None or isinstance(expression, str):
            return
        for part in expression.iterate(flat=True):
            path = getattr(part, "canonical_path", "")
            if not isinstance(part, griffe.ExprName) or not path.startswith("tidegate."):
                continue
            try:
                target = sources.package[path.partition(".")[2]]
            except (KeyError, griffe.AliasResolutionError):
                continue
            target = target.final_target if target.is_alias else target
            if target.is_attribute and target.value is not None:
                value = str(target.value)
                if value.startswith(("TypeVar(", "ParamSpec(", "Annotated[", "Final")):
                    continue
                entry = (target.name.lstrip("_"), readable(value, target.module))
                if entry not in found:
                    found.add(entry)
                    look(target.value)
            elif target.is_class and "TypedDict" in map(str, target.bases):
                for member in target.members.values():
                    look(getattr(member, "annotation", None))

    def look_at(function: Any) -> None:
        look(function.returns)
        for parameter in function.parameters:
            look(parameter.annotation)
            if _is_options(parameter):
                kind = parameter.annotation.slice
                options = sources.package[kind.canonical_path.partition(".")[2]]
                for each in [options, *options.mro()]:
                    for option in each.members.values():
                        look(getattr(option, "annotation", None))

    for name in sources.public.values():
        item = sources.item(name)
        if item.is_function:
            look_at(item)
        elif item.is_class:
            for made in constructors_of(item):
                look_at(made)
            for member in members_of(item).values():
                if member.is_function:
                    look_at(member)
                else:
                    look(member.annotation)
    return found


def pages(sources: Sources) -> dict[Path, str]:
    """All pages by their path."""
    rendered = {REFERENCE / "api.md": render_index(sources)}
    for section in SECTIONS.values():
        for page in section:
            path = REFERENCE / "api" / f"{page.file}.md"
            rendered[path] = render_page(sources, page)
    return rendered


def main() -> None:
    """Writes the pages, or compares them."""
    wanted = pages(Sources(ROOT / "python"))
    there = {REFERENCE / "api.md", *(REFERENCE / "api").glob("*.md")}
    stale = sorted(
        path for path in there | wanted.keys()
        if not path.exists() or path.read_text(encoding="utf-8") != wanted.get(path)
    )  # fmt: skip
    for path in stale:
        print(path.relative_to(ROOT))
        if "--check" in sys.argv:
            continue
        if path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    if "--check" in sys.argv and stale:
        raise SystemExit("these pages are not up to date; run scripts/render-api.py")


if __name__ == "__main__":
    main()
