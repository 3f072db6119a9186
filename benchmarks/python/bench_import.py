"""The time of `import tidegate`, and the threads and modules that it brings.

    python benchmarks/python/bench_import.py [--quick] [--rounds N] [--json FILE]

Every round starts a bare interpreter and one for each module, in turn. The time
is that of the whole process, over the bare one's median.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import harness
import peers
from harness import Target

# Prints what the import of a module has added to its process. Modules that were there before, such
# as site hooks of editable installs, do not count.
_LOOK = """
import sys
before = set(sys.modules)
import {module}
new = {{name.partition('.')[0] for name in set(sys.modules) - before}}
import json, os, threading
tasks = '/proc/self/task'
print(json.dumps({{
    'threads': threading.active_count() - 1,
    'os_threads': len(os.listdir(tasks)) - 1 if os.path.isdir(tasks) else 0,
    'third_party': sorted(new - set(sys.stdlib_module_names) - {{'{root}'}}),
}}))
"""


def _run(source: str) -> tuple[float, str]:
    start = time.perf_counter_ns()
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    return (time.perf_counter_ns() - start) / 1e6, done.stdout


def _third_party(names: list[str], root: str) -> list[str]:
    """Leaves out a package's own private modules (`_throttled` of `throttled`)."""
    return [name for name in names if not name.lstrip("_").startswith(root)]


def main() -> None:
    parser = harness.arguments(__doc__ or "", rounds=20, quick_rounds=5)
    parser.add_argument("--peers-only", action="store_true", help="leave tidegate out")
    options = parser.parse_args()
    rounds = harness.rounds_of(options)
    modules = {} if options.peers_only else {"tidegate": "tidegate"}
    if modules:
        harness.load_tidegate()
    missing = []
    for distribution, module in peers.PEERS.items():
        if harness.optional(module) is None:
            missing.append(distribution)
        else:
            modules[distribution] = module
    peers.print_missing(missing)
    harness.print_interpreter()

    sources = {"a bare interpreter": "pass"}
    sources |= {name: f"import {module}" for name, module in modules.items()}
    samples: dict[str, list[float]] = {name: [] for name in sources}
    for source in sources.values():
        _run(source)  # compiles modules that are not yet compiled, and fills the page cache
    for _ in range(rounds):
        for name, source in sources.items():
            samples[name].append(_run(source)[0])

    bare = statistics.median(samples["a bare interpreter"])
    rows: list[dict[str, Any]] = []
    for name in sources:
        median = statistics.median(samples[name])
        row: dict[str, Any] = {"name": name, "ms": median, "over_bare_ms": median - bare}
        if name in modules:
            module = modules[name]
            root = module.partition(".")[0]
            seen = json.loads(_run(_LOOK.format(module=module, root=root))[1].splitlines()[-1])
            row |= {**seen, "third_party": _third_party(seen["third_party"], root)}
        rows.append(row)

    lines = [
        [
            row["name"],
            f"{row['ms']:.1f}",
            f"{row['over_bare_ms']:.1f}",
            str(row.get("os_threads", "-")),
            str(len(row["third_party"])) if "third_party" in row else "-",
        ]
        for row in rows
    ]
    headers = ["import", "ms", "over bare", "threads started", "third-party modules"]
    harness.print_table(f"Medians of {rounds} interleaved rounds", headers, lines)

    targets = []
    for row in rows:
        if row["name"] != "tidegate":
            continue
        targets = [
            Target("import over a bare interpreter", row["over_bare_ms"], 25, False, " ms"),
            Target("threads started", max(row["threads"], row["os_threads"]), 0, False, ""),
            Target("third-party modules imported", len(row["third_party"]), 0, False, ""),
        ]
        if row["third_party"]:
            print(f"third-party modules: {', '.join(row['third_party'])}")
    figures = {"rounds": rounds, "skipped": missing, "rows": rows}
    harness.report(options.json, "import", figures, targets)


if __name__ == "__main__":
    main()
