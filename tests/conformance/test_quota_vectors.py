"""Memory and shared memory give the answers of the vectors of quotas; tests/redis has Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quota_vectors import CASES, NAMES, play


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_memory_gives_the_answers(case: Any) -> None:
    play(case, "memory://")


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_shared_memory_gives_the_answers(case: Any, tmp_path: Path) -> None:
    play(case, f"shm://{tmp_path}/table?capacity=1000")


@pytest.mark.parametrize("field", ["available", "used", "resets_s"])
def test_another_answer_is_found(field: str) -> None:
    case = CASES[0]
    calls = [*case["calls"]]
    calls[-1] = {**calls[-1], "status": {**calls[-1]["status"], field: -1}}
    with pytest.raises(AssertionError):
        play({**case, "calls": calls}, "memory://")
