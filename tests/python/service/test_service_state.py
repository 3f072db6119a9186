"""What a service tells about itself, and certificates that it follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from metrics import exposed, of
from polling import eventually
from prometheus_client import CollectorRegistry, generate_latest
from tidegate import __version__
from tidegate.rules.file import RuleFile
from tidegate.server.certificates import CertificateWatch
from tidegate.server.metrics import StateCollector
from tidegate.server.state import ServiceState

GOOD = "rules: [{id: api, by: user, limits: 3/hour}]\n"


@pytest.fixture
def rules(tmp_path: Path) -> RuleFile:
    (tmp_path / "rules.yaml").write_text(GOOD)
    return RuleFile(tmp_path / "rules.yaml")


def test_metrics_tell_the_version_and_whether_the_newest_rules_are_in_force(
    rules: RuleFile, tmp_path: Path
) -> None:
    registry = CollectorRegistry()
    registry.register(StateCollector(ServiceState({"rules": rules}, started=5.5)))

    def value(name: str, **labels: str) -> float | None:
        return of(exposed(generate_latest(registry).decode()), f"tidegate_{name}", **labels)

    assert value("build_info", version=__version__) == 1
    assert value("start_time_seconds") == 5.5
    assert value("config_newest_in_force", config="rules") == 1
    since = value("config_in_force_since_seconds", config="rules")
    assert since is not None
    (tmp_path / "rules.yaml").write_text("rules: [{id: api, limits: many}]\n")
    rules.refresh()
    assert value("config_newest_in_force", config="rules") == 0
    assert value("config_in_force_since_seconds", config="rules") == since
    (tmp_path / "rules.yaml").write_text(GOOD.replace("3", "4"))
    rules.refresh()
    assert value("config_newest_in_force", config="rules") == 1
    assert (value("config_in_force_since_seconds", config="rules") or 0) > since


def test_a_certificate_that_changes_is_read_again(tmp_path: Path) -> None:
    first, second = tmp_path / "1.pem", tmp_path / "2.pem"
    link, key = tmp_path / "c.pem", tmp_path / "k.pem"
    for path in (first, second, key):
        path.write_text(path.name)
    link.symlink_to(first)
    read: list[str] = []
    watch = CertificateWatch(
        [link, key], lambda: read.append(link.read_text() + key.read_text()), interval=0.01
    )
    try:
        key.unlink()
        link.unlink()
        link.symlink_to(second)  # as Kubernetes does
        key.write_text("new")
        eventually(lambda: read and read[-1] == "2.pemnew")
        done = len(read)
        key.write_text("newer")
        eventually(lambda: len(read) > done and read[-1] == "2.pemnewer")
    finally:
        watch.close()
