"""Helpers for the tests of a service: limits off or reset, and assertions about responses.

::

    def test_login_is_limited(client):
        tidegate.testing.reset_all()
        for _ in range(5):
            assert_allowed(client.post("/login"))
        assert_refused(client.post("/login"), limit="5/minute")

The fixtures of tidegate.pytest_plugin do the same for pytest. The environment variable
``TIDEGATE_ENABLED=0`` switches all limits of requests off as well.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import missing
from tidegate.limiter.storage.uri import clear_open_stores
from tidegate.web.configuration import configured
from tidegate.web.switch import switch

if TYPE_CHECKING:
    from tidegate._core import Limit

__all__ = ["assert_allowed", "assert_refused", "configured", "limits_off", "limits_on", "reset_all"]


def reset_all() -> None:
    """Makes all keys of all limiters as if they had never been charged, as far as this process
    alone counts them.

    These are all ``memory://`` storages, and for Redis the fallback and the remembered refusals.
    Counts in Redis and ``shm://`` belong to other processes too and stay: give tests a storage, or
    a `prefix`, of their own.
    """
    clear_open_stores()


@contextlib.contextmanager
def limits_off() -> Iterator[None]:
    """Within it no request of the process is limited or charged, in any adapter.

    A Limiter that is called directly is not affected. Of several blocks that are open at once, in
    threads or tasks, the one that was entered last decides, for all.
    """
    with _switched(on=False):
        yield


@contextlib.contextmanager
def limits_on() -> Iterator[None]:
    """Within it requests are limited, also inside limits_off() and whatever TIDEGATE_ENABLED
    says."""
    with _switched(on=True):
        yield


@contextlib.contextmanager
def _switched(*, on: bool) -> Iterator[None]:
    # Blocks of threads and tasks end in any order, so none can put back what it found.
    mine = _Block(on)
    with _changing:
        if not _open:
            _open.append(_Block(switch.on))
        _open.append(mine)
        switch.on = on
    try:
        yield
    finally:
        with _changing:
            _open.remove(mine)
            switch.on = _open[-1].on
            if len(_open) == 1:
                _open.clear()


class _Block:
    """What one open block says. Two that say the same are not equal."""

    __slots__ = ("on",)

    def __init__(self, on: bool) -> None:
        self.on = on


_changing = threading.Lock()
_open: list[_Block] = []  # in the order they were entered, after what was before the first


def assert_refused(
    response: Any, *, limit: str | Limit | None = None, retry_after: int | None = None
) -> None:
    """Asserts that a limit refused the request of `response`, one of any framework or client.

    `limit`, a Limit or its name, and `retry_after`, in whole seconds, are checked if given.
    """
    status, shown = _status(response), _rate_limit(response)
    assert status == 429, f"the response is a {status} ({shown}); expected a refusal, a 429"
    if limit is not None:
        named = limit if isinstance(limit, str) else limit.name
        name = response.headers.get("RateLimit", "")
        quoted = '"' + named.replace("\\", "\\\\").replace('"', '\\"') + '"'
        assert quoted in name, f"the refusal is by {shown}; expected the limit {named!r}"
    if retry_after is not None:
        wait = response.headers.get("Retry-After")
        assert wait == str(retry_after), f"the wait is {wait} s; expected {retry_after} s"


def assert_allowed(response: Any) -> None:
    """Asserts that no limit refused the request of `response`, whatever else its status says."""
    status = _status(response)
    assert status != 429, f"the response is a 429 ({_rate_limit(response)}); expected no refusal"


def _status(response: Any) -> int:
    for name in ("status_code", "status"):
        status = getattr(response, name, None)
        if isinstance(status, int):
            return status
    raise AssertionError(
        f"the response is {response!r} of type {type(response).__name__}; expected one with a "
        "status and headers"
    )


def _rate_limit(response: Any) -> str:
    return f"RateLimit: {response.headers.get('RateLimit', 'none')}"


# Type checkers are to find names that do not exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        elsewhere = {
            **dict.fromkeys(("clock", "freeze"), "from tidegate import ManualClock"),
            **dict.fromkeys(("disable", "disabled"), "from tidegate.testing import limits_off"),
            **dict.fromkeys(("clear", "reset"), "from tidegate.testing import reset_all"),
            **dict.fromkeys(("configure", "override"), "from tidegate.testing import configured"),
        }
        raise missing(__name__, name, elsewhere)
