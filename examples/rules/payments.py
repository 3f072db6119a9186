"""A payment API: limits for each merchant by tier, under a ceiling that all share.

python examples/rules/payments.py
"""

from __future__ import annotations

from pathlib import Path

import tidegate as tg
from tidegate.rules import RuleSet, Tiers

RULES = Path(__file__).with_suffix(".yaml")
# A real service would use a database: Tiers also accepts a function and caches its answers.
PLANS = {"m-1": "enterprise", "m-2": "enterprise", "m-3": "enterprise"}


def main() -> None:
    clock = tg.ManualClock(0)
    limiter = tg.Limiter(
        rules=RuleSet.load(RULES),
        tiers=Tiers(PLANS, by="merchant"),
        # A real service would use storage="redis://..." without a clock. While Redis does not
        # answer, each of eight instances decides alone, with fallback_share=0.1 for a tenth.
        clock=clock,
    )
    passed = {"small": 0, "m-1": 0, "m-2": 0, "m-3": 0}
    refused_by: dict[tuple[str, str | None], int] = {}
    for merchant in passed:
        for _ in range(6000):
            decision = limiter.check(merchant=merchant, endpoint="/v1/charges")
            if decision:
                passed[merchant] += 1
            else:
                refused_by[merchant, decision.rule] = (
                    refused_by.get((merchant, decision.rule), 0) + 1
                )
    print("Four merchants ask 6,000 times each, in one instant:")
    for merchant, count in passed.items():
        print(f"  {merchant:5}  {count:5,} passed")
    print("Whose requests were refused, and by which rule:")
    for (merchant, rule), count in refused_by.items():
        print(f"  {merchant:5}  {count:5,} by {rule}")


if __name__ == "__main__":
    main()
