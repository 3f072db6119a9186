"""Rules that give each address places besides its units."""

from __future__ import annotations

from tidegate.rules import RuleSet

RULES = RuleSet(
    {
        "rules": [
            {"id": "calls", "by": "ip", "limit": "100/hour"},
            {
                "id": "places",
                "by": "ip",
                "limit": "2/minute",
                "algorithm": "concurrency",
                "also": True,
            },
        ]
    }
)
