"""Runs h2spec, a test-suite of HTTP/2, against the server of checks.

    python scripts/h2spec.py H2SPEC

Prints the cases that failed, and ends with 1 if there are more of them than MOST_FAILED.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tidegate.server.service import Service
from tidegate.server.settings import Settings

# A bad preface is read as HTTP/1.1, which the same port speaks, and answered as such.
MOST_FAILED = 1
_RULES = "rules: [{id: api, by: user, limit: 1000/minute}]\n"


def main(h2spec: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder, "rules.yaml")
        rules.write_text(_RULES)
        settings = Settings.model_validate(
            {
                "rules": rules,
                "database": None,
                "checks": {"listen": "127.0.0.1:0"},
                "admin": {"listen": None},
            }
        )
        service = Service(settings)
        service.start()
        try:
            assert service.address is not None
            host, port = service.address
            done = subprocess.run(
                [h2spec, "-h", host, "-p", str(port), "-P", "/v1/ratelimit/status/42", "-o", "5"],
                stdout=subprocess.PIPE,
                text=True,
            )
        finally:
            service.stop()
    print(done.stdout[done.stdout.find("Failures:") :])
    counts = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    if counts is None:
        print("h2spec did not end; expected its counts", file=sys.stderr)
        return 1
    return int(int(counts[4]) > MOST_FAILED)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
