"""The settings of the service: a file, and environment variables that override it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate import ConfigurationError
from tidegate.server.settings import Address, Settings, read_settings, unknown_variables


def file_of(tmp_path: Path, text: str, name: str = "tidegate.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_setting_has_a_default() -> None:
    settings = read_settings(None, {})
    assert settings.storage == "memory://"
    assert str(settings.checks.listen) == "127.0.0.1:8080"
    assert str(settings.admin.listen) == "127.0.0.1:8081"
    assert not settings.checks.needs_token


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        """
storage: redis://localhost
rules: rules.yaml
checks:
  listen: "[::]:9000"
  tls: {certificate: a.pem, key: b.pem}
log: {format: json}
""",
    )
    settings = read_settings(path, {})
    assert settings.storage == "redis://localhost"
    assert settings.rules == tmp_path / "rules.yaml"
    assert settings.checks.listen == Address(host="::", port=9000)
    assert settings.checks.tls is not None
    assert settings.checks.tls.certificate == tmp_path / "a.pem"
    assert settings.log.format == "json"
    assert settings.log.level == "info", "what it does not name keeps its default"


def test_files_are_read_from_the_folder_of_the_settings(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        """
rules: rules.yaml
envoy: {config: /etc/limits.yaml}
database: sqlite:///tidegate.db
checks: {unix: checks.sock, tls: {certificate: a/cert.pem, key: key.pem}}
""",
    )
    settings = read_settings(path, {})
    assert settings.rules == tmp_path / "rules.yaml"
    assert settings.envoy is not None
    assert settings.envoy.config == Path("/etc/limits.yaml")
    assert settings.checks.tls is not None
    assert settings.checks.tls.certificate == tmp_path / "a/cert.pem"
    assert settings.checks.tls.client_ca is None
    made_here = (settings.database, str(settings.checks.unix))
    assert made_here == ("sqlite:///tidegate.db", "checks.sock")


def test_a_file_that_a_variable_names_begins_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_RULES", "other.yaml")
    settings = read_settings(file_of(tmp_path, "rules: rules.yaml\n"))
    assert settings.rules == Path("other.yaml")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert read_settings(file_of(tmp_path, "# nothing yet\n"), {}) == read_settings(None, {})


def test_the_environment_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, "storage: memory://\nchecks: {loops: 1, max_streams: 7}\n")
    monkeypatch.setenv("TIDEGATE_STORAGE", "shm://host")
    monkeypatch.setenv("TIDEGATE_CHECKS__LOOPS", "3")
    monkeypatch.setenv("TIDEGATE_CHECKS__LISTEN", "0.0.0.0:80")
    monkeypatch.setenv("TIDEGATE_ADMIN__LISTEN", "null")
    monkeypatch.setenv("TIDEGATE_DATABASE", "")
    settings = read_settings(path)
    assert settings.storage == "shm://host"
    assert (settings.checks.loops, settings.checks.max_streams) == (3, 7)
    assert settings.checks.listen == Address(host="0.0.0.0", port=80)
    assert settings.admin.listen is None
    assert settings.database == "sqlite:///tidegate.db", "an empty variable sets nothing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("storge: memory://", ":1: storge: is not a setting"),
        (
            "checks:\n  listen: 8080\n",
            ":2: checks.listen: the address is 8080; expected",
        ),
        ("checks:\n  listen: localhost\n", "is 'localhost'; expected HOST:PORT"),
        ("checks:\n  listen: localhost:99999\n", "is 'localhost:99999'; expected HOST:PORT"),
        ("checks:\n  listen: localhost:-1\n", "is 'localhost:-1'; expected HOST:PORT"),
        ("\nchecks: {loops: many}\n", ":2: checks.loops: is 'many'; expected: "),
        ("log: {level: loud}\n", "log.level: is 'loud'; expected: "),
        ("usage: {keep_days: 0}\n", "usage.keep_days: is 0; expected: "),
        ("admin: {public_metrics: 'yes'}\n", "admin.public_metrics: is 'yes'; expected: "),
        ("envoy: {}\n", "envoy.config: is missing; expected a value"),
        ("checks: true\n", ":1: checks: is True; expected: the settings below it"),
        ("rules: [a]\n", ":1: rules: is ['a']; expected: a path"),
        (
            "telemetry: {traces_endpoint: 'localhost:4318'}\n",
            "is 'localhost:4318'; expected a URL such as http://localhost:4318/v1/traces",
        ),
        ("- storage\n", "is a list; expected settings by name"),
        ("checks: {listen: null}\n", "checks have no listen and no unix; expected one of them"),
        ("database: null\n", "there are no rules, no database and no envoy"),
        ("storage: [\n", "not YAML"),
        (
            "checks: {listen: '0.0.0.0:80'}\nenvoy: {config: e.yaml}\n",
            "envoy is answered without a token, and checks need one here; expected",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = file_of(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        read_settings(path, {})
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(file_of(tmp_path, "storge: a\nchecks: {loops: -1}\ndrain: x\n"), {})
    assert len(str(caught.value).splitlines()) == 3


def test_a_mistake_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_CHECKS__LOOPS", "many")
    with pytest.raises(ConfigurationError, match="variable TIDEGATE_CHECKS__LOOPS: is 'many'"):
        read_settings()


def test_misspelt_variables_are_found() -> None:
    given = {"TIDEGATE_STORGE": "", "TIDEGATE_ENABLED": "0", "TIDEGATE_LOG__LEVEL": "", "OTHER": ""}
    assert unknown_variables(given) == {"TIDEGATE_STORGE": "TIDEGATE_STORAGE"}
    given = {"TIDEGATE_CHECKS_LISTEN": "", "TIDEGATE_PORT_80_TCP_ADDR": ""}
    assert unknown_variables(given) == {
        "TIDEGATE_CHECKS_LISTEN": "TIDEGATE_CHECKS__LISTEN",
        "TIDEGATE_PORT_80_TCP_ADDR": None,
    }


def test_a_variable_may_say_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_DATABASE", "null")
    monkeypatch.setenv("TIDEGATE_RULES", "rules.yaml")
    assert read_settings().database is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ANOMALIES__EXEMPT", "user:batch", "is 'user:batch'; expected: a list, which"),
        ("ANOMALIES__EXEMPT", '["batch"]', "is 'batch'; expected user:NAME or ip:ADDRESS"),
        ("ANOMALIES__ENFORCE", "yes", "is 'yes'; expected: true or false"),
        ("CHECKS__AUTH_HEADERS", "X-User: user", "is 'X-User: user'; expected: names and values"),
        ("CHECKS", "{", "is '{'; expected: the settings below it"),
        ("DRAIN", "10s", "is '10s'; expected: a number"),
    ],
)
def test_a_variable_that_is_not_as_it_should_be_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"TIDEGATE_{name}", value)
    with pytest.raises(ConfigurationError) as caught:
        read_settings()
    assert str(caught.value).startswith(f"the environment variable TIDEGATE_{name}: {said}")


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("", False),
        ("checks: {listen: 'localhost:0'}", False),
        ("checks: {listen: '[::1]:0'}", False),
        ("checks: {listen: '0.0.0.0:0'}", True),
        ("checks: {listen: '0.0.0.0:0', require_token: false}", False),
        ("checks: {require_token: true}", True),
        ("checks: {listen: '127.example.com:0'}", True),
        ("checks: {listen: null, unix: /run/t.sock}", False),
        ("checks: {listen: '0.0.0.0:0', tls: {certificate: a, key: b}}", True),
        ("checks: {listen: '0.0.0.0:0', tls: {certificate: a, key: b, client_ca: c}}", False),
    ],
)
def test_checks_need_a_token_if_other_machines_can_reach_them(
    tmp_path: Path, text: str, needs: bool
) -> None:
    assert read_settings(file_of(tmp_path, text), {}).checks.needs_token is needs


def test_settings_with_unclear_names_have_descriptions() -> None:
    for name in ("storage", "prefix", "database", "rules", "drain"):
        assert Settings.model_fields[name].description
