"""The service: a native front that answers checks, and the parts of it that run in Python."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from tidegate._core import native_clock
from tidegate.limiter.errors import ConfigurationError
from tidegate.limiter.quotas.watch import QuotaWatch
from tidegate.limiter.rule_limiter import RuleLimiter
from tidegate.limiter.storage.uri import open_store, without_password
from tidegate.rules.document import Document
from tidegate.rules.file import RuleFile
from tidegate.rules.pauses import pause_at_times
from tidegate.rules.rule_set import RuleSet
from tidegate.rules.source import RuleSource, Source
from tidegate.server.anomalies.detector import AnomalyDetector
from tidegate.server.anomalies.state_file import StateFile, beside_database, folder_of
from tidegate.server.call_times import Bucket, CallTimes, RecentTimes
from tidegate.server.certificates import CertificateWatch, files_of
from tidegate.server.disk_watch import DiskWatch
from tidegate.server.enforcement import Enforcement
from tidegate.server.inherited import InheritedSockets
from tidegate.server.late_file import LateFile
from tidegate.server.listeners import AnomalyWatch, DecisionLog, to_history, to_violations
from tidegate.server.native import _native
from tidegate.server.quota_events import QuotaLog
from tidegate.server.recording import Recording
from tidegate.server.slips import SlipLog, slips_of_headers
from tidegate.server.snapshots import Snapshots
from tidegate.server.spare_memory import SpareMemory
from tidegate.server.state import ServiceState
from tidegate.server.telemetry import shut_down
from tidegate.server.write_offs import WriteOffLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.server.admin.late_changes import LateChanges
    from tidegate.server.predecessor import Predecessor
    from tidegate.server.settings import Checks, Settings, Tls

__all__ = ["Service", "tls_of"]

log = logging.getLogger("tidegate")

# Seconds for writing and closing, after calls in flight have ended.
_CLOSING = 5.0
# In one second this part of the rows between two writes may be used: each row of a second takes
# Python tens of microseconds, for which operators wait.
_SECONDS_OF_ROWS = 10


class Service:
    """Everything that `tidegate serve` runs, except its command line and its signal handlers.

        service = Service(settings)
        service.start()
        ...
        service.stop()

    The constructor and start() raise ConfigurationError or StorageError for settings that cannot
    work: invalid rules, a database without tables, an address in use. With `makes_tables` false,
    the tables of the database must exist. `inherited` are sockets at which it accepts in place of
    addresses that it opens, and `predecessor` is the process whose place it takes.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        makes_tables: bool = True,
        inherited: InheritedSockets | None = None,
        predecessor: Predecessor | None = None,
    ) -> None:
        self.settings = settings
        self._predecessor = predecessor
        self._inherited = inherited or InheritedSockets([])
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as closing:
            self._closing = closing
            self._build(makes_tables)
            self._closing = closing.pop_all()
        self.is_ready = False
        """Whether the service accepts checks: from start() until it begins to stop."""
        self.address: tuple[str, int] | None = None
        """The TCP address of checks, after start()."""
        self.admin_address: tuple[str, int] | None = None
        """The address of the admin API, after start()."""
        self.has_closed = True
        """Whether stop() could close everything in time."""
        self._telemetry: list[Any] = []
        self._closing.callback(shut_down, self._telemetry)
        self._admin: Any = None
        self._late: LateChanges | None = None
        self._tls: Any = None

    def _build(self, makes_tables: bool) -> None:
        settings = self.settings
        if settings.database is not None and makes_tables:
            from tidegate.rules.sql.upgrade import upgrade

            upgrade(settings.database)
        self.store = open_store(settings.storage, {})
        self.rules: RuleSource | RuleSet = self._open_rules()
        self.limiter: RuleLimiter = RuleLimiter(
            self.rules, storage=self.store, prefix=settings.prefix
        )
        self._closing.callback(self.limiter.close)
        self.quota_events = QuotaLog()
        self._closing.callback(QuotaWatch(self.limiter, self.quota_events).close)
        checks = settings.checks
        self.recorder = _native.Recorder(max(1000, settings.usage.capacity // _SECONDS_OF_ROWS))
        self.front = _native.Front(_front_options(checks, settings.drain))
        self.checks = _native.CheckService(
            self.limiter._native(),
            recorder=self.recorder,
            require_token=checks.needs_token,
            refused_status=checks.refused_status,
            auth_refused_status=checks.auth_refused_status,
            openai_fields=checks.openai_fields,
            auth_headers=None if checks.auth_headers is None else list(checks.auth_headers.items()),
        )
        self.front.route(self.checks)
        self.health = _native.Health(self.front)
        if not isinstance(self.rules, RuleSet):
            # The limiter follows the source itself, before all subscribers.
            self.rules.subscribe(lambda _: self.checks.use(self.limiter._native()))
        self.envoy = self._open_envoy()
        sources = {"rules": self.rules, "descriptors": self.envoy}
        self.state = ServiceState(
            {name: each for name, each in sources.items() if isinstance(each, Source)},
            problem=lambda: None if self._disk is None else self._disk.problem,
        )
        self.snapshots: Snapshots | None = None
        if settings.database is not None:
            self.snapshots = Snapshots(settings.database, self.checks)
            self._closing.callback(self.snapshots.close)
        self._writers: list[tuple[str, Any]] = []
        self._disk: DiskWatch | None = None
        self.anomalies: AnomalyWatch | None = None
        self.enforcement: Enforcement | None = None
        self.recent_times = RecentTimes(self.call_times)
        self.recording = Recording(
            self.recorder, self._listeners(), each_second=self.recent_times.take
        )

    def _open_rules(self) -> RuleSource | RuleSet:
        settings = self.settings
        if settings.rules is not None:
            source: RuleSource = RuleFile(settings.rules)
        elif settings.database is not None:
            from tidegate.rules.sql.sql_rules import SqlRules

            source = SqlRules(settings.database)
        else:  # Envoy's descriptors limit: that there are no rules is no mistake to warn of
            return RuleSet._from(Document({"rules": []}, "<none>", lambda where: None))
        self._closing.callback(source.close)
        return source

    def _open_envoy(self) -> Any:
        envoy = self.settings.envoy
        if envoy is None:
            return None
        from tidegate.server.envoy import DescriptorFiles, follow

        files = DescriptorFiles(
            envoy.config, merge_domains=envoy.merge_domains, quota_mode=envoy.quota_mode
        )
        self._closing.callback(files.close)
        self.envoy_service = _native.EnvoyService(
            self.store._native(),
            native_clock(None),
            self.settings.prefix,
            all_or_none=envoy.all_or_none,
            shadow_mode=envoy.shadow_mode,
            response_headers=envoy.response_headers,
            request_metadata=envoy.request_metadata,
            recorder=self.recorder,
            user_key=envoy.user_key,
        )
        follow(files, self.envoy_service)
        self.front.route(self.envoy_service)
        return files

    def _listeners(self) -> list[Any]:
        settings = self.settings
        self.slips = SlipLog(self.limiter, endpoints=self.envoy is None)  # Envoy names its own
        write_offs = WriteOffLog(self.limiter, self.envoy and self.envoy_service)
        listeners: list[Any] = [self.slips, write_offs]
        if settings.log.refusals or settings.log.access:
            listeners.append(
                DecisionLog(refusals=settings.log.refusals, access=settings.log.access)
            )
        if settings.database is not None and settings.usage.enabled:
            from tidegate.rules.sql.usage_history import UsageHistory
            from tidegate.rules.violation_log import ViolationLog

            usage = settings.usage
            given = usage.model_dump(include={"interval", "capacity", "most_rows"})
            history = UsageHistory(
                settings.database,
                keep=usage.keep_days,
                most_bytes=usage.most_bytes * 3 // 4,
                **given,
            )
            history.on_known = self.recorder.set_known
            self._closing.callback(history.close)
            violations = ViolationLog(
                settings.database,
                keep=usage.keep_violations_days,
                most_bytes=usage.most_bytes // 4,
                **given,
            )
            self._closing.callback(violations.close)
            listeners += [to_history(history), to_violations(violations)]
            self._writers += [("usage", history), ("violations", violations)]
            folder = folder_of(settings.database)
            if folder is not None:
                writers = [history, violations]
                self._disk = DiskWatch(folder, writers, least=usage.least_free_bytes)
                self._closing.callback(self._disk.close)
        if settings.anomalies.enabled:
            found = settings.anomalies
            if found.enforce:
                self.enforcement = Enforcement(
                    [self.checks] if self.envoy is None else [self.checks, self.envoy_service],
                    seconds=found.enforce_seconds,
                    most=found.enforce_most,
                    exempt=found.exempt,
                )
            given = found.model_dump(include={"interval", "least", "capacity"})
            detector = AnomalyDetector(**given, pause=pause_at_times)
            path = found.state or beside_database(settings.database)
            self.anomalies = AnomalyWatch(
                detector,
                settings.database,
                enforcement=self.enforcement,
                state=None if path is None else StateFile(path, detector),
            )
            self._closing.callback(self.anomalies.close)
            listeners.append(self.anomalies)
        return listeners

    def start(self) -> None:
        """Opens the addresses and begins to answer."""
        checks = self.settings.checks
        if self.snapshots is not None:
            self.snapshots.start()
        self._tls = tls_of(checks.tls)
        try:
            self._listen(checks)
        except OSError as error:
            raise ConfigurationError(
                f"checks cannot be answered there: {error}; expected a free address"
            ) from None
        self._start_admin()
        self._inherited.close()
        if self.settings.telemetry.enabled:
            from tidegate.server.telemetry import start_telemetry

            self._telemetry.append(
                start_telemetry(
                    {self.settings.prefix: self.limiter}, self.settings.telemetry.endpoint
                )
            )
        self.recording.start()
        if self._disk is not None:
            self._disk.start()
        memory = SpareMemory()
        self._closing.callback(memory.close)
        memory.start()
        certificates = [*files_of(checks.tls), *files_of(self.settings.admin.tls)]
        if certificates:
            watch = CertificateWatch(certificates, self._reload_certificates)
            self._closing.callback(watch.close)
        if self._predecessor is not None and self.anomalies is not None:
            self.anomalies.take_over(self._predecessor)
        self.front.start()
        self._set_ready(True)
        log.info("checks are answered at %s", self._places())
        for warning in self.warnings():
            log.warning("%s", warning)

    def _listen(self, checks: Checks) -> None:
        if checks.listen is not None:
            host, port = checks.listen.host, checks.listen.port
            found = self._inherited.take("checks", checks.listen)
            if found:
                self.address = (host, found[0].getsockname()[1])
                self.front.adopt([each.detach() for each in found], tls=self._tls)
            else:
                self.address = (host, self.front.listen(host, port, tls=self._tls))
        if checks.unix is not None:
            found = self._inherited.take("checks", checks.unix)
            if found:
                self.front.adopt([each.detach() for each in found])
            else:
                self.front.listen_unix(os.fspath(checks.unix))

    def sockets(self) -> list[tuple[str, int]]:
        """The descriptors at which the service listens, for a process that accepts at them too.

        They stay as they are when this service stops, so that no connection is reset. Each comes
        with what it is for: "checks" or "admin"; "late" are changes that the database has not
        taken.
        """
        found = [("checks", each) for each in self.front.share_sockets()]
        if self._admin is not None:
            found.append(("admin", self._admin.fileno()))
        if self._late is not None:
            file = self._late.share()
            found += [] if file is None else [("late", file)]
        return found

    def hand_on(self, send: Callable[[bytes], object]) -> None:
        """Sends what anomaly detection has learned and learns to a process that takes over."""
        if self.anomalies is None:
            send(b"\n")
        else:
            self.anomalies.hand_on(send)

    def stay(self) -> None:
        """Undoes sockets() and hand_on(), if the other process does not take over after all."""
        self.front.unshare_sockets()
        if self._late is not None:
            self._late.stay()
        if self.anomalies is not None:
            self.anomalies.stay()

    def warnings(self) -> list[str]:
        """Returns settings that the operator may not have meant, though the service answers."""
        found = slips_of_headers(self.limiter.rules, self.settings.checks.auth_headers)
        if not self.limiter.rule_stats() and self.envoy is None:
            place = self.settings.rules or "the database"
            found.append(f"there are no rules, so every check is allowed; expected some in {place}")
        problem = self.store.ping()
        if problem is not None:
            name = without_password(self.settings.storage)
            found.append(f"the storage {name} does not answer: {problem}; its fallback decides")
        return found

    def _set_ready(self, is_ready: bool) -> None:
        self.is_ready = is_ready
        for name in ("", "ratelimit"):  # Envoy's own service has the second path
            self.health.set(name, is_ready)

    def _places(self) -> str:
        places = [] if self.address is None else [_shown(*self.address)]
        if self.settings.checks.unix is not None:
            places.append(str(self.settings.checks.unix))
        return " and ".join(places)

    def _start_admin(self) -> None:
        listen = self.settings.admin.listen
        if listen is None:
            return
        from tidegate.server.admin_server import AdminServer, behind_proxies, for_hosts, probes

        admin = self.settings.admin
        registry = None
        if admin.public_metrics:
            from tidegate.server.metrics import registry_of

            registry = registry_of(
                {self.settings.prefix: self.limiter}, self.counters, self._collectors()
            )
        app: Any = probes(lambda: self.is_ready, self.store.ping, registry)
        if self.settings.database is not None:
            self._mount_admin(app, self.settings.database)
        if self.settings.telemetry.traces:
            from tidegate.server.telemetry import start_traces
            from tidegate.server.tracing import traced

            provider = start_traces(self.settings.telemetry.traces_endpoint)
            self._telemetry.append(provider)
            app = traced(app, provider)
        if admin.trusted_proxies:
            app = behind_proxies(app, admin.trusted_proxies)
        if listen.is_loopback:
            app = for_hosts(app, admin.hosts)
        self._admin = AdminServer(app, admin.tls)
        inherited = self._inherited.take("admin", listen)
        if len(inherited) > 1:
            count = len(inherited)
            for each in inherited:
                each.close()
            raise ConfigurationError(
                f"{count} sockets at {listen} were passed for the admin API; expected one"
            )
        self.admin_address = self._admin.start(listen, inherited[0] if inherited else None)
        log.info("the admin API is at %s", _shown(*self.admin_address))

    def _mount_admin(self, app: Any, database: str) -> None:
        from tidegate.server.admin.app import create_admin
        from tidegate.server.admin.oidc import Oidc
        from tidegate.server.dashboard.mount import mount_dashboard

        settings = self.settings.admin.oidc
        oidc = None if settings is None else Oidc(**settings.model_dump())
        api = create_admin(
            database,
            rules=None if isinstance(self.rules, RuleSet) else self.rules,
            limiter=self.limiter,
            oidc=oidc,
            enforcement=self.enforcement,
            on_change=self._changed,
            settings=self.settings.shown(),
            tier_seen=self.recording.tier_of,
            late=LateFile(beside_database(database, "late"), descriptor=self._inherited.late),
        )
        self._late = late = api.state.admin.database.late
        self._closing.callback(late.close)
        if self.snapshots is not None:
            self.snapshots.revoked = lambda: late.revoked
        mount_dashboard(
            app,
            api.state.admin,
            oidc,
            recent=self.recording.recent,
            times=self.recent_times.recent,
            counters=self.counters,
            ping=self.store.ping,
            state=self.state,
        )
        app.mount("/", api)

    def _collectors(self) -> list[Any]:
        """Returns the collectors of metrics with labels."""
        from tidegate.server.metrics import (
            DescriptorCounters,
            ReferenceCounters,
            SlipCounters,
            StateCollector,
            TimesCollector,
        )

        found: list[Any] = [
            StateCollector(self.state),
            SlipCounters(self.slips.counts),
            TimesCollector(self.call_times),
        ]
        envoy = self.settings.envoy
        if envoy is not None and envoy.metrics != "none":
            kind = ReferenceCounters if envoy.metrics == "reference" else DescriptorCounters
            found.append(kind(self.envoy_service.stats, envoy.named_in_metrics))
        return found

    def _changed(self, what: str, name: str | None) -> None:
        if self.snapshots is not None:
            if what == "tokens":
                self.snapshots.read_tokens()
            else:
                self.snapshots.refresh()

    def call_times(self) -> list[CallTimes]:
        """Returns how long calls took, by service and protocol."""
        return [
            CallTimes(service, protocol, seconds, [Bucket(*each) for each in buckets])
            for service, protocol, seconds, buckets in self.front.call_times()
        ]

    def counters(self) -> dict[str, int]:
        """Returns the metrics that only the service has, by name."""
        found = {f"front_{name}": value for name, value in self.front.stats().items()}
        found |= {f"checks_{name}": value for name, value in self.checks.stats().items()}
        if self.envoy is not None:
            stats = self.envoy_service.stats().items()
            found |= {f"envoy_{name}": value for name, value in stats if isinstance(value, int)}
            found["envoy_config_refused"] = self.envoy.refused
            found["envoy_config_failures"] = self.envoy.failures
        found["records_dropped"] = self.recorder.dropped
        found |= self.quota_events.counters()
        for name, writer in self._writers:
            found[f"{name}_written"] = writer.written
            found[f"{name}_dropped"] = writer.dropped
            found[f"{name}_failures"] = writer.failures
            if name == "usage":
                found["usage_folded"] = writer.folded
        if self._disk is not None and self._disk.free is not None:
            found["database_free_bytes"] = self._disk.free
        if self.anomalies is not None:
            found["anomalies"] = self.anomalies.found
        if self.enforcement is not None:
            found["anomaly_enforced"] = len(self.enforcement.in_force())
            found["anomaly_left_out"] = self.enforcement.left_out
        if not isinstance(self.rules, RuleSet):
            found["rules_refused"] = self.rules.refused
            found["rules_failures"] = self.rules.failures
        return found

    def reload(self) -> None:
        """Reads rules, descriptors, tokens, tiers and certificates again.

        Invalid files are logged, and their previous versions stay in force.
        """
        if not isinstance(self.rules, RuleSet):
            self.rules.refresh()
        if self.envoy is not None:
            self.envoy.refresh()
        if self.snapshots is not None:
            self.snapshots.refresh()
        if self._reload_certificates():
            log.info("the service was reloaded")
        else:
            log.warning("the service keeps a certificate of before; all else was read again")

    def _reload_certificates(self) -> bool:
        """Reads the certificates again. Returns whether all could be used."""
        are_good = True
        for certificate in (self._tls, self._admin):
            if certificate is None:
                continue
            try:
                certificate.reload()
            except Exception as error:
                are_good = False
                log.error("the certificate was not replaced: %s", error)
        return are_good

    def stop(self, *, is_succeeded: bool = False) -> bool:
        """Accepts no more calls, waits for calls in flight, writes recorded data, and closes.

        With `is_succeeded`, another process accepts at the same sockets, also of the admin port.
        Returns whether all calls were answered within `settings.drain` seconds. Writing and closing
        may take a few seconds more; data not written by then is counted, logged and dropped.
        """
        if is_succeeded and self._admin is not None:
            self._admin.begin_to_stop()
        self._set_ready(False)
        is_drained = bool(self.front.drain(self.settings.drain))
        self.front.stop()
        # A database or a storage that does not answer must not keep the process alive.
        closing = threading.Thread(target=self._close_all, name="tidegate closing", daemon=True)
        closing.start()
        closing.join(_CLOSING)
        self.has_closed = not closing.is_alive()
        if not self.has_closed:
            for _, writer in self._writers:
                writer.give_up()
            log.error("the service ends before everything was closed, after %g s", _CLOSING)
        return is_drained

    def _close_all(self) -> None:
        if self._admin is not None:
            self._admin.stop()
        self.recording.close()
        # The writers are closed concurrently, since each may wait for a locked database.
        writing = [
            threading.Thread(target=writer.close, args=(_CLOSING,), daemon=True)
            for _, writer in self._writers
        ]
        for thread in writing:
            thread.start()
        for thread in writing:
            thread.join()
        self.close()

    def close(self) -> None:
        """Closes everything that was opened. Only needed if the service never started."""
        self._closing.close()


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _front_options(checks: Checks, drain: float) -> dict[str, Any]:
    return {
        "checks_hosts": checks.listen is not None and checks.listen.is_loopback,
        "hosts": checks.hosts,
        "loops": checks.loops or len(os.sched_getaffinity(0)),
        "connections": checks.max_connections,
        "streams": checks.max_streams,
        "body_bytes": checks.max_body_bytes,
        "idle_seconds": checks.idle_timeout,
        "drain_idle_seconds": drain / 10,
        "request_seconds": checks.request_timeout,
    }


def tls_of(tls: Tls | None) -> Any:
    """Returns the certificate of the front. Raises ConfigurationError if it cannot be used."""
    if tls is None:
        return None
    client_ca = None if tls.client_ca is None else os.fspath(tls.client_ca)
    return _native.Tls(
        os.fspath(tls.certificate),
        os.fspath(tls.key),
        client_ca,
        only_1_3=tls.minimum == "1.3",
        ciphers=tls.ciphers,
    )
