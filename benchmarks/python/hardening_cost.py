"""The instructions that hardening adds to a request of the server, by callgrind.

    python benchmarks/python/hardening_cost.py [--json FILE]

Builds the package with TIDEGATE_HARDENING=OFF and ON into build/hardening, as it is released. Each
then answers a check over REST and a request of Envoy, one descriptor with its count in memory, over
HTTP/2 from `h2load`, 4 connections of 32 streams. Counts hardly depend on the machine or its load;
those of two runs differ by some 0.1 %. Needs h2load and valgrind (apt-get install nghttp2-client
valgrind), and takes minutes to build.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import bench_checks
import bench_envoy
import harness

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "hardening"
REST, ENVOY = "REST check", "Envoy"
WARM_UP = 2000


def build(hardening: str) -> Path:
    """Returns the folder that the package was built into."""
    site = FOLDER / hardening
    options = {
        "build-dir": f"{FOLDER}/tree-{hardening}",
        "cmake.define.TIDEGATE_HARDENING": hardening,
    }
    settings = [f"--config-settings={name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-build-isolation", "--no-deps", "--upgrade", "--target", str(site)]
    subprocess.run([*command, *settings, str(ROOT)], check=True)
    return site


def counted(
    site: Path, arguments: list[str], report: Path
) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """The port and the process of a server that runs under callgrind, which does not count yet."""
    # Without -S, an editable package of this environment would come before that of `site`.
    paths = os.pathsep.join([str(site), sysconfig.get_path("platlib")])
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
    command += ["--callgrind-out-file=/dev/null", f"--log-file={report}"]
    command += [sys.executable, "-S", *arguments]
    return harness.server_process(command, {"PYTHONPATH": paths})


def ask(url: str, body: Path, headers: list[str], requests: int) -> None:
    command = ["h2load", "-c4", "-m32", "-t1", f"-n{requests}", f"-d{body}"]
    for header in headers:
        command += ["-H", header]
    output = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    if f"{requests} succeeded, 0 failed" not in output:
        sys.exit(f"h2load: expected {requests} successes of {url}, got\n{output}")


def switch(process: int, counting: str) -> None:
    command = ["callgrind_control", f"--instr={counting}", str(process)]
    subprocess.run(command, check=True, capture_output=True)


def instructions(site: Path, what: str, requests: int, folder: Path) -> float:
    """The instructions of one request."""
    body, report = folder / "body", folder / "report"
    if what == REST:
        body.write_text(json.dumps(bench_checks.REST))
        headers = [f"authorization: Bearer {bench_checks.TOKEN}", "content-type: application/json"]
        arguments, path = [bench_checks.__file__, "--serve", "native"], "/v1/ratelimit/check"
    else:
        body.write_bytes(bench_envoy.request())
        headers = ["content-type: application/grpc", "te: trailers"]
        arguments, path = ["-c", bench_envoy.TIDEGATE, "memory://"], bench_envoy.METHOD
    with counted(site, arguments, report) as (port, process):
        url = f"http://127.0.0.1:{port}{path}"
        ask(url, body, headers, WARM_UP)
        switch(process, "on")
        ask(url, body, headers, requests)
        switch(process, "off")
    found = re.search(r"Collected : (\d+)", report.read_text())
    if found is None:
        sys.exit(f"callgrind counted nothing:\n{report.read_text()}")
    return int(found[1]) / requests


def main() -> None:
    parser = harness.arguments(__doc__.splitlines()[0], rounds=1, quick_rounds=1)
    options = parser.parse_args()
    if harness.skipped("hardening", "h2load", "valgrind"):
        return
    requests = 1000 if options.quick else 5000
    sites = {hardening: build(hardening) for hardening in ("OFF", "ON")}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for what in (ENVOY, REST):
            found[what] = {
                hardening: instructions(site, what, requests, Path(folder))
                for hardening, site in sites.items()
            }
    rows = [
        [what, f"{each['OFF']:,.0f}", f"{each['ON']:,.0f}", f"{each['ON'] / each['OFF'] - 1:+.1%}"]
        for what, each in found.items()
    ]
    harness.print_table("Instructions of a request", ["", "without", "hardened", "more"], rows)
    harness.write_json(options.json, "hardening", found)


if __name__ == "__main__":
    main()
