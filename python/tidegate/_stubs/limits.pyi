"""Limits and decisions: a part of the stubs of tidegate._core, which has them when it runs."""

from datetime import timedelta
from typing import Any, Final, Literal, final, overload

from tidegate.types import Algorithm, Oversize

@final
class Decision:
    """The answer to a call; truthy if the call may pass.

    Immutable. Attributes are computed when they are read.
    """

    @property
    def allowed(self) -> bool:
        """Whether the call may pass."""
    @property
    def limit(self) -> int:
        """Capacity of the limit that binds: the limit that refused with the longest wait, else the
        limit with the least room left."""
    @property
    def remaining(self) -> int:
        """Whole units left now, from 0 up."""
    @property
    def retry_after(self) -> float:
        """Seconds after which the same call would pass, never early; 0.0 when allowed, inf
        if it never can (a cost beyond the capacity)."""
    @property
    def reset_after(self) -> float:
        """Seconds until the key is full again."""
    @property
    def delay(self) -> float:
        """Seconds that the caller of a leaky bucket should wait before proceeding; else 0.0."""
    @property
    def rule(self) -> str | None:
        """Name of the limit that binds, or id of its rule; None if no rule applies."""
    @property
    def degraded(self) -> bool:
        """Whether the decision was made without the shared store."""
    @property
    def leased(self) -> bool:
        """Whether it was decided by what the shared store had leased to this process."""
    @property
    def outcomes(self) -> tuple[Decision, ...]:
        """The decision of each limit, if the caller asked for them (see Plan.hit()); else empty. In
        a refused plan, the outcome of a limit with room is allowed, though nothing was
        charged. A pickled decision loses them."""
    @property
    def charged(self) -> int | None:
        """The units that charge() or charge_up_to() charged; None in decisions of other calls."""
    @property
    def debt(self) -> int:
        """Units owed beyond the limit that binds: calls are refused until they are paid."""
    @property
    def _index(self) -> int: ...
    @property
    def _charged_in(self) -> Literal["store", "fallback", "nowhere"]: ...
    def _from_limit(self, number: int, /) -> Decision: ...
    def _among(self, decisions: list[Decision], /) -> Decision: ...
    def _as_allowed(self) -> Decision: ...
    def _plan_key(self, start: bytes, /) -> bytes: ...
    _owner: Final[Any]
    _limit: Final[Limit]
    _behind: Final[bool]
    _policy: Final[str]
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

class Limit:
    """How many units may pass in what time, by which algorithm.

    ``Limit("100/minute")``, ``Limit("10/second burst 40")``, ``Limit(100, 60.0)`` or
    ``Limit(100, "minute")``. The grammar is ``COUNT (/|per) [N] UNIT [burst COUNT]``, with units
    ns, us, ms, s, m, h, d, w, month and year. A period is given in seconds or as a timedelta.
    `burst` (token-bucket and leaky-bucket only) defaults to `count`. Algorithms: token-bucket (or
    gcra), leaky-bucket, fixed-window, sliding-window, sliding-log, concurrency. A text that begins
    with ``quota`` is a quota: see ``tidegate.quotas.Quota``. `name`: 1 to 200 printable ASCII.
    A limit in `shadow` is counted but not enforced: it refuses nothing, and what it would have
    refused is in ``Stats.denied_in_shadow`` and in ``Decision.outcomes``. `id` identifies its usage
    instead of its text: when the number of such a limit changes, what was used stays.
    `max_debt`: the most units that a key may owe, math.inf for any; else ten times the capacity.
    A cost beyond the capacity is refused for ever, or with ``oversize="debt"`` passes when nothing
    of the key is used, and owes the rest, up to `max_debt`; not for concurrency and quotas.

    Immutable; equal and hashed by value. Raises ConfigurationError for invalid arguments.
    """

    @overload
    def __init__(
        self,
        limit: str,
        period: None = None,
        *,
        burst: int | None = None,
        algorithm: Algorithm = "token-bucket",
        name: str | None = None,
        shadow: bool = False,
        id: str | None = None,
        max_debt: float | None = None,
        oversize: Oversize = "refuse",
    ) -> None: ...
    @overload
    def __init__(
        self,
        limit: int,
        period: float | timedelta | str,
        *,
        burst: int | None = None,
        algorithm: Algorithm = "token-bucket",
        name: str | None = None,
        shadow: bool = False,
        id: str | None = None,
        max_debt: float | None = None,
        oversize: Oversize = "refuse",
    ) -> None: ...
    @property
    def count(self) -> int:
        """Units in a period."""
    @property
    def period(self) -> float:
        """The period in seconds; the lease of a concurrency limit."""
    @property
    def period_ns(self) -> int:
        """The period in nanoseconds."""
    @property
    def burst(self) -> int:
        """Units that a bucket holds; `count` for the other algorithms."""
    @property
    def capacity(self) -> int:
        """The most that can pass at once: `burst` of a bucket, else `count`."""
    @property
    def max_debt(self) -> int:
        """The most units that a key may owe beyond the capacity."""
    @property
    def oversize(self) -> Oversize:
        """What becomes of a cost beyond the capacity: ``refuse`` or ``debt``."""
    @property
    def id(self) -> str | None:
        """The id that identifies the limit's usage; None if its text does."""
    @property
    def shadow(self) -> bool:
        """Whether the limit is counted but not enforced."""
    @property
    def algorithm(self) -> Algorithm:
        """The canonical name of the algorithm."""
    @property
    def name(self) -> str:
        """The given name, else the limit's text."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
