"""The server of checks: HTTP/2, HTTP/1.1 and gRPC without Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_Text = str | bytes
_Headers = Sequence[tuple[str, str]]

class Tls:
    """A certificate from PEM files."""

    def __init__(
        self,
        certificate: str,
        key: str,
        client_ca: str | None = None,
        *,
        only_1_3: bool = False,
        ciphers: str | None = None,
    ) -> None: ...
    def reload(self) -> None:
        """Reads the files again, for new connections. After an error the old certificate stays."""

class Service:
    """Answers requests of a front."""

def accepts_host(host: str, names: Sequence[str]) -> bool:
    """Whether a Host header is for this machine: an address, localhost, or one of `names`, which
    are in lower case."""

class Front:
    """The HTTP server of services."""

    def __init__(self, options: dict[str, Any] = ...) -> None: ...
    def listen(self, host: str, port: int, *, tls: Tls | None = None) -> int:
        """Returns the port."""
    def listen_unix(self, path: str, *, mode: int = 0o600, tls: Tls | None = None) -> None: ...
    def adopt(self, sockets: Sequence[int], *, tls: Tls | None = None) -> None:
        """Accepts at sockets of one address that listen already, and owns them from then on."""
    def share_sockets(self) -> list[int]:
        """The listening sockets, for a process that accepts at them too: they outlive stop()."""
    def unshare_sockets(self) -> None:
        """Undoes share_sockets(), if the other process does not accept at them after all."""
    def route(self, service: Service) -> None: ...
    def start(self) -> None: ...
    def drain(self, seconds: float) -> bool:
        """Waits for calls in progress; returns whether all calls were answered."""
    def stop(self) -> None: ...
    @property
    def running(self) -> bool: ...
    def stats(self) -> dict[str, int]: ...
    def call_times(self) -> list[tuple[str, str, float, list[tuple[float, int]]]]:
        """How long calls took: service, protocol, the seconds of all calls, and buckets by their
        upper bounds in seconds, each with the number of its calls. The last bound is infinite."""

class Health:
    """grpc.health.v1 of a front. The name "" is serving from the start."""

    def __init__(self, front: Front) -> None: ...
    def set(self, name: str, serving: bool) -> None:
        """Other names are unknown until they are set."""

class Recorder:
    """Decisions summed by caller, endpoint and refusing rule until they are drained."""

    def __init__(self, capacity: int = 65536) -> None: ...
    @property
    def dropped(self) -> int:
        """The number of decisions so far that found no free row."""
    def set_known(self, users: list[str]) -> None:
        """Says which users have rows even beyond the capacity, up to a fourth of it more."""
    def drain(
        self,
    ) -> list[
        tuple[
            str | None,  # user
            str | None,  # endpoint
            str | None,  # tier
            str | None,  # the rule that refused, or would have refused if it were enforced
            str | None,  # caller_ip
            int,  # allowed
            int,  # refused
            int,  # refused_in_shadow
            int,  # degraded
            int,  # the cost of allowed requests
        ]
    ]:
        """Returns the rows since the last call and clears them.

        If some decisions found no free row, the last row has the endpoint ``(other)`` and is their
        sum.
        """
    def __len__(self) -> int: ...

class Tiers:
    """The tiers of users, which take about 10 bytes a user."""

    @property
    def bytes(self) -> int: ...
    def of(self, user: _Text) -> str | None:
        """The tier of a user; None if the user is not in the table."""
    def __len__(self) -> int: ...

class TiersBuilder:
    """Builds a table of tiers from batches of rows."""

    def __init__(self) -> None: ...
    def add(self, rows: Iterable[tuple[_Text, _Text]] | Mapping[str, str]) -> None: ...
    def finish(self) -> Tiers: ...

class Penalties:
    """Callers who are throttled or blocked. A row has a name such as ``user:42`` or
    ``ip:203.0.113.9``, ``throttle`` or ``block``, for how many seconds from now on, and why.
    """

    def __init__(
        self, rows: Iterable[tuple[str, str, float, str]], clock: object | None = None
    ) -> None: ...
    def __len__(self) -> int: ...

class CheckService(Service):
    """Answers checks by the rules of a limiter, over gRPC and REST and for gateways."""

    def __init__(
        self,
        rule_limiter: object,
        *,
        recorder: Recorder | None = None,
        require_token: bool = True,
        refused_status: int = 200,
        auth_refused_status: int = 429,
        openai_fields: bool = False,
        auth_headers: Sequence[tuple[str, str]] | None = None,
    ) -> None: ...
    def use(self, rule_limiter: object) -> None:
        """Decides by another limiter, given as `limiter._native()`, from now on."""
    def set_tokens(self, tokens: Iterable[tuple[bytes, str]]) -> None:
        """Replaces the valid tokens, each given by its SHA-256 and its role."""
    def set_tiers(self, tiers: Tiers | Mapping[str, str] | None) -> None:
        """Replaces the tiers of users, for requests without a tier."""
    def set_penalties(self, penalties: Penalties | None) -> None:
        """Throttles and blocks these callers from now on, and no others."""
    def stats(self) -> dict[str, int]: ...

class DescriptorTree:
    """The domains and descriptors of Envoy's rate limit service, with their limits.

    It can be extended until a service uses it. Raises ValueError for invalid descriptors.
    """

    def __init__(self) -> None: ...
    def add_domain(self, name: str, all_or_none: bool | None = None) -> int:
        """Returns the number that its descriptors name as their parent."""
    def add_descriptor(
        self,
        parent: int,
        key: str,
        value: str | None = None,
        *,
        limits: Sequence[str] = ...,
        algorithm: str = "fixed-window",
        unlimited: bool = False,
        name: str = "",
        replaces: Sequence[str] = ...,
        shadow: bool = False,
        quota: bool = False,
        share_threshold: bool = False,
        detailed_metric: bool = False,
        value_to_metric: bool = False,
        metadata: str = "{}",
        reports: bool | None = None,
    ) -> int:
        """Returns the number that nested descriptors name as their parent.

        `metadata` is a JSON object. `reports` says whether hits are charged in full, whatever
        room there is; None leaves it to each request.
        """
    @property
    def limits(self) -> int:
        """The number of limits."""

class EnvoyService(Service):
    """Envoy's rate limit service v3, over gRPC and as JSON at /json. Thread-safe."""

    def __init__(
        self,
        store: object,
        clock: object | None = None,
        scope: str = "",
        *,
        all_or_none: bool = True,
        shadow_mode: bool = False,
        response_headers: bool = False,
        near_ratio: float = 0.8,
        recorder: Recorder | None = None,
        user_key: str = "user",
        request_metadata: bool = False,
    ) -> None:
        """`store` and `clock` are capsules of `tidegate._core`; `scope` keeps its usage apart."""
    def use(self, tree: DescriptorTree) -> None:
        """Decides by `tree` from now on. Raises ValueError if the store refuses a limit."""
    def set_penalties(self, penalties: Penalties | None) -> None:
        """Throttles and blocks these callers from now on, and no others."""
    @property
    def written_off(self) -> int:
        """The units of reports that were not charged, which stats() has too."""
    def stats(self) -> dict[str, Any]:
        """Counters of the service; `descriptors` has the counters of each path."""
