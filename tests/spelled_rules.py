"""Rules of three routes, for tests of how a request's path may be spelled."""

from __future__ import annotations

from tidegate.rules import RuleSet

LIMIT = {"by": "global", "limit": "1000000/hour"}
RULES = RuleSet(
    {
        "rules": [
            {"id": "login", "endpoint": "/login", **LIMIT},
            {"id": "items", "endpoint": "/items/{id}", **LIMIT},
            {"id": "files", "endpoint": "/files/**", **LIMIT},
        ]
    }
)
