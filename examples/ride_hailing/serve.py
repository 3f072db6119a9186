"""Starts the ride-hailing platform: the matching service, and its API under uvicorn.

    pip install 'tidegate[server]'
    python examples/ride_hailing/serve.py
    python examples/ride_hailing/serve.py --limits none --storage redis://localhost:6379/0

It prints a token and a command to try, and stops both when it is interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from app import LIMITS
from riders import token_of

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--matching-port", type=int, default=9100)
    parser.add_argument("--workers", type=int, default=2, help="processes of the API")
    parser.add_argument("--pool", type=int, default=4, help="workers of the matching service")
    parser.add_argument("--seconds", type=float, default=0.1, help="that a job takes")
    parser.add_argument("--limits", choices=LIMITS, default="rules")
    parser.add_argument("--storage", default="shm://rides", help="where counts live")
    options = parser.parse_args()
    environment = {
        **os.environ,
        "RIDES_LIMITS": options.limits,
        "RIDES_STORAGE": options.storage,
        "RIDES_MATCHING": str(options.matching_port),
    }
    matching = [sys.executable, str(HERE / "matching.py"), "--port", str(options.matching_port)]
    matching += ["--workers", str(options.pool), "--seconds", str(options.seconds)]
    # No proxy is in front, so nobody may name another address than the connection's.
    api = [sys.executable, "-m", "uvicorn", "--factory", "app:create_app", "--no-proxy-headers"]
    api += ["--no-access-log"]
    api += ["--app-dir", str(HERE), "--port", str(options.port), "--workers", str(options.workers)]
    print(
        f"curl -i -H 'authorization: Bearer {token_of('anna')}' -H 'content-type: application/json'"
        ' -d \'{"pickup_lat": 40.75, "pickup_lng": -73.99, "dropoff_lat": 40.76, "dropoff_lng":'
        f" -73.98}}' http://127.0.0.1:{options.port}/api/rides/request",
        flush=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    started = [
        subprocess.Popen(matching),
        subprocess.Popen(api, env=environment),
    ]
    try:
        while all(process.poll() is None for process in started):
            time.sleep(0.2)
        return 1  # one of them has ended by itself
    except KeyboardInterrupt:
        return 0
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
