"""Transports of httpx that call APIs within their limits.

::

    partner = tidegate.Limiter("45/second burst 1")  # an even pace, below what the API allows
    client = httpx.Client(transport=RateLimitTransport(limiter=partner))
    client = httpx.AsyncClient(transport=AsyncRateLimitTransport(limiter=partner))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.limiter.errors import without_extra

try:
    import anyio
    import httpx
except ImportError as error:
    raise without_extra("tidegate.httpx", "httpx", error) from None

from tidegate.limiter.errors import ArgumentTypeError
from tidegate.outbound.pacing import Pacing, shows_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tidegate.outbound.pacing import PacingOptions

__all__ = ["AsyncRateLimitTransport", "RateLimitTransport"]


class RateLimitTransport(httpx.BaseTransport):
    """Sends requests through `transport`, within a limit, and again after a 429.

    Each request waits for its turn at `limiter` (tidegate.Limiter), up to `timeout` seconds, and
    raises RateLimitExceeded if that does not come; then nothing was sent. It is charged to `key`,
    which may be a function of the request, by default the host.

    After a response of status 429 the request is sent again up to `retries` times (3), after the
    wait in its Retry-After, or else in its RateLimit fields. If it states none, the wait is
    `backoff` seconds (1), doubled each time; with None the request is not sent again. Up to
    `jitter` seconds (0.25) are added. If the wait is longer than `max_wait` seconds (60), or the
    body of the request is a stream that can be read only once, the caller gets the 429. A response
    of any status that says that nothing is left of a limit makes the next requests of the key wait
    until something is, up to `max_wait` seconds, unless `learn` is false.

    `transport` is httpx.HTTPTransport() by default: proxies, certificates and connections are its
    options. Raises ConfigurationError at construction for invalid arguments.
    """

    @shows_options
    def __init__(
        self, transport: httpx.BaseTransport | None = None, **options: Unpack[PacingOptions]
    ) -> None:
        self._pacing = Pacing(_host_of, options)
        _check(transport, "handle_request", "httpx.BaseTransport")
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request, as httpx asks of transports."""
        response: httpx.Response = self._pacing.send(
            request, lambda: self._transport.handle_request(request), _can_resend
        )
        return response

    def close(self) -> None:
        """Closes the wrapped transport."""
        self._transport.close()


class AsyncRateLimitTransport(httpx.AsyncBaseTransport):
    """A RateLimitTransport for httpx.AsyncClient, by default over httpx.AsyncHTTPTransport().

    A `limiter` needs asyncio.
    """

    @shows_options
    def __init__(
        self, transport: httpx.AsyncBaseTransport | None = None, **options: Unpack[PacingOptions]
    ) -> None:
        self._pacing = Pacing(_host_of, options)
        _check(transport, "handle_async_request", "httpx.AsyncBaseTransport")
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request, as httpx asks of transports."""
        attempt = 0
        while True:
            before = self._pacing.wait_before(request)
            if before > 0:
                await anyio.sleep(before)
            await self._pacing.wait_turn_async(request)
            response = await self._transport.handle_async_request(request)
            self._pacing.learn(request, response.status_code, response.headers)
            wait = self._pacing.wait_for_retry(response.status_code, response.headers, attempt)
            if wait is None or not _can_resend(request):
                return response
            await response.aclose()
            await anyio.sleep(wait)
            attempt += 1

    async def aclose(self) -> None:
        """Closes the wrapped transport."""
        await self._transport.aclose()


def _check(transport: object, method: str, expected: str) -> None:
    if transport is not None and not hasattr(transport, method):
        raise ArgumentTypeError(
            f"the transport is {transport!r} of type {type(transport).__name__}; "
            f"expected an {expected}"
        )


def _can_resend(request: httpx.Request) -> bool:
    return isinstance(request.stream, httpx.ByteStream)


def _host_of(request: httpx.Request) -> str:
    return request.url.host or "-"
