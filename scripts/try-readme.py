"""Follows "Ten lines" of README.md word for word, with a wheel in the environment of `make demo`.

    python scripts/try-readme.py WHEEL

Starts with an empty environment and ends with a route that answers 429, in under two minutes and
without a compiler.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_SECONDS = 120.0


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    began = text.index("## Ten lines")
    section = text[began : text.index("\n## ", began)]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        if server.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit("the server of the README did not start")


def main(wheel: str) -> None:
    began = time.monotonic()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}",
            "UVICORN_PORT": str(port),
        }
        environment.pop("PYTHONPATH", None)
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/.venv"], check=True)
        install = ["pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*install, "--only-binary", ":all:", f"{wheel}[demo]"], env=environment, check=True
        )
        program = blocks("python")[0]
        Path(folder, "app.py").write_text(program, encoding="utf-8")
        server = None
        answers = ""
        try:
            for command in "".join(blocks("sh")).splitlines():
                words = command.replace(":8000/", f":{port}/")
                if command.startswith("uvicorn"):
                    server = subprocess.Popen(words.split(), cwd=folder, env=environment)
                    wait_for(port, server)
                    continue
                done = subprocess.run(
                    ["bash", "-ec", words],
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                answers += done.stdout
        finally:
            if server is not None:
                server.terminate()
                server.wait(timeout=30)
    took = time.monotonic() - began
    if answers.split() != ["200"] * 5 + ["429"] or took > MOST_SECONDS:
        sys.exit(f"following the README gave the answers {answers.split()} in {took:.0f} s")
    print(f"from an empty environment to a 429 in {took:.0f} s")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
