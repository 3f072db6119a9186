"""What refused clients do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.tuning.columns import shown

__all__ = ["Clients", "as_clients"]


@dataclass(frozen=True)
class Clients:
    """How clients react to a refusal: made by never(), obey(), back_off() and hammer()."""

    reaction: str
    attempts: int = 1
    """The most attempts at one request, the first one included."""
    pause: float = 0.0
    factor: float = 1.0
    most_pause: float = 0.0
    jitter: float = 0.0
    seed: int = 0
    whole_seconds: bool = False

    def __post_init__(self) -> None:
        _check("attempts", self.attempts, 1, 2**32 - 1, whole=True)
        _check("pause", self.pause, 0, 1e9)
        _check("most_pause", self.most_pause, 0, 1e9)
        _check("factor", self.factor, 1, 1e9)
        _check("jitter", self.jitter, 0, 1)
        _check("seed", self.seed, 0, 2**64 - 1, whole=True)

    @classmethod
    def never(cls) -> Clients:
        """Clients that go away: each request is one attempt."""
        return cls("never")

    @classmethod
    def obey(
        cls,
        *,
        attempts: int = 10,
        jitter: float = 0.0,
        seed: int = 0,
        whole_seconds: bool = False,
    ) -> Clients:
        """Clients that wait as long as the refusal says, and retry.

        With `whole_seconds` they wait the whole seconds that the header field `Retry-After` has.
        With `jitter` each wait is longer by a random share of it, up to `jitter`. A request that
        can never pass is not retried.
        """
        return cls("obey", attempts=attempts, jitter=jitter, seed=seed, whole_seconds=whole_seconds)

    @classmethod
    def back_off(
        cls,
        *,
        base: float = 1.0,
        factor: float = 2.0,
        most: float = 60.0,
        jitter: float = 0.5,
        attempts: int = 10,
        seed: int = 0,
    ) -> Clients:
        """Clients that wait `base` seconds, and after each further refusal `factor` times as long.

        They wait at most `most` seconds. Each wait is shorter by a random share, up to `jitter`.
        """
        return cls(
            "back-off",
            attempts=attempts,
            pause=base,
            factor=factor,
            most_pause=most,
            jitter=jitter,
            seed=seed,
        )

    @classmethod
    def hammer(
        cls, *, pause: float = 0.1, attempts: int = 100, jitter: float = 0.0, seed: int = 0
    ) -> Clients:
        """Clients that retry after `pause` seconds, whatever the refusal says."""
        return cls("hammer", attempts=attempts, pause=pause, jitter=jitter, seed=seed)

    @property
    def react(self) -> bool:
        """Whether a refused client ever retries."""
        return self.reaction != "never"

    def _as_core_has_them(self) -> dict[str, Any] | None:
        if not self.react:
            return None
        return {
            "reaction": self.reaction,
            "attempts": self.attempts,
            "pause_ns": round(self.pause * 1e9),
            "most_pause_ns": round(self.most_pause * 1e9),
            "factor": float(self.factor),
            "jitter": float(self.jitter),
            "seed": self.seed,
            "whole_seconds": bool(self.whole_seconds),
        }


_BY_NAME = {
    "never": Clients.never,
    "obey": Clients.obey,
    "back-off": Clients.back_off,
    "hammer": Clients.hammer,
}


def as_clients(clients: str | Clients) -> Clients:
    """Returns the clients of a name, with default values. Raises for any other value."""
    if isinstance(clients, Clients):
        return clients
    if not isinstance(clients, str):
        raise ArgumentTypeError(
            f"the clients are {shown(clients)}; expected a name, such as 'obey', or "
            "tuning.Clients.obey(...)"
        )
    if clients not in _BY_NAME:
        raise ConfigurationError(
            f"the clients are {clients!r}; expected {', '.join(map(repr, _BY_NAME))}, or "
            "tuning.Clients.obey(...)"
        )
    return _BY_NAME[clients]()


def _check(name: str, value: Any, least: float, most: float, *, whole: bool = False) -> None:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ArgumentTypeError(
            f"{name} is {shown(value)}; expected {'an int' if whole else 'a number'}"
        )
    if not (math.isfinite(value) and least <= value <= most):
        raise ConfigurationError(f"{name} is {value}; expected {least} to {most}")
