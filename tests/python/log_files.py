"""Logs for the commands that read them."""

from __future__ import annotations

import gzip
from pathlib import Path

LOG_NOTE = "note: Times are whole seconds; requests of one second are in the order of the file."


def line(second: int, ip: str, path: str = "/", user: str = "-", status: int = 200) -> str:
    """A line of the Common Log Format, at a second after noon of 1 March 2026."""
    minute, second = divmod(second, 60)
    time = f"01/Mar/2026:12:{minute:02}:{second:02} +0000"
    return f'{ip} - {user} [{time}] "GET {path} HTTP/1.1" {status} 100\n'


def burst_log(folder: Path, *, compressed: bool = False) -> Path:
    """Six requests of 192.0.2.1 at noon, two of 192.0.2.2, and one of 192.0.2.3 a minute later."""
    lines = [line(0, "192.0.2.1", f"/{number % 2}", "ann") for number in range(6)]
    lines += [line(1, "192.0.2.2"), line(2, "192.0.2.2"), line(62, "192.0.2.3", user="bob")]
    path = folder / ("burst.log.gz" if compressed else "burst.log")
    data = "".join(lines).encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    return path


def habits_log(folder: Path) -> Path:
    """A hundred clients in each of two hours, number N of which comes N // 10 + 1 times at once."""
    lines = [
        line(hour * 1800 + client, f"192.0.2.{client}")
        for hour in range(2)
        for client in range(100)
        for _ in range(client // 10 + 1)
    ]
    path = folder / "habits.log"
    path.write_text("".join(lines))
    return path
