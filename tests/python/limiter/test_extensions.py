"""What the extensions ask of the loader."""

from __future__ import annotations

import importlib
import subprocess

import pytest

# Memory of threads at a fixed place is quick to reach, but a process has 1.6 kB of it for all
# libraries that it loads after its start. A library that finds none left cannot be imported.
MOST_BYTES = 512


def readelf(option: str, module: str) -> str:
    path = str(importlib.import_module(module).__file__)
    command = ["readelf", "--wide", option, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_core_takes_little_of_the_memory_of_threads_at_a_fixed_place() -> None:
    (segment,) = (
        line.split()
        for line in readelf("--segments", "tidegate._core").splitlines()
        if line.split()[:1] == ["TLS"]
    )
    assert 0 < int(segment[5], 16) <= MOST_BYTES


@pytest.mark.parametrize(
    "module", ["tidegate.tuning._logs", "tidegate.server._native", "service_testing"]
)
def test_the_other_extensions_take_none_of_it(module: str) -> None:
    assert "STATIC_TLS" not in readelf("--dynamic", module)
