"""The descriptors of gRPC's own services that the front embeds."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_embedded_descriptors_equal_those_of_the_packages() -> None:
    script = runpy.run_path(str(ROOT / "scripts/descriptors.py"))
    embedded = (ROOT / "cpp/server/grpc/descriptors.inc").read_text()
    assert embedded == script["text"](), "run scripts/descriptors.py again"
