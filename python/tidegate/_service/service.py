"""The service: a native front that answers checks, and beside it all that Python does for it."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any

from tidegate._anomaly.detector import AnomalyDetector
from tidegate._core import _native_clock
from tidegate._errors import ConfigurationError
from tidegate._rule_limiter import RuleLimiter, limiter_for
from tidegate._rules.file import RuleFile
from tidegate._rules.rule_set import RuleSet
from tidegate._service.listeners import AnomalyWatch, DecisionLog, to_history, to_violations
from tidegate._service.recording import Recording
from tidegate._service.snapshots import Snapshots
from tidegate._storage.uri import open_store

try:
    from tidegate._service import _native
except ImportError as error:
    raise ConfigurationError(
        f"the service cannot answer checks here: {error}; expected Linux, and a tidegate that was "
        "built with its server"
    ) from None

if TYPE_CHECKING:
    from tidegate._rules.source import RuleSource
    from tidegate._service.settings import Checks, Settings, Tls

__all__ = ["Service", "describe"]

log = logging.getLogger("tidegate")


class Service:
    """Everything that `tidegate serve` runs, but for its command line and its signals.

        service = Service(settings)
        service.start()
        ...
        service.stop()

    Raises ConfigurationError and StorageError at construction and in start() for what cannot be:
    rules that are not valid, a database without tables, an address in use.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as closing:
            self._closing = closing
            self._build()
            self._closing = closing.pop_all()
        self.is_ready = False
        """Whether it takes checks: from start() on until it is about to end."""
        self.address: tuple[str, int] | None = None
        """Where checks are answered over TCP, once it has started."""
        self.admin_address: tuple[str, int] | None = None
        """Where the admin API is, once it has started."""
        self._admin: Any = None
        self._tls: Any = None

    def _build(self) -> None:
        settings = self.settings
        if settings.database is not None:
            from tidegate._database.upgrade import upgrade

            upgrade(settings.database)
        self.store = open_store(settings.storage, {})
        self.rules: RuleSource | RuleSet = self._open_rules()
        self.limiter: RuleLimiter = limiter_for(
            self.rules, storage=self.store, prefix=settings.prefix
        )
        self._closing.callback(self.limiter.close)
        checks = settings.checks
        self.recorder = _native.Recorder(settings.usage.capacity)
        self.front = _native.Front(_front_options(checks))
        self.checks = _native.CheckService(
            self.limiter._native(), recorder=self.recorder, require_token=checks.needs_token
        )
        self.front.route(self.checks)
        if hasattr(self.rules, "subscribe"):
            # The limiter follows the source itself, and before those who subscribe.
            self.rules.subscribe(lambda _: self.checks.use(self.limiter._native()))
        self.envoy = self._open_envoy()
        self.snapshots: Snapshots | None = None
        if settings.database is not None:
            self.snapshots = Snapshots(settings.database, self.checks)
            self._closing.callback(self.snapshots.close)
        self.recording = Recording(self.recorder, self._listeners())

    def _open_rules(self) -> RuleSource | RuleSet:
        settings = self.settings
        source: RuleSource
        if settings.rules is not None:
            source = RuleFile(settings.rules)
        elif settings.database is not None:
            from tidegate._database.sql_rules import SqlRules

            source = SqlRules(settings.database)
        else:
            return RuleSet({"rules": []})
        self._closing.callback(source.close)
        return source

    def _open_envoy(self) -> Any:
        envoy = self.settings.envoy
        if envoy is None:
            return None
        from tidegate._service.envoy import DescriptorFiles, follow

        files = DescriptorFiles(envoy.config)
        self._closing.callback(files.close)
        self.envoy_service = _native.EnvoyService(
            self.store._native(),
            _native_clock(None),
            self.settings.prefix,
            all_or_none=envoy.all_or_none,
        )
        follow(files, self.envoy_service)
        self.front.route(self.envoy_service)
        return files

    def _listeners(self) -> list[Any]:
        settings = self.settings
        listeners: list[Any] = []
        if settings.log.refusals or settings.log.access:
            listeners.append(
                DecisionLog(refusals=settings.log.refusals, access=settings.log.access)
            )
        if settings.database is not None and settings.usage.enabled:
            from tidegate._database.usage_history import UsageHistory
            from tidegate._database.violation_log import ViolationLog

            usage = settings.usage
            self.history = UsageHistory(
                settings.database,
                interval=usage.interval,
                capacity=usage.capacity,
                keep=usage.keep_days,
            )
            self._closing.callback(self.history.close)
            self.violations = ViolationLog(
                settings.database,
                interval=usage.interval,
                capacity=usage.capacity,
                keep=usage.keep_violations_days,
            )
            self._closing.callback(self.violations.close)
            listeners += [to_history(self.history), to_violations(self.violations)]
        if settings.anomalies.enabled:
            found = settings.anomalies
            self.anomalies = AnomalyWatch(
                AnomalyDetector(
                    interval=found.interval, least=found.least, capacity=found.capacity
                ),
                settings.database,
            )
            self._closing.callback(self.anomalies.close)
            listeners.append(self.anomalies)
        return listeners

    def start(self) -> None:
        """Opens the addresses and answers."""
        checks = self.settings.checks
        if self.snapshots is not None:
            self.snapshots.start()
        self._tls = _tls(checks.tls)
        if checks.listen is not None:
            port = self.front.listen(checks.listen.host, checks.listen.port, tls=self._tls)
            self.address = (checks.listen.host, port)
        if checks.unix is not None:
            self.front.listen_unix(os.fspath(checks.unix))
        self._start_admin()
        if self.settings.telemetry.enabled:
            from tidegate._service.telemetry import start_telemetry

            telemetry = start_telemetry(self, self.settings.telemetry)
            self._closing.callback(telemetry.shutdown)
        self.recording.start()
        self.front.start()
        self.is_ready = True
        log.info("checks are answered at %s", self._places())

    def _places(self) -> str:
        places = []
        if self.address is not None:
            host, port = self.address
            places.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        if self.settings.checks.unix is not None:
            places.append(str(self.settings.checks.unix))
        return " and ".join(places)

    def _start_admin(self) -> None:
        listen = self.settings.admin.listen
        if listen is None:
            return
        from tidegate._service.admin_server import AdminServer

        self._admin = AdminServer(self)
        self.admin_address = self._admin.start(listen)

    def reload(self) -> None:
        """Reads rules, descriptors, tokens, tiers and certificates again.

        What is not valid is logged, and what was in force before stays in force.
        """
        refresh = getattr(self.rules, "refresh", None)
        if refresh is not None:
            refresh()
        if self.envoy is not None:
            self.envoy.refresh()
        if self.snapshots is not None:
            self.snapshots.refresh()
        if self._tls is not None:
            try:
                self._tls.reload()
            except Exception as error:
                log.error("the certificate was not replaced: %s", error)
        log.info("the service was reloaded")

    def stop(self) -> bool:
        """Takes no more calls, waits for those in flight, writes what is recorded, and closes.

        Returns whether all calls were answered within `settings.drain` seconds.
        """
        self.is_ready = False
        is_drained = bool(self.front.drain(self.settings.drain))
        self.front.stop()
        if self._admin is not None:
            self._admin.stop()
        self.recording.close()
        self.close()
        return is_drained

    def close(self) -> None:
        """Closes what was opened. For a service that never started; stop() does it too."""
        self._closing.close()


def _front_options(checks: Checks) -> dict[str, Any]:
    return {
        "loops": checks.loops or len(os.sched_getaffinity(0)),
        "connections": checks.max_connections,
        "streams": checks.max_streams,
        "body_bytes": checks.max_body_bytes,
        "idle_seconds": checks.idle_timeout,
        "request_seconds": checks.request_timeout,
    }


def _tls(tls: Tls | None) -> Any:
    if tls is None:
        return None
    client_ca = None if tls.client_ca is None else os.fspath(tls.client_ca)
    return _native.Tls(os.fspath(tls.certificate), os.fspath(tls.key), client_ca=client_ca)


def describe(service: Service) -> str:
    """What a service would do, for `tidegate serve --check`."""
    settings = service.settings
    lines = [
        f"checks: {settings.checks.listen or settings.checks.unix}"
        + (", with a token" if settings.checks.needs_token else ", without a token"),
        f"storage: {service.store.name}",
        f"rules: {len(service.limiter.rule_stats())} of {settings.rules or settings.database}",
        f"admin: {settings.admin.listen or 'none'}",
    ]
    if settings.envoy is not None:
        lines.append(f"envoy: {settings.envoy.config}")
    return "\n".join(lines)
