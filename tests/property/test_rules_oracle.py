"""What docs/rules.md says of decisions, read anew, is what the limiter decides."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from random_rules import Request
from rules_oracle import Oracle, differences


@pytest.fixture(autouse=True)
def _without_advice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "tidegate")  # random rules are not wise ones


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_rules_decide_random_requests_as_the_page_says(first: int) -> None:
    """`make oracle` tries more of them."""
    found = [line for seed in range(first, first + 50) for line in differences(seed, 8)]
    assert found == [], "\n".join(found)


class WithoutReplaces(Oracle):
    def __init__(self, document: Any) -> None:
        plain = [{**rule, "replaces": []} for rule in document["rules"]]
        super().__init__({**document, "rules": plain})


class OneDimension(Oracle):
    """In which rules of other counts, with quotas, in shadow or with `also` hide each other."""

    @staticmethod
    def dimension(rule: Any) -> Any:
        return frozenset(rule["by"].split("+"))


class HeadForItself(Oracle):
    def specificity(self, fields: Any, when: Any, request: Request) -> Any:
        method = request.get("method", "").upper()
        asked = {**request, "method": "-"} if method == "HEAD" else request
        return super().specificity(fields, when, asked)


class WithoutOverrides(Oracle):
    def limits_of(self, rule: Any, key: Any, request: Request, now: int) -> Any:
        found, _ = super().limits_of(rule, (), request, now)
        return found, False


class WithoutReserves(Oracle):
    @staticmethod
    def shares(rule: Any, count: int, priority: str) -> list[tuple[str, int]]:
        return []


class NamesCountApart(Oracle):
    def counted_endpoint(self, rule: Any, endpoint: str) -> str:
        return super().counted_endpoint({}, endpoint)


class WithoutLists(Oracle):
    def listed(self, request: Request, now: int) -> None:
        return None


class CostsOne(Oracle):
    def cost_of(self, request: Request) -> tuple[int, str]:
        return request["cost"], super().cost_of(request)[1]


def seeds_that_differ(kind: type[Oracle]) -> Iterator[int]:
    return (seed for seed in range(1000) if differences(seed, 8, kind))


@pytest.mark.parametrize(
    "kind",
    [
        WithoutReplaces,
        OneDimension,
        HeadForItself,
        WithoutOverrides,
        WithoutReserves,
        NamesCountApart,
        WithoutLists,
        CostsOne,
    ],
)
def test_another_reading_of_the_page_is_noticed(kind: type[Oracle]) -> None:
    assert next(seeds_that_differ(kind), None) is not None
