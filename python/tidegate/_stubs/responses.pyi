"""The responses to requests: a part of the stubs of tidegate._core, which has them when it runs."""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Callable, final

from tidegate._stubs.limits import Decision
from typing_extensions import Self

@final
class HeaderSend:
    """A `send` of an ASGI server that adds the fields of a decision to the message with headers,
    which is copied first. Other messages are passed through unchanged."""

    def __new__(
        cls, send: Callable[[Any], Awaitable[None]], decision: RequestDecision, /
    ) -> HeaderSend: ...
    def __call__(self, message: Any, /) -> Awaitable[None]: ...

@final
class HeaderStart:
    """A `start_response` of a WSGI server that adds the fields of decisions, those of the last
    first. The decisions are read when the response starts."""

    def __new__(
        cls, start_response: Callable[..., Any], decisions: Sequence[RequestDecision], /
    ) -> HeaderStart: ...
    def __call__(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = ..., /
    ) -> Any: ...

class RequestDecision:
    """A decision on one request, and the header fields of its response.

    `decided_ns` is the instant of the decision, by the limiter's clock; None for the decision's own
    time. `extra_s` is added to the wait of a refusal. `limiter`, `limits` and `charges` are kept
    for the subclass, that of tidegate.web.request_limiter.

    The methods make the fields of a response that is sent now. Instants and durations are whole
    seconds, rounded up; an instant in the past is sent as now.
    """

    decision: Decision
    limiter: Any
    limits: Any
    _charges: Any
    _cost: Any  # that was charged

    def __new__(cls, *of: Any) -> Self: ...  # those of _make()
    @classmethod
    def _make(
        cls,
        fields: Any,  # HeaderFields
        decision: Decision,
        decided_ns: int | None,
        extra_s: float,
        limiter: Any,
        limits: Any,
        charges: Any,
        /,
    ) -> Self: ...
    @property
    def wait(self) -> int | None:
        """Whole seconds to wait after a refusal; None for other decisions, and if no wait helps."""
    def fields(self) -> list[tuple[bytes, bytes]]:
        """The fields in the form of ASGI, with names in lower case."""
    def merged(self, headers: Iterable[tuple[bytes, bytes]], /) -> list[tuple[bytes, bytes]]:
        """Returns the application's `headers` with the fields that it has not set: a value set
        nearer to the route is more specific. Fields that are lists are added in any case."""
    def put(self, headers: list[tuple[bytes, bytes]], /) -> None:
        """Puts the fields into `headers`, the list that a Starlette response shares, in place of
        existing ones: a response that a route returns repeatedly has those of the last request."""
    def text_fields(self) -> list[tuple[str, str]]:
        """The fields in the form of WSGI, with names as they are usually written."""
    def merged_text(self, headers: Iterable[tuple[str, str]], /) -> list[tuple[str, str]]:
        """Like merged(), for WSGI."""
