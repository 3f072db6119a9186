"""The processes that a campaign starts: those of the load, and the control loop beside them."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.control import LATE, TICK
from chaos.judge import Window, quantile

_HERE = Path(__file__).parent


class Hung(Exception):
    """A process did not answer; its stacks are the message."""


class LoadProcess:
    """A process of load.py. Thread-compatible."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, Any],
        environment: Mapping[str, str],
    ) -> None:
        self.name: str = settings["name"]
        self._stderr = directory / f"stderr-{settings['run']}-{self.name}"
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(_HERE / "load.py"), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=dict(environment),
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def begin(self, word: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps({"do": word, **arguments}), file=self.process.stdin, flush=True)

    def result(self, seconds: float = 60.0) -> dict[str, Any]:
        """The answer to the command that was begun."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            raise Hung(f"no answer in {seconds:g} s:\n{self.errors()}") from None
        if not line:
            status = self.process.wait()
            raise Hung(f"the process ended with status {status}:\n{self.errors()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        if "report" in answer:
            answer.update(json.loads(Path(answer.pop("report")).read_text()))
        return answer

    def do(self, word: str, within: float = 60.0, **arguments: Any) -> dict[str, Any]:
        self.begin(word, **arguments)
        return self.result(within)

    def errors(self) -> str:
        return self._stderr.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10)  # it reads what is closed next
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Control:
    """The loop that does nothing but tick."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / "control.py")], stdout=subprocess.PIPE, text=True
        )
        self._late: list[tuple[float, float]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at, late = line.split()
            self._late.append((float(at), float(late)))

    def window(self, begin: float, end: float) -> Window:
        late = sorted(late for at, late in list(self._late) if begin <= at <= end)
        # Those that were in time are not told one by one.
        ticks = max(len(late), round((end - begin) / (TICK + LATE / 2)))
        return Window(quantile([LATE] * (ticks - len(late)) + late, 0.999), max(late, default=LATE))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
