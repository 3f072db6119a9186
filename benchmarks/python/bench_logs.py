"""How fast logs are read, beside a compiled regular expression in Python.

    python benchmarks/python/bench_logs.py [--quick] [--json FILE]

- A log of 1 GB in the combined format, made from a seed: 20,000 clients, 5,000 paths and 300 user
  agents, distributed by Zipf's law. tuning.read_log() reads all of it, from a file in the cache of
  the system.
- The same lines by a compiled regular expression that extracts the same fields and counts requests
  by client, over fewer lines. The ratio is of lines a second, from one run.
- The same requests as JSON lines, CSV, and compressed by gzip.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import harness
from harness import Target

_REGEX = re.compile(
    r'(\S+) \S+ (\S+) \[([^\]]+)\] "(\S+) (\S+) [^"]*" (\d+) (\d+|-) "[^"]*" "([^"]*)"'
)
_BLOCK_LINES = 200_000


def _requests(lines: int) -> list[tuple[str, str, str, int, int, str]]:
    """Client, time, path, status, bytes, user agent."""
    chance = random.Random(5)
    clients = [f"198.18.{i // 250}.{i % 250}" for i in range(20_000)]
    paths = [f"/api/v{i % 3}/items/{i}/{'details' * (i % 4)}" for i in range(5_000)]
    agents = [
        f"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{i}.0.0.0 "
        "Safari/537.36"
        for i in range(300)
    ]

    def zipf(names: list[str]) -> list[str]:
        weights = [1 / (rank + 1) for rank in range(len(names))]
        return chance.choices(names, weights, k=lines)

    rows = zip(zipf(clients), zipf(paths), zipf(agents))
    return [
        (
            client,
            f"{1 + i // 86_400 % 28:02}/Aug/2026:{i // 3600 % 24:02}:{i // 60 % 60:02}:{i % 60:02}",
            path,
            chance.choice((200, 200, 200, 304, 404)),
            chance.randrange(200, 60_000),
            agent,
        )
        for i, (client, path, agent) in enumerate(rows)
    ]


def _combined(request: tuple[str, str, str, int, int, str]) -> str:
    client, at, path, status, size, agent = request
    return (
        f'{client} - - [{at} +0000] "GET {path}?page={size % 9} HTTP/1.1" {status} {size} '
        f'"https://example.org/start" "{agent}"\n'
    )


def _json(request: tuple[str, str, str, int, int, str]) -> str:
    names = ("remote_addr", "time", "path", "status", "bytes", "user_agent")
    client, at, *rest = request
    row = dict(zip(names, (client, f"{at} +0000", *rest)))
    return json.dumps(row) + "\n"


def _csv(request: tuple[str, str, str, int, int, str]) -> str:
    client, at, path, status, size, agent = request
    return f'{client},{at} +0000,{path},{status},{size},"{agent}"\n'


def _write(path: Path, lines: list[str], total: int, header: str = "") -> None:
    block = "".join(lines).encode()
    with path.open("wb") as file:
        file.write(header.encode())
        while file.tell() < total:
            file.write(block)


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def _by_regex(path: Path, most: int) -> int:
    """The work of a script: extracts the fields of each line, and counts requests by client."""
    counts: Counter[str] = Counter()
    lines = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            match = _REGEX.match(line)
            if match:
                client, _user, _time, _method, _path, status, size, _agent = match.groups()
                counts[client] += int(status) > 0 or size == "-"
            lines += 1
            if lines == most:
                break
    return lines


def _columns_by_regex(path: Path, most: int) -> int:
    """The same work as read_log(): puts the fields, with the times, into columns."""
    columns: tuple[list[Any], ...] = ([], [], [], [], [], [], [])
    with path.open(encoding="utf-8") as file:
        for line in islice(file, most):
            match = _REGEX.match(line)
            if match:
                client, _user, at, method, target, status, size, agent = match.groups()
                row = (
                    client,
                    datetime.strptime(at, "%d/%b/%Y:%H:%M:%S %z").timestamp(),
                    method,
                    target.partition("?")[0],
                    int(status),
                    0 if size == "-" else int(size),
                    agent,
                )
                for column, value in zip(columns, row):
                    column.append(value)
    return len(columns[0])


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=5, quick_rounds=3)
    parser.add_argument("--megabytes", type=int, help="of the log (default 1000, quick 100)")
    options = parser.parse_args()
    harness.load_tidegate()
    from tidegate import tuning

    rounds = harness.rounds_of(options)
    megabytes = options.megabytes or (100 if options.quick else 1000)
    harness.print_interpreter()
    requests = _requests(20_000 if options.quick else _BLOCK_LINES)
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {
            "combined": folder / "access.log",
            "json": folder / "access.json",
            "csv": folder / "access.csv",
            "combined, gzip": folder / "access.log.gz",
        }
        _write(paths["combined"], [*map(_combined, requests)], megabytes * 10**6)
        part = megabytes * 10**5 * 2
        _write(paths["json"], [*map(_json, requests)], part)
        _write(paths["csv"], [*map(_csv, requests)], part, "ip,time,path,status,bytes,user_agent\n")
        with (
            paths["combined"].open("rb") as plain,
            gzip.open(paths["combined, gzip"], "wb", compresslevel=1) as packed,
        ):
            packed.write(plain.read(part))

        peers = {
            "regex: fields": (_by_regex, 5),
            "regex: fields, times, columns": (_columns_by_regex, 1),
        }
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in [*paths, *peers]}
        some_lines = 20_000 if options.quick else 100_000
        line_bytes = paths["combined"].stat().st_size / _count(paths["combined"])
        for _ in range(rounds):
            for kind, path in paths.items():
                seconds, log = _timed(lambda path=path: tuning.read_log(path))
                size = part if "gzip" in kind else path.stat().st_size
                samples[kind].append((size / seconds / 1e6, len(log) / seconds))
                del log
            for peer, (action, times) in peers.items():
                most = some_lines * times
                seconds, lines = _timed(partial(action, paths["combined"], most))
                samples[peer].append((lines * line_bytes / seconds / 1e6, lines / seconds))
    for kind, rates in samples.items():
        figures[kind] = {
            "megabytes_a_second": statistics.median(rate for rate, _ in rates),
            "lines_a_second": statistics.median(rate for _, rate in rates),
        }
    same_work = figures["regex: fields, times, columns"]["lines_a_second"]
    harness.print_table(
        f"Reading logs ({megabytes} MB of the combined format)",
        ["", "MB/s", "lines/s", "x same work"],
        [
            [
                kind,
                f"{rate['megabytes_a_second']:,.0f}",
                f"{rate['lines_a_second']:,.0f}",
                f"{rate['lines_a_second'] / same_work:,.1f}x",
            ]
            for kind, rate in figures.items()
        ],
    )
    targets = [
        Target(
            "a combined log, parse included",
            figures["combined"]["megabytes_a_second"],
            150,
            unit=" MB/s",
        )
    ]
    harness.report(options.json, "logs", {"figures": figures}, targets)


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


if __name__ == "__main__":
    main()
