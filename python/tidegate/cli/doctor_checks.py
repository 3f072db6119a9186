"""The checks of ``tidegate doctor`` on a Redis."""

from __future__ import annotations

import math
import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tidegate import _core
from tidegate.cli import doctor_leases, doctor_server_info
from tidegate.cli.doctor_report import UNUSABLE, Report, in_words
from tidegate.limiter.errors import ConfigurationError, StorageError
from tidegate.limiter.limit import Limit
from tidegate.limiter.limiter import Limiter
from tidegate.limiter.storage.options import read_number
from tidegate.limiter.storage.uri import open_store, without_password
from tidegate.types import ALGORITHMS, Algorithm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

__all__ = ["examine"]

_DEFAULT_TIMEOUT = 0.05
# Long enough to measure a server that is too slow for its clients.
_PATIENCE = 5.0
# Options for calls that fail, which do not apply here: the doctor looks for failures.
_ABOUT_FAILURES = {
    "timeout",
    "breaker_failures",
    "breaker_open",
    "deny_cache_max",
    "fallback",
    "fallback_share",
    "lease",
    "mode",
    "on_error",
}
_DEFAULT_PREFIX = "tg"
# No other call sends these, or has scripts that call them.
_OF_RESERVATIONS = frozenset({"HSET", "HGET", "HGETALL", "HDEL", "PTTL"})
_DOCTOR = "tidegate-doctor-"
# The most calls of SCAN, of about 1,000 keys each, and the most limits that are named.
_MOST_SCANS = 200
_MOST_SHOWN = 5
_CLOCK_TOLERANCE = _core.CLOCK_TOLERANCE_NS / 1e9
# Limits so slow that a charge stays visible. Their keys expire within the hour, in case the doctor
# is killed before it removes them.
_PLAN: tuple[tuple[str, Algorithm], ...] = tuple(
    ("100/hour", algorithm) for algorithm in ALGORITHMS
)
_FAST: tuple[tuple[str, Algorithm], ...] = (("1000000/second", "token-bucket"),)


def examine(
    storage: str,
    *,
    prefix: str | None = None,
    samples: int = 200,
    limits: Sequence[Limit] = (),
) -> Report:
    """Examines the Redis that `storage` names, for limiters of the prefix; None: the default one.

    Of `limits` it says which are leased.
    Raises ConfigurationError for an invalid URI; a fault of the server is a finding.
    """
    examination = _Examination(storage, prefix, samples)
    examination.run()
    doctor_leases.leases(examination.report, storage, limits)
    return examination.report


class _Refused(NamedTuple):
    """An error reply, in place of a value."""

    why: str


class _Examination:
    def __init__(self, storage: str, prefix: str | None, samples: int) -> None:
        wrong = ConfigurationError(
            f"the storage is {without_password(storage)!r}; expected the URI of a Redis, "
            "such as redis://HOST:PORT/DB"
        )
        if not storage.lower().startswith(("redis", "valkey")) or "://" not in storage:
            raise wrong
        try:
            uri = urlsplit(storage)
        except ValueError:  # whose text has the password
            raise wrong from None
        options = parse_qsl(uri.query, keep_blank_values=True)
        given = dict(options)
        self.timeout = (
            read_number("timeout", given["timeout"], 0.0, 3600.0)
            if "timeout" in given
            else _DEFAULT_TIMEOUT
        )
        patient = urlencode([(n, v) for n, v in options if n not in _ABOUT_FAILURES])
        self.failures: list[str] = []
        # geturl() is not used, since it removes the slashes of an empty host.
        fragment = f"#{uri.fragment}" if uri.fragment else ""
        self.store = open_store(
            f"{storage.partition('#')[0].partition('?')[0]}?{patient}{fragment}",
            {
                "timeout": _PATIENCE,
                "breaker_failures": 1,
                "deny_cache_max": 0,
                "on_error": "closed",
                "on_breaker": self._failed,
                "on_script_error": self.failures.append,
            },
        )
        assert isinstance(self.store, _core.RedisStore)
        self.redis = self.store
        self.scheme = uri.scheme
        self.prefix = _DEFAULT_PREFIX if prefix is None else prefix
        self.prefix_is_chosen = prefix is not None
        self.samples = samples
        # Doctors that run at the same time use different keys.
        self.key = f"{_DOCTOR}{os.urandom(8).hex()}"
        secrets = [unquote(uri.password)] if uri.password else []
        secrets += [v for n, v in options if n.endswith("password") and v]
        self.report = Report(without_password(storage), secrets)

    def _failed(self, opened: bool, why: str) -> None:
        if opened:
            self.failures.append(why)

    def run(self) -> None:
        if not self._answers():
            return
        info = self._info()
        doctor_server_info.server(self.report, info)
        self._topology(info)
        self._counts()
        usable = self._permissions()
        self._clock()
        self._latency("ping", "PING", lambda: self._command("PING"))
        if usable and self.report.code != UNUSABLE and self._decides():
            self._check_latency()
        doctor_server_info.memory(self.report, info)
        doctor_server_info.persistence(self.report, info, self._setting)

    def _command(self, *words: str) -> Any:
        try:
            return self.redis.command(words, _PATIENCE)
        except StorageError as exc:
            return _Refused(str(exc))

    def _answers(self) -> bool:
        problem = self.redis.ping()
        if problem is None:
            self.report.add("ok", "connection", "the server answers")
            return True
        if problem.startswith(("NOPERM", "LOADING", "MASTERDOWN", "BUSY")):
            # A server is there; the other checks say more.
            self.report.add("problem", "connection", f"the server refuses PING: {problem}")
            return True
        self.report.add("problem", "connection", in_words(problem))
        return False

    def _counts(self) -> None:
        """The prefix, and which limits have counts under it already."""
        where = f"under the prefix {self.prefix!r} in {self.redis.name}"
        counted = self._counted_limits()
        figures: dict[str, Any] = {"server": self.redis.name, "prefix": self.prefix}
        self.report.figures["counts"] = figures
        if counted is None:
            text = f"{where}; SCAN is refused: whether other services count there stays unknown"
            self.report.add("note", "counts", text)
            return
        figures["limits"] = sorted(counted)
        if not counted:
            self.report.add("ok", "counts", f"none yet {where}")
            return
        # The names of other limits are digests.
        shown = sorted(name for name in counted if "/" in name)[:_MOST_SHOWN]
        more = len(counted) - len(shown)
        if more or not shown:
            shown.append(f"{more} {'more' if shown else 'whose names are digests'}")
        text = f"{where} there are counts already, of the limits {', '.join(shown)}"
        if self.prefix_is_chosen:
            self.report.add("note", "counts", f"{text}: expected if only this service uses it")
        else:
            self.report.add(
                "warning",
                "counts",
                f"{text}: services with one prefix share the counts of equal limits, and this is "
                "the default; give each service a prefix of its own, and name it by --prefix",
            )

    def _counted_limits(self) -> set[str] | None:
        """The limits that have keys under the prefix, as the keys name them; None if refused.

        Looks at a bounded number of keys, and in a cluster at those of one node.
        """
        start = f"{self.prefix}:"
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", start) + "*{*}"
        limits: set[str] = set()
        cursor = "0"
        for _ in range(_MOST_SCANS):
            reply = self._command("SCAN", cursor, "MATCH", pattern, "COUNT", "1000")
            if not isinstance(reply, list):
                return None
            cursor, keys = reply
            # Not those of a doctor that runs at the same time.
            named = [key[len(start) :].partition("{") for key in keys]
            limits.update(name for name, _, of in named if not of.startswith(_DOCTOR))
            if cursor == "0":
                break
        return limits

    def _info(self) -> dict[str, str]:
        reply = self._command("INFO")
        if not isinstance(reply, str):
            why = reply.why if isinstance(reply, _Refused) else "the reply is no text"
            self.report.add(
                "note",
                "server",
                f"INFO is refused ({why}): version, topology, memory and persistence stay unknown",
            )
            return {}
        pairs = (line.split(":", 1) for line in reply.splitlines() if ":" in line)
        return {name: value.strip() for name, value in pairs}

    def _topology(self, info: dict[str, str]) -> None:
        if not info:
            return
        mode = info.get("redis_mode", info.get("server_mode", "standalone"))
        role = info.get("role", "master")
        topology = "replica" if mode == "standalone" and role == "slave" else mode
        self.report.figures["topology"] = topology
        if mode == "sentinel":
            self.report.add(
                "problem",
                "topology",
                "this is a sentinel, which holds no keys; give the address of the server that it "
                "watches, or a redis+sentinel:// URI",
            )
        elif mode == "cluster":
            self._cluster()
        elif role == "slave":
            master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
            self.report.add(
                "problem",
                "topology",
                f"this is a replica of {master}, which only that may write; give the master",
            )
        else:
            replicas = int(info.get("connected_slaves", "0"))
            followed = {0: "no replica", 1: "1 replica"}.get(replicas, f"{replicas} replicas")
            what = "a standalone server"
            if "+sentinel" in self.scheme:
                self.report.figures["topology"] = "sentinel"
                what = "the master that the sentinels name,"
            self.report.add("ok", "topology", f"{what} with {followed}")
            if replicas:
                self.report.add(
                    "note",
                    "topology",
                    "replication is asynchronous: a failover forgets what was charged in the "
                    "last moments before it",
                )

    def _cluster(self) -> None:
        reply = self._command("CLUSTER", "INFO")
        state = ""
        if isinstance(reply, str):
            state = dict(line.split(":", 1) for line in reply.splitlines() if ":" in line).get(
                "cluster_state", ""
            )
        if state == "fail":
            self.report.add("problem", "topology", "the cluster is down: cluster_state is fail")
        elif "+cluster" in self.scheme:
            self.report.add("ok", "topology", "a cluster that is up")
        else:
            self.report.add(
                "problem",
                "topology",
                f"this is a node of a cluster, and {self.scheme}:// asks no other node; give a "
                "redis+cluster:// URI",
            )

    def _permissions(self) -> bool:
        """Every command that is sent or that a script calls, on keys that are not in use."""
        key = f"{self.prefix}:doctor:{{{self.key}}}"
        fields = f"{key}:fields"  # a hash, as reservations are
        tries: dict[str, tuple[str, ...]] = {
            "PING": ("PING",),
            **({} if self.redis.reads_clock else {"TIME": ("TIME",)}),
            "EVAL": ("EVAL", "return 1", "1", key),
            "EVALSHA": ("EVALSHA", "0" * 40, "1", key),
            "SET": ("SET", key, "0", "PX", "2000"),
            "GET": ("GET", key),
            "APPEND": ("APPEND", key, "0"),
            "GETRANGE": ("GETRANGE", key, "0", "1"),
            "SETRANGE": ("SETRANGE", key, "0", "0"),
            "STRLEN": ("STRLEN", key),
            "HSET": ("HSET", fields, "name", "0"),
            "PEXPIRE": ("PEXPIRE", fields, "2000"),
            "PTTL": ("PTTL", fields),
            "HGET": ("HGET", fields, "name"),
            "HGETALL": ("HGETALL", fields),
            "HDEL": ("HDEL", fields, "name"),
            "DEL": ("DEL", key, fields),
        }
        # A missing script, or a key on another node of a cluster, is no refusal.
        answers = ("NOSCRIPT", "MOVED", "ASK") if "+cluster" in self.scheme else ("NOSCRIPT",)
        allowed: dict[str, bool] = {}
        why: dict[str, str] = {}
        for name, words in tries.items():
            reply = self._command(*words)
            allowed[name] = not isinstance(reply, _Refused) or reply.why.startswith(answers)
            if isinstance(reply, _Refused) and not allowed[name]:
                why.setdefault(reply.why.replace(f"'{name.lower()}'", "'...'"), name)
        if isinstance(self._command("SCRIPT", "EXISTS", "0" * 40), _Refused):
            self.report.add("ok", "commands", "SCRIPT is refused, and not needed")
        self.report.figures["commands"] = allowed
        refused = [name for name, fine in allowed.items() if not fine]
        if not refused:
            self.report.add("ok", "commands", f"allowed: {', '.join(tries)}")
            return True
        reasons = "; ".join(f"{name}: {in_words(text)}" for text, name in why.items())
        is_usable = _OF_RESERVATIONS.issuperset(refused)
        self.report.add(
            "warning" if is_usable else "problem",
            "commands",
            f"refused: {', '.join(refused)} ({reasons})"
            + ("; reservations need them, and nothing else does" if is_usable else ""),
        )
        whom = self._command("ACL", "WHOAMI")
        if any("NOPERM" in text for text in why):
            self.report.add(
                "note",
                "commands",
                f"permissions for {whom if isinstance(whom, str) else 'USER'}: ACL SETUSER USER "
                f"~{self.prefix}:* {' '.join('+' + name.lower() for name in tries)}",
            )
        if refused == ["TIME"]:
            self.report.add(
                "note",
                "commands",
                "without TIME, clock=client uses the clocks of the limiters' hosts",
            )
        return is_usable

    def _clock(self) -> None:
        offsets = []
        for _ in range(5):
            before = time.time()
            reply = self._command("TIME")
            after = time.time()
            if isinstance(reply, _Refused):
                self.report.add("note", "clock", "TIME is refused: its offset stays unknown")
                return
            server = int(reply[0]) + int(reply[1]) / 1e6
            offsets.append((after - before, server - (before + after) / 2))
        trip, offset = min(offsets)
        self.report.figures["clock_offset_ms"] = round(offset * 1e3, 3)
        far = abs(offset) - trip / 2 > _CLOCK_TOLERANCE
        text = f"the server's is {abs(offset) * 1e3:.1f} ms {'ahead' if offset > 0 else 'behind'}"
        if far and self.redis.reads_clock:
            self.report.add(
                "warning",
                "clock",
                f"{text}, and clock=client tolerates {_CLOCK_TOLERANCE * 1e3:.0f} ms between "
                "hosts: see that NTP runs on all of them",
            )
        elif far:
            self.report.add("note", "clock", f"{text}; decisions use only the server's clock")
        else:
            self.report.add("ok", "clock", text)

    def _latency(self, name: str, what: str, call: Callable[[], object]) -> dict[str, float]:
        times = []
        for _ in range(self.samples):
            start = time.perf_counter()
            answer = call()
            if isinstance(answer, _Refused):
                return {}
            times.append((time.perf_counter() - start) * 1e3)
        times.sort()
        figures = {
            "p50": _rank(times, 0.5),
            "p90": _rank(times, 0.9),
            "p99": _rank(times, 0.99),
            "max": times[-1],
        }
        self.report.figures[f"{name}_latency_ms"] = {k: round(v, 4) for k, v in figures.items()}
        shown = ", ".join(f"{k} {v:.2f}" for k, v in figures.items())
        self.report.add("ok", "latency", f"{what}, ms: {shown}")
        return figures

    def _decides(self) -> bool:
        """Tries a real hit, of one limit and of a plan of all algorithms, and gives it back."""
        for limits in (_PLAN[:1], _PLAN):
            limiter = self._limiter(limits)
            try:
                room = limiter.peek(self.key).remaining
                hit = limiter.hit(self.key)
                left = limiter.peek(self.key).remaining
                limiter.reset(self.key)
                again = limiter.peek(self.key).remaining
            finally:
                limiter.reset(self.key)
            if self.failures or limiter.stats().degraded:
                why = self.failures[-1] if self.failures else "the reply came too late"
                self.report.add("problem", "check", f"a real check fails: {in_words(why)}")
                return False
            if not hit or left >= room or again <= left:
                self.report.add(
                    "problem",
                    "check",
                    f"a key of {room} units had {left} left after a hit and {again} after a "
                    "reset: another program writes these keys",
                )
                return False
        self.report.add(
            "ok",
            "check",
            f"a real peek, hit and reset, also of a plan of {len(_PLAN)} limits",
        )
        return True

    def _limiter(self, limits: tuple[tuple[str, Algorithm], ...]) -> Limiter:
        plan = [Limit(text, algorithm=name, name=f"{text} {name}") for text, name in limits]
        return Limiter(plan, storage=self.store, prefix=self.prefix)

    def _check_latency(self) -> None:
        limiter = self._limiter(_FAST)
        try:
            figures = self._latency("check", "a check", lambda: limiter.hit(self.key))
        finally:
            limiter.reset(self.key)
        limit_ms = self.timeout * 1e3
        text = f"the timeout of a call is {limit_ms:g} ms, "
        if figures["p50"] >= limit_ms:
            self.report.add(
                "problem",
                "latency",
                text + "and most checks take longer: raise it, or move closer to the server",
            )
        elif figures["p99"] >= limit_ms / 2:
            self.report.add(
                "warning",
                "latency",
                text + "which leaves little room above the slowest checks: those that take longer "
                "are decided without Redis",
            )

    def _setting(self, name: str) -> str | None:
        reply = self._command("CONFIG", "GET", name)
        return reply[1] if isinstance(reply, list) and len(reply) == 2 else None


def _rank(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
