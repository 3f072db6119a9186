"""The compiled core.

Calls hold the GIL for steps of tens of nanoseconds, and release it while they wait for Redis. Every
class is safe to use from many threads and after `fork()`.
"""

from asyncio import AbstractEventLoop, Future
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar, final, overload

from typing_extensions import Self

from tidegate._stubs.limits import Decision as Decision
from tidegate._stubs.limits import Limit as Limit
from tidegate._stubs.reservations import LiveReservation as LiveReservation
from tidegate._stubs.responses import HeaderSend as HeaderSend
from tidegate._stubs.responses import HeaderStart as HeaderStart
from tidegate._stubs.responses import RequestDecision as RequestDecision
from tidegate.types import Algorithm

_Attributes = dict[str, Any]
_QuotaStatus = tuple[int, int, int, int, int, int, list[Any]]
_Key = str | bytes
_Costs = Sequence[int] | None

__version__: Final[str]

# The operations of Limiter._begin().
CLOCK_TOLERANCE_NS: Final[int]
"""How far a state may lie ahead of the clock before the clock is assumed to have gone back."""
HIT: Final[int]
PEEK: Final[int]
REFUND: Final[int]
RELEASE: Final[int]
RESET: Final[int]
FORGET: Final[int]
CHARGE: Final[int]
CHARGE_UP_TO: Final[int]
RESERVE: Final[int]
SETTLE: Final[int]
RAISE: Final[int]
FOUND_NOTHING: Final[int]
FOUND_OPEN: Final[int]
FOUND_AGAIN: Final[int]
FOUND_SETTLED: Final[int]
FOUND_OTHER: Final[int]
FOUND_NO_ANSWER: Final[int]

class HeaderFields:
    """Templates of the rate-limit header fields; see fields_for() in web/headers.py.

    Immutable. `limiter` is the limiter whose clock gives the time. `ietf` says whether
    RateLimit-Policy and RateLimit are sent.
    """

    def __init__(
        self,
        limiter: Limiter | RuleLimiter,
        limits: Sequence[Limit],
        x_ratelimit: bool,
        ietf: bool,
        openai: bool = False,
    ) -> None: ...

def policy_member(limit: Limit) -> bytes:
    """Returns the member of RateLimit-Policy for `limit`."""

@final
class KeyChecker:
    """Charges a request to a key and makes its RequestDecision, of type `kind`, in one call."""

    def __new__(
        cls,
        kind: type[RequestDecision],
        limiter: Limiter,
        owner: Any,
        observers: Any,
        fields: HeaderFields,
        limits: Any,
        /,
    ) -> Self: ...
    def __call__(self, request: Any, key: str | bytes | None, cost: int, /) -> Any: ...

@final
class RuleChecker:
    """Charges a request by rules and makes its RequestDecision, of type `kind`, in one call."""

    def __new__(
        cls,
        kind: type[RequestDecision],
        limiter: RuleLimiter,
        owner: Any,
        observers: Any,
        start: bytes,
        /,
    ) -> Self: ...
    def __call__(self, request: Any, cost: int, attributes: dict[str, Any] | None, /) -> Any: ...

class ManualClock:
    """The clock behind tidegate.ManualClock; see there."""

    def __init__(self, start_ns: int = 0) -> None: ...
    def advance(self, seconds: float) -> None:
        """Moves the clock by `seconds`, rounded to the nanosecond; back if negative."""
    def advance_ns(self, ns: int) -> None:
        """Moves the clock by `ns` nanoseconds; back if negative."""
    def set_ns(self, ns: int) -> None:
        """Sets the clock, clamped to [0, 2**62]."""
    def now_ns(self) -> int:
        """Nanoseconds since the epoch."""

class Store:
    """The store of limiters' counts. Limiters of one store and prefix share counts."""

    @property
    def kind(self) -> str:
        """The kind of the store: memory, shm or redis."""
    @property
    def name(self) -> str:
        """The name in logs and metrics: the kind, or the URI of a Redis without secrets."""
    @property
    def blocks(self) -> bool:
        """Whether calls wait for something outside the process."""
    @property
    def spans_processes(self) -> bool:
        """Whether several processes have the same counts, also parent and child of `fork()`."""
    @property
    def reads_clock(self) -> bool:
        """Whether the limiter's clock decides; otherwise the store has its own clock."""
    def ping(self) -> str | None:
        """Makes one round trip to the server, if there is one; None, or what is wrong."""
    def _clear(self) -> None: ...
    def _native(self) -> object: ...

class LocalStore:
    """A kind of store that needs no server. `uris` is what its URIs look like; with `has_place`
    they have a host or a path, which names the store, and `place` is that rule for messages."""

    uris: Final[str]
    has_place: Final[bool]
    place: Final[str]
    def open(self, place: str, capacity: int | None = None) -> Store:
        """Opens the store at `place`, or at "". Raises ConfigurationError if one is invalid."""

LOCAL_STORES: Final[dict[str, LocalStore]]

class ShmStore(Store):
    """A store that all processes of a host share: a mapped file of this user.

    `name` is an absolute path, or 1 to 100 of ``A-Z a-z 0-9 . _ -`` for a file under
    /dev/shm. The file is made if it does not exist. Raises ConfigurationError for an invalid name
    or capacity, StorageError if the file is refused or cannot be made.
    """

    def __init__(self, name: str, capacity: int | None = None) -> None: ...
    @staticmethod
    def path_of(name: str) -> str:
        """The path of the file with this `name`."""
    @staticmethod
    def remove(name: str) -> None:
        """Removes the name of a file of this user, by its name also of a damaged one.

        By an absolute path it removes only files of tidegate.
        """
    @property
    def path(self) -> str:
        """The path of the file."""
    @property
    def capacity(self) -> int:
        """Keys that fit without loss."""
    @property
    def bytes(self) -> int:
        """The size of the file."""
    def now_ns(self) -> int:
        """The time that all processes of the store agree on."""
    def counters(self) -> tuple[int, int, int]:
        """Cells in use, idle keys reclaimed, live keys evicted."""
    def census(self, busiest: int = 0) -> tuple[int, int, int, list[tuple[int, int, int]]]:
        """Live, idle and claimed cells; the fingerprints and ns to be full of the busiest."""

class Channel:
    """Tells an event loop which of its calls are finished."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """A descriptor that is readable when calls are finished."""
    def drain(self) -> None:
        """Resolves the futures of finished calls. Must be called in the loop's thread."""
    def _silence(self) -> None: ...
    def _kick(self) -> None: ...

class RedisStore(Store):
    """The store that a fleet shares: one round trip to one Redis for each decision.

    Its options are those of the URI. It begins to connect at once; an unreachable server is no
    error. Raises ConfigurationError for an invalid option. Calls release the GIL while they wait.
    It refers weakly to the functions among its options: someone else holds them.
    """

    def __init__(self, **options: Any) -> None: ...
    def command(self, words: Sequence[str | bytes], timeout: float = 1.0) -> Any:
        """Returns the reply as str, int, None and lists; an error or no reply: StorageError."""
    def _forget_refusals(self) -> None: ...
    @property
    def _leases(self) -> bool: ...
    def _lease_of(self, limit: Limit) -> tuple[float, str]: ...

class Limiter:
    """The base class of tidegate.Limiter; see there for keys, costs and errors."""

    def __init__(
        self, limits: Sequence[Limit], store: Store, clock: object, scope: str | bytes
    ) -> None: ...
    def hit(self, key: _Key, cost: int = 1) -> Decision:
        """Charges `cost` to `key` if the call may pass. A refusal charges nothing."""
    def allow(self, key: _Key, cost: int = 1) -> bool:
        """Like hit(), but returns only whether the call may pass: the fastest call."""
    def peek(self, key: _Key, cost: int = 1) -> Decision:
        """Returns the decision that a hit of `cost` would get now. Charges nothing."""
    def charge(self, key: _Key, cost: int) -> Decision:
        """Charges all of `cost` to `key`, and refuses nothing: what finds no room is owed."""
    def charge_up_to(self, key: _Key, cost: int) -> Decision:
        """Like charge(), but charges only as much of `cost` as there is room for."""
    def reset(self, key: _Key) -> None:
        """Forgets what `key` has used. What a quota's key has bought or carried stays."""
    def forget(self, key: _Key) -> None:
        """Makes `key` a new key: deletes a quota's top-ups and carried units too."""
    def refund(self, key: _Key, cost: int = 1, *, decision: Decision | None = None) -> None:
        """Gives units back; with the `decision` of a hit, exactly where it charged them."""
    @overload
    def hit_many(
        self, keys: Sequence[str | bytes], costs: Iterable[int] | None = None
    ) -> list[bool]: ...
    @overload
    def hit_many(self, keys: Any, costs: Any = None) -> Any:
        """Hits each key in order; returns which of them may pass.

        A list of bool for a sequence, a NumPy array of bool for a NumPy array. If a key or cost is
        invalid, nothing is charged.
        """
    def _peek_fallback(self, key: _Key) -> tuple[Limit, int]:
        """The first limit as the fallback grants it, and the nanoseconds until `key` is full."""
    def _check(self, key: _Key, cost: int) -> None: ...
    def _release(self, key: _Key, cost: int, decision: Decision) -> None: ...
    def _extend(self, key: _Key, cost: int, decision: Decision) -> Decision | None: ...
    def _now_ns(self) -> int: ...
    def _stats(self) -> dict[str, Any]: ...
    def _refused(self) -> list[int]: ...
    def _refused_in_shadow(self) -> list[int]: ...
    _lines: dict[Any, Any]
    _is_expiring: bool
    def _begin(
        self,
        op: int,
        key: _Key,
        cost: int,
        admitted: Decision | None,
        loop: AbstractEventLoop,
        channel: Channel,
        /,
    ) -> Decision | Future[Any] | None:
        """Begins a call on the loop; returns its result, or a future of it."""
    def _close(self) -> None: ...
    @staticmethod
    def _add_fast_methods(type: type[Limiter]) -> None: ...

class Plan:
    """The base class of tidegate.Plan; see there."""

    def __init__(self, limiters: tuple[Limiter, ...]) -> None: ...
    def hit(self, keys: Sequence[_Key], costs: _Costs = None, outcomes: bool = False) -> Decision:
        """Charges each limiter its cost under its key, or none of them."""
    def peek(self, keys: Sequence[_Key], costs: _Costs = None, outcomes: bool = False) -> Decision:
        """Returns what hit() would decide."""
    def charge(self, keys: Sequence[_Key], costs: Sequence[int]) -> Decision:
        """Charges each limiter all of its cost under its key, and refuses nothing."""
    _is_expiring: bool
    def _reserve_at_once(
        self, kind: type[_Live], keys: Sequence[_Key], estimates: Sequence[int], ttl_ns: int
    ) -> _Live | None: ...
    def _reserved(
        self,
        op: int,
        whose: Sequence[_Key],
        units: Sequence[int],
        reservation: Reservation,
        loop: AbstractEventLoop | None = None,
        channel: Channel | None = None,
    ) -> Any:
        """Makes a call of a reservation; with a loop, returns a future if it must be waited for."""
    def _begin(
        self,
        op: int,
        keys: Sequence[_Key],
        costs: _Costs,
        outcomes: bool,
        loop: AbstractEventLoop,
        channel: Channel,
    ) -> Decision | Future[Decision]:
        """Begins a hit, a peek or a charge on the loop."""

class Reservation:
    """What one call of a reservation knows of it, and has found."""

    admitted_ns: int
    parts: list[tuple[int, int, int, int]]
    def __init__(
        self,
        id: bytes,
        ttl_ns: int = 0,
        admitted_ns: int = 0,
        parts: Sequence[tuple[int, int]] = ...,
        gives_back: bool = False,
        unrecorded: bool = False,
    ) -> None: ...

_Live = TypeVar("_Live", bound=LiveReservation)

def add_live_methods(kind: type[LiveReservation], /) -> None:
    """Has a subclass call the methods without a detour."""

def reserve_at_once(
    kind: type[_Live], owner: Any, whose: Any, units: Any, ttl_ns: int, /
) -> _Live | None:
    """Reserves units that are settled without a record; None if that needs one."""

def reservation_of_hit(
    kind: type[_Live], limiter: Limiter, key: _Key, units: int, decision: Decision, first: int, /
) -> _Live | None:
    """What the hit of `decision` has charged, as a reservation; None if that needs a record."""

def charged_by(
    decision: Decision, first: int, count: int, cost: int
) -> tuple[int, list[tuple[int, int]]]:
    """When the hit of `decision` was made, and the units that it charged to each of `count` limits
    from `first` on, with the instant until which they count."""

def call_reserved(
    limiter: Limiter,
    op: int,
    key: _Key,
    units: int,
    reservation: Reservation,
    loop: AbstractEventLoop | None = None,
    channel: Channel | None = None,
) -> Any:
    """Makes a call of a reservation; with a loop, returns a future if it must be waited for."""

def limit_of_rule(limit: Limit, rule: str) -> Limit:
    """Returns the same limit as a rule's: decisions then name the rule."""

def parse_many(text: str, *, algorithm: Algorithm = "token-bucket") -> list[Limit]:
    """Reads limits separated by ``;``, ``,`` or ``|``."""

def replay(
    limits: Sequence[Limit], keys: list[Any], times_ns: list[int], costs: Any, used: Any = None
) -> list[Decision]:
    """See tidegate.replay()."""

class ReplayRun:
    """A replay of columns of NumPy, whose requests are taken chunk by chunk.

    `times_ns` and `order`, the positions of the requests by time or None, are int64. `answers`
    has the columns that are wanted, by name, with one item for each request: allowed (uint8),
    remaining, retry_after_ns, delay_ns and waited_ns (int64), few_remaining, rule and attempts
    (uint32). few_remaining is remaining, if all units are below 2**32. `clients` is how clients
    react; without them, retry_after_ns and delay_ns hold zeros before. Not thread-safe.
    """

    @staticmethod
    def of_limits(
        limits: list[Limit],
        keys: list[Any],
        counts: list[int],
        costs: list[Any],
        used: list[Any],
        times_ns: Any,
        order: Any,
        answers: dict[str, Any],
        clients: dict[str, Any] | None,
    ) -> ReplayRun:
        """Replays limits. Each has a number of keys, and columns of codes, costs and used costs."""
    @staticmethod
    def of_rules(
        rules: RuleSet,
        attributes: list[tuple[str, Any, list[bytes | None]]],
        costs: Any,
        times_ns: Any,
        order: Any,
        answers: dict[str, Any],
        clients: dict[str, Any] | None,
    ) -> ReplayRun:
        """Replays rules; an attribute is a name, codes, and the values of the codes."""
    def run(self, to: int) -> None:
        """Decides the requests up to number `to`, without the GIL."""
    def finish(self, most: int) -> bool:
        """Decides at most `most` of the remaining attempts; returns whether none remains."""
    @property
    def names(self) -> list[str]:
        """The values of the codes of the answers' rules, as far as the replay has come."""
    @property
    def attempts(self) -> int:
        """Calls that reached the limiter; -1 if clients do not react."""
    @property
    def refused_attempts(self) -> int:
        """The refused calls among these; -1 if clients do not react."""

def least_limits(shape: Limit, codes: Any, keys: int, times_ns: Any, costs: Any) -> Any:
    """See tidegate.tuning.least_limits()."""

def number_ints(keys: Any) -> tuple[Any, Any]:
    """Returns codes of an array of ints, and the position at which each key first came."""

def number_fixed(keys: Any) -> tuple[Any, Any]:
    """Like number_ints(), of an array of str or bytes of one width."""

def number_objects(keys: list[Any]) -> tuple[Any, Any, int]:
    """Like number_ints(), of a list of str and bytes; and the position of a non-key, or -1."""

def arrow_column(column: Any) -> tuple[str, Any, Any, int]:
    """Reads a column with the PyCapsule interface of Arrow: its kind, codes or ints, the names of
    codes (of ints whether they are unsigned, of times unit and zone), and the first null or -1."""

def scan_times(times_ns: Any, most: int) -> tuple[int, bool, int, int, bool]:
    """Returns the position of the first time below 0 or beyond `most`, or -1; whether all are in
    order; the first and the last; whether one is not a whole number of milliseconds."""

def count_by_key(codes: Any, keys: int, marks: Any) -> tuple[Any, Any]:
    """Counts how often each code comes, and how often with a mark (uint8) that is not 0."""

def native_clock(clock: object) -> object:
    """Returns the clock of a limiter, in a capsule for another extension module."""

def system_now_ns() -> int:
    """Returns limiters' system clock in ns: Unix time at the start, continued monotonically."""

def peer_of(request: Any, /) -> str | None:
    """Returns the address that a request's connection came from if it is ASCII without a colon."""

def add_attributes(request: Any, attributes: _Attributes, /) -> bool:
    """Sets endpoint, method and ip of a plain ASGI request where missing; False for others."""

@final
class BoundRules:
    """One rule set with its limits bound to a store; its decisions keep it alive."""

class RuleSet:
    """Rules, compiled: see tidegate.RuleSet."""
    @staticmethod
    def _compile(
        spec: dict[str, Any], kept: RuleSet | None = None
    ) -> tuple[RuleSet | None, list[tuple[str, str]]]: ...
    @staticmethod
    def _spec_bytes(spec: dict[str, Any]) -> bytes: ...
    @staticmethod
    def _compile_bytes(bytes: bytes) -> tuple[RuleSet | None, list[tuple[str, str]]]: ...
    @property
    def _attributes(self) -> list[str]: ...
    @property
    def _override_bytes(self) -> int: ...
    @property
    def _rule_ids(self) -> list[str]: ...

class RuleLimiter:
    """The base class of the limiter of a rule set."""
    def __init__(
        self,
        rules: RuleSet,
        store: Store,
        clock: object,
        scope: _Key,
        hidden: frozenset[str],
        usage_costs: dict[int, Any],
    ) -> None: ...
    def check(self, *, cost: int = 1, **attributes: str | bytes | None) -> Decision:
        """Charges all limits that the rules have for a request with these attributes, or none.
        Raises ArgumentTypeError for a wrong attribute, ConfigurationError for a cost below 1.
        """
    def peek(self, *, cost: int = 1, **attributes: str | bytes | None) -> Decision:
        """Returns the decision that check() would get now. Charges nothing."""
    _in_python: bool
    def _check(self, **attributes: Any) -> Decision: ...
    def _peek(self, **attributes: Any) -> Decision: ...
    def _use(self, rules: RuleSet, hidden: frozenset[str], usage_costs: dict[int, Any]) -> None: ...
    def _usage_cost(self, attributes: _Attributes, decision: Decision | None) -> Any: ...
    _is_expiring: bool
    def _reserve_at_once(
        self, kind: type[_Live], whose: Any, units: int, ttl_ns: int
    ) -> _Live | None: ...
    def _reservation_of_check(
        self, kind: type[_Live], whose: Any, attributes: _Attributes, decision: Decision
    ) -> _Live | None: ...
    def _charged_by(
        self, attributes: _Attributes, decision: Decision
    ) -> tuple[int, list[tuple[int, int]]]: ...
    _bound: Any
    def _charge(self, attributes: _Attributes) -> Decision: ...
    def _refund(self, attributes: _Attributes, decision: Decision | None) -> None: ...
    def _release(self, attributes: _Attributes, decision: Decision) -> None: ...
    def _extend(self, attributes: _Attributes, decision: Decision) -> Decision | None: ...
    def _refund_cost(self, attributes: _Attributes) -> None: ...
    def _reset(self, attributes: _Attributes, op: int, rules: list[str] | None = None) -> None: ...
    def _bring_forward(self, attributes: _Attributes) -> None: ...
    def _call_reserved(
        self,
        op: int,
        attributes: _Attributes,
        units: int | None,
        reservation: Reservation,
        decision: Decision | None,
        loop: AbstractEventLoop | None,
        channel: Channel | None,
    ) -> Any: ...
    def _begin(
        self,
        op: int,
        attributes: _Attributes,
        decision: Decision | None,
        loop: AbstractEventLoop,
        channel: Channel,
    ) -> Decision | Future[Any] | None: ...
    def _explain(
        self, attributes: _Attributes
    ) -> list[tuple[str, bool, str, bytes | None, list[Limit]]]: ...
    def _quotas(self, attributes: _Attributes) -> list[tuple[str, int, _QuotaStatus]]: ...
    def _top_up(
        self, attributes: _Attributes, quota: str, units: int, expires_s: int | None, priority: int
    ) -> None: ...
    def _take_quota_events(self) -> list[tuple[str, bytes, int, int, int, int]]: ...
    def _match(
        self, attributes: _Attributes, times: int = 1
    ) -> tuple[str | None, list[tuple[str, bytes]], int, str]: ...
    def _set_load_factor(self, priority: str, factor: float) -> None: ...
    def _load_factor(self, priority: str) -> float: ...
    def _stats(self) -> dict[str, Any]: ...
    def _rule_stats(self) -> list[tuple[str, int, int, int]]: ...
    def _native(self) -> object: ...
    def _now_ns(self) -> int: ...
    def _close(self) -> None: ...
    @staticmethod
    def _add_fast_methods(type: type[RuleLimiter], /) -> None: ...

def quota_status(limiter: Any, quota: int, key: _Key) -> _QuotaStatus:
    """base, carried, topped up, used, available, resets at; grants: kind, units, left, end, rank"""

def quota_top_up(
    limiter: Any, quota: int, key: _Key, units: int, expires_s: int | None, priority: int
) -> None:
    """Adds bought units to what `key` has."""

def quota_bring_forward(limiter: Any, key: _Key) -> None:
    """Records the state of `key` under the limiter's present terms."""

def take_quota_events(limiter: Any) -> list[tuple[int, bytes, int, int, int, int]]:
    """Returns for each event the quota's index, key, percent, used, available, when it resets."""
