"""The findings of type checkers on uses of the public API."""

from __future__ import annotations

from pathlib import Path

from mypy import api


def test_a_typed_service_is_accepted(tmp_path):
    # An ignored error that is none is one.
    said, failed, status = api.run(
        [
            "--strict",
            "--config-file=",
            f"--cache-dir={tmp_path}",
            str(Path(__file__).with_name("typed_service.py")),
        ]
    )
    assert (status, failed) == (0, ""), said
