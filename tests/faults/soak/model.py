"""Models the answers about one user, whose limit does not refill while the soak runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

LIMIT = 20
PERIOD_DAYS = 30
# Clients check each user until it has been refused a few times.
CALLS = LIMIT + 5


@dataclass
class Answer:
    """The answer to a check, by any protocol."""

    allowed: bool
    limit: int | None
    remaining: int | None
    has_wait: bool
    resets_in: float
    degraded: bool
    rule: str


@dataclass
class User:
    """A user of the rule `api`, with the answers about it so far."""

    name: str
    is_shared: bool = False
    """Several clients check this user at once, so the order of the answers is not known."""
    forgets: int = 0
    """How often the store may lose its counts; the limit then starts from zero."""
    calls: int = 0
    admitted: int = 0
    admitted_degraded: int = 0
    is_exact: bool = True
    """The store decided all calls, and each call was answered."""
    wrong: list[str] = field(default_factory=list)

    def note(self, answer: Answer) -> None:
        """Checks an answer, and adds each mistake to `wrong`."""
        self.calls += 1
        if answer.degraded:
            # If the store did not answer a call in time, it may have charged the call all the same.
            self.is_exact = False
        elif self.is_exact and not self.is_shared and not self.forgets:
            self._expect_exactly(answer)
        if answer.allowed and answer.degraded:
            self.admitted_degraded += 1
        elif answer.allowed:
            self.admitted += 1
        self._expect_possible(answer)

    def note_lost(self) -> None:
        """Records a call without an answer. The call may have been charged."""
        self.is_exact = False

    def finish(self) -> None:
        """Checks the counts after the last call."""
        is_used_up = self.is_exact and not self.forgets and self.calls >= CALLS
        if is_used_up and self.admitted != LIMIT:
            self.wrong.append(f"{self.name}: of {LIMIT}, only {self.admitted} were admitted")

    def _expect_exactly(self, answer: Answer) -> None:
        allowed = self.admitted < LIMIT
        remaining = LIMIT - self.admitted - 1 if allowed else 0
        if (answer.allowed, answer.remaining) != (allowed, remaining):
            self.wrong.append(
                f"{self.name}: call {self.calls} returned {answer.allowed} with "
                f"{answer.remaining} remaining; expected {allowed} with {remaining}"
            )

    def _expect_possible(self, answer: Answer) -> None:
        most = LIMIT * (1 + self.forgets)
        if self.admitted > most:
            self.wrong.append(f"{self.name}: the store admitted {self.admitted} of {most}")
        if self.admitted_degraded > LIMIT:
            self.wrong.append(
                f"{self.name}: the fallback admitted {self.admitted_degraded} of {LIMIT}"
            )
        if (answer.limit, answer.rule, answer.has_wait) != (LIMIT, "api", not answer.allowed):
            self.wrong.append(f"{self.name}: an answer that fits no request: {answer}")
        if not -2 <= answer.resets_in <= PERIOD_DAYS * 86_400 + 2:
            self.wrong.append(f"{self.name}: resets in {answer.resets_in:.0f} s")


def seconds_until(instant: float) -> float:
    """Returns the seconds from now until an instant, by the wall clock."""
    return instant - time.time()
