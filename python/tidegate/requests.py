"""An adapter of requests that calls APIs within their limits.

::

    partner = tidegate.Limiter("45/second burst 1")  # an even pace, below what the API allows
    session = requests.Session()
    session.mount("https://api.example.org", RateLimitAdapter(limiter=partner))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tidegate.limiter.errors import without_extra

try:
    from requests.adapters import BaseAdapter, HTTPAdapter
    from requests.exceptions import UnrewindableBodyError
    from requests.utils import rewind_body
except ImportError as error:
    raise without_extra("tidegate.requests", "requests", error) from None

from tidegate.limiter.errors import ArgumentTypeError
from tidegate.outbound.pacing import Pacing, shows_options

if TYPE_CHECKING:
    from requests import PreparedRequest, Response
    from typing_extensions import Unpack

    from tidegate.outbound.pacing import PacingOptions

__all__ = ["RateLimitAdapter"]


class RateLimitAdapter(BaseAdapter):  # type: ignore[misc]
    """Sends requests through `adapter`, within a limit, and again after a 429.

    The options are those of tidegate.httpx.RateLimitTransport: `limiter`, `key`, `timeout`,
    `retries`, `max_wait`, `backoff`, `jitter` and `learn`. `adapter` is requests' HTTPAdapter() by
    default: connections and their retries are its options. Raises ConfigurationError at
    construction for invalid arguments.
    """

    @shows_options
    def __init__(
        self, adapter: BaseAdapter | None = None, **options: Unpack[PacingOptions]
    ) -> None:
        super().__init__()
        if adapter is not None and not hasattr(adapter, "send"):
            raise ArgumentTypeError(
                f"the adapter is {adapter!r} of type {type(adapter).__name__}; expected an adapter "
                "of requests, such as HTTPAdapter()"
            )
        self._pacing = Pacing(_host_of, options)
        self._adapter = HTTPAdapter() if adapter is None else adapter

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        """Sends the request, as requests asks of adapters."""
        response: Response = self._pacing.send(
            request, lambda: self._adapter.send(request, *args, **kwargs), _rewound
        )
        return response

    def close(self) -> None:
        """Closes the wrapped adapter."""
        self._adapter.close()


def _rewound(request: PreparedRequest) -> bool:
    """Whether the body can be sent again."""
    if request.body is None or isinstance(request.body, (str, bytes)):
        return True
    try:
        rewind_body(request)
    except UnrewindableBodyError:
        return False
    return True


def _host_of(request: PreparedRequest) -> str:
    return urlsplit(request.url or "").hostname or "-"
