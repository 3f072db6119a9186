"""Tiers, the costs of operations, and a change of the rules while the service runs.

python examples/rules/tiers.py
"""

from __future__ import annotations

from pathlib import Path

import tidegate as tg
from tidegate.rules import RuleSet, Tiers

RULES = Path(__file__).with_suffix(".yaml")


def tier_of(user: str) -> str | None:
    """A real service would query a database, once a minute for each user."""
    return {"bea": "premium"}.get(user)


def main() -> None:
    limiter = tg.Limiter(
        rules=RuleSet.load(RULES), tiers=Tiers(tier_of, ttl=60), clock=tg.ManualClock(0)
    )
    for user in ("ada", "bea", "acme"):
        deleted = 0
        while deleted < 2000 and limiter.check(user=user, method="DELETE", endpoint="/api/posts"):
            deleted += 1
        print(f"{user} deletes {deleted:,} posts in an instant")

    for considered in limiter.explain(user="ada", endpoint="/api/search", method="GET"):
        why = f": {considered.why}" if considered.why else ""
        print(f"  {considered.rule} {'applies' if considered.applies else 'does not apply'}{why}")

    # A raised limit takes effect at once, and usage stays.
    limiter.use(RuleSet.parse(RULES.read_text().replace("free: 100/minute", "free: 150/minute")))
    left = limiter.peek(user="ada", method="GET", endpoint="/api/posts").remaining
    print(f"with 150 instead of 100 a minute, ada has {left} left")


if __name__ == "__main__":
    main()
