"""Finds callers that send unusually many requests, and says what to do about them."""

from __future__ import annotations

import enum
import functools
import json
import math
import zlib
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Callable, NamedTuple

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.server.anomalies.baseline import count_at, scaled
from tidegate.server.anomalies.caller import Caller
from tidegate.server.anomalies.crowd import LEAST_CROWD, Crowd, crowd_of
from tidegate.server.anomalies.peers import LEAST_PEERS, Peers

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Action", "Anomaly", "AnomalyDetector"]

_HOUR = 3600.0
# 1 January 1970 was a Thursday, the fourth day of its week.
_MONDAY = 3 * 24
_MOST_TIERS = 1000
_FORMAT = 1
# How many deviations of the crowd's own spread a caller must lie apart from the crowd.
_APART = 4.0
# While the crowd has risen to more than this (twice, in counts), callers differ more, so that one
# must lie apart twice as far.
_MOVED = math.sqrt(2)
# For so long after many callers rose together, those who rise again are taken for some of them.
_EBB = _HOUR
_ALL = "\0all"  # in place of a tier; no tier has this name
# So many callers may rise at a time without being a crowd, however few callers there are.
_FEW = 2


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


class _Seen:
    """A caller's count in the interval that is being judged."""

    __slots__ = (
        "among_peers",
        "apart",
        "caller",
        "count",
        "expected",
        "is_high",
        "is_known",
        "name",
        "score",
        "spread",
        "tier",
        "value",
    )

    def __init__(self, name: str, count: int, caller: Caller, tier: str | None) -> None:
        self.name = name
        self.count = count
        self.caller = caller
        self.tier = tier
        self.value = scaled(count)
        self.is_known = False
        self.among_peers: float | None = None
        self.expected = self.score = self.spread = 0.0
        self.apart = 0.0  # in deviations of the crowd
        self.is_high = False


class AnomalyDetector:
    """Finds callers whose number of requests in an interval does not fit their past or peers.

    ::

        detector = AnomalyDetector()
        for anomaly in detector.judge({"user:42": 180, "user:7": 12}, at=1696523400.0):
            print(anomaly.caller, anomaly.action, anomaly.reason)

    Call judge() once for each interval of `interval` seconds with the counts of all callers;
    callers without requests may be left out. Each caller has a baseline, which forgets half of its
    past in `half_life` seconds of activity and is used after `warm_up` intervals. What all callers
    do together is the service's: the median rise of the known callers is taken off first, and
    nobody is more than monitored while more than the share `crowd_share` of the callers, or of
    those of its tier, rise at a time. The counts of other callers of the same tier are a second
    criterion, and the only one for new callers. A caller first seen in the first `warm_up`
    intervals of the detector may not be new, so it is only monitored until it has a past.

    A score above `monitor` is reported. A caller should be throttled if its score was above
    `throttle` in `k` of the last `m` intervals, and blocked if it was above `block`; with fewer
    than 20 other callers nobody is blocked, and with fewer than 5 nobody is throttled. Counts below
    `least` are never anomalies. The baseline does not learn counts above `throttle`, so that an
    attack does not become usual; after `relearn` seconds the caller's counts are usual, so that
    permanent growth is.

    At most `capacity` callers are kept. Callers that were seen in few intervals, with few requests,
    are forgotten first, down to a quarter of `capacity`, then those that were not seen for the
    longest time; anomalous ones last. A caller takes about 600 bytes, and 1.4 KB more from its
    second week on. `pause` is called a few times for each caller, and may let other threads run.
    Not thread-safe.
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
        crowd_share: float = 0.05,
        capacity: int = 50_000,
        pause: Callable[[], object] = lambda: None,
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
        if not 0 < crowd_share <= 1:
            raise ConfigurationError(
                f"crowd_share is {crowd_share!r}; expected a share above 0, at most 1"
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
        self._crowd_share = crowd_share
        self._capacity = capacity
        self._pause = pause
        self._callers: OrderedDict[str, Caller] = OrderedDict()
        self._peers: dict[str | None, Peers] = {}
        self.crowd = Crowd(0)
        """What all callers did together in the last interval."""
        # When too many callers of a tier last rose together.
        self._rising: dict[str | None, float] = {}
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
        if at < self.next_at:
            raise ConfigurationError(
                f"the interval begins at {at!r}; expected {self.next_at!r} or "
                "later, when the last one ended"
            )
        self._last = at
        number = round(at / self.interval)
        hour = int(at // _HOUR) + _MONDAY
        if self._knows_all_from is None:
            self._knows_all_from = number + self._warm_up
        knows_all = number >= self._knows_all_from
        seen = []
        for name, count in counts.items():
            self._pause()
            if count > 0:
                caller = self._known(name, hour, knows_all)
                seen.append(_Seen(name, count, caller, None if tiers is None else tiers.get(name)))
        self.crowd = self._crowd_of(seen, hour)
        for each in seen:
            self._pause()
            self._score(each, hour)
        self._rising.update((tier, at) for tier in self._rising_together(seen))
        found = []
        by_tier: dict[str | None, dict[str, float]] = {}
        for each in seen:
            self._pause()
            caller = each.caller
            caller.note(each.value, each.is_high, number, at, self._m)
            if each.is_high and self._is_with_others(each, at):
                caller.rose_with_others = True
            self._learn(each, at, hour)
            anomaly = self._judged(each, at)
            if anomaly is not None:
                found.append(anomaly)
            if not each.is_high:
                by_tier.setdefault(each.tier, {})[each.name] = each.value
        for tier, values in by_tier.items():
            self._peers_of(tier).learn(values)
        self._forget_some(number)
        found.sort(key=lambda each: -each.score)
        return found

    @property
    def next_at(self) -> float:
        """The earliest begin of the next interval, in seconds since the epoch."""
        return self._last + self.interval

    def forget(self, caller: str) -> bool:
        """Forgets a caller, which is then new. Returns False if the caller is unknown."""
        return self._callers.pop(caller, None) is not None

    def accept(self, caller: str) -> bool:
        """Accepts the present count of `caller`, and half as much again, for `relearn` seconds.

        Only counts that last as long become usual, so that a flood whose caller was accepted by
        mistake does not. Returns False if the caller is unknown.
        """
        known = self._callers.get(caller)
        if known is None:
            return False
        known.accept(self._last, self._last + self._relearn)
        return True

    def state(self) -> bytes:
        """Returns everything that was learned, for restore() in another process."""
        state = {
            "format": _FORMAT,
            "interval": self.interval,
            "last": self._last if math.isfinite(self._last) else None,
            "knows_all_from": self._knows_all_from,
            "rising": list(self._rising.items()),
            "peers": [[tier, peers.state()] for tier, peers in self._peers.items()],
        }
        # A text of all callers at once would take long, during which no other thread runs.
        text = [json.dumps(state, separators=(",", ":"))[:-1], ',"callers":[']
        for i, (name, caller) in enumerate(self._callers.items()):
            self._pause()
            text += ["," * (i > 0), json.dumps([name, caller.state()], separators=(",", ":"))]
        return zlib.compress("".join([*text, "]}"]).encode(), 1)

    def restore(self, state: bytes) -> None:
        """Takes over what another detector has learned, whose state() this is.

        Raises ConfigurationError, and changes nothing, if the state is damaged, of another version,
        or of intervals of another length.
        """
        try:
            read = json.loads(zlib.decompress(state))
            if read["format"] != _FORMAT or read["interval"] != self.interval:
                raise ValueError(
                    f"it is of format {read['format']!r} and of intervals of "
                    f"{read['interval']!r} s; expected {_FORMAT} and {self.interval!r} s"
                )
            last = -math.inf if read["last"] is None else float(read["last"])
            knows_all_from = read["knows_all_from"]
            rising = {tier: float(at) for tier, at in read["rising"]}
            peers = {tier: Peers.restore(values) for tier, values in read["peers"]}
            callers = OrderedDict(
                (str(name), Caller.restore(each)) for name, each in read["callers"]
            )
        except (zlib.error, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"the state of anomaly detection is not read: {error}"
            ) from None
        self._last, self._knows_all_from, self._rising = last, knows_all_from, rising
        self._peers, self._callers = peers, callers

    def _known(self, name: str, hour: int, knows_all: bool) -> Caller:
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = Caller(hour, is_new=knows_all)
        else:
            self._callers.move_to_end(name)
        return caller

    def _peers_of(self, tier: str | None) -> Peers:
        if tier not in self._peers and len(self._peers) >= _MOST_TIERS:
            tier = None
        return self._peers.setdefault(tier, Peers())

    def _crowd_of(self, seen: list[_Seen], hour: int) -> Crowd:
        ratios, deviations = [], []
        for each in seen:
            own = each.caller.baseline
            if own.samples >= self._warm_up:
                each.is_known = True
                usual = own.usual(hour)
                ratios.append(each.value / usual)
                deviations.append(own.spread() / usual)
        return crowd_of(ratios, deviations)

    def _score(self, each: _Seen, hour: int) -> None:
        crowd, own, value = self.crowd, each.caller.baseline, each.value
        peers = self._peers.get(each.tier)
        each.among_peers = None if peers is None else peers.z(value)
        if each.is_known:
            usual = own.usual(hour)
            expected = usual * crowd.rise
            error = usual * crowd.level_error if crowd.level > 1 else 0.0
            each.spread = math.hypot(own.spread(crowd.rise), error)
            each.score = (value - expected) / each.spread
            apart = math.hypot(each.spread / expected, crowd.apart)
            each.apart = math.log(value / expected) / apart
            each.expected = expected
        elif each.among_peers is not None and peers is not None:
            each.score, each.apart = each.among_peers, math.inf
            each.expected = peers.usual
        else:
            each.expected = value
        is_judged = each.is_known or each.caller.is_new
        each.is_high = (
            each.count >= self._least
            and each.score > self._throttle
            and each.apart > self._throttle
            and is_judged
        )

    def _rising_together(self, seen: list[_Seen]) -> set[str | None]:
        """Returns the tiers of which more callers rise at a time than a few attackers would be."""
        known: Counter[str | None] = Counter()
        rising: Counter[str | None] = Counter()
        for each in seen:
            if each.is_known:
                known.update((each.tier, _ALL))
                if each.is_high:
                    rising.update((each.tier, _ALL))
        share = self._crowd_share
        return {tier for tier, n in rising.items() if n > max(_FEW, share * known[tier])}

    def _is_with_others(self, each: _Seen, at: float) -> bool:
        if self.crowd.level > _MOVED and each.apart < 2 * _APART:
            return True
        return any(at - self._rising.get(tier, -math.inf) < _EBB for tier in (each.tier, _ALL))

    def _judged(self, each: _Seen, at: float) -> Anomaly | None:
        if each.count < self._least or each.score <= self._monitor:
            return None
        if each.caller.is_accepted(each.value, at):
            return None
        action = self._action(each)
        usual = count_at(each.expected)
        reason = _reason(each, usual, action, self.crowd, self.interval)
        return Anomaly(each.name, action, each.score, reason, each.count, usual, at)

    def _action(self, each: _Seen) -> Action:
        caller, crowd, score = each.caller, self.crowd, each.score
        if not each.is_high or caller.high_intervals(self._m) < self._k or caller.rose_with_others:
            return Action.MONITOR
        if not each.is_known:  # only the peers are evidence against the caller
            is_far = score > self._block and each.value > self._peers[each.tier].highest
            return Action.THROTTLE if is_far else Action.MONITOR
        if crowd.size <= LEAST_CROWD or each.apart <= _APART:
            return Action.MONITOR
        if each.among_peers is not None and each.among_peers <= self._monitor:
            return Action.MONITOR
        if score <= self._block:
            return Action.THROTTLE if crowd.size > LEAST_PEERS else Action.MONITOR
        if crowd.size <= LEAST_PEERS or each.among_peers is None:
            return Action.THROTTLE
        return Action.BLOCK if each.among_peers > self._throttle else Action.THROTTLE

    def _learn(self, each: _Seen, at: float, hour: int) -> None:
        caller, own, value = each.caller, each.caller.baseline, each.value
        own.learn_hour(value, hour)
        if each.is_high and own.samples:
            if at - caller.high_since < self._relearn:
                if each.is_known:
                    own.follow(own.usual(hour) * self.crowd.level, self._kept)
                return
            caller.relearn()
        elif each.is_known and each.score > self._monitor:
            # The highest count that is not an anomaly.
            value = min(value, each.expected + self._monitor * each.spread)
        own.learn(value, self._kept, self.crowd.level)

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


def _reason(each: _Seen, usual: float, action: Action, crowd: Crowd, interval: float) -> str:
    peers = "its peers" if each.tier is None else f"the tier {each.tier}"
    whose = "of its own past" if each.is_known else f"of {peers}, being new"
    if each.is_known and crowd.rise > 1.1:
        whose += f" while all callers send {crowd.rise**2:.1f} times as much as usual"
    words = f"{each.count} requests in {interval:g} s, {usual:.0f} are usual {whose}"
    if each.is_known and each.among_peers is not None:
        if each.among_peers <= 2:
            words += f"; {peers} have as many"
        else:
            words += f"; {each.among_peers:.1f} deviations above {peers}"
    if each.caller.rose_with_others:
        words += "; many callers rose at the same time"
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
