"""The dashboard queries exported metrics, in valid queries of Prometheus."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from servers import asgi_call, limited

pytest.importorskip("promql_parser")
pytest.importorskip("prometheus_client")

import promql_parser
from tidegate.prometheus import RateLimitCollector
from tidegate.server.call_times import Bucket, CallTimes
from tidegate.server.metrics import SlipCounters, StateCollector, TimesCollector
from tidegate.server.state import ServiceState

DOCS = Path(__file__).resolve().parents[3] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "tidegate.json").read_text())
ALERTS = re.findall(r"expr: (.*)", (DOCS / "observability.md").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]

# What Prometheus itself adds to what it scrapes.
SCRAPED = {"job", "instance"}


@pytest.fixture(scope="module")
def exported():
    """Of each sample that the collectors export that are shown, its labels and its metric's type.

    These are a limiter's, and of the service its state, its slips, and the times of its calls.
    """
    app = limited("1/hour")
    collector = RateLimitCollector({"a": app}, decision_seconds=True)
    asyncio.run(asgi_call(app))
    collector.close()
    source = SimpleNamespace(since=1.0, last_error=None)
    times = CallTimes("checks", "grpc", 0.5, [Bucket(0.1, 1), Bucket(math.inf, 0)])
    of_service = [
        StateCollector(ServiceState({"rules": source})),
        SlipCounters({"tier": 1}),
        TimesCollector(lambda: [times]),
    ]
    samples = {}
    families = [each.collect() for each in (collector, *of_service)]
    for family in itertools.chain.from_iterable(families):
        for sample in family.samples:
            labels, _ = samples.setdefault(sample.name, (set(), family.type))
            labels.update(sample.labels)
    return samples


def parsed(expression):
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def nodes(node):
    yield node
    for name in ("expr", "lhs", "rhs", "args", "param"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if isinstance(each, promql_parser.Expr):
                yield from nodes(each)


def selectors(expression):
    """Each metric that is asked for: its selector, and whether as a range."""
    for node in nodes(parsed(expression)):
        if isinstance(node, promql_parser.MatrixSelector):
            yield node.vector_selector, True
        elif isinstance(node, promql_parser.VectorSelector):
            yield node, False


@pytest.mark.parametrize("expression", EXPRESSIONS + ALERTS)
def test_what_is_asked_for_is_exported(expression, exported):
    found = list(selectors(expression))
    assert {each.name for each, _ in found} == set(re.findall(r"\btidegate_\w+", expression))
    known = set(SCRAPED)
    for selector, is_range in found:
        labels, kind = exported[selector.name]
        known |= labels
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= labels | SCRAPED
        # Counters are told as rates, gauges as they are.
        if kind == "gauge":
            assert not is_range
        else:
            assert re.search(rf"(rate|increase)\({selector.name}", expression)
    for node in nodes(parsed(expression)):
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
            assert set(modifier.labels) <= known


def test_all_that_is_exported_is_shown(exported):
    shown = {each.name for one in EXPRESSIONS for each, _ in selectors(one)}
    assert {name for name in exported if not name.endswith("_created")} == shown


def test_legends_tell_labels_that_are_left(exported):
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b[^)]*\)", target["expr"]), target


def test_variables_are_defined_and_used(exported):
    text = json.dumps(DASHBOARD["panels"])
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval"}
    assert used == set(VARIABLES)
    for name in ("job", "limiter"):
        query = VARIABLES[name]["query"]["query"]
        metric, label = re.fullmatch(r"label_values\((\w+)[^,]*, (\w+)\)", query).groups()
        assert label in exported[metric][0] | SCRAPED


def test_grafana_can_lay_it_out():
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"]
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert place["x"] + place["w"] <= 24
        assert not taken & cells
        taken |= cells
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
