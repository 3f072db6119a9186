"""What a recommendation is to keep, and how sure it is to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidegate.limiter.errors import ArgumentTypeError, ConfigurationError
from tidegate.tuning.columns import shown
from tidegate.tuning.promise import Promise, Shape
from tidegate.tuning.requests import as_share, limit_of
from tidegate.types import ALGORITHMS

if TYPE_CHECKING:
    from tidegate.tuning.requests import Period
    from tidegate.types import Algorithm

__all__ = ["Goal"]

_DEFAULT_SHARE = 0.001


@dataclass(frozen=True)
class Goal:
    """The checked arguments of recommend()."""

    promise: Promise
    shape: Shape
    confidence: float
    seed: int

    @classmethod
    def of(
        cls,
        refuse_clients: float | None,
        refuse_requests: float | None,
        period: Period,
        algorithm: Algorithm,
        confidence: float,
        seed: int,
    ) -> Goal:
        """Raises ConfigurationError for values that make no sense."""
        if refuse_clients is not None and refuse_requests is not None:
            raise ConfigurationError(
                f"refuse_clients is {refuse_clients} and refuse_requests is {refuse_requests}; "
                "expected one of the two"
            )
        if refuse_requests is not None:
            promise = Promise("requests", as_share(refuse_requests, "refuse_requests"))
        else:
            share = _DEFAULT_SHARE if refuse_clients is None else refuse_clients
            promise = Promise("clients", as_share(share, "refuse_clients"))
        shape = limit_of(1, period, algorithm)
        if algorithm == "concurrency":
            others = ", ".join(each for each in ALGORITHMS if each != algorithm)
            raise ConfigurationError(
                "the algorithm is 'concurrency', which depends on how long calls last; "
                f"expected {others}"
            )
        if as_share(confidence, "confidence", "0.95, which is 95 %") == 0:
            raise ConfigurationError("confidence is 0; expected a share such as 0.95")
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise ArgumentTypeError(f"seed is {shown(seed)}; expected an int from 0 up")
        return cls(promise, Shape(period, shape.algorithm), float(confidence), int(seed))
