"""A concert ends: every rider opens the app at once, and keeps tapping.

python examples/rules/ride_hailing.py
"""

from __future__ import annotations

from pathlib import Path

import tidegate as tg
from tidegate.rules import RuleSet

RULES = Path(__file__).with_suffix(".yaml")


def client_of(api_key: str | None = None, user: str | None = None, ip: str = "unknown") -> str:
    """The most trusted identity of a request. An unverified claim of a client is not a key."""
    if api_key is not None:
        return f"key:{api_key}"
    return f"user:{user}" if user is not None else f"ip:{ip}"


def main() -> None:
    clock = tg.ManualClock(0)
    limiter = tg.Limiter(rules=RuleSet.load(RULES), clock=clock)

    asked = passed = 0
    for _ in range(100):  # ten seconds
        for rider in range(50):
            for _ in range(5):
                asked += 1
                passed += bool(
                    limiter.check(client=client_of(user=str(rider)), endpoint="/api/rides/request")
                )
        clock.advance(0.1)
    print(
        f"50 riders ask for {asked:,} rides in ten seconds; {passed:,} reach the matching service."
    )

    updates = [limiter.check(endpoint="/api/drivers/location") for _ in range(6000)]
    queued = [update for update in updates if update]
    print(
        f"6,000 drivers' positions arrive at once: {len(queued):,} are queued, the last of them "
        f"for {queued[-1].delay:.2f} s; {len(updates) - len(queued):,} are refused."
    )


if __name__ == "__main__":
    main()
