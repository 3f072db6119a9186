"""The settings and manifests of examples/service are valid."""

from __future__ import annotations

from pathlib import Path

import yaml
from tidegate._service.settings import Settings, read_settings
from tidegate.rules import RuleSet

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "service"


def test_the_settings_and_rules_are_valid() -> None:
    settings = read_settings(EXAMPLES / "tidegate.yaml", {})
    assert settings.rules is not None
    RuleSet.load(EXAMPLES / settings.rules)


def test_the_settings_and_rules_of_kubernetes_are_valid(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
    (config,) = [each for each in documents if each["kind"] == "ConfigMap"]
    for name, text in config["data"].items():
        (tmp_path / name).write_text(text)
    read_settings(tmp_path / "tidegate.yaml", {})
    RuleSet.load(tmp_path / "rules.yaml")
    assert [each["kind"] for each in documents] == ["ConfigMap", "Deployment", "Service"]


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
