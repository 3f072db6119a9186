"""A process may end at any moment, with threads inside any call, and says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from exit_cases import (
    CALLBACKS,
    ENDS,
    LOOPS,
    STORAGES,
    Case,
    Storages,
    problem,
    problem_of_flask,
    storages,
)


@pytest.fixture(scope="module")
def servers() -> Iterator[Storages]:
    with storages() as servers:
        yield servers


def problems(servers: Storages, cases: list[Case]) -> dict[str, str]:
    """What was wrong, by case."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda case: problem(case, servers), cases))
    return {str(case): each for case, each in zip(cases, found) if each is not None}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("end", ["return", "close"])
def test_threads_inside_every_call(servers: Storages, storage: str, end: str) -> None:
    if storage not in servers.names:
        pytest.skip("this server was built without TLS")
    assert problems(servers, [Case(end, storage, threads=1)]) == {}


def test_every_way_to_end(servers: Storages) -> None:
    assert problems(servers, [Case(end) for end in ENDS]) == {}


def test_threads_inside_python_code_that_the_core_calls(servers: Storages) -> None:
    assert problems(servers, [Case(callback) for callback in CALLBACKS]) == {}


def test_the_core_delivers_to_event_loops(servers: Storages) -> None:
    assert problems(servers, [Case(loop) for loop in LOOPS for _ in range(3)]) == {}


def test_ctrl_c_stops_a_development_server_of_flask(servers: Storages) -> None:
    assert problem_of_flask(servers) is None
