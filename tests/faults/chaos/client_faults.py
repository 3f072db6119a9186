"""Faults of the calling process. The servers work throughout."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from chaos.fault import ANY, NONE, Act, fault
from chaos.stage import Stage

# Calls of other threads would send the queued requests of a blocked loop.
_NO_LOAD = {"threads": 0, "tasks": 0}


def _loop_blocked(milliseconds: int, when: str, rounds: int, says: str) -> None:
    seconds = milliseconds / 1e3

    def act(stage: Stage) -> Iterator[float]:
        counts = stage.worker.do("block_loop", seconds=seconds, when=when, rounds=rounds)
        stage.check_counts(counts)
        yield 0.1

    act.__name__ = f"loop-blocked-{milliseconds}-ms-{when}"
    act.__doc__ = f"A loop computes for {milliseconds} ms {says}, {rounds} times."
    made: Act = act
    # Another thread of Python gets the GIL every 5 ms from one that computes.
    fault("standalone", degraded=NONE, blocks_loops=seconds, slack=0.05, load=_NO_LOAD)(made)


for _milliseconds, _rounds in ((10, 15), (60, 8), (500, 2), (2000, 1)):
    _loop_blocked(_milliseconds, "before", _rounds, "before five hits begin")
    _loop_blocked(_milliseconds, "during", _rounds, "in the same turn as five hits begin")
    _loop_blocked(_milliseconds, "after", _rounds, "while five replies come")


@fault("standalone", degraded=NONE, blocks_loops=0.8, slack=0.05, load=_NO_LOAD)
def thousand_tasks(stage: Stage) -> Iterator[float]:
    """1,000 tasks of 0.2 ms each on a limit of 500, on both kinds of loops."""
    for counts in stage.worker.do("busy_tasks", tasks=1000, each=0.0001, limit=500)["each"]:
        stage.check_counts(counts)
        stage.check(
            counts["admitted"] == 500, f"{counts['admitted']} of 1,000 were admitted, not 500"
        )
        stage.notes.setdefault("admitted of 500", []).append(counts["admitted"])
    yield 0.1


@fault("standalone", degraded=NONE, slack=0.15)
def thread_computes(stage: Stage) -> Iterator[float]:
    """A thread computes, and so asks for the GIL, for 2 s."""
    stage.worker.do("compute_beside", seconds=2.0, threads=1)
    yield 0.0


@fault(
    "standalone", degraded=NONE, slack=0.15, load={"threads": 0, "tasks": 5, "loops": ["asyncio"]}
)
def thread_computes_beside_a_loop(stage: Stage) -> Iterator[float]:
    """A thread computes for 2 s beside one loop, which alone makes calls."""
    stage.worker.do("compute_beside", seconds=2.0, threads=1)
    yield 0.0


@fault("standalone", degraded=NONE, slack=0.4)
def gil_held(stage: Stage) -> Iterator[float]:
    """A foreign function keeps the GIL for 200 ms, five times."""
    stage.worker.do("hold_gil", seconds=0.2, rounds=5)
    yield 0.0


@fault("standalone", degraded=NONE, slack=0.02)
def signals(stage: Stage) -> Iterator[float]:
    """A signal each millisecond for a second."""
    stage.notes["signals"] = stage.worker.do("signals", seconds=1.0)["sent"]
    yield 0.0


@fault("standalone", degraded=NONE, slack=0.1)
def many_threads(stage: Stage) -> Iterator[float]:
    """64 threads at once in synchronous calls."""
    stage.check_counts(stage.worker.do("many_threads", threads=64, hits=20))
    yield 0.0


@fault("standalone", degraded=NONE, slack=0.15)
def many_loops(stage: Stage) -> Iterator[float]:
    """20 loops at once, each in a thread."""
    stage.check_counts(stage.worker.do("loops_in_threads", loops=20, hits=15))
    yield 0.0


@fault("standalone", degraded=NONE, slack=0.05)
def loops_come_and_go(stage: Stage) -> Iterator[float]:
    """100 loops one by one, half of them closed with a call in flight."""
    stage.check_counts(stage.worker.do("loops_one_by_one", loops=100))
    yield 0.0


@fault("standalone", degraded=NONE, blocks_loops=0.05, slack=0.05)
def tasks_cancelled(stage: Stage) -> Iterator[float]:
    """20 times 200 tasks are cancelled at all stages of their hits."""
    stage.check_counts(stage.worker.do("cancel_tasks", rounds=20, tasks=200))
    yield 0.1


@fault("standalone", degraded=ANY, slack=0.1)
def forks(stage: Stage) -> Iterator[float]:
    """Forks under load, six times; the children hit too."""
    counts = stage.worker.do("fork_under_load", forks=6)
    stage.check_counts(counts)
    stage.check(counts["lost"] == 0, f"{counts['lost']} of 6 children ended without a report")
    stage.check(counts["calls"] == 240, f"{counts['calls']} of 240 calls of children returned")
    yield 0.1


@fault("standalone", degraded=ANY, slack=0.3, blocks_loops=0.1)
def three_hundred_limiters(stage: Stage) -> Iterator[float]:
    """300 limiters with a store each are opened, used, and closed."""
    counts = stage.worker.do("many_limiters", limiters=300)
    stage.check_counts(counts, degraded=None)
    for what, name in (("fds", "descriptors"), ("threads", "threads")):
        stage.check(
            counts["after"][what] <= counts["before"][what],
            f"{counts['after'][what]} {name} after all were closed, "
            f"{counts['before'][what]} before",
        )
        stage.notes[f"{name} before, most, after"] = [
            counts[when][what] for when in ("before", "most", "after")
        ]
    yield 0.1


@fault("standalone", degraded=ANY)
def no_descriptors(stage: Stage) -> Iterator[float]:
    """No descriptor is left at a loop's first asynchronous call."""
    counts = stage.worker.do("first_hit_without_descriptors")
    stage.check_counts(counts, degraded=None)
    stage.check(counts["calls_after"] == 1, "the loop's next call did not return")
    stage.check(
        counts["degraded_after"] == 0, "with descriptors again, the loop's next call was degraded"
    )
    yield 0.2


@fault("standalone", degraded=ANY, recovers=False)
def closed_in_use(stage: Stage) -> Iterator[float]:
    """The limiters are closed while threads and tasks are in calls."""
    yield 0.5
    stage.worker.do("close_in_use")
    yield 0.3


# ------------------------------------------------------------------------ clocks

# The network takes its time, so that there are calls under way whenever the clock steps.
_LAG = 0.005


def _steps(stage: Stage, offsets: list[float], pause: float) -> Iterator[float]:
    assert stage.clock is not None
    assert stage.proxy is not None
    stage.proxy.seconds = _LAG
    stage.proxy.mode = "lag"
    yield 0.2
    for seconds in offsets:
        stage.clock.shift(seconds)
        yield pause
    stage.proxy.heal()


@fault("standalone+clock+proxy", degraded=NONE)
def wall_clock_steps(stage: Stage) -> Iterator[float]:
    """Its wall clock steps ahead by an hour, and back, ten times; replies take 5 ms."""
    yield from _steps(stage, [3600.0, 0.0] * 10, 0.1)


@fault("standalone+clock+proxy", degraded=NONE)
def wall_clock_slips(stage: Stage) -> Iterator[float]:
    """Its wall clock steps ahead by 0.2 s, ten times; replies take 5 ms."""
    yield from _steps(stage, [0.2 * (number + 1) for number in range(10)], 0.1)


@fault("standalone+clock+proxy", degraded=NONE)
def wall_clock_steps_back(stage: Stage) -> Iterator[float]:
    """Its wall clock steps back by an hour; replies take 5 ms."""
    yield from _steps(stage, [-3600.0], 1.0)


def _step_in_an_outage(
    stage: Stage, before: float, seconds: float, after: float
) -> Iterator[float]:
    assert stage.clock is not None
    assert stage.proxy is not None
    stage.proxy.mode = "hole"
    yield before
    stage.clock.shift(seconds)
    yield after
    stage.proxy.heal()


@fault("standalone+clock+proxy")
def wall_clock_steps_back_in_an_outage(stage: Stage) -> Iterator[float]:
    """Its wall clock steps back by an hour when an outage has just begun."""
    yield from _step_in_an_outage(stage, 0.03, -3600, 1.5)


@fault("standalone+clock+proxy")
def wall_clock_steps_ahead_in_an_outage(stage: Stage) -> Iterator[float]:
    """Its wall clock steps ahead by an hour in an outage, with the breaker open."""
    yield from _step_in_an_outage(stage, 0.4, 3600, 1.0)


# --------------------------------------------------------------- refunds of what failed


@fault("standalone+proxy")
def degraded_hits_refunded(stage: Stage) -> Iterator[float]:
    """What the fallback admitted is given back: the server gets nothing."""
    assert stage.proxy is not None
    charged = stage.worker.do("charge", key="refunded", times=20)
    stage.check_counts(charged)
    stage.proxy.refuse()
    yield 0.2
    degraded = stage.worker.do("hit_until_degraded", key="refunded", times=10)["degraded"]
    stage.check(degraded == 10, f"{degraded} of 10 hits were decided without the server")
    stage.proxy.listen()
    stage.check(stage.await_calm(5.0, 0.3) is not None, "the server was not asked again")
    # Those that failed on the way out may have been charged.
    before = stage.worker.do("charge", key="refunded", times=0)
    stage.worker.do("refund", key="refunded", times=degraded)
    after = stage.worker.do("charge", key="refunded", times=0)
    stage.check(
        after["remaining"] == before["remaining"],
        f"{before['remaining']} remained before {degraded} degraded hits were given back, "
        f"{after['remaining']} after",
    )
    yield 0.0


# --------------------------------------------------------------------- the process


@fault("standalone", degraded=ANY, blocks_loops=2.0, slack=2.0)
def suspended(stage: Stage) -> Iterator[float]:
    """The process is stopped for 2 s and continued, as by a suspended machine."""
    stage.worker.process.send_signal(signal.SIGSTOP)
    yield 2.0
    stage.worker.process.send_signal(signal.SIGCONT)
