"""The settings of the service: one file, and environment variables that override it."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from tidegate.limiter.errors import ConfigurationError
from tidegate.rules.document import Document, read_file
from tidegate.rules.yaml_reader import meant_number
from tidegate.server.setting_values import Address, AuthHeaders, Caller, Host, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_settings import PydanticBaseSettingsSource

__all__ = ["ENVIRONMENT", "Address", "Settings", "read_settings", "unknown_variables"]

ENVIRONMENT = "TIDEGATE_"
# Environment variables with the prefix that are not settings of the service.
_OF_OTHERS = {"TIDEGATE_ENABLED", "TIDEGATE_HANDED_OVER", "TIDEGATE_HANDED_OVER_READY"}
_MAY_BE_EMPTY = {"TIDEGATE_ENVOY__USER_KEY"}
_SECRETS = "pa?s|pw|secret|token|key"  # in the names of options of a URL, also misspelled
# These settings name files that the service reads.
_TLS_FILES = ("certificate", "key", "client_ca")
_FILES = (
    ("rules",),
    ("envoy", "config"),
    *((part, "tls", name) for part in ("checks", "admin") for name in _TLS_FILES),
)
# With forward secrecy and authenticated encryption: none has CBC or SHA-1.
DEFAULT_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_SECONDS = Annotated[float, Field(gt=0, le=86_400)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(_Part):
    """The certificate of the service, and the authorities that sign client certificates."""

    certificate: Path = Field(description="The certificate in PEM, with its chain.")
    key: Path = Field(description="PEM.")
    client_ca: Optional[Path] = Field(
        default=None,
        description="PEM of the authorities whose clients are accepted. Without it clients need no "
        "certificate.",
    )
    minimum: Annotated[Literal["1.2", "1.3"], BeforeValidator(str)] = Field(
        default="1.2", description="The least version of TLS that is spoken."
    )
    ciphers: str = Field(
        default=DEFAULT_CIPHERS,
        description="The ciphers of TLS 1.2, as OpenSSL writes them; those of TLS 1.3 are fixed.",
    )


_HOSTS = (
    "Further names that requests of HTTP may have in Host where `listen` is a loopback address. "
    "Addresses, localhost and names without dots always may."
)


class Checks(_Part):
    """The port of checks, which speaks HTTP/1.1, HTTP/2 and gRPC."""

    listen: Optional[Address] = Field(
        default=Address(host="127.0.0.1", port=8080),
        description="The address of HTTP and gRPC; null for none.",
    )
    unix: Optional[Path] = Field(default=None, description="The path of a Unix socket.")
    tls: Optional[Tls] = Field(default=None, description="TLS of `listen`; null for no TLS.")
    hosts: list[Host] = Field(default=[], description=_HOSTS)
    loops: Annotated[int, Field(ge=0, le=256)] = Field(
        default=0, description="Threads that answer checks; 0 for one for each core."
    )
    require_token: Optional[StrictBool] = Field(
        default=None,
        description="Whether checks need a token. By default they do, unless `listen` is a "
        "loopback address or clients need a certificate.",
    )
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    max_streams: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=256, description="Concurrent calls on one HTTP/2 connection."
    )
    max_body_bytes: Annotated[int, Field(ge=1024, le=2**26)] = 2**20
    idle_timeout: _SECONDS = Field(
        default=300.0, description="Seconds after which a connection without requests is closed."
    )
    request_timeout: _SECONDS = Field(
        default=10.0, description="Seconds within which a whole request must arrive."
    )
    refused_status: Literal[200, 429] = Field(
        default=200, description="The status of a REST check that refuses."
    )
    auth_refused_status: Literal[401, 403, 429] = Field(
        default=429, description="The status of an answer to a gateway that refuses: 403 for nginx."
    )
    openai_fields: bool = Field(
        default=False,
        description="Whether answers over HTTP also have the fields that clients of OpenAI read.",
    )
    auth_headers: Optional[AuthHeaders] = Field(
        default=None,
        description="The headers of a gateway and the attributes that they name, in place of "
        "X-Original-URI, X-Original-Method, X-Real-IP and X-Api-Key.",
    )

    @property
    def needs_token(self) -> bool:
        """Returns `require_token`, or its default."""
        return self.is_open if self.require_token is None else self.require_token

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach the port, also without a certificate."""
        if self.listen is None or self.listen.is_loopback:
            return False
        return self.tls is None or self.tls.client_ca is None


class Envoy(_Part):
    """Envoy's rate limit service, answered on the port of checks."""

    config: Path = Field(description="A file of descriptors, or a directory of such files.")
    all_or_none: StrictBool = Field(
        default=True,
        description="Whether a request that one descriptor refuses is charged to none. Envoy's own "
        "service charges the others.",
    )
    merge_domains: StrictBool = Field(
        default=False, description="Whether several files may have descriptors of one domain."
    )
    shadow_mode: StrictBool = Field(
        default=False, description="Whether the answer is always OK, whatever the limits say."
    )
    quota_mode: StrictBool = Field(
        default=False, description="Whether all limits are in quota mode."
    )
    response_headers: StrictBool = Field(
        default=False,
        description="Whether responses of the proxy have X-RateLimit-Limit, -Remaining and -Reset.",
    )
    request_metadata: StrictBool = Field(
        default=False,
        description="Whether the metadata of answers have the domain, the descriptors and the hits "
        "of the request.",
    )
    user_key: Annotated[str, Field(max_length=255)] = Field(
        default="user",
        description="The entry that names the user, for history and anomalies; empty for none.",
    )
    metrics: Literal["descriptors", "reference", "none"] = Field(
        default="descriptors",
        description="Counters of each descriptor in /metrics: by the names of tidegate, by those "
        "of envoyproxy/ratelimit, or none.",
    )
    named_in_metrics: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=1000,
        description="The most descriptors that have counters of their own in /metrics; the others "
        "are counted together.",
    )


class Oidc(_Part):
    """The issuer whose tokens the admin API accepts in addition to its own."""

    issuer: str
    audience: str
    role_claim: str = "roles"
    user_claim: str = Field(
        default="sub", description="The claim with the user of the rules, for /v1/dashboard."
    )
    roles: dict[str, Literal["viewer", "check", "operator", "admin"]] = Field(
        default={}, description="The role for each value of the claim."
    )


class Admin(_Part):
    """The second port: admin API, dashboard, metrics and probes."""

    listen: Optional[Address] = Field(
        default=Address(host="127.0.0.1", port=8081), description="null for none."
    )
    tls: Optional[Tls] = None
    hosts: list[Host] = Field(default=[], description=_HOSTS)
    oidc: Optional[Oidc] = None
    trusted_proxies: list[str] = Field(
        default=[],
        description="Addresses and networks of proxies whose X-Forwarded-For is believed, in the "
        "audit log and where wrong tokens are counted.",
    )
    public_metrics: StrictBool = Field(
        default=True,
        description="Whether /metrics is answered without a token. It names no key and no path "
        "but the descriptors of Envoy (envoy.metrics).",
    )


class Usage(_Part):
    """The history of decisions that the database keeps."""

    enabled: StrictBool = True
    keep_days: Annotated[float, Field(gt=0)] = Field(
        default=90.0, description="Days for which hours of usage are kept."
    )
    keep_violations_days: Annotated[float, Field(gt=0)] = 30.0
    interval: _SECONDS = Field(default=10.0, description="Seconds between two writes.")
    capacity: Annotated[int, Field(ge=100, le=10_000_000)] = Field(
        default=100_000, description="Rows of users and endpoints between two writes."
    )
    most_rows: Annotated[int, Field(ge=10_000)] = Field(
        default=5_000_000, description="The most hours of usage, and of violations."
    )
    most_bytes: Annotated[int, Field(ge=8 * 2**20)] = Field(
        default=2**30,
        description="About the most bytes that usage (three fourths) and violations take.",
    )
    least_free_bytes: Annotated[int, Field(ge=0)] = Field(
        default=256 * 2**20,
        description="Nothing is added to the history while the disk of SQLite has less room.",
    )


class Anomalies(_Part):
    """Anomaly detection. It reports, and changes decisions only with `enforce`."""

    enabled: StrictBool = True
    interval: Annotated[float, Field(ge=1, le=3600)] = 60.0
    least: Annotated[int, Field(ge=1)] = 20
    capacity: Annotated[int, Field(ge=100, le=1_000_000)] = 50_000
    enforce: StrictBool = Field(
        default=False, description="Whether callers are throttled and blocked, or only reported."
    )
    enforce_seconds: _SECONDS = Field(
        default=300.0,
        description="Seconds that a penalty lasts after the last interval that called for it.",
    )
    enforce_most: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1000, description="The most callers who are throttled or blocked at a time."
    )
    state: Optional[Path] = Field(
        default=None,
        description="The file that keeps what is usual over a restart. Without it, a file beside a "
        "database of SQLite, with .anomalies behind its name; none with PostgreSQL.",
    )
    exempt: list[Caller] = Field(
        default=[],
        description="Callers who are never throttled or blocked: user:42, ip:203.0.113.9.",
    )


class Log(_Part):
    """The log of the service on standard error."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    refusals: StrictBool = Field(
        default=True, description="One line a second for each user, endpoint and rule that refused."
    )
    access: StrictBool = Field(
        default=False, description="One line a second for each user and endpoint."
    )


class Telemetry(_Part):
    """OpenTelemetry metrics and spans, sent with OTLP."""

    enabled: StrictBool = False
    endpoint: Optional[Annotated[str, url_of("metrics")]] = Field(
        default=None,
        description="The URL of the collector for metrics; by default OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    traces: StrictBool = Field(
        default=False, description="Whether requests to the admin port have spans."
    )
    traces_endpoint: Optional[Annotated[str, url_of("traces")]] = Field(
        default=None,
        description="The URL of the collector for spans; by default OTEL_EXPORTER_OTLP_ENDPOINT.",
    )


class _Environment(EnvSettingsSource):
    def __call__(self) -> dict[str, Any]:
        found = super().__call__()
        _read_texts(Settings, found)
        return found

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:  # the value is not JSON: the setting names what it expects
            return value


def _read_texts(model: type[BaseModel], values: dict[str, Any]) -> None:
    """Replaces the texts of variables by the booleans and numbers that a file would have."""
    for name, value in values.items():
        field = model.model_fields.get(name)
        if field is None:
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        if isinstance(value, dict):
            for part in kinds:
                if isinstance(part, type) and issubclass(part, _Part):
                    _read_texts(part, value)
        elif isinstance(value, str):
            meanings: dict[str, Any] = {}
            if bool in kinds or StrictBool in kinds:
                meanings = {"true": True, "1": True, "false": False, "0": False}
            elif get_origin(field.annotation) is Literal:
                meanings = {str(each): each for each in kinds[1:]}
            values[name] = meanings.get(value.lower(), value)


class Settings(BaseSettings):
    """All settings. Each has a default, so `tidegate serve` needs no settings."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENVIRONMENT,
        env_nested_delimiter="__",
        env_parse_none_str="null",
    )

    storage: str = Field(
        default="memory://",
        description="Where usage is counted: memory://, shm://NAME, or a URI of Redis, with its "
        "options in the query.",
    )
    prefix: str = Field(
        default="tg",
        min_length=1,
        description="The prefix of keys in a storage that others share.",
    )
    database: Optional[str] = Field(
        default="sqlite:///tidegate.db",
        description="The database of rules, tiers, tokens and history: a URL of SQLite or "
        "PostgreSQL; null for none.",
    )
    rules: Optional[Path] = Field(
        default=None, description="A file of rules. Without it, the database has the rules."
    )
    checks: Checks = Checks()
    envoy: Optional[Envoy] = None
    admin: Admin = Admin()
    usage: Usage = Usage()
    anomalies: Anomalies = Anomalies()
    log: Log = Log()
    telemetry: Telemetry = Telemetry()
    drain: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=10.0, description="Seconds that calls in flight have to end when the service stops."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return _Environment(settings_cls), init_settings

    def shown(self) -> dict[str, Any]:
        """All settings as JSON has them, without the passwords in URLs."""
        shown: dict[str, Any] = _without_secrets(self.model_dump(mode="json"))
        return shown

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        if self.rules is None and self.database is None and self.envoy is None:
            raise ValueError("there are no rules, no database and no envoy; expected one of them")
        if self.checks.listen is None and self.checks.unix is None:
            raise ValueError("checks have no listen and no unix; expected one of them")
        if self.anomalies.enforce and not self.anomalies.enabled:
            raise ValueError(
                "anomalies.enforce is true and anomalies.enabled is false; expected both true, or "
                "no enforce"
            )
        if self.envoy is not None and self.checks.is_open and self.checks.needs_token:
            raise ValueError(
                "envoy is answered without a token, and checks need one here; expected "
                "checks.tls.client_ca, a checks.listen that is a loopback address, or "
                "checks.require_token: false"
            )
        return self


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(each) for name, each in value.items()}
    if not isinstance(value, str) or "://" not in value:
        return value
    # The pattern hides too much rather than too little: a password may have any character.
    hidden = re.sub(r"(?s)(://[^:/?#]*):.*@", r"\1:***@", value)
    return re.sub(rf"([?&][^=&]*(?:{_SECRETS})[^=&]*=)[^&]*", r"\1***", hidden, flags=re.I)


def read_settings(
    path: Optional[Path] = None, environment: Optional[Mapping[str, str]] = None
) -> Settings:
    """Reads the settings of a file (YAML, TOML or JSON) and of the environment.

    Raises ConfigurationError that names each mistake with its place: the file's line and field, or
    the environment variable.
    """
    document = Document({}, "<defaults>", _no_line) if path is None else read_file(path)
    if document.data is None:
        document = Document({}, document.source, _no_line)
    if not isinstance(document.data, dict):
        raise ConfigurationError(
            f"{document.source}: is a {type(document.data).__name__}; expected settings by name"
        )
    given = os.environ if environment is None else environment
    _expect_values(given)
    if path is not None:
        _begin_at(path.parent, document.data)
    try:
        return Settings(**_as_meant(document.data, (), document))
    except ValidationError as error:
        problems = [_problem(each, document, given) for each in error.errors()]
        raise ConfigurationError("\n".join(problems)) from None


def _as_meant(value: Any, where: tuple[str | int, ...], document: Document) -> Any:
    """The same data with numbers and booleans, of which none is one that YAML reads as another."""
    if isinstance(value, dict):
        return {name: _as_meant(each, (*where, name), document) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_meant(each, (*where, at), document) for at, each in enumerate(value)]
    try:
        return meant_number(value)
    except ValueError as error:
        raise ConfigurationError(str(document.problem(where, str(error)))) from None


def _begin_at(folder: Path, data: dict[str, Any]) -> None:
    """Makes relative paths of files that are read begin at the folder of the settings."""
    for *parents, name in _FILES:
        part: Any = data
        for parent in parents:
            part = part.get(parent) if isinstance(part, dict) else None
        if isinstance(part, dict) and isinstance(part.get(name), str):
            part[name] = os.fspath(folder / part[name])


def _no_line(where: tuple[str | int, ...]) -> None:
    return None


def unknown_variables(environment: Mapping[str, str]) -> dict[str, Optional[str]]:
    """Returns variables with the prefix that are not settings, since they may be misspelt.

    Each name has the name of a similar setting, or None. Such variables are not errors,
    since other programs set such variables too, such as Kubernetes for a service named tidegate.
    """
    known = list(_variables(Settings, ENVIRONMENT))
    return {
        name: next(iter(difflib.get_close_matches(name, known, 1, 0.85)), None)
        for name in sorted(environment)
        if name.startswith(ENVIRONMENT) and name not in _OF_OTHERS and not _is_setting(name)
    }


def _is_setting(variable: str) -> bool:
    first = variable[len(ENVIRONMENT) :].lower().partition("__")[0]
    return variable.upper().startswith(ENVIRONMENT) and first in Settings.model_fields


def _expect_values(environment: Mapping[str, str]) -> None:
    problems = [
        f"the environment variable {name}: is empty; expected a value, or no such variable"
        for name in sorted(environment)
        if not environment[name] and _is_setting(name) and name.upper() not in _MAY_BE_EMPTY
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))


def _variables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        variable = prefix + name.upper()
        yield variable
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, _Part):
                yield from _variables(part, variable + "__")


# What is expected, by a part of the type of pydantic's error.
_WANTED = {
    "bool": "true or false",
    "int_": "an integer",
    "float_": "a number",
    "list_": 'a list, which a variable has as JSON, such as ["user:42"]',
    "dict_": 'names and values, which a variable has as JSON, such as {"X-User": "user"}',
    "model_": "the settings below it, each by its name",
    "path_": "a path",
    "string_type": "a text",
}


def _problem(error: Any, document: Document, environment: Mapping[str, str]) -> str:
    where = tuple(part for part in error["loc"])
    message = _message(error)
    variable = ENVIRONMENT + "__".join(str(part).upper() for part in where)
    for name in environment:
        if where and name.upper() in (variable, *_parents(variable)):
            return f"the environment variable {name}: {message}"
    return str(document.problem(where, message))


def _parents(variable: str) -> list[str]:
    parts = variable.split("__")
    return ["__".join(parts[:length]) for length in range(1, len(parts))]


def _message(error: Any) -> str:
    kind = error["type"]
    if kind == "extra_forbidden":
        return "is not a setting; expected one that docs/service/operations.md lists"
    if kind == "missing":
        return "is missing; expected a value"
    text = str(error["msg"]).removeprefix("Value error, ")
    if "; expected" in text:
        return text
    wanted = next((wanted for part, wanted in _WANTED.items() if part in kind), None)
    return f"is {error.get('input')!r:.80}; expected: {wanted or text[0].lower() + text[1:]}"
