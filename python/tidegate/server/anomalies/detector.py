"""Finds callers that send unusually many requests, and says what to do about them."""

from __future__ import annotations

import enum
import functools
import math
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from tidegate._errors import ArgumentTypeError, ConfigurationError
from tidegate.server.anomalies.baseline import Baseline, count_at, scaled
from tidegate.server.anomalies.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Action", "Anomaly", "AnomalyDetector"]

_HOUR = 3600.0
# 1 January 1970 was a Thursday, the fourth day of its week.
_MONDAY = 3 * 24
_MOST_TIERS = 1000


@functools.total_ordering
class Action(enum.Enum):
    """The action that an anomaly calls for, from the mildest to the strictest."""

    ALLOW = "allow"
    MONITOR = "monitor"
    THROTTLE = "throttle"
    BLOCK = "block"

    def __lt__(self, other: Action) -> bool:
        order = list(Action)
        return order.index(self) < order.index(other)


class Anomaly(NamedTuple):
    """One caller's unusual count in one interval."""

    caller: str
    action: Action
    score: float
    """How many standard deviations the count lies above the usual count."""
    reason: str
    """The reason in words."""
    requests: int
    usual: float
    """The count that would have been usual."""
    at: float
    """When the interval began, in seconds since the epoch."""


class AnomalyDetector:
    """Finds callers whose number of requests in an interval does not fit their past or peers.

    ::

        detector = AnomalyDetector()
        for anomaly in detector.judge({"user:42": 180, "user:7": 12}, at=1696523400.0):
            print(anomaly.caller, anomaly.action, anomaly.reason)

    Call judge() once for each interval of `interval` seconds with the counts of all callers;
    callers without requests may be left out. Each caller has a baseline, which forgets half of its
    past in `half_life` seconds of activity and is used after `warm_up` intervals. The counts of
    other callers of the same tier are a second criterion, and the only one for new callers. A
    caller first seen in the first `warm_up` intervals of the detector may not be new, so it is only
    monitored until it has a past.

    A score above `monitor` is reported. A caller should be throttled if its score was above
    `throttle` in `k` of the last `m` intervals, and blocked if it was above `block`. Counts below
    `least` are never anomalies. The baseline does not learn counts above `throttle`, so that an
    attack does not become usual; after `relearn` seconds it learns them, so that permanent growth
    becomes usual.

    At most `capacity` callers are kept. Callers that were seen in few intervals, with few requests,
    are forgotten first, down to a quarter of `capacity`, then those that were not seen for the
    longest time; anomalous ones last. A caller takes about 400 bytes, and 1.4 KB more from its
    second week on. Not thread-safe.
    """

    def __init__(
        self,
        *,
        interval: float = 60.0,
        half_life: float = 6 * _HOUR,
        warm_up: int = 10,
        monitor: float = 2.0,
        throttle: float = 3.0,
        block: float = 10.0,
        k: int = 3,
        m: int = 5,
        least: int = 20,
        relearn: float = 24 * _HOUR,
        capacity: int = 50_000,
    ) -> None:
        _expect_seconds(interval=interval, half_life=half_life, relearn=relearn)
        _expect_count(warm_up=warm_up, k=k, m=m, least=least, capacity=capacity)
        if not k <= m <= 32:
            raise ConfigurationError(f"k is {k} and m is {m}; expected k <= m <= 32")
        if not 0 < monitor <= throttle <= block:
            raise ConfigurationError(
                f"the scores are monitor={monitor!r}, throttle={throttle!r} and block={block!r}; "
                "expected 0 < monitor <= throttle <= block"
            )
        self.interval = interval
        """The length of an interval in seconds."""
        self._kept = 0.5 ** (interval / half_life)
        self._warm_up = warm_up
        self._monitor = monitor
        self._throttle = throttle
        self._block = block
        self._k = k
        self._m = m
        self._least = least
        self._relearn = relearn
        self._capacity = capacity
        self._callers: OrderedDict[str, _Caller] = OrderedDict()
        self._peers: dict[str | None, Peers] = {}
        self._last = -math.inf
        # From this interval on, a caller who was never seen is new.
        self._knows_all_from: int | None = None
        self.forgotten = 0
        """The number of callers that were forgotten because of `capacity`."""

    def __len__(self) -> int:
        """The number of known callers."""
        return len(self._callers)

    def judge(
        self,
        counts: Mapping[str, int],
        at: float,
        tiers: Mapping[str, str] | None = None,
    ) -> list[Anomaly]:
        """Judges the counts of the interval that began at `at`, and then learns them.

        Returns the anomalies, the highest score first. `tiers` maps callers to tiers; callers
        without a tier are peers of each other. Intervals must come in order: raises
        ConfigurationError if an interval begins before the last one ended.
        """
        if at < self._last + self.interval:
            raise ConfigurationError(
                f"the interval begins at {at!r}; expected {self._last + self.interval!r} or "
                "later, when the last one ended"
            )
        self._last = at
        number = round(at / self.interval)
        hour = int(at // _HOUR) + _MONDAY
        if self._knows_all_from is None:
            self._knows_all_from = number + self._warm_up
        knows_all = number >= self._knows_all_from
        found = []
        by_tier: dict[str | None, dict[str, float]] = {}
        for name, count in counts.items():
            if count <= 0:
                continue
            tier = None if tiers is None else tiers.get(name)
            caller = self._known(name, hour, knows_all)
            value = scaled(count)
            anomaly = self._judged(name, caller, count, value, tier, at, hour, number)
            if anomaly is not None:
                found.append(anomaly)
            if not caller.high & 1:
                by_tier.setdefault(tier, {})[name] = value
        for tier, values in by_tier.items():
            self._peers_of(tier).learn(values)
        self._forget_some(number)
        found.sort(key=lambda each: -each.score)
        return found

    def forget(self, caller: str) -> bool:
        """Forgets a caller, which is then new. Returns False if the caller is unknown."""
        return self._callers.pop(caller, None) is not None

    def accept(self, caller: str) -> bool:
        """Makes the current counts of `caller` usual. Returns False if the caller is unknown."""
        known = self._callers.get(caller)
        if known is None:
            return False
        known.accept()
        return True

    def _known(self, name: str, hour: int, knows_all: bool) -> _Caller:
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _Caller(hour, is_new=knows_all)
        else:
            self._callers.move_to_end(name)
        return caller

    def _peers_of(self, tier: str | None) -> Peers:
        if tier not in self._peers and len(self._peers) >= _MOST_TIERS:
            tier = None
        return self._peers.setdefault(tier, Peers())

    def _judged(
        self,
        name: str,
        caller: _Caller,
        count: int,
        value: float,
        tier: str | None,
        at: float,
        hour: int,
        number: int,
    ) -> Anomaly | None:
        own = caller.baseline
        is_known = own.samples >= self._warm_up
        peers = self._peers.get(tier)
        among_peers = None if peers is None else peers.z(value)
        if is_known:
            score, usual = own.z(value, hour), count_at(own.usual(hour))
        elif among_peers is not None and peers is not None and not caller.is_accepted:
            score, usual = among_peers, count_at(peers.usual)
        else:
            score, usual = 0.0, float(count)
        is_high = count >= self._least and score > self._throttle and (is_known or caller.is_new)
        caller.note(is_high, number, at, self._m)
        self._learn(caller, value, score, is_high, at, hour)
        if count < self._least or score <= self._monitor:
            return None
        action = self._action(caller, score, is_known, among_peers)
        reason = _reason(count, usual, is_known, among_peers, tier, action, self.interval)
        return Anomaly(name, action, score, reason, count, usual, at)

    def _action(
        self, caller: _Caller, score: float, is_known: bool, among_peers: float | None
    ) -> Action:
        if caller.high_intervals(self._m) < self._k or score <= self._throttle:
            return Action.MONITOR
        if not is_known:  # only the peers are evidence against the caller
            return Action.THROTTLE if score > self._block else Action.MONITOR
        if among_peers is not None and among_peers <= self._monitor:
            return Action.MONITOR
        if score > self._block and (among_peers is None or among_peers > self._throttle):
            return Action.BLOCK
        return Action.THROTTLE

    def _learn(
        self,
        caller: _Caller,
        value: float,
        score: float,
        is_high: bool,
        at: float,
        hour: int,
    ) -> None:
        own = caller.baseline
        own.learn_hour(value, hour)
        if is_high and own.samples:
            if at - caller.high_since < self._relearn:
                return
        elif score > self._monitor and own.samples >= self._warm_up:
            # The highest count that is not an anomaly.
            value = min(value, own.usual(hour) + self._monitor * math.sqrt(max(own.variance, 1)))
        own.learn(value, self._kept)

    def _forget_some(self, number: int) -> None:
        excess = len(self._callers) - self._capacity
        if excess <= 0:
            return
        for name in self._least_missed()[:excess]:
            caller = self._callers.pop(name)
            # With so many callers, some are forgotten while they are active. Such a caller is not
            # new when it returns.
            if caller.baseline.samples >= self._warm_up and number - caller.last < self._warm_up:
                self._knows_all_from = number + 1 + self._warm_up
        self.forgotten += excess

    def _least_missed(self) -> list[str]:
        """Returns all callers, beginning with those to be forgotten first.

        Made-up names must not displace callers whose past is known.
        """
        anomalous, known, newcomers = [], [], []
        for name, caller in self._callers.items():
            if caller.high:
                anomalous.append(name)
            elif caller.baseline.samples >= self._warm_up:
                known.append(name)
            else:
                newcomers.append(name)
        newcomers.sort(key=lambda name: self._callers[name].seniority())
        kept = -(self._capacity // 4) or len(newcomers)
        spared = -(self._capacity // 2) or len(anomalous)
        return [
            *newcomers[:kept],
            *anomalous[:spared],
            *known,
            *newcomers[kept:],
            *anomalous[spared:],
        ]


class _Caller:
    """A caller's baseline, and which of the caller's last intervals were too high."""

    __slots__ = ("_first_hour", "baseline", "high", "high_since", "is_accepted", "is_new", "last")

    def __init__(self, hour: int, *, is_new: bool) -> None:
        self._first_hour = hour
        self.is_new = is_new  # otherwise it may have a past that the detector has not seen
        self.baseline = Baseline(hour)
        self.high = 0  # a bit for each interval; the lowest bit is the last interval
        self.high_since = 0.0
        self.is_accepted = False
        self.last = 0

    def note(self, is_high: bool, number: int, at: float, m: int) -> None:
        passed = min(number - self.last, m) if self.last else m
        self.last = number
        self.high = (self.high << passed) & ((1 << m) - 1)
        if is_high:
            if self.high == 0:
                self.high_since = at
            self.high |= 1

    def seniority(self) -> tuple[int, float]:
        return self.baseline.samples, self.baseline.mean

    def high_intervals(self, m: int) -> int:
        return bin(self.high & ((1 << m) - 1)).count("1")

    def accept(self) -> None:
        self.high = 0
        self.is_accepted = True
        self.baseline = Baseline(self._first_hour)


def _reason(
    count: int,
    usual: float,
    is_known: bool,
    among_peers: float | None,
    tier: str | None,
    action: Action,
    interval: float,
) -> str:
    crowd = "its peers" if tier is None else f"the tier {tier}"
    whose = "of its own past" if is_known else f"of {crowd}, being new"
    words = f"{count} requests in {interval:g} s, {usual:.0f} are usual {whose}"
    if is_known and among_peers is not None:
        if among_peers <= 2:
            words += f"; {crowd} have as many"
        else:
            words += f"; {among_peers:.1f} deviations above {crowd}"
    if action in (Action.THROTTLE, Action.BLOCK):
        words += "; for several intervals"
    return words


def _expect_seconds(**given: float) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ArgumentTypeError(f"{name} is {value!r}; expected seconds")
        if not 0 < value < math.inf:
            raise ConfigurationError(f"{name} is {value!r}; expected seconds above 0")


def _expect_count(**given: int) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentTypeError(f"{name} is {value!r}; expected an int")
        if value < 1:
            raise ConfigurationError(f"{name} is {value}; expected 1 or more")
