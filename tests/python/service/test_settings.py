"""The settings of the service: a file, and environment variables that override it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from pydantic import BaseModel
from tidegate import ConfigurationError
from tidegate.server.settings import Address, Settings, read_settings, unknown_variables

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    settings = read_settings(path)
    assert settings.storage == "shm://host"
    assert (settings.checks.loops, settings.checks.max_streams) == (3, 7)
    assert settings.checks.listen == Address(host="0.0.0.0", port=80)
    assert settings.admin.listen is None
    assert settings.database == "sqlite:///tidegate.db"


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
        ("checks:\n  loops: 010\n", ":2: checks.loops: is '010', which YAML takes for 8; expected"),
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
        (
            "telemetry: {endpoint: 'localhost:4318'}\n",
            "is 'localhost:4318'; expected a URL such as http://localhost:4318/v1/metrics",
        ),
        ("- storage\n", "is a list; expected settings by name"),
        ("checks: {listen: null}\n", "checks have no listen and no unix; expected one of them"),
        ("database: null\n", "there are no rules, no database and no envoy"),
        ("storage: [\n", "not YAML"),
        (
            "checks: {listen: '0.0.0.0:80'}\nenvoy: {config: e.yaml}\n",
            "envoy is answered without a token, and checks need one here; expected",
        ),
        (
            "checks: {listen: '0.0.0.0:80', require_token: true}\nenvoy: {config: e.yaml}\n",
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


@pytest.mark.parametrize(
    "name", ["STORAGE", "RULES", "DATABASE", "CHECKS", "ENVOY__CONFIG", "ADMIN__LISTEN", "LOG__X"]
)
def test_an_empty_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"TIDEGATE_{name}", "")
    with pytest.raises(ConfigurationError) as caught:
        read_settings()
    assert str(caught.value) == (
        f"the environment variable TIDEGATE_{name}: is empty; expected a value, or no such variable"
    )


def test_a_variable_may_be_empty_where_that_means_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEGATE_ENVOY__CONFIG", "limits.yaml")
    monkeypatch.setenv("TIDEGATE_ENVOY__USER_KEY", "")
    monkeypatch.setenv("TIDEGATE_STORGE", "")
    envoy = read_settings().envoy
    assert envoy is not None
    assert envoy.user_key == ""


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
        (
            "CHECKS__AUTH_HEADERS",
            '{"X User": "user"}',
            "has the header 'X User'; expected",
        ),
        ("CHECKS__AUTH_HEADERS", '{"": "user"}', "has the header ''; expected the name"),
        (
            "CHECKS__AUTH_HEADERS",
            '{"X-User": "user", "x-user": "ip"}',
            "has the header 'x-user' as 'X-User' too; expected one",
        ),
        ("CHECKS__AUTH_HEADERS", '{"X-User": "us er"}', "has the attribute 'us er' of X-User"),
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


_REQUIRED = {
    "CHECKS__TLS": {"CERTIFICATE": "a.pem", "KEY": "b.pem"},
    "ADMIN__TLS": {"CERTIFICATE": "a.pem", "KEY": "b.pem"},
    "ADMIN__OIDC": {"ISSUER": "https://issuer", "AUDIENCE": "tidegate"},
    "ENVOY": {"CONFIG": "limits.yaml"},
}
# A value other than the default for each setting that is not a boolean, as a variable has it.
_OTHERS: dict[str, tuple[str, Any]] = {
    "STORAGE": ("shm://host", "shm://host"),
    "PREFIX": ("other", "other"),
    "DATABASE": ("sqlite:///other.db", "sqlite:///other.db"),
    "RULES": ("rules.yaml", Path("rules.yaml")),
    "DRAIN": ("3", 3.0),
    "CHECKS__LISTEN": ("127.0.0.1:90", Address(host="127.0.0.1", port=90)),
    "CHECKS__UNIX": ("/run/checks", Path("/run/checks")),
    "CHECKS__LOOPS": ("3", 3),
    "CHECKS__MAX_CONNECTIONS": ("3", 3),
    "CHECKS__MAX_STREAMS": ("3", 3),
    "CHECKS__MAX_BODY_BYTES": ("2048", 2048),
    "CHECKS__IDLE_TIMEOUT": ("1.5", 1.5),
    "CHECKS__REQUEST_TIMEOUT": ("1.5", 1.5),
    "CHECKS__REFUSED_STATUS": ("429", 429),
    "CHECKS__AUTH_REFUSED_STATUS": ("403", 403),
    "CHECKS__AUTH_HEADERS": ('{"X-User": "user"}', {"X-User": "user"}),
    "CHECKS__TLS__CERTIFICATE": ("c.pem", Path("c.pem")),
    "CHECKS__TLS__KEY": ("c.pem", Path("c.pem")),
    "CHECKS__TLS__CLIENT_CA": ("c.pem", Path("c.pem")),
    "CHECKS__TLS__MINIMUM": ("1.3", "1.3"),
    "CHECKS__TLS__CIPHERS": ("ECDHE+AESGCM", "ECDHE+AESGCM"),
    "ENVOY__CONFIG": ("other.yaml", Path("other.yaml")),
    "ENVOY__USER_KEY": ("customer", "customer"),
    "ENVOY__METRICS": ("reference", "reference"),
    "ENVOY__NAMED_IN_METRICS": ("5", 5),
    "ADMIN__LISTEN": ("127.0.0.1:91", Address(host="127.0.0.1", port=91)),
    "ADMIN__TLS__CERTIFICATE": ("c.pem", Path("c.pem")),
    "ADMIN__TLS__KEY": ("c.pem", Path("c.pem")),
    "ADMIN__TLS__CLIENT_CA": ("c.pem", Path("c.pem")),
    "ADMIN__TLS__MINIMUM": ("1.3", "1.3"),
    "ADMIN__TLS__CIPHERS": ("ECDHE+AESGCM", "ECDHE+AESGCM"),
    "ADMIN__HOSTS": ('["limits.example.com"]', ["limits.example.com"]),
    "CHECKS__HOSTS": ('["limits.example.com"]', ["limits.example.com"]),
    "ADMIN__TRUSTED_PROXIES": ('["10.0.0.0/8"]', ["10.0.0.0/8"]),
    "ADMIN__OIDC__ISSUER": ("https://other", "https://other"),
    "ADMIN__OIDC__AUDIENCE": ("other", "other"),
    "ADMIN__OIDC__ROLE_CLAIM": ("groups", "groups"),
    "ADMIN__OIDC__USER_CLAIM": ("email", "email"),
    "ADMIN__OIDC__ROLES": ('{"ops": "operator"}', {"ops": "operator"}),
    "USAGE__KEEP_DAYS": ("3", 3.0),
    "USAGE__KEEP_VIOLATIONS_DAYS": ("3", 3.0),
    "USAGE__INTERVAL": ("3", 3.0),
    "USAGE__CAPACITY": ("1000", 1000),
    "USAGE__MOST_ROWS": ("20000", 20000),
    "USAGE__MOST_BYTES": ("10000000", 10_000_000),
    "USAGE__LEAST_FREE_BYTES": ("0", 0),
    "ANOMALIES__INTERVAL": ("30", 30.0),
    "ANOMALIES__LEAST": ("3", 3),
    "ANOMALIES__CAPACITY": ("1000", 1000),
    "ANOMALIES__ENFORCE_SECONDS": ("3", 3.0),
    "ANOMALIES__ENFORCE_MOST": ("3", 3),
    "ANOMALIES__STATE": ("usual", Path("usual")),
    "ANOMALIES__EXEMPT": ('["user:42"]', ["user:42"]),
    "LOG__FORMAT": ("json", "json"),
    "LOG__LEVEL": ("debug", "debug"),
    "TELEMETRY__ENDPOINT": ("http://a:1/v1", "http://a:1/v1"),
    "TELEMETRY__TRACES_ENDPOINT": ("http://a:1/v1", "http://a:1/v1"),
}


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yields the name of each setting, as its variable has it, and whether it is a boolean."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        parts = [each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)]
        if parts and parts[0] is not Address:
            yield from settings_of(parts[0], f"{prefix}{name.upper()}__")
        else:
            yield prefix + name.upper(), any("bool" in str(each) for each in kinds)


@pytest.mark.parametrize(("name", "is_boolean"), list(settings_of(Settings)))
def test_each_setting_can_be_set_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, is_boolean: bool
) -> None:
    for part, required in _REQUIRED.items():
        if name.startswith(part):
            for each, value in required.items():
                monkeypatch.setenv(f"TIDEGATE_{part}{'__' if each else ''}{each}", value)
    values = [("true", True), ("False", False), ("1", True), ("0", False)]
    for text, value in values if is_boolean else [_OTHERS[name]]:
        monkeypatch.setenv(f"TIDEGATE_{name}", text)
        found: Any = read_settings()
        for part in name.lower().split("__"):
            found = getattr(found, part)
        assert found == value
        assert type(found) is type(value)


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


@pytest.mark.parametrize(
    "checks",
    [
        "{require_token: true}",
        "{listen: null, unix: /run/t.sock, require_token: true}",
        "{listen: '0.0.0.0:0', tls: {certificate: a, key: b, client_ca: c}, require_token: true}",
    ],
)
def test_envoy_stands_beside_checks_with_tokens_where_only_trusted_clients_reach_it(
    tmp_path: Path, checks: str
) -> None:
    text = f"checks: {checks}\nenvoy: {{config: e.yaml}}\n"
    settings = read_settings(file_of(tmp_path, text), {})
    assert settings.checks.needs_token
    assert settings.envoy is not None


def test_settings_with_unclear_names_have_descriptions() -> None:
    for name in ("storage", "prefix", "database", "rules", "drain"):
        assert Settings.model_fields[name].description


def test_a_version_of_tls_may_be_written_as_a_number(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("checks: {tls: {certificate: a, key: b, minimum: 1.3}}\n")
    tls = read_settings(path, {}).checks.tls
    assert tls is not None
    assert tls.minimum == "1.3"
