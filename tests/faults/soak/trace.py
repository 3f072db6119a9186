"""Samples a soaked service while it runs, and draws what was sampled over time."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from soak.stage import Stage


class Sample(NamedTuple):
    """The service at one instant, and the calls of the ordinary clients since the sample before."""

    seconds: float
    resident: int
    descriptors: int
    threads: int
    callers: int
    """How many callers the clients have asked about since the soak began."""
    calls: int
    p50_ms: float
    p99_ms: float


class Trace:
    """Takes a sample each `interval` seconds, from a thread, until `close` is called."""

    def __init__(self, stage: Stage, interval: float) -> None:
        self.samples: list[Sample] = []
        self._stage = stage
        self._interval = interval
        self._began = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Adds the sample of this instant."""
        usage = self._stage.service.usage()
        calls = self._stage.load.command("trace")
        seconds = round(time.monotonic() - self._began, 1)
        self.samples.append(Sample(seconds, *usage, **calls))

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            try:
                self.take()
            except OSError:
                # The service has ended, and has no entry in /proc.
                return

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


def growth(samples: list[Sample]) -> float | None:
    """Returns the growth of memory in the second half, as a share.

    It compares the medians of the first and the last tenth of that half, since faults make memory
    rise for a moment. Returns None if the samples are too few to tell.
    """
    half = samples[len(samples) // 2 :]
    tenth = len(half) // 10
    if not tenth:
        return None
    first, last = (
        statistics.median(sample.resident for sample in part)
        for part in (half[:tenth], half[-tenth:])
    )
    return last / first - 1


def draw(samples: list[Sample], title: str, path: Path) -> None:
    """Writes a picture of memory, descriptors and the latency of calls over time to `path`."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    minutes = [sample.seconds / 60 for sample in samples]
    figure, (memory, counts, latency) = pyplot.subplots(3, 1, sharex=True, figsize=(9, 8))
    memory.plot(minutes, [sample.resident / 2**20 for sample in samples], label="resident memory")
    memory.set_ylabel("MB")
    memory.set_ylim(bottom=0)
    callers = memory.twinx()
    callers.plot(minutes, [sample.callers for sample in samples], "C1--", label="callers seen")
    callers.set_ylabel("callers")
    callers.set_ylim(bottom=0)
    # Idle connections are thousands of descriptors; what remains after them is tens.
    counts.plot(minutes, [sample.descriptors for sample in samples], label="descriptors")
    counts.plot(minutes, [sample.threads for sample in samples], label="threads")
    counts.set_yscale("log")
    asked = [(minute, sample) for minute, sample in zip(minutes, samples) if sample.calls]
    for name in ("p50_ms", "p99_ms"):
        values = [getattr(sample, name) for _, sample in asked]
        latency.plot([minute for minute, _ in asked], values, label=name[:3])
    latency.set_yscale("log")
    latency.set_ylabel("ms of a check")
    latency.set_xlabel("minutes")
    for axes in (memory, counts, latency):
        axes.legend(loc="upper left", frameon=False)
        axes.grid(alpha=0.3)
    callers.legend(loc="lower right", frameon=False)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def as_dicts(samples: list[Sample]) -> list[dict[str, Any]]:
    return [sample._asdict() for sample in samples]
