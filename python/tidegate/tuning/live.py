"""A service that runs: its busiest keys, its refusals, and limits that it tries in shadow.

    from tidegate.tuning import live

    service = live.connect("redis://localhost", "100/minute", prefix="tg:app.posts")
    service.top(10)                                     # the clients that used most of their limit
    live.rates("http://localhost:8000/metrics")         # refusals of the next ten seconds

All of it only looks: nothing is charged, and no count changes. A changed limit is tried by the
service itself, which counts it in shadow, ``Limit("50/minute", shadow=True)``: rates() has what it
would have refused.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

from tidegate._core import RedisStore, ShmStore
from tidegate.limiter.checks import check_int
from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError, StorageError
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.storage.visible import check_visible
from tidegate.tuning.columns import shown
from tidegate.tuning.frame import Frame
from tidegate.tuning.keys import Keys, as_keys
from tidegate.web.metrics import Sources

if TYPE_CHECKING:
    from tidegate._core import Decision
    from tidegate.limiter.limit import LimitLike
    from tidegate.types import Algorithm

__all__ = ["Service", "connect", "counters", "rates"]

_SCANNED_AT_ONCE = 1000
_SAMPLE = re.compile(r"tidegate_(decisions|refused|refused_in_shadow)_total\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_Counts = dict[tuple[str, str], list[float]]


def connect(
    storage: str,
    limit: LimitLike,
    *,
    prefix: str = "tg",
    algorithm: Algorithm = "token-bucket",
) -> Service:
    """Looks at what a service counts in ``shm://`` or ``redis://``.

    `limit`, `prefix` and `algorithm` are those of the service's limiter; the prefix of a decorator
    is ``tg:MODULE.FUNCTION``, that of a scope ``tg:SCOPE``. Raises ConfigurationError for a storage
    that no other process can see, StorageError where a Redis does not answer.
    """
    if not isinstance(storage, str):
        raise ArgumentTypeError(f"the storage is {shown(storage)}; expected a URI as str")
    check_visible(storage)
    limiter = Limiter(limit, storage=storage, prefix=prefix, algorithm=algorithm)
    if isinstance(limiter.storage, RedisStore):
        problem = limiter.storage.ping()  # a first call would not wait for the connection
        if problem is not None:
            raise StorageError(f"{limiter.storage.name} does not answer: {problem}")
    return Service(limiter, prefix)


class Service:
    """The counts of a service in a storage, for looking at; connect() creates it."""

    def __init__(self, limiter: Limiter, prefix: str) -> None:
        self._limiter = limiter
        self._prefix = prefix

    def top(
        self, most: int = 10, *, keys: Iterable[str | bytes] | None = None, among: int = 10_000
    ) -> Frame:
        """The keys that have used most of the limit: refused ones first, the longest wait first.

        The columns are key, limit (that binds), used, remaining, refused, retry_after and
        reset_after. Of a Redis the first `among` keys that a scan finds are looked at; of other
        storages, and where they are given, `keys`. Shared memory knows keys by fingerprint alone:
        without `keys`, top() has the columns fingerprint and reset_after of all limits in it.
        """
        for name, value in (("most", most), ("among", among)):
            check_int(name, value, "an int from 1 up", least=1)
        if isinstance(keys, (str, bytes)):
            raise ArgumentTypeError(f"the keys are {shown(keys)}; expected a list of keys")
        store = self._limiter.storage
        if keys is None and isinstance(store, ShmStore):
            return _by_fingerprint(store, most)
        asked = self._scanned(among) if keys is None else keys
        found = [(key, self._limiter.peek(key)) for key in asked]
        if any(decision.degraded for _, decision in found):
            raise StorageError(f"{store.name} does not answer")
        used = [(key, each) for key, each in found if each.reset_after > 0 or not each.allowed]
        if keys is None and found and not used:
            self._warn_of_another_limit(len(found))
        used.sort(key=lambda pair: (-pair[1].retry_after, -_share(pair[1]), str(pair[0])))
        return _of_decisions(used[:most])

    def _warn_of_another_limit(self, keys: int) -> None:
        """Warns, since Redis soon forgets keys that nobody uses."""
        limits = ", ".join(f"{limit} ({limit.algorithm})" for limit in self._limiter.limits)
        warnings.warn(
            f"the prefix {self._prefix!r} has {keys} keys, and {limits} counts none of them; "
            "expected the limit and the algorithm of the service's limiter",
            stacklevel=3,
        )

    def _scanned(self, among: int) -> list[str | bytes]:
        """Keys under the prefix, as far as they tell their names."""
        store = self._limiter.storage
        if not isinstance(store, RedisStore):
            raise ConfigurationError(
                f"the storage {store.name} cannot be scanned; expected keys=[...]"
            )
        begin = re.sub(r"([\\*?\[\]])", r"\\\1", self._prefix)
        names: dict[str | bytes, None] = {}
        cursor = "0"
        while True:
            cursor, page = store.command(
                ["SCAN", cursor, "MATCH", f"{begin}:*{{*}}", "COUNT", str(_SCANNED_AT_ONCE)]
            )
            for name in page:
                # A ':' more, and it is under a longer prefix.
                if ":" not in name[len(self._prefix) + 1 : name.index("{")]:
                    names[_key_in(name)] = None
            if cursor == "0" or len(names) >= among:
                return [*names][:among]

    def __repr__(self) -> str:
        limits = ", ".join(map(str, self._limiter.limits))
        return f"Service({limits} in {self._limiter.storage.name}, prefix {self._prefix!r})"


def counters(source: str | Mapping[str, Any] | None) -> Frame:
    """Returns what limiters have decided since they began, by limiter and rule.

    The columns are limiter, rule, decisions (of the limiter), refused and refused_in_shadow.
    `source` is the URL of metrics as ``tidegate.prometheus`` exports them, their text, or a dict of
    limiters of this process by name (None: all that guard requests). Raises StorageError where
    the URL does not answer, ConfigurationError where there are no metrics of limiters.
    """
    if isinstance(source, str):
        text = _fetched(source) if "://" in source.partition("\n")[0] else source
        counts = _of_text(text)
    else:
        counts = _of_process(source)
    if not counts:
        raise ConfigurationError(
            "there are no metrics of limiters; expected tidegate_decisions_total, or limiters"
        )
    limiters, rules = zip(*counts)
    values = np.array(list(counts.values()), dtype=float).astype(np.int64)
    return Frame(
        {
            "limiter": as_keys(list(limiters)),
            "rule": as_keys(list(rules)),
            "decisions": values[:, 0],
            "refused": values[:, 1],
            "refused_in_shadow": values[:, 2],
        }
    )


def rates(
    source: str | Mapping[str, Any] | None,
    seconds: float = 10.0,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Frame:
    """Returns what limiters decide in the next `seconds`, by limiter and rule.

    The columns are those of counters(), as differences, then decisions_per_second, refused_share
    and refused_in_shadow_share. A service that begins anew meanwhile is counted from its beginning.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e6:
        raise ConfigurationError(f"seconds is {seconds!r}; expected a number above 0")
    before = _rows(counters(source))
    begun = time.monotonic()
    sleep(seconds)
    after = counters(source)
    passed = max(time.monotonic() - begun, seconds)
    rises = []
    for name, now in _rows(after).items():
        then = before.get(name, (0, 0, 0))
        rises.append(now if now[0] < then[0] else tuple(b - a for a, b in zip(then, now)))
    decisions, refused, in_shadow = np.array(rises, np.int64).T
    asked = np.maximum(decisions, 1)
    return Frame(
        {
            "limiter": after["limiter"],
            "rule": after["rule"],
            "decisions": decisions,
            "refused": refused,
            "refused_in_shadow": in_shadow,
            "decisions_per_second": decisions / passed,
            "refused_share": refused / asked,
            "refused_in_shadow_share": in_shadow / asked,
        }
    )


def _rows(frame: Frame) -> dict[tuple[str, str], tuple[int, ...]]:
    columns = frame.to_dict()
    numbers = zip(columns["decisions"], columns["refused"], columns["refused_in_shadow"])
    return dict(zip(zip(columns["limiter"], columns["rule"]), numbers))


def _key_in(name: str) -> str | bytes:
    """The key in a name of Redis: bytes where it is no text."""
    key = name.partition("{")[2][:-1]
    return key if key.isascii() else _text_or_bytes(key.encode("utf-8", "surrogateescape"))


def _text_or_bytes(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _share(decision: Decision) -> float:
    return (decision.limit - decision.remaining) / decision.limit if decision.limit else 1.0


def _of_decisions(found: list[tuple[Any, Decision]]) -> Frame:
    decisions = [decision for _, decision in found]
    capacity = np.array([each.limit for each in decisions], np.int64)
    remaining = np.array([each.remaining for each in decisions], np.int64)
    return Frame(
        {
            "key": as_keys([key for key, _ in found]),
            "limit": as_keys([each.rule or "" for each in decisions], optional=True),
            "used": capacity - remaining,
            "remaining": remaining,
            "refused": np.array([not each.allowed for each in decisions], np.bool_),
            "retry_after": np.array([each.retry_after for each in decisions], float),
            "reset_after": np.array([each.reset_after for each in decisions], float),
        }
    )


def _by_fingerprint(store: ShmStore, most: int) -> Frame:
    _, _, _, busiest = store.census(most)
    names = [f"{high >> 16:012x}{low:016x}" for high, low, _ in busiest]
    return Frame(
        {
            "fingerprint": Keys(np.arange(len(names), dtype=np.uint32), names),
            "reset_after": np.array([new_in_ns / 1e9 for _, _, new_in_ns in busiest], float),
        }
    )


def _fetched(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"the source is {url!r}; expected a URL of http or https")
    try:
        with urlopen(url, timeout=10) as response:
            body: bytes = response.read()
    except (URLError, OSError, ValueError) as error:
        raise StorageError(f"{url} does not answer: {error}") from error
    return body.decode("utf-8", "replace")


def _of_text(text: str) -> _Counts:
    """Sums of what the workers of a service export."""
    decisions: dict[str, float] = {}
    counts: _Counts = {}
    for kind, labels, value in _samples(text):
        limiter = labels.get("limiter", "")
        if kind == "decisions":
            decisions[limiter] = decisions.get(limiter, 0) + value
        else:
            row = counts.setdefault((limiter, labels.get("rule", "")), [0.0, 0.0, 0.0])
            row[1 if kind == "refused" else 2] += value
    for (limiter, _), row in counts.items():
        row[0] = decisions.get(limiter, 0)
    return counts


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        labels = {
            name: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)
            for name, value in _LABEL.findall(found[2])
        }
        yield found[1], labels, float(found[3])


def _of_process(limiters: Mapping[str, Any] | None) -> _Counts:
    return {
        (each.name, rule): [each.allowed + each.denied, refused, each.refused_in_shadow[rule]]
        for each in Sources(limiters).read().limiters
        for rule, refused in each.refused.items()
    }
