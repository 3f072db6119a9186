"""What came of a fault, as far as each campaign tells it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class FaultVerdict:
    name: str
    says: str
    seconds: float = 0.0
    calls: int = 0
    degraded: int = 0
    recovery_s: float | None = None
    broken: list[str] = field(default_factory=list)
    """The laws that broke."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
