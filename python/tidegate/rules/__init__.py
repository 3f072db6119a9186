"""Rules: which limits apply to which requests.

    from tidegate.rules import RuleSet

    limiter = tidegate.Limiter(rules=RuleSet.load("rules.yaml"))
    limiter.check(user="42", tier="premium", endpoint="/api/posts", method="POST")

Needs the extra ``rules``: ``pip install 'tidegate[rules]'``.
"""

from __future__ import annotations

from tidegate.limiter.errors import without_extra

try:
    import pydantic  # noqa: F401
except ImportError as error:
    raise without_extra("tidegate.rules", "rules", error) from None

from tidegate.rules.file import RuleFile
from tidegate.rules.model import Cost, Default, ListEntry, Override, Rule
from tidegate.rules.problems import Problem, RulesError
from tidegate.rules.rule_set import RuleSet
from tidegate.rules.source import RuleSource
from tidegate.rules.tiers import Tiers

__all__ = [
    "Cost",
    "Default",
    "ListEntry",
    "Override",
    "Problem",
    "Rule",
    "RuleFile",
    "RuleSet",
    "RuleSource",
    "RulesError",
    "Tiers",
]
