"""The settings and manifests of examples/service are valid."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy_tools import installed
from tidegate.rules import RuleSet
from tidegate.server.envoy import DescriptorFiles
from tidegate.server.settings import Settings, read_settings

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "service"
ENVOY = ROOT / "examples" / "envoy"


def test_the_settings_and_rules_are_valid() -> None:
    settings = read_settings(EXAMPLES / "tidegate.yaml", {})
    assert settings.rules is not None
    RuleSet.load(EXAMPLES / settings.rules)


def test_the_settings_and_rules_of_kubernetes_are_valid(tmp_path: Path) -> None:
    for name, text in of_kubernetes("ConfigMap")["data"].items():
        (tmp_path / name).write_text(text)
    settings = read_settings(tmp_path / "tidegate.yaml", {})
    RuleSet.load(tmp_path / "rules.yaml")
    DescriptorFiles(tmp_path / "limits.yaml").close()
    assert settings.envoy is not None
    assert {str(settings.rules), str(settings.envoy.config)} == {
        "/etc/tidegate/rules.yaml",
        "/etc/tidegate/limits.yaml",
    }


def of_kubernetes(kind: str) -> Any:
    documents = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    (found,) = [each for each in documents if each["kind"] == kind]
    return found


def test_kubernetes_knows_all_that_the_manifests_say() -> None:
    validate = (
        "import sys, yaml; from kubernetes_validate import validate\n"
        "for each in yaml.safe_load_all(open(sys.argv[1])): validate(each, '1.36', strict=True)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", validate, EXAMPLES / "kubernetes.yaml"],
        env={**os.environ, "PYTHONPATH": str(installed("kubernetes-validate"))},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


def test_the_ports_of_kubernetes_are_those_of_the_settings() -> None:
    settings = yaml.safe_load(of_kubernetes("ConfigMap")["data"]["tidegate.yaml"])
    ports = {each["name"]: each["port"] for each in of_kubernetes("Service")["spec"]["ports"]}
    (container,) = of_kubernetes("Deployment")["spec"]["template"]["spec"]["containers"]
    assert ports == {each["name"]: each["containerPort"] for each in container["ports"]}
    for name, port in ports.items():
        assert settings[name]["listen"] == f"0.0.0.0:{port}"


def test_gateways_ask_the_service_of_kubernetes_where_it_answers_checks() -> None:
    service = of_kubernetes("Service")
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    (port,) = [each["port"] for each in service["spec"]["ports"] if each["name"] == "checks"]
    (istio,) = yaml.safe_load_all((ENVOY / "istio.yaml").read_text())
    assert f"outbound|{port}||{name}.{namespace}.svc.cluster.local" in str(istio)
    extension, _, _ = yaml.safe_load_all((ENVOY / "contour.yaml").read_text())
    assert extension["metadata"]["namespace"] == namespace
    assert extension["spec"]["services"] == [{"name": name, "port": port}]


def test_envoy_asks_where_the_service_answers_checks_by_default() -> None:
    clusters = yaml.safe_load((ENVOY / "envoy.yaml").read_text())["static_resources"]["clusters"]
    (tidegate,) = [each for each in clusters if each["name"] == "tidegate"]
    ((endpoint,),) = [each["lb_endpoints"] for each in tidegate["load_assignment"]["endpoints"]]
    listen = Settings().checks.listen
    assert listen is not None
    assert endpoint["endpoint"]["address"]["socket_address"] == {
        "address": listen.host,
        "port_value": listen.port,
    }


def test_kubernetes_can_see_that_the_user_of_the_image_is_not_root() -> None:
    (container,) = of_kubernetes("Deployment")["spec"]["template"]["spec"]["containers"]
    user = container["securityContext"]["runAsUser"]
    dockerfile = (EXAMPLES / "Dockerfile").read_text().splitlines()
    assert f"USER {user}" in dockerfile


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    paths = []
    for name in ("tidegate.service", "tidegate.socket"):
        unit = (EXAMPLES / name).read_text()
        paths.append(tmp_path / name)
        paths[-1].write_text(unit.replace("/opt/tidegate/bin/tidegate", sys.executable))
    ended = subprocess.run(["systemd-analyze", "verify", *paths], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_sockets_of_systemd_are_at_the_addresses_of_the_settings() -> None:
    lines = (EXAMPLES / "tidegate.socket").read_text().splitlines()
    listens = [each.split("=")[1] for each in lines if each.startswith("ListenStream=")]
    settings = read_settings(EXAMPLES / "tidegate.yaml", {})
    assert listens == [str(settings.checks.listen), str(settings.admin.listen)]


def test_the_variables_of_the_compose_file_are_settings() -> None:
    compose = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
    for name in compose["services"]["tidegate"]["environment"]:
        fields = Settings.model_fields
        for part in name.removeprefix("TIDEGATE_").lower().split("__"):
            assert part in fields
            fields = getattr(fields[part].annotation, "model_fields", {})


def test_the_page_lists_all_settings() -> None:
    text = (ROOT / "docs" / "service" / "operations.md").read_text()
    for name, field in Settings.model_fields.items():
        parts = getattr(field.annotation, "model_fields", None) or {"": None}
        for part in parts:
            assert f"`{part}`" in text or f"`{name}.{part}`" in text or f"`{name}`" in text
