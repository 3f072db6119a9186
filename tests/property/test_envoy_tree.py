"""Envoy's rate limit service against a plain model of it, written from its documentation."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import tidegate as tg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tidegate import _core
from tidegate.limiter.storage.uri import open_store

native = pytest.importorskip("tidegate.server._native", reason="the system has no epoll")
from service_testing import call  # noqa: E402

MIDNIGHT = 1_700_006_400 * 10**9
KEYS = ["a", "b", "a_b"]
VALUES = ["x", "xy", "xyz", "y", "", "b_x", "x*"]
PATTERNS = [None, "x", "xy", "x*", "xy*", "*", "b_x", "x*z", "*y", "x**", "*x*y*"]


class Node:
    """A descriptor: its limit, and those nested in it, in the order of the file."""

    def __init__(self, key: str, value: str | None, limit: int | None, **more: Any) -> None:
        self.key, self.value, self.limit = key, value, limit
        self.shared = bool(more.get("shared")) and value is not None and "*" in value
        self.shadow = bool(more.get("shadow"))
        self.quota = bool(more.get("quota"))
        self.name, self.replaces = more.get("name", ""), more.get("replaces", "")
        self.children: list[Node] = more.get("children", [])

    def rank(self, key: str, value: str) -> int | None:
        """How well it matches, the smallest best; None if it does not."""
        if key != self.key:
            return None
        if self.value is None:
            return 2
        if "*" in self.value:
            parts = ".*".join(map(re.escape, self.value.split("*")))
            return 1 if re.fullmatch(parts, value) else None
        return 0 if value == self.value else None

    @property
    def refuses(self) -> bool:
        """Whether it refuses on its own."""
        return not self.shadow and not self.quota


class Model:
    """Fixed windows that never end, each request charged for all of its descriptors or none."""

    def __init__(self, roots: list[Node], all_or_none: bool) -> None:
        self.roots, self.all_or_none = roots, all_or_none
        self.used: dict[Any, int] = {}

    def find(self, entries: list[tuple[str, str]]) -> tuple[Node | None, tuple[Any, ...]]:
        """The descriptor at the depth of the request's, and what it is counted by."""
        level, found, counted = self.roots, None, []
        for key, value in entries:
            ranked = [
                (rank, i)
                for i, node in enumerate(level)
                if (rank := node.rank(key, value)) is not None
            ]
            if not ranked:
                return None, ()
            found = level[min(ranked)[1]]
            counted.append((key, value, False) if not found.shared else (key, found.value, True))
            level = found.children
        return found if found is not None and found.limit is not None else None, tuple(counted)

    def ask(self, request: list[tuple[list[tuple[str, str]], int]]) -> tuple[bool, list[Any]]:
        """Whether all may pass, and of each descriptor (over, remaining), or None."""
        matched = [self.find(entries) for entries, _ in request]
        replaced = {node.replaces for node, _ in matched if node is not None and node.replaces}
        matched = [
            (None, ()) if node is not None and node.name in replaced else (node, counted)
            for node, counted in matched
        ]
        groups = [range(len(request))] if self.all_or_none else [[i] for i in range(len(request))]
        outcomes: list[Any] = [None] * len(request)
        passes = True
        quotas: list[bool] = []  # whether each was exceeded
        for group in groups:
            costs: dict[Any, int] = {}
            for i in group:
                if matched[i][0] is not None:
                    costs[matched[i][1]] = costs.get(matched[i][1], 0) + request[i][1]
            over = {
                counted: self.used.get(counted, 0) + cost > node.limit
                for node, counted in matched
                if node is not None and counted in costs
                for cost in [costs[counted]]
            }
            of_group = [
                (node, counted) for node, counted in (matched[i] for i in group) if node is not None
            ]
            enforced = any(over[counted] and node.refuses for node, counted in of_group)
            exceeded = [over[c] for node, c in of_group if node.quota and not node.shadow]
            quotas += exceeded
            if self.all_or_none:
                enforced |= bool(exceeded) and all(exceeded)
            passes &= not enforced
            for counted, cost in costs.items():
                if enforced and not self.all_or_none:
                    node = next(node for node, known in matched if known == counted)
                    self.used[counted] = node.limit  # what was left is used up
                if not enforced and not over[counted]:
                    self.used[counted] = self.used.get(counted, 0) + cost
            for i in group:
                node, counted = matched[i]
                if node is not None:
                    left = node.limit - self.used.get(counted, 0)
                    outcomes[i] = (over[counted] and not node.shadow, left)
        return passes and not (quotas and all(quotas)), outcomes


@st.composite
def levels(draw: Any, depth: int = 2) -> list[Node]:
    nodes = []
    places = draw(
        st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from(PATTERNS)), max_size=5, unique=True
        )
    )
    for key, value in places:
        children = draw(levels(depth - 1)) if depth > 0 else []
        nodes.append(
            Node(
                key,
                value,
                draw(st.none() | st.integers(0, 4)),
                shared=draw(st.booleans()),
                shadow=draw(st.booleans()),
                quota=draw(st.booleans()),
                name=draw(st.sampled_from(["", "", "one", "two"])),
                replaces=draw(st.sampled_from(["", "", "", "three", "four"])),
                children=children,
            )
        )
        if nodes[-1].name and draw(st.booleans()):
            nodes[-1].replaces = {"one": "two", "two": ""}[nodes[-1].name]
    return nodes


entries = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=3
)
requests = st.lists(
    st.lists(st.tuples(entries, st.integers(1, 3)), min_size=1, max_size=4), min_size=1, max_size=8
)


def add(tree: Any, parent: int, nodes: list[Node]) -> None:
    for node in nodes:
        number = tree.add_descriptor(
            parent,
            node.key,
            node.value,
            limits=[] if node.limit is None else [f"{node.limit}/year"],
            share_threshold=node.shared,
            shadow=node.shadow,
            quota=node.quota,
            name=node.name,
            replaces=[node.replaces] if node.replaces else [],
            reports=False,
        )
        add(tree, number, node.children)


@settings(deadline=None, max_examples=150)
@given(roots=levels(), asked=requests, all_or_none=st.booleans())
# A quota refuses what a limit in shadow has counted, for two equal descriptors.
@example(
    roots=[Node("a", None, 2, shadow=True), Node("b", "x", 1, quota=True)],
    asked=[[([("a", "y")], 1), ([("b", "x")], 2), ([("a", "y")], 1)]],
    all_or_none=True,
)
# The same of a limit that is enforced.
@example(
    roots=[Node("a", None, 2), Node("b", "x", 1, quota=True)],
    asked=[[([("a", "y")], 1), ([("b", "x")], 2), ([("a", "y")], 1)]],
    all_or_none=True,
)
def test_the_service_answers_as_the_model_does(
    roots: list[Node], asked: list[Any], all_or_none: bool
) -> None:
    tree = native.DescriptorTree()
    add(tree, tree.add_domain("d", all_or_none), roots)
    clock = tg.ManualClock(start_ns=MIDNIGHT)
    service = native.EnvoyService(
        open_store("memory://", {})._native(), _core.native_clock(clock), "model"
    )
    service.use(tree)
    model = Model(roots, all_or_none)
    for request in asked:
        body = {
            "domain": "d",
            "descriptors": [
                {"entries": [{"key": k, "value": v} for k, v in entries], "hitsAddend": hits}
                for entries, hits in request
            ],
        }
        status, _, answer = call(service, "POST", "/json", body=json.dumps(body).encode())
        told = json.loads(answer)
        passes, outcomes = model.ask(request)
        assert (status == 200) == passes
        assert [
            (each["code"] == "OVER_LIMIT", each["limitRemaining"])
            if "currentLimit" in each
            else None
            for each in told["statuses"]
        ] == outcomes
