"""Fronts of the service, each stopped at the end of its test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

if sys.platform != "linux":  # the service waits by epoll
    collect_ignore_glob = ["*"]
else:
    from fronts import MakeFront, Served, start_front

    @pytest.fixture
    def make_front() -> Iterator[MakeFront]:
        served: list[Served] = []

        def make(**options: object) -> Served:
            served.append(start_front(**options))
            return served[-1]

        yield make
        for one in served:
            one.front.stop()
