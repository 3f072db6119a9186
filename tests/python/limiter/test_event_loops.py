"""Each event loop has a channel of its own, and threads where there is no descriptor for one."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import tidegate as tg
from tidegate import _core
from tidegate.limiter import loops
from tidegate.limiter.loops import AsyncBridge


class Recorder:
    """A limiter, a plan or a limiter with rules that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> None:
            self.asked.append((name, *args, *sorted(kwargs.items())))

        return call

    @property
    def channel(self) -> object:
        """What the last one was begun with."""
        return self.asked[-1][-1]


@pytest.fixture(autouse=True)
def without_loops() -> Iterator[None]:
    loops._forget_all()
    yield
    loops._forget_all()


@pytest.fixture
def without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_core, "Channel", fail)


async def begin(recorder: Any) -> object:
    AsyncBridge.begin(recorder, AsyncBridge.HIT, "k", 1)
    channel = recorder.channel
    assert isinstance(channel, _core.Channel)
    return channel


def test_a_loop_keeps_its_channel_and_shares_it_with_no_other() -> None:
    recorder = Recorder()
    loops = [asyncio.new_event_loop() for _ in range(2)]
    channels = [loops[at].run_until_complete(begin(recorder)) for at in (0, 1, 0, 0, 1)]
    assert channels[0] is channels[2] is channels[3]
    assert channels[1] is channels[4]
    assert channels[0] is not channels[1]
    for loop in loops:
        loop.close()


def test_a_closed_loop_is_forgotten_and_an_open_one_is_not() -> None:
    recorder = Recorder()
    still_open, closed = asyncio.new_event_loop(), asyncio.new_event_loop()
    channel = still_open.run_until_complete(begin(recorder))
    closed.run_until_complete(begin(recorder))
    closed.close()
    assert loops._last[1] is not None
    loops.forget_closed()
    assert list(loops._channels) == [still_open]
    assert loops._last[1] is None
    assert still_open.run_until_complete(begin(recorder)) is channel
    still_open.close()


def test_the_last_loop_is_forgotten_when_it_is_gone() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin(Recorder()))
    loop.close()
    del loop
    gc.collect()
    assert loops._last[1] is None


def test_the_end_of_an_earlier_loop_forgets_no_later_one() -> None:
    earlier, later = asyncio.new_event_loop(), asyncio.new_event_loop()
    earlier.run_until_complete(begin(Recorder()))
    channel = later.run_until_complete(begin(Recorder()))
    earlier.close()
    del earlier
    gc.collect()
    assert loops._last[1] is channel
    later.close()


@pytest.mark.usefixtures("without_descriptors")
@pytest.mark.parametrize(
    ("op", "call"),
    [
        (AsyncBridge.HIT, ("hit", "k", 3)),
        (AsyncBridge.PEEK, ("peek", "k", 3)),
        (AsyncBridge.CHARGE_UP_TO, ("charge_up_to", "k", 3)),
        (AsyncBridge.REFUND, ("refund", "k", 3, ("decision", "that hit"))),
        (AsyncBridge.RELEASE, ("_release", "k", 3, "that hit")),
        (AsyncBridge.RESET, ("reset", "k")),
    ],
)
def test_without_a_descriptor_each_operation_goes_through_a_thread(
    op: int, call: tuple[Any, ...]
) -> None:
    recorder: Any = Recorder()
    decision: Any = "that hit"
    asyncio.run(AsyncBridge.run(recorder, op, "k", 3, decision))
    assert recorder.asked == [call]


@pytest.mark.usefixtures("without_descriptors")
def test_without_a_descriptor_a_plan_goes_through_a_thread() -> None:
    plan: Any = Recorder()
    asyncio.run(AsyncBridge.run_plan(plan, ["a", "b"], [1, 2], True))
    assert plan.asked == [("hit", ["a", "b"], [1, 2], True)]


@pytest.mark.usefixtures("without_descriptors")
def test_without_a_descriptor_rules_go_through_a_thread() -> None:
    asked = []

    class RuleLimiter:
        def _check(self, **attributes: Any) -> None:
            asked.append(("check", attributes))

        def _peek(self, **attributes: Any) -> None:
            asked.append(("peek", attributes))

        def _refund(self, attributes: Any, decision: Any) -> None:
            asked.append(("refund", attributes, decision))

        def _reset(self, attributes: Any, op: int) -> None:
            asked.append(("reset", attributes))

    limiter: Any = RuleLimiter()
    decision: Any = "that hit"
    attributes = {"ip": "192.0.2.1", "cost": 2}
    for op in (AsyncBridge.HIT, AsyncBridge.PEEK, AsyncBridge.REFUND, AsyncBridge.RESET):
        asyncio.run(loops.run_rules(limiter, op, attributes, decision))
    assert asked == [
        ("check", attributes),
        ("peek", attributes),
        ("refund", attributes, decision),
        ("reset", attributes),
    ]


def test_what_is_decided_at_once_is_not_awaited() -> None:
    decision = tg.Limiter("1/minute").hit("k")

    class Deciding:
        def _begin(self, *args: object) -> tg.Decision:
            return decision

    def ask_all(of: Any) -> list[Any]:
        return [
            AsyncBridge.run(of, AsyncBridge.HIT, "k", 1),
            AsyncBridge.run_plan(of, ["k"], None, False),
            loops.run_rules(of, AsyncBridge.HIT, {}, None),
        ]

    async def main() -> list[Any]:
        return [await each for each in ask_all(Deciding())]

    assert asyncio.run(main()) == [decision] * 3


def test_what_is_not_decided_at_once_is_awaited() -> None:
    class Pending:
        def _begin(self, *args: object) -> asyncio.Future[str]:
            future = asyncio.get_running_loop().create_future()
            future.set_result("decided")
            return future

    async def main() -> list[Any]:
        of: Any = Pending()
        return [
            await AsyncBridge.run(of, AsyncBridge.HIT, "k", 1),
            await AsyncBridge.run_plan(of, ["k"], None, False),
            await loops.run_rules(of, AsyncBridge.HIT, {}, None),
        ]

    assert asyncio.run(main()) == ["decided"] * 3


def test_a_missing_descriptor_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(loops.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(loops, "_logged_at", -float("inf"))
    for at, logged in ((1000, 1), (1059.9, 1), (1060, 2), (1119, 2), (1121, 3)):
        now[0] = at
        loops._log_without_channel(OSError("no descriptor"))
        assert len(caplog.records) == logged
