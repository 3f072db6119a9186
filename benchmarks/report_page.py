"""The page of all benchmarks, its pictures, and the lines of the README, from the report's JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import combine
import machine

BEGIN, END = "<!-- the figures begin -->", "<!-- the figures end -->"


class Question(NamedTuple):
    """A benchmark's heading. `picture` is the column of its first table with it that is drawn."""

    title: str
    picture: str = ""


QUESTIONS = {
    "core": Question("A decision in C++"),
    "governor": Question("Rust's governor"),
    "call": Question("A decision in memory", "ns/call"),
    "reserve": Question("A reservation in memory", "ns/call"),
    "overuse": Question("What is used beyond a limit whose costs are known afterwards"),
    "memory": Question("Memory", "bytes/key"),
    "import": Question("Importing it"),
    "rate": Question("How exactly a rate is kept"),
    "redis": Question("Redis", "median"),
    "leases": Question("Leased Redis", "ns/call"),
    "lease_questions": Question("What leases ask of Redis"),
    "grow": Question("What to use when you grow", "checks/s"),
    "shm": Question("Shared memory", "median"),
    "stall": Question("An event loop without its Redis"),
    "asgi": Question("A request in process", "added us"),
    "web": Question("Web frameworks", "share"),
    "check": Question("A check of a request in Python"),
    "rules": Question("Rules"),
    "rule_change": Question("Changing rules"),
    "admin_change": Question("Changing a rule over the admin API"),
    "server": Question("The front of the service"),
    "checks": Question("The service of checks", "requests/s"),
    "envoy": Question("Envoy's rate limit service", "median"),
    "sustained": Question("Ten minutes of checks"),
    "logs": Question("Reading logs"),
    "replay": Question("Replaying logs", "M requests/s"),
    "recommend": Question("Recommending limits"),
    "what_if": Question("Moving sliders"),
    "sliding_error": Question("The error of the sliding window"),
    "anomaly": Question("Finding anomalies"),
}


def _cell(results: dict[str, Any], bench: str, line: str, column: str) -> dict[str, Any]:
    for table in results["benches"][bench].get("tables", []):
        if column not in table["headers"]:
            continue
        place = table["headers"].index(column) - 1
        for each in table["lines"]:
            if each["name"] == line and place < len(each["cells"]):
                return dict(each["cells"][place])
    raise KeyError(f"{bench} has no line {line!r} with a column {column!r}")


def _target(results: dict[str, Any], bench: str, what: str) -> dict[str, Any]:
    for each in results["benches"][bench].get("targets", []):
        if each["what"] == what:
            return dict(each)
    raise KeyError(f"{bench} has no target {what!r}")


# The README's lines: text with {bench | line | column} or {bench | target} where figures belong.
HEADLINES = (
    (
        "one decision in memory",
        "{call | tidegate hit, token-bucket | ns/call} ns",
        "`floodgate-rs` {call | floodgate-rs trigger | ns/call} ns, `limits` "
        "{call | limits fixed window | ns/call} ns, `throttled-py` "
        "{call | throttled-py GCRA | ns/call} ns",
    ),
    (
        "memory a key, of a million keys",
        "{memory | tidegate token-bucket | bytes/key} bytes",
        "`rust-py-rate-limit` {memory | rust-py-rate-limit | bytes/key}, `limits` "
        "{memory | limits fixed window | bytes/key}",
    ),
    (
        "decisions a second, 4 processes on one key",
        "{shm | shm://, 4 processes on one key | median}",
        "`limits` on Redis {shm | limits on Redis, fixed window, 4 processes on one key | median}, "
        "`pyrate-limiter` "
        "{shm | pyrate-limiter, MultiprocessBucket, 4 processes on one key | median}",
    ),
    (
        "checks a second on one Redis, 100 asyncio tasks, over",
        "1x",
        "`limits` {redis | 100 tasks, checks/s over limits async, fixed window}, `throttled-py` "
        "{redis | 100 tasks, checks/s over throttled-py async, GCRA}",
    ),
    (
        "FastAPI's requests a second with middleware, of those without",
        "{web | tidegate middleware | share}; on Redis {web | tidegate middleware, Redis | share}",
        "slowapi {web | slowapi middleware | share}; on Redis "
        "{web | slowapi middleware, Redis | share}",
    ),
    (
        "Flask's under gunicorn, of those without",
        "{web | Flask, tidegate extension | share}",
        "Flask-Limiter {web | Flask-Limiter | share}",
    ),
)


def headline(results: dict[str, Any], template: str) -> str:
    """A template with its figures; raises KeyError where one was not measured."""

    def figure(match: re.Match[str]) -> str:
        bench, *rest = match[1].split(" | ")
        found = _target(results, bench, *rest) if len(rest) == 1 else _cell(results, bench, *rest)
        return combine.shown(found["value"]) + found.get("unit", "")

    return re.sub(r"\{([^}]+)\}", figure, template)


def headlines(results: dict[str, Any]) -> str:
    """The README's table. Raises KeyError where a figure was not measured."""
    rows = [[headline(results, each) for each in line] for line in HEADLINES]
    return table(["", "tidegate", "others"], rows)


def table(headers: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def targets_table(benches: dict[str, Any]) -> str:
    """All targets with what was measured."""
    rows = [
        [
            _title(name),
            each["what"],
            combine.with_spread(each),
            f"{'at least' if each['at_least'] else 'at most'} {each['bound']:g}{each['unit']}",
            "reached" if each["reached"] else "**missed**",
        ]
        for name, bench in benches.items()
        for each in bench.get("targets", [])
    ]
    return table(["", "", "measured", "target", ""], rows)


def missed(benches: dict[str, Any]) -> str:
    """What was missed, and what was not measured."""
    lines = [
        f"- {_title(name)}: {each['what']}: {combine.with_spread(each)}; expected "
        f"{'at least' if each['at_least'] else 'at most'} {each['bound']:g}{each['unit']}"
        for name, bench in benches.items()
        for each in bench.get("targets", [])
        if not each["reached"]
    ]
    lines += [
        f"- {_title(name)} was not measured: {bench['skipped']}"
        for name, bench in benches.items()
        if "skipped" in bench
    ]
    return "\n".join(lines) or "Nothing."


def _title(name: str) -> str:
    return QUESTIONS[name].title if name in QUESTIONS else name.replace("_", " ").capitalize()


def generated(results: dict[str, Any]) -> str:
    """Everything between the markers: machine, versions, figures, targets, what was missed."""
    benches = results["benches"]
    machines: dict[str, list[str]] = {}
    for name, bench in benches.items():
        machines.setdefault(machine.measured_on(bench["machine"]), []).append(_title(name))
    parts = ["## The machine"]
    for sentence, titles in machines.items():
        parts.append(sentence if len(machines) == 1 else f"{', '.join(titles)}: {sentence}")
    loads = [bench["machine"]["load_before"] for bench in benches.values()]
    parts.append(
        f"The load average before a benchmark was {min(loads):g} to {max(loads):g}; the benchmark "
        "before it is part of that."
    )
    versions: dict[str, str] = {}
    for bench in benches.values():
        versions.update(bench["machine"]["versions"])
    rows = [
        [name, version] for name, version in sorted(versions.items(), key=lambda v: v[0].lower())
    ]
    parts += ["## Versions", table(["package", "version"], rows), "## Figures"]
    parts.append(
        "Each figure is the median of the runs of its benchmark, with the least and the most where "
        "they differ. Only ratios mean anything on another machine."
    )
    for name, bench in benches.items():
        if "skipped" in bench:
            continue
        parts.append(f"### {_title(name)}")
        if _drawn(name, bench) is not None:
            parts.append(f"![{_title(name)}](images/bench-{name}.png)")
        for each in bench["tables"]:
            lines = [
                [line["name"], *map(combine.with_spread, line["cells"])] for line in each["lines"]
            ]
            parts += [f"{each['title']}, runs: {bench['runs']}", table(each["headers"], lines)]
    parts += ["## Targets", targets_table(benches), "## Missed", missed(benches)]
    return "\n\n".join(parts)


def _drawn(name: str, bench: dict[str, Any]) -> tuple[dict[str, Any], int] | None:
    """The table of a benchmark that is drawn, and the place of its column."""
    column = QUESTIONS[name].picture if name in QUESTIONS else ""
    for each in bench.get("tables", []):
        if column and column in each["headers"]:
            return each, each["headers"].index(column) - 1
    return None


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draws a picture for each question that has one, and returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawn = []
    for name, bench in results["benches"].items():
        found = _drawn(name, bench)
        if found is None:
            continue
        source, place = found
        lines = [line for line in source["lines"] if "value" in line["cells"][place]]
        values = [line["cells"][place] for line in lines]
        labels = [line["name"] for line in lines]
        figure, axes = plt.subplots(figsize=(8, 1 + 0.26 * len(lines)))
        ours = ["#1f6f8b" if _is_ours(label) else "#b0b0b0" for label in labels]
        axes.barh(range(len(lines)), [each["value"] for each in values], color=ours)
        for row, each in enumerate(values):
            axes.plot([each["least"], each["most"]], [row, row], color="black", linewidth=1)
        positive = [each["value"] for each in values if each["value"] > 0]
        is_wide = bool(positive) and max(positive) > 20 * min(positive)
        axes.set(yticks=range(len(lines)), xlabel=QUESTIONS[name].picture, title=source["title"])
        axes.set_yticklabels(labels, fontsize="small")
        axes.set_xscale("log" if is_wide and len(positive) == len(values) else "linear")
        axes.invert_yaxis()
        figure.tight_layout()
        path = folder / f"bench-{name}.png"
        figure.savefig(path, dpi=100, metadata={"Software": None})
        plt.close(figure)
        drawn.append(path)
    return drawn


def _is_ours(label: str) -> bool:
    return "tidegate" in label or label.startswith(("shm://", "memory://", "token-bucket"))


def replace(path: Path, text: str) -> None:
    """Puts `text` between the markers of a document."""
    document = path.read_text(encoding="utf-8")
    before, found, rest = document.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{path} has no {BEGIN} and {END}; expected both")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
