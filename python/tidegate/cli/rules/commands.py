"""The arguments of ``tidegate rules``, and the functions that run it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from tidegate.cli.rules import migrate
from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["register"]

_FILE = "a document of rules: .yaml, .yml, .toml or .json"
_CHECK_CODES = """\
exit codes:
  0  the rules are accepted, perhaps with warnings
  1  they are not, or there are warnings and --strict was given
  2  the file cannot be read
"""
_TEST_CODES = """\
exit codes:
  0  every decision is as expected
  1  some are not
  2  the rules or the cases cannot be read
"""

Actions = argparse._SubParsersAction


def register(commands: Actions[argparse.ArgumentParser]) -> None:
    """Adds the subcommand ``rules`` to those of the command line."""
    rules = commands.add_parser("rules", help="check, explain, compare and test a file of rules")
    actions = rules.add_subparsers(metavar="ACTION", required=True)
    wrong = "say what is wrong with a file of rules, and where"
    check = _add_reader(actions, "check", _check, help=wrong, epilog=_CHECK_CODES)
    check.add_argument("--strict", action="store_true", help="let warnings fail too")
    _add_explain(actions)

    diff = actions.add_parser("diff", help="what changes from one file of rules to another")
    diff.add_argument("old", metavar="OLD", help=_FILE)
    diff.add_argument("new", metavar="NEW", help=_FILE)
    diff.set_defaults(run=_reading_files(_diff))

    schema = actions.add_parser("schema", help="print the JSON Schema of the files, for editors")
    schema.set_defaults(run=_schema)

    expected = "whether requests are decided as a file of cases expects"
    test = _add_reader(actions, "test", _test, help=expected, epilog=_TEST_CODES)
    test.add_argument("cases", metavar="CASES", help="requests in order, and what is expected")

    imported = _add_reader(
        actions,
        "import",
        _import,
        help="make rules of the descriptors of Envoy's rate limit service",
        file="its YAML, with a domain and descriptors",
    )
    imported.add_argument("-o", "--output", metavar="OUT", help="write them here, not to stdout")
    imported.add_argument(
        "--map",
        metavar="KEY=ATTRIBUTE",
        action="append",
        default=[],
        help="what a descriptor key is called as an attribute, such as path=endpoint",
    )

    migrate.register(actions)


def _add_reader(
    actions: Actions[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    epilog: str | None = None,
    file: str = _FILE,
) -> argparse.ArgumentParser:
    """Adds an action that reads one file."""
    reader = actions.add_parser(
        name, help=help, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reader.add_argument("file", metavar="FILE", help=file)
    reader.set_defaults(run=_reading_files(run))
    return reader


def _add_explain(actions: Actions[argparse.ArgumentParser]) -> None:
    applies = "say which rules apply to a request, why, and what is left to it"
    explain = _add_reader(actions, "explain", _explain, help=applies)
    for name in ("user", "endpoint", "method", "tier", "ip"):
        explain.add_argument(f"--{name}", metavar="VALUE", help=f"the attribute {name}")
    explain.add_argument(
        "--attribute",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="another attribute of the request; may be given several times",
    )
    explain.add_argument("--cost", type=int, default=1, help="default: %(default)s")
    explain.add_argument(
        "--storage", metavar="URI", help="where the service counts, such as redis://HOST"
    )
    explain.add_argument("--prefix", default="tg", help="that of the limiter (default: tg)")


def pairs_of(texts: list[str], option: str) -> dict[str, str]:
    """``["a=1"]`` as ``{"a": "1"}``. Raises ConfigurationError."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"{option} is {text!r}; expected NAME=VALUE")
        if name in pairs:
            raise ConfigurationError(f"{option} has {name!r} twice; expected it once")
        pairs[name] = value
    return pairs


def _reading_files(
    run: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    def run_or_say_which(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.filename is None:  # of a storage, whose message says the cause
                raise
            raise ConfigurationError(f"{error.filename}: {error.strerror}") from None

    return run_or_say_which


def _check(arguments: argparse.Namespace) -> int:
    from tidegate.cli.rules.check import check

    return check(arguments.file, strict=arguments.strict)


def _explain(arguments: argparse.Namespace) -> int:
    from tidegate.cli.rules.explain import explain

    attributes = pairs_of(arguments.attribute, "--attribute")
    for name in ("user", "endpoint", "method", "tier", "ip"):
        value = getattr(arguments, name)
        if value is not None:
            if name in attributes:
                raise ConfigurationError(
                    f"--{name} was given with --attribute {name}=; expected one of them"
                )
            attributes[name] = value
    return explain(
        arguments.file,
        attributes,
        cost=arguments.cost,
        storage=arguments.storage,
        prefix=arguments.prefix,
    )


def _diff(arguments: argparse.Namespace) -> int:
    from tidegate.cli.rules.diff import diff

    for line in diff(arguments.old, arguments.new):
        print(line)
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    import json

    from tidegate.rules.rule_set import RuleSet

    print(json.dumps(RuleSet.json_schema(), indent=2))
    return 0


def _test(arguments: argparse.Namespace) -> int:
    from tidegate.cli.rules.cases import run_cases

    return run_cases(arguments.file, arguments.cases)


def _import(arguments: argparse.Namespace) -> int:
    from tidegate.cli.rules.imported import as_yaml, import_file

    if arguments.output is not None and _is_same_file(arguments.output, arguments.file):
        raise ConfigurationError(
            f"the output {arguments.output!r} is the file to import; expected another file"
        )
    found = import_file(arguments.file, pairs_of(arguments.map, "--map"))
    text = as_yaml(found, arguments.file)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(text)
    for note in found.notes:
        print(note, file=sys.stderr)
    return 1 if found.is_refused else 0


def _is_same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there
        return False
