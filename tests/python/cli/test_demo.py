"""The demo as a user runs it, but for the waiting."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tidegate.cli.demo.access_log import logged_requests

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


def test_the_demo_shows_requests_and_leaves_no_terminal_codes():
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "demo", "--fast", "--lines", "100"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    rows = re.findall(
        r"^  [\d:.]{10}  GET /live/tides +(\d+) +(\d+)  [\d:]{8} *((?:\d+ s)?)$", done.stdout, re.M
    )
    dry = [("200", str(left), "") for left in (4, 3, 2, 1, 0)]
    refused = ("429", "0", "1 s")
    assert rows == [*dry, refused, refused, refused, ("200", "0", ""), refused, *dry, refused]
    assert "... 1.0 s pass, as Retry-After asked" in done.stdout
    assert "100 of 100  18 refused" in done.stdout
    assert re.search(r"^  198\.18\.1\.79 +52 +18 +35%$", done.stdout, re.M)
    assert "18 of 100 requests were refused, those of 1 of 20 clients" in done.stdout
    assert "tidegate.replay(), without any service, decides the same." in done.stdout


def test_the_log_that_is_shipped():
    requests = logged_requests()
    assert len(requests) == 2000
    assert len({request.client for request in requests}) == 418
    assert requests == sorted(requests, key=lambda request: request.time_ns)
    assert all(request.client.startswith("198.18.") for request in requests)
    assert all(request.path.startswith("/") for request in requests)
    assert len(logged_requests(7)) == 7
